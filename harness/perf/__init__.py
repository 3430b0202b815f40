"""Speed, measured as ratios in one run: `make bench` or `python -m harness perf`.

Each suite is a module with a function `rows() -> Iterator[Row]`. A row measures our code and a named reference on the
same input, the two taking turns, because machines are shared and seconds drift. What is kept are all measurements, in
base units; medians, spreads and ratios follow from them.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

SUITES = (
    *("encoding", "training", "obvious", "scaling", "mining", "evaluating", "corpus", "starting", "racing"),
    *("parsing", "tokenising", "searching", "building", "reporting", "batching", "pooling", "losses"),
    *("optimising", "onevsall", "fullspace", "memory"),
)
"""The first line is what a training, an evaluation and a day with the command line consist of; the rest are parts."""

_COSTS = ("s", "B")
"""Units of which less is better; more is better of a rate (B/s, FLOP/s, rows/s) and of a plain number."""


@dataclass(frozen=True)
class Sample:
    """One quantity, measured several times."""

    values: tuple[float, ...]
    unit: str = ""
    """Base units: s, B, B/s, FLOP/s, rows/s, % (values 0 to 1), or nothing for a plain number."""

    @property
    def median(self) -> float:
        """The middle measurement."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest measurement."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest measurement."""
        return max(self.values)


@dataclass(frozen=True)
class Target:
    """What the median of the ratio should be, or of our own figure."""

    way: str
    """`at least` or `at most`."""
    value: float
    of: str = "ratio"
    """`ratio` or `ours`."""


@dataclass(frozen=True)
class Row:
    """One measured comparison; made by `compare` or `bound`."""

    what: str
    size: str
    reference: str
    """What the other side is, in words."""
    ours: Sample
    theirs: Sample | None
    """The reference's figure; None where our figure is held to a fixed bound."""
    ratio: Sample | None
    """Turn by turn; None without a reference."""
    target: Target | None = None
    """None for a figure that is shown and not judged."""
    detail: str = ""
    """Where the time or the memory goes."""
    at: dict[str, float | str] = field(default_factory=dict)
    """Where the row lies on a curve, for example {"method": "unidec", "labels": 131073}."""
    suite: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        judged = self.ours if self.target is None or self.target.of == "ours" else self.ratio
        if self.target is None or judged is None:
            return None
        least = self.target.way == "at least"
        return judged.median >= self.target.value if least else judged.median <= self.target.value


def compare(
    what: str,
    size: str,
    reference: str,
    ours: Sample,
    theirs: Sample,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    detail: str = "",
    at: dict[str, float | str] | None = None,
) -> Row:
    """A row whose ratio says how many times better we are (`at_least`), or else is ours / theirs.

    Args:
        what: What is measured.
        size: On how much.
        reference: What it is measured against.
        ours: Our figure.
        theirs: The reference's, in the same unit.
        at_least: Wanted ratio. Of costs (s, B) the ratio is theirs / ours, of rates ours / theirs.
        at_most: Wanted ratio, ours / theirs.
        detail: Where it goes.
        at: See `Row.at`.
    """
    if ours.unit != theirs.unit:
        raise ValueError(f"{what}: ours is in {ours.unit!r}, the reference in {theirs.unit!r}")
    above, below = (theirs, ours) if at_least is not None and ours.unit in _COSTS else (ours, theirs)
    if len(above.values) == len(below.values):
        ratio = Sample(tuple(a / b for a, b in zip(above.values, below.values, strict=True)))
    else:
        ratio = Sample((above.median / below.median,))
    target = None
    if at_least is not None or at_most is not None:
        wanted = at_most if at_least is None else at_least
        assert wanted is not None
        target = Target("at most" if at_least is None else "at least", wanted)
    return Row(what, size, reference, ours, theirs, ratio, target, detail, at or {})


def bound(
    what: str,
    size: str,
    ours: Sample,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    reference: str = "fixed bound",
    detail: str = "",
    at: dict[str, float | str] | None = None,
) -> Row:
    """A row whose own figure is held to a fixed number, in the unit of `ours`; without a number it is only shown."""
    wanted = at_most if at_least is None else at_least
    target = None if wanted is None else Target("at most" if at_least is None else "at least", wanted, "ours")
    return Row(what, size, reference, ours, None, None, target, detail, at or {})


def turns(*calls: Callable[[], object], repeats: int = 5, warm: int = 1) -> list[Sample]:
    """Wall time of each call in seconds, the calls taking turns; the first `warm` rounds do not count."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(warm + repeats):
        for call, record in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            if turn >= warm:
                record.append(time.perf_counter() - started)
    return [Sample(tuple(record), "s") for record in times]


@contextmanager
def fresh_workspace() -> Iterator[Path]:
    """An empty `HARNESS_HOME` for the block, removed behind it."""
    before = os.environ.get("HARNESS_HOME")
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as folder:
        os.environ["HARNESS_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["HARNESS_HOME"]
            else:
                os.environ["HARNESS_HOME"] = before


def measure(suites: tuple[str, ...] = SUITES) -> Iterator[Row]:
    """Runs the named suites one after the other."""
    for suite in suites:
        for row in import_module(f"harness.perf.{suite}").rows():
            yield replace(row, suite=suite)
