"""What drawing a figure gives: the picture with its words and its data, or what is missing to draw it.

A family of figures has functions `(results, dataset) -> Sketch`; one that lacks its data raises `Undrawable`.
"""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from harness.report.figures.style import format_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALT_ROWS = 40


def figure_stem(dataset: str, figure: str) -> str:
    """Where a figure lies in a report, without its ending; a dataset may be called by a path or by options."""
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in dataset).strip(".-")
    # names that look alike without their signs stay apart
    suffix = "" if safe == dataset else f"-{hashlib.sha256(dataset.encode(errors='replace')).hexdigest()[:6]}"
    return f"figures/{safe or 'data'}{suffix}/{figure}"


@dataclass(frozen=True)
class Sketch:
    """A figure before it is rendered."""

    figure: "Figure"
    data: pd.DataFrame
    """Everything that is drawn, one row per point, bar or line."""
    caption: str
    words: pd.DataFrame | None = None
    """What the alternative text describes, where that is not all of the data."""


@dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    id: str
    """File stem, also the anchor on the page."""
    title: str
    caption: str
    alt: str
    """What it shows, for readers who cannot see it."""
    png: bytes
    data: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn from what there is."""

    id: str
    title: str
    why: str
    command: str
    """What to run to get it."""


class Undrawable(Exception):
    """There is not enough to draw a figure: why, and the command that makes what is missing."""

    def __init__(self, why: str, command: str) -> None:
        super().__init__(why)
        self.why, self.command = why, command


def data_digest(data: pd.DataFrame) -> str:
    """Hash a frame by what no processor computes differently: numbers count to eight digits."""
    return hashlib.sha256(data.to_csv(index=False, float_format="%.8g").encode("utf-8", "replace")).hexdigest()[:16]


def as_words(data: pd.DataFrame) -> str:
    """Describe the rows of a frame in words: column names first, then the values row by row."""

    def word(value: Any) -> str:
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.1f}" if 10 <= abs(value) < 1000 else f"{value:.3g}"
        return format_name(str(value))

    rows = "; ".join(", ".join(map(word, row)) for row in data.head(_ALT_ROWS).itertuples(index=False))
    more = f"; and {len(data) - _ALT_ROWS} more rows" if len(data) > _ALT_ROWS else ""
    return f"{', '.join(map(str, data.columns))}: {rows}{more}."
