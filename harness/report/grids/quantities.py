"""What a column of a table is of a run: a metric, or what the run cost and how its batches looked.

|Q_B|       rows seen in training / steps
|L_B|       mean size of the pools, over the epochs
positives   mean positives of a query in its pool, in the last epoch
memory GB   peak memory of the process, or of the training where that has one of its own, 10^9 bytes; not of a GPU
hours       training alone
d           not recorded
"""

from collections.abc import Callable, Sequence

from harness import metrics
from harness.published import COLUMNS
from harness.record import RunRecord
from harness.report.evidence import is_number
from harness.report.marking import Direction

_Cost = Callable[[RunRecord], float | None]

_BYTES = 2**30 / 1e9
_BETTER: dict[str, Direction] = {"memory GB": "down", "hours": "down"}
_DIGITS = {"hours": 1, "|Q_B|": 0, "|L_B|": 0, "d": 0}


def better(column: str) -> Direction | None:
    """Which values of a column are good ones; None where neither is."""
    return _BETTER.get(column) if column in COLUMNS else "up"


def digits(column: str, largest: float | None = None) -> int:
    """Decimals that are worth showing; `largest` is the largest figure of a column of costs."""
    if column == "hours" and largest is not None and largest < 1:
        return 4
    return _DIGITS.get(column, 2)


def is_metric(column: str) -> bool:
    """Whether a column is a metric of `harness.metrics`, in percent."""
    return column in metrics.names(metrics.DEFAULT_KS, weighted=True)


def value(record: RunRecord, column: str, view: str | None = None) -> float | None:
    """The figure of a run in a column; None where it has none."""
    if column not in COLUMNS:
        scores = record.views.get(view, {}) if record.views and view else record.metrics
        return scores.get(column)
    found = _COSTS[column](record) if column in _COSTS else None
    return None if found is None else float(found)


def _batch(record: RunRecord) -> float | None:
    steps, epochs = record.training.get("steps"), record.training.get("epochs")
    rows = record.augmentation.get("rows") or _trained_rows(record)
    if not steps or not epochs or not rows or len(record.training.get("stages", [])) > 1:
        return None
    return float(rows * epochs / steps)


def _trained_rows(record: RunRecord) -> float:
    """Train rows without those held out."""
    rows = record.dataset.get("statistics", {}).get("train") or 0
    held = record.config.get("validation", {}).get("size") or 0
    return float(rows - (round(held) if held >= 1 else round(held * rows)))


def _course(name: str, last: bool = False) -> _Cost:
    def cost(record: RunRecord) -> float | None:
        found = [one for one in record.curves.get(name, []) if one is not None]
        chosen: Sequence[float] = found[-1:] if last else found
        return sum(chosen) / len(chosen) if chosen else None

    return cost


def peak_memory(record: RunRecord) -> float | None:
    """The largest memory of the run, GiB; of a training in a process of its own, the larger of the two."""
    known = [record.peak_memory_gib, record.training.get("peak_memory_gib")]
    return max((float(size) for size in known if size is not None), default=None)


def _memory(record: RunRecord) -> float | None:
    peak = peak_memory(record)
    return None if peak is None else peak * _BYTES


def trained(record: RunRecord, key: str) -> float | None:
    """A number of the training, such as its epochs or seconds; None if the record has none, or something else there."""
    value = record.training.get(key)
    return float(value) if is_number(value) and value > 0 else None


def _hours(record: RunRecord) -> float | None:
    seconds = trained(record, "seconds")
    return None if seconds is None else seconds / 3600


_COSTS: dict[str, _Cost] = {
    "|Q_B|": _batch,
    "|L_B|": _course("train/pool"),
    "positives": _course("train/positives", last=True),
    "memory GB": _memory,
    "hours": _hours,
}
