"""What a run predicted for every test row, checked against its record."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness import metrics
from harness.arrays import load_array
from harness.errors import DataError
from harness.files import require_listed
from harness.report.comparing.contenders import Run
from harness.report.explorer.prepared import Prepared
from harness.report.explorer.scripts import rounded

FILES = ("ids.npy", "scores.npy")
HIT_BITS = 5
"""Predictions of a row whose hits are kept in one character."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_STORED = 1e-3
"""Percent by which P@k of the predictions may miss what the record says."""


@dataclass(frozen=True)
class Predictions:
    """The best labels of the rows that are shown."""

    ids: NDArray[np.int32]
    """Best first, -1 for none, [R, per row]."""
    scores: NDArray[np.float64]
    """Rounded; NaN where there is none, [R, per row]."""
    hits: str
    """One character of `ALPHABET` per row: bit i is set if prediction i is true."""


def read_predictions(run: Run, data: Prepared, rows: int, per_row: int) -> Predictions:
    """The first rows of a run's predictions.

    All rows are counted, because P@k of the file must be that of the record: only then are predictions, truth and
    record of one run.

    Args:
        run: A finished run on this data.
        data: Whose test rows were ranked.
        rows: Rows that are shown.
        per_row: Labels per row; fewer are filled up with -1.
    """
    for name in FILES:
        require_listed(run.folder, name)
    ids, scores = (load_array(run.folder / name, 2, mapped=True) for name in FILES)
    place = run.folder / FILES[0]
    if ids.shape != scores.shape or ids.dtype.kind != "i" or scores.dtype.kind != "f":
        raise DataError(f"{ids.dtype}{ids.shape} does not go with {scores.dtype}{scores.shape} of {FILES[1]}", place)
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
    shown = np.full((rows, per_row), -1, np.int32)
    values = np.full((rows, per_row), np.nan)
    width = min(per_row, ids.shape[1])
    shown[:, :width] = ids[:rows, :width]
    values[:, :width] = np.where(shown[:, :width] >= 0, scores[:rows, :width], np.nan)
    return Predictions(shown, rounded(values), hits)
