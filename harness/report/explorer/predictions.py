"""The explorer's view of a dataset and a run: test rows with their true labels and predictions.

The data is found by the digest in a run's record, so names and cards do not matter; it is never built for this.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness import metrics
from harness.data.prepare import load_matrix
from harness.data.ragged import Texts
from harness.errors import DataError
from harness.io.arrays import load_array
from harness.io.files import require_listed
from harness.report.compare import Run

FILES = ("ids.npy", "scores.npy")
PER_ROW = 10
"""Predicted labels shown per row."""
HIT_BITS = 5
"""Predictions per row whose hits are stored in one character."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_STORED = 1e-3
"""Largest difference, in percentage points, between P@k of the predictions and of the record."""
DIGITS = 5
"""Significant digits of a score."""
_POWERS = np.array([float(f"1e{power}") for power in range(64)])
"""Powers of ten as the literals give them; those of `**` may be off in the last bit."""


@dataclass(frozen=True)
class Shown:
    """A dataset with the runs of it that are shown."""

    dataset: str
    title: str
    data: Path
    """Prepared folder of the dataset."""
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Prepared:
    """Texts and labels of a prepared dataset, memory-mapped if they are large."""

    texts: Texts
    """Texts of the test rows, [M]."""
    label_text: Texts
    """Texts of the labels, [L]."""
    label_id: Texts
    """Ids of the labels, [L]."""
    truth: csr_array
    """True labels of the test rows, [M, L]."""
    train_rows: NDArray[np.int64]
    """Number of train rows with each label, [L]."""
    bins: NDArray[np.int64]
    """Bin of each label, 0, 1, 2 for head, torso, tail as in `harness.metrics.contributions`, [L]."""

    def least(self, last_bin: int) -> int:
        """Return the fewest train rows of a label up to this bin; if there is none, more than any label has."""
        within = self.train_rows[self.bins <= last_bin]
        return int(within.min()) if len(within) else int(self.train_rows.max()) + 1


def open_prepared(folder: Path) -> Prepared:
    """Open a prepared folder."""
    label_text = Texts.load(folder, "labels.text")
    train = load_matrix(folder, "train.labels", len(label_text))
    return Prepared(
        texts=Texts.load(folder, "test.text"),
        label_text=label_text,
        label_id=Texts.load(folder, "labels.id"),
        truth=load_matrix(folder, "test.labels", len(label_text)),
        train_rows=np.bincount(train.indices, minlength=len(label_text)),
        bins=metrics.frequency_bins(train),
    )


@dataclass(frozen=True)
class Predictions:
    """Predicted labels of the R rows that are shown."""

    ids: NDArray[np.int32]
    """Label indices, best first, -1 for none, [R, PER_ROW]."""
    scores: NDArray[np.float64]
    """Rounded scores, NaN where there is no label, [R, PER_ROW]."""
    hits: str
    """One character of `ALPHABET` per row: bit i is set if prediction i is true."""


def read_predictions(run: Run, data: Prepared, rows: int) -> Predictions:
    """Read the predictions of a finished run for the first `rows` rows, `PER_ROW` of each, filled up with -1.

    All rows are counted, because P@k of the file must be that of the record: only then are predictions, truth and
    record of one run.
    """
    for name in FILES:
        require_listed(run.folder, name)
    place = run.folder / FILES[0]
    ids, scores = (load_array(run.folder / name, 2, kind, mapped=True) for name, kind in zip(FILES, "if", strict=True))
    if ids.shape != scores.shape:
        raise DataError(f"an array of shape {ids.shape} does not go with {scores.shape} of {FILES[1]}", place)
    found = metrics.ranks_of_truth(ids, data.truth, HIT_BITS)
    hit = np.zeros((len(ids), HIT_BITS), bool)
    hit[found.row, found.rank] = True
    for k in range(1, HIT_BITS + 1):
        reported, counted = run.record.metrics.get(f"P@{k}"), 100 * float(hit[:, :k].sum()) / (k * max(len(ids), 1))
        if reported is not None and not abs(counted - reported) <= _STORED:
            raise DataError(
                f"P@{k} of these predictions is {counted:.2f}, but the record says {reported:.2f}; they are not of one "
                "run",
                place,
            )
    bits = hit[:rows] @ (1 << np.arange(HIT_BITS))
    hits = np.frombuffer(ALPHABET.encode(), np.uint8)[bits].tobytes().decode()
    shown = _filled(ids[:rows, :PER_ROW], -1).astype(np.int32)
    values = _filled(scores[:rows, :PER_ROW].astype(np.float64), np.nan)
    return Predictions(shown, rounded(np.where(shown >= 0, values, np.nan)), hits)


def _filled(values: NDArray[Any], filler: float) -> NDArray[Any]:
    """Widen an array to [R, PER_ROW]."""
    return np.pad(values, ((0, 0), (0, PER_ROW - values.shape[1])), constant_values=filler)


def rounded(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Round scores to `DIGITS` significant digits, to doubles whose shortest text has no more; same shape.

    With x = d * 10^-p and a whole number d of `DIGITS` digits, the quotient d / 10^p is the double nearest to the
    decimal, because both are exact (up to p = 22: for |x| < 1e-18 the text may be longer). NaN and infinity stay.
    """
    exact = np.asarray(scores, np.float64)
    finite = np.where(np.isfinite(exact), exact, 0.0)
    size = np.where(finite == 0, 1.0, np.abs(finite))
    power = DIGITS - 1 - np.floor(np.log10(size)).astype(np.int64)
    scale = _POWERS[np.minimum(np.abs(power), len(_POWERS) - 1)]
    small = power >= 0
    whole = np.rint(np.where(small, finite * scale, finite / scale))
    return np.where(np.isfinite(exact), np.where(small, whole / scale, whole * scale), exact)
