"""Which figures of a column are best and second best, as a reader sees them.

Figures are compared as they print: nobody can see that 72.694 beats 72.691. All that print like the best are best. A
best figure has beaten at least one other, so a column of ties has none. Where several share the first place there is
no second; otherwise the next printed value is, with all that print like it.
"""

from collections.abc import Sequence
from typing import Literal

from harness.report.cells import Figure

Direction = Literal["up", "down"]
"""Whether larger or smaller figures are better."""


def marked(column: Sequence[Figure | None], direction: Direction = "up") -> tuple[list[bool], list[bool]]:
    """Flags of the best and of the second best figures of a column; what was not measured is neither.

    Args:
        column: One figure a row; None for a row that has none.
        direction: `up` where larger is better.
    """
    printed = [None if figure is None else figure.printed for figure in column]
    places = sorted({value for value in printed if value is not None}, reverse=direction == "up")
    first, second = places[:2] if len(places) > 1 else (None, None)
    best = [value is not None and value == first for value in printed]
    alone = sum(best) == 1
    return best, [alone and value is not None and value == second for value in printed]
