"""A table as data: rows of cells with text or figures. `harness.report.tables` renders it.

A figure is ours, mean ± sample standard deviation over seeds, and beside it what the paper printed and how far we are
from that: `46.10 ± 0.20 (paper 44.90, +1.20)`.

Text in a table often comes from others, such as names of labels. It is made printable here, for all formats.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

from harness.io.printable import printable


@dataclass(frozen=True)
class Figure:
    """One measurement in a table, in percent or in the unit of its column."""

    mean: float | None
    """Mean over runs; None if nothing was measured."""
    std: float | None = None
    """Sample standard deviation over seeds; None for fewer than two."""
    n: int = 0
    """Number of runs that the mean is over."""
    paper: float | None = None
    """The published figure, as printed."""
    slip: bool = False
    """Whether the published figure is known to be wrong."""
    wanted: int = 0
    """Number of seeds asked for; shown if there are fewer runs."""
    digits: int = 2
    """Number of decimals shown."""

    def __post_init__(self) -> None:
        for value in (self.mean, self.std, self.paper):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{value} is not finite; what was not measured is None")

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        *,
        paper: float | None = None,
        slip: bool = False,
        wanted: int = 0,
        digits: int = 2,
    ) -> "Figure":
        """Return the figure of the values of several runs."""
        mean = fmean(values) if values else None
        std = stdev(values) if len(values) > 1 else None
        return cls(mean, std, len(values), paper, slip, wanted, digits)

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's figure; None if either is missing."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper

    @property
    def printed(self) -> float | None:
        """The mean as rounded for print; two figures with equal ones count as equal."""
        return None if self.mean is None else _rounded(self.mean, self.digits)

    @property
    def ours(self) -> str:
        """Mean and spread, like `46.10 ± 0.20`; `X` if nothing was measured."""
        if self.mean is None:
            return "X"
        return self._text(self.mean) + ("" if self.std is None else f" ± {self._text(self.std)}")

    @property
    def beside(self) -> str:
        """The text in brackets, like `2 of 3 seeds; paper 44.90, +1.20`; empty if there is none."""
        parts = [f"{self.n} of {self.wanted} seeds"] if self.mean is not None and self.n < self.wanted else []
        if self.paper is not None:
            gap = "" if self.difference is None else f", {_rounded(self.difference, self.digits):+,.{self.digits}f}"
            parts.append(f"paper {self._text(self.paper)}{'?' if self.slip else ''}{gap}")
        return "; ".join(parts)

    def shown(self) -> str:
        """Return the whole figure as text; a question mark follows a wrong figure of the paper."""
        return f"{self.ours} ({self.beside})" if self.beside else self.ours

    def _text(self, value: float) -> str:
        return f"{_rounded(value, self.digits):,.{self.digits}f}"


def _rounded(value: float, digits: int) -> float:
    """Round as in print; adding zero turns -0.0 into 0.0."""
    return float(f"{value:.{digits}f}") + 0.0


@dataclass(frozen=True)
class Cell:
    """One entry of a table: text or a figure."""

    text: str
    """Text of the cell; not used if there is a figure."""
    best: bool = False
    second: bool = False
    mark: str = ""
    """`†` significantly better than the best baseline, `‡` significantly worse, `≠` not what the card says."""
    figure: Figure | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))

    @classmethod
    def of(cls, figure: Figure, *, best: bool = False, second: bool = False, mark: str = "") -> "Cell":
        """Return the cell of a figure."""
        return cls(figure.shown(), best, second, mark, figure)

    @property
    def main(self) -> str:
        """The part that is bold if best: the text, or our figure."""
        return self.text if self.figure is None else self.figure.ours

    @property
    def beside(self) -> str:
        """The text that follows in brackets."""
        return "" if self.figure is None else self.figure.beside

    @property
    def shown(self) -> str:
        """The whole cell as plain text."""
        return f"{self.main}{self.mark}" + (f" ({self.beside})" if self.beside else "")


@dataclass(frozen=True)
class Table:
    """A titled grid of cells; renderers decide how it looks."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    words: int = 3
    """Number of leading columns with text; the others are numbers, aligned right."""
    id: str = ""
    """The stem of its files, like `thesis-2.4`."""
    breaks: tuple[int, ...] = ()
    """Indices of rows before which a rule is drawn."""
    notes: tuple[str, ...] = ()
    """Sentences below the table."""
    command: str = ""
    """Command that runs its rows; left out in LaTeX and CSV."""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} of {self.title!r} has {len(row)} cells for {len(self.columns)} columns")
        for name in ("title", "caption", "command"):
            object.__setattr__(self, name, printable(getattr(self, name)))
        for name in ("columns", "notes"):
            object.__setattr__(self, name, tuple(map(printable, getattr(self, name))))

    @property
    def heading(self) -> str:
        """The title as a sentence, to begin a caption with."""
        return self.title if self.title.endswith((".", "!", "?", ":")) else f"{self.title}."

    @property
    def anchor(self) -> str:
        """The id, or else the title, with only letters, digits, dots and dashes, to link to."""
        return re.sub(r"[^A-Za-z0-9.-]+", "-", self.id or self.title).strip("-")

    @property
    def stacked(self) -> bool:
        """Whether a cell has text in brackets, which LaTeX sets on a second line."""
        return any(cell.beside for row in self.rows for cell in row)

    def parts(self, lines: int) -> list["Table"]:
        """Split the table into parts of about `lines` lines; a row with text in brackets takes two."""
        starts, used = [0], 0
        for number, row in enumerate(self.rows):
            height = 2 if any(cell.beside for cell in row) else 1
            if used and used + height > lines:
                starts.append(number)
                used = 0
            used += height
        return [
            replace(self, rows=self.rows[start:stop], breaks=tuple(cut - start for cut in self.breaks))
            for start, stop in pairwise([*starts, len(self.rows)])
        ]

    def groups(self) -> list[tuple[tuple[Cell, ...], ...]]:
        """Return the rows between rules, in order; no group is empty unless the table is."""
        cuts = sorted({0, len(self.rows), *(cut for cut in self.breaks if 0 < cut < len(self.rows))})
        return [self.rows[start:stop] for start, stop in pairwise(cuts)]


Direction = Literal["up", "down"]
"""Whether larger or smaller figures are better."""


def marked(column: Sequence[Figure | None], direction: Direction = "up") -> tuple[list[bool], list[bool]]:
    """Return flags of the best and of the second best figures of a column; what was not measured is neither.

    Args:
        column: One figure per row; None for a row without one.
        direction: `up` where larger is better.
    """
    printed = [None if figure is None else figure.printed for figure in column]
    places = sorted({value for value in printed if value is not None}, reverse=direction == "up")
    first, second = places[:2] if len(places) > 1 else (None, None)
    best = [value is not None and value == first for value in printed]
    alone = sum(best) == 1
    return best, [alone and value is not None and value == second for value in printed]


def column_cells(figures: Sequence[Figure | None], direction: Direction | None = "up") -> list[Cell]:
    """Return the cells of a column, its best and second best flagged; empty where a row has no figure.

    Args:
        figures: One per row.
        direction: None where neither large nor small figures are better.
    """
    best, second = marked(figures, direction) if direction else ([False] * len(figures),) * 2
    return [
        Cell("") if figure is None else Cell.of(figure, best=best[place], second=second[place])
        for place, figure in enumerate(figures)
    ]
