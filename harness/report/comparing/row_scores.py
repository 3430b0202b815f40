"""Per-row scores of finished runs: per_row.npy, checked against manifest and record, one column at a time.

The mean of a column is the run's metric. `PSP@k` and `PSnDCG@k` are ratios of averages: a row's stored score is its
numerator over the *average* denominator. Its own denominator is the score of the oracle (true labels by falling
inverse propensity), which follows from the data and the propensity constants and is the same for every method.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness import metrics
from harness.arrays import load_array
from harness.data.prepare import load_matrix
from harness.errors import DataError, UserError
from harness.files import MANIFEST, home, read_manifest, require_listed
from harness.report.comparing.contenders import Contender, Run

Floats = NDArray[np.float64]

FILE = "per_row.npy"
RATIOS = ("PSP", "PSnDCG")
"""Families of metrics that are ratios of averages."""
_STORED = 1e-4
"""Percent by which the mean of a column of float32 may miss the metric it belongs to."""


class RowScores:
    """The per-row scores of one run, mapped into memory."""

    def __init__(self, run: Run) -> None:
        """Checks the file against the manifest and the record."""
        self._run = run
        self._path = run.folder / FILE
        self._names = run.record.per_row
        if not self._path.is_file():
            raise UserError(f"run {run.record.run_id} has no per-row scores ({FILE}); run it again to compare it")
        require_listed(run.folder, FILE)
        self._scores = load_array(self._path, 2, "f", mapped=True)
        if self._scores.dtype != np.float32 or self._scores.shape[1] != len(self._names) or not self.rows:
            raise DataError(
                f"{self._scores.dtype} of shape {self._scores.shape}, but the record names {len(self._names)} columns "
                "of float32; run it again",
                self._path,
            )

    @property
    def rows(self) -> int:
        """M."""
        return len(self._scores)

    def column(self, name: str) -> Floats:
        """The scores of all rows in one metric, percent, [M]."""
        scores: Floats = self._scores[:, self._names.index(name)].astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise DataError(f"{name} of row {bad[0]} is {scores[bad[0]]}, not a number; run it again", self._path)
        reported = self._run.record.metrics.get(name)
        if reported is None or abs(float(scores.mean()) - reported) > _STORED:
            raise DataError(
                f"the mean {name} of its rows is {scores.mean():.4f}, but the record says {reported}; "
                "scores and record are not of one run",
                self._path,
            )
        return scores


def mean_scores(contender: Contender, opened: dict[str, RowScores], name: str) -> Floats:
    """The mean over a contender's seeds of every row's score, [M]; `opened` by run id."""
    total = opened[contender.runs[0].record.run_id].column(name)
    for run in contender.runs[1:]:
        total += opened[run.record.run_id].column(name)
    return total / len(contender.runs)


def ideal_scores(run: Run, names: Sequence[str]) -> dict[str, Floats]:
    """The oracle's score of every test row, [M] of mean 100, in those of `names` that are ratios of averages.

    They need the prepared data of the run. It is looked for in the workspace by its digest, and never built for this;
    where it is not there, the result is empty.
    """
    ratios = [name for name in names if name.partition("@")[0] in RATIOS]
    digest, constants = run.record.dataset.get("digest"), run.record.dataset.get("propensity")
    if not ratios or not digest or not constants:
        return {}
    for path in sorted((home() / "cache" / "datasets").glob(f"*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        if manifest is not None and manifest.get("digest") == digest:
            labels = int(manifest["statistics"]["labels"])
            train, test = (load_matrix(path.parent, f"{split}.labels", labels) for split in ("train", "test"))
            weights = metrics.inverse_propensity(train, constants["a"], constants["b"])
            ks = sorted({int(name.partition("@")[2]) for name in ratios})
            oracle = metrics.per_row(metrics.oracle_topk(test, ks[-1], weights), test, weights, ks)
            return {name: oracle[name] for name in ratios}
    return {}
