"""Marks in a table: which rows are better or worse than the best baseline by more than chance.

The test is that of `harness.report.comparing.paired`: under the null each difference d_i of two rows is as likely as
-d_i, so the sum of differences has mean 0 and variance sum d_i^2. With many rows that sum is normal, p = erfc(|sum d| /
sqrt(2 sum d^2)); with few it is drawn. Holm's correction is over the rows of one column.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError
from harness.printable import printable
from harness.report import Figure
from harness.report.comparing.paired import LEVEL, holm, sign_flip_p
from harness.report.evidence import ROWS, Evidence
from harness.report.grids import Grid, Line

BETTER, WORSE = "†", "‡"
_MANY = 200
"""Rows that differ from which on the sum is taken for normal."""
_SAME = 1e-6
"""Scores are stored as float32; a difference below this share of them is none."""
_OWN = ("unidec", "depsl")
"""Methods that the papers propose; in a table with others, those are the baselines."""


@dataclass(frozen=True)
class Tested:
    """The outcome for one column: the baseline by its place, and a mark for every line."""

    baseline: int
    marks: tuple[str, ...]


def baselines(grid: Grid) -> list[int]:
    """The places of the lines that others are held against.

    Where the paper's own methods meet others these are the others, where a table varies settings it is its first row.
    """
    runnable = [place for place, line in enumerate(grid.lines) if line.records]
    others = [place for place in runnable if not str(grid.lines[place].method).startswith(_OWN)]
    return others if 0 < len(others) < len(runnable) else runnable[:1]


def tested(grid: Grid, column: str, figures: Sequence[Figure], evidence: Evidence) -> Tested | None:
    """Every line against the best baseline in one column; None where there is nothing to test or no rows are kept."""
    held = [place for place in baselines(grid) if figures[place].mean is not None]
    if column not in ROWS or not held:
        return None
    best = max(held, key=lambda place: (figures[place].mean or 0.0, -place))
    reference = mean_rows(grid.lines[best], column, evidence)
    if reference is None:
        return None
    places, values, signs = [], [], []
    for place, line in enumerate(grid.lines):
        scores = mean_rows(line, column, evidence) if place not in baselines(grid) else None
        if scores is None or len(scores) != len(reference):
            continue
        ahead = ahead_of(scores, reference)
        places.append(place)
        values.append(p_value(ahead))
        signs.append(BETTER if ahead.sum() > 0 else WORSE)
    marks = [""] * len(grid.lines)
    for place, p, sign in zip(places, holm(values), signs, strict=True):
        marks[place] = sign if p < LEVEL else ""
    return Tested(best, tuple(marks)) if places else None


def mean_rows(line: Line, column: str, evidence: Evidence) -> NDArray[np.float64] | None:
    """The mean over seeds of every test row's score, [M]; None unless all of its runs kept their rows."""
    try:
        found = [evidence.rows(record, line.view, column) for record in line.records]
    except DataError as error:  # the figures stand; only the test cannot be made
        warn_once(str(error))
        return None
    kept = [rows for rows in found if rows is not None]
    if not kept or len(kept) != len(found) or len({len(rows) for rows in kept}) > 1:
        return None
    mean: NDArray[np.float64] = np.mean(kept, axis=0)
    return mean


def ahead_of(scores: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much each row [M] is ahead; scores that differ by rounding alone are a tie."""
    ahead: NDArray[np.float64] = scores - reference
    ahead[np.abs(ahead) <= _SAME * np.maximum(np.abs(scores), np.abs(reference))] = 0.0
    return ahead


@cache
def warn_once(fault: str) -> None:
    """Tells of damaged rows, however many tables they are in."""
    print(f"warning: no test of significance with these rows. {printable(fault)}", file=sys.stderr)  # noqa: T201


def p_value(difference: NDArray[np.float64]) -> float:
    """Two-sided p value of the sign-flip test on differences [M]."""
    size = math.sqrt(float(np.square(difference).sum()))
    if size == 0:
        return 1.0
    if np.count_nonzero(difference) < _MANY:
        return sign_flip_p(difference)
    return math.erfc(abs(float(difference.sum())) / (math.sqrt(2) * size))
