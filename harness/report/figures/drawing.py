"""The result of drawing a figure: a picture with its text and data, or what is missing to draw it.

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
    """Return the path of a figure in a report, without suffix; a dataset's name may be a path or have options."""
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in dataset).strip(".-")
    # keeps names apart that differ only in replaced characters
    suffix = "" if safe == dataset else f"-{hashlib.sha256(dataset.encode(errors='replace')).hexdigest()[:6]}"
    return f"figures/{safe or 'data'}{suffix}/{figure}"


@dataclass(frozen=True)
class Sketch:
    """A figure before it is rendered."""

    figure: "Figure"
    data: pd.DataFrame
    """All drawn data, one row per point, bar or line."""
    caption: str
    words: pd.DataFrame | None = None
    """Data that the alternative text describes; None for all of `data`."""


@dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    id: str
    """Name of the figure: its file stem, and its anchor on the page."""
    title: str
    caption: str
    alt: str
    """Alternative text, for readers who cannot see it."""
    png: bytes
    data: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn from these results."""

    id: str
    title: str
    why: str
    command: str
    """Command that makes the missing results."""


class Undrawable(Exception):
    """A figure lacks data; has the reason, and the command that makes what is missing."""

    def __init__(self, why: str, command: str) -> None:
        super().__init__(why)
        self.why, self.command = why, command


def data_digest(data: pd.DataFrame) -> str:
    """Hash a frame with numbers rounded to eight digits, so that all processors give the same hash."""
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
