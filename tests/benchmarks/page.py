"""pytest-benchmark's JSON -> rows with ratios -> a Markdown table."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults.page import table

_COSTS = ("s", "B")


@dataclass(frozen=True)
class Row:
    """One comparison: every measurement of both sides, in base units."""

    suite: str
    what: str
    inputs: str
    reference: str
    unit: str
    ours: list[float]
    theirs: list[float] | None
    at_least: float | None
    at_most: float | None

    @property
    def ratio(self) -> list[float] | None:
        """Turn by turn: how many times better we are where that has a lower bound, ours / theirs otherwise."""
        if self.theirs is None:
            return None
        better = self.at_least is not None and self.unit in _COSTS
        pairs = zip(self.ours, self.theirs, strict=True)
        return [other / own if better else own / other for own, other in pairs]

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without one."""
        judged = statistics.median(self.ours if self.ratio is None else self.ratio)
        if self.at_least is not None:
            return judged >= self.at_least
        return None if self.at_most is None else judged <= self.at_most

    @property
    def target(self) -> str:
        """The target in words."""
        wanted = self.at_most if self.at_least is None else self.at_least
        if wanted is None:
            return ""
        amount = f"{wanted:g}x" if self.theirs is not None else spread([wanted], self.unit)
        return f"{'at most' if self.at_least is None else 'at least'} {amount}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        theirs = "" if self.theirs is None else spread(self.theirs, self.unit)
        ratio = "" if self.ratio is None else spread(self.ratio, "x")
        verdict = {True: "yes", False: "**MISSED**", None: ""}[self.met]
        words = (self.what, self.inputs, self.reference)
        return (*words, spread(self.ours, self.unit), theirs, ratio, self.target, verdict)


def rows(report: dict[str, Any]) -> list[Row]:
    """All comparisons of a report of pytest-benchmark, in the order in which they ran."""
    return [_row(entry) for entry in report["benchmarks"]]


def _row(entry: dict[str, Any]) -> Row:
    noted = dict(entry["extra_info"])
    suite = entry["fullname"].partition("::")[0].rpartition("test_")[2].removesuffix(".py").replace("_", " ")
    noted["ours"] = noted.get("ours") or entry["stats"]["data"]
    return Row(suite=suite, unit=noted.pop("unit", "s"), **noted)


def text(found: list[Row], origin: str) -> str:
    """The page."""
    return "\n".join(_lines(found, origin))


def _lines(found: list[Row], origin: str) -> Iterator[str]:
    judged = [row.met for row in found if row.met is not None]
    yield f"# Speed\n\n{judged.count(True)} of {len(judged)} targets met. {origin}\n"
    yield (
        "Our code against a named reference; both sides take turns in one process. Shown are medians and, in brackets, "
        "the smallest and the largest measurement. Where a ratio should be *at least* so much it says how many times "
        "better ours is; every other ratio is ours over the reference. Written by `make bench`.\n"
    )
    head = ("what", "inputs", "reference", "ours", "theirs", "ratio", "target", "met")
    for suite in dict.fromkeys(row.suite for row in found):
        yield f"## {suite.capitalize()}\n"
        yield table(head, [row.cells for row in found if row.suite == suite]) + "\n"


_SCALES = {
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (120.0, "min")),
    "B": ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")),
    "%": ((0.01, "%"),),
}
"""Units of each base unit, smallest first, and from which value on each is used."""
_DIVISORS = {"min": 60.0}


def spread(values: Sequence[float], unit: str) -> str:
    """The median with its unit and, where measurements differ, the smallest and the largest in brackets."""
    middle = statistics.median(values)
    fitting = [step for step in _SCALES.get(unit, ((0.0, unit),)) if abs(middle) >= step[0]]
    start, name = fitting[-1] if fitting else _SCALES[unit][0]
    divisor = _DIVISORS.get(name, start or 1.0)
    shown, low, high = (_digits(value / divisor) for value in (middle, min(values), max(values)))
    space = "" if name == "x" else " "
    return f"{shown}{space}{name}".rstrip() + ("" if low == high else f" ({low} to {high})")


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    before_point = math.floor(math.log10(abs(float(f"{value:.2e}")))) + 1
    return f"{value:,.{max(0, 3 - before_point)}f}"
