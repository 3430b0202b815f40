"""What a table is made of: figures in cells in rows. `harness.report.tables` gives it a form.

A figure is ours, mean ± sample standard deviation over seeds, and beside it what the paper printed and how far we are
from that: `46.10 ± 0.20 (paper 44.90, +1.20)`.

Words in a table are often other people's names. They become printable here, once for all forms.
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
    """One measurement in a table, in percent or in what its column states."""

    mean: float | None
    """None: nothing was measured."""
    std: float | None = None
    """Sample standard deviation over seeds; None for fewer than two."""
    n: int = 0
    """Runs behind the mean."""
    paper: float | None = None
    """The published figure, as printed."""
    slip: bool = False
    """The published figure is known to be wrong."""
    wanted: int = 0
    """Seeds asked for; shown when fewer are there."""
    digits: int = 2
    """Decimals that are shown."""

    def __post_init__(self) -> None:
        for value in (self.mean, self.std, self.paper):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{value} is no figure; what was not measured is None")

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
        """The figure of several runs' values."""
        mean = fmean(values) if values else None
        std = stdev(values) if len(values) > 1 else None
        return cls(mean, std, len(values), paper, slip, wanted, digits)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, where both are there."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper

    @property
    def printed(self) -> float | None:
        """The mean as far as a reader sees it; two figures are equal when these are."""
        return None if self.mean is None else _rounded(self.mean, self.digits)

    @property
    def ours(self) -> str:
        """Mean and spread, like `46.10 ± 0.20`; `X` if nothing was measured."""
        if self.mean is None:
            return "X"
        return self._text(self.mean) + ("" if self.std is None else f" ± {self._text(self.std)}")

    @property
    def beside(self) -> str:
        """What stands in brackets, like `2 of 3 seeds; paper 44.90, +1.20`; empty for nothing."""
        parts = [f"{self.n} of {self.wanted} seeds"] if self.mean is not None and self.n < self.wanted else []
        if self.paper is not None:
            gap = "" if self.difference is None else f", {_rounded(self.difference, self.digits):+,.{self.digits}f}"
            parts.append(f"paper {self._text(self.paper)}{'?' if self.slip else ''}{gap}")
        return "; ".join(parts)

    def shown(self) -> str:
        """The whole figure as text; a question mark follows what the paper has wrong."""
        return f"{self.ours} ({self.beside})" if self.beside else self.ours

    def _text(self, value: float) -> str:
        return f"{_rounded(value, self.digits):,.{self.digits}f}"


def _rounded(value: float, digits: int) -> float:
    """As it prints; adding zero turns -0.0 into 0.0."""
    return float(f"{value:.{digits}f}") + 0.0


@dataclass(frozen=True)
class Cell:
    """One entry of a table: words, or a figure."""

    text: str
    """Not read where there is a figure."""
    best: bool = False
    second: bool = False
    mark: str = ""
    """`†` significantly better than the best baseline, `‡` significantly worse, `≠` not what the card says."""
    figure: Figure | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))

    @classmethod
    def of(cls, figure: Figure, *, best: bool = False, second: bool = False, mark: str = "") -> "Cell":
        """The cell of a figure."""
        return cls(figure.shown(), best, second, mark, figure)

    @property
    def main(self) -> str:
        """What is set in bold where it is best: the words, or our figure."""
        return self.text if self.figure is None else self.figure.ours

    @property
    def beside(self) -> str:
        """What follows in brackets."""
        return "" if self.figure is None else self.figure.beside

    @property
    def shown(self) -> str:
        """All of it as plain text."""
        return f"{self.main}{self.mark}" + (f" ({self.beside})" if self.beside else "")


@dataclass(frozen=True)
class Table:
    """A titled grid of cells; renderers decide how it looks."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    words: int = 3
    """How many of the first columns hold words; the others are numbers, set flush right."""
    id: str = ""
    """The stem of its files, like `thesis-2.4`."""
    breaks: tuple[int, ...] = ()
    """Rows before which a rule is drawn."""
    notes: tuple[str, ...] = ()
    """Sentences below the table."""
    command: str = ""
    """What runs its rows, where people read it: LaTeX and CSV leave it out."""

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
        """The title as a sentence, for captions that go on after it."""
        return self.title if self.title.endswith((".", "!", "?", ":")) else f"{self.title}."

    @property
    def anchor(self) -> str:
        """The id, or the title, as a name that every form of document takes."""
        return re.sub(r"[^A-Za-z0-9.-]+", "-", self.id or self.title).strip("-")

    @property
    def stacked(self) -> bool:
        """Whether a cell has something beside it, which LaTeX sets below."""
        return any(cell.beside for row in self.rows for cell in row)

    def parts(self, lines: int) -> list["Table"]:
        """The table in pieces of about so many lines, for pages; a cell with something beside it takes two."""
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
        """The rows between rules, in order; no group is empty unless the table is."""
        cuts = sorted({0, len(self.rows), *(cut for cut in self.breaks if 0 < cut < len(self.rows))})
        return [self.rows[start:stop] for start, stop in pairwise(cuts)]


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


def column_cells(figures: Sequence[Figure | None], direction: Direction | None = "up") -> list[Cell]:
    """The cells of a column, its best and second best flagged; empty where a row has no figure.

    Args:
        figures: One a row.
        direction: None where neither large nor small figures are better.
    """
    best, second = marked(figures, direction) if direction else ([False] * len(figures),) * 2
    return [
        Cell("") if figure is None else Cell.of(figure, best=best[place], second=second[place])
        for place, figure in enumerate(figures)
    ]
