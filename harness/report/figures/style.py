"""How all figures look: made for a printed page of 6.3 inches, in colour or in grey.

Colours are those of Okabe and Ito without the yellow one, which vanishes on paper; markers and line styles differ too,
so that no figure needs its colours. `@styled` puts a draw function under these settings whatever the user's own
matplotlib settings are, and `finished` gives equal bytes for equal figures: no clock, no version, no random ids.
"""

import hashlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from harness.tracking.curves import COLOURS, STYLES

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

WIDTH = 6.3
"""Inches; the text width of a page, so that sizes in points are those on paper."""
SMALL = 8.0
"""Points; nothing is smaller."""
GREY = "0.35"
"""Of frontiers, leader lines and remarks: dark enough for print."""
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "d")
DOTS_PER_INCH = 200
_LONGEST = 36

RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "0.25",
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": "0.88",
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.9,
    "legend.edgecolor": "none",
    "legend.fontsize": SMALL,
    "legend.framealpha": 0.85,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "path.simplify": False,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "harness",
    # names of methods and labels are data: a dollar sign in one is a dollar sign
    "text.parse_math": False,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn in every figure."""

    colour: str
    marker: str
    linestyle: str


_KNOWN = {
    "unidec": Look(BLUE, "o", "-"),
    "unidec-thesis": Look(BLUE, "s", "--"),
    "unidec-v1": Look(BLUE, "^", "-."),
    "depsl": Look(VERMILION, "D", "-"),
    "depsl-v1": Look(VERMILION, "v", "--"),
    "dexml": Look(GREEN, "P", "-"),
    "dexml-hnm": Look(GREEN, "X", "--"),
    "dexml-topk": Look(GREEN, "p", "-."),
    "dexml-inbatch": Look(GREEN, "<", ":"),
    "ngame": Look(PURPLE, ">", "-"),
    "renee": Look(ORANGE, "h", "-"),
    "ance": Look(SKY, "d", "-"),
    "dpr": Look(SKY, "v", "--"),
    "parabel": Look(BLACK, "s", "-"),
    "tfidf-knn": Look(BLACK, "^", "--"),
    "zeroshot": Look(BLACK, "o", ":"),
}
"""Colour by family, line style by member."""


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Looks by name: the same in every figure, and no two of the given names look alike while looks last."""
    found: dict[str, Look] = {}
    free = [Look(colour, marker, style) for style in STYLES for marker in MARKERS for colour in COLOURS]
    for name in sorted(set(names), key=lambda name: (name not in _KNOWN, name)):
        if name in _KNOWN:
            found[name] = _KNOWN[name]
            continue
        taken = {(look.colour, look.marker) for look in found.values()}
        start = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:4], "big") % len(free)
        turned = free[start:] + free[:start]
        found[name] = next((look for look in turned if (look.colour, look.marker) not in taken), turned[0])
    return found


@contextmanager
def _in_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # a letter that the font lacks is drawn as a box with its number
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


Args = ParamSpec("Args")
Result = TypeVar("Result")


def styled(draw: Callable[Args, Result]) -> Callable[Args, Result]:
    """A function that draws under `RC`; matplotlib asks for settings while it draws, not only at the beginning."""

    @wraps(draw)
    def drawn(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        with _in_style():
            return draw(*args, **kwargs)

    return drawn


def new_figure(
    rows: int = 1, columns: int = 1, width: float = WIDTH, height: float = 3.6, **shared: Any
) -> "tuple[Figure, NDArray[np.object_]]":
    """An empty figure and its axes, [rows, columns], both always arrays of two dimensions.

    Args:
        rows: Of panels.
        columns: Of panels.
        width: Inches.
        height: Inches.
        shared: More for `Figure.subplots`, such as `sharey=True`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def finished(figure: "Figure") -> tuple[bytes, bytes]:
    """The figure as SVG and as PNG; equal figures give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # one layout for both forms, because text is measured a little differently at their resolutions; `savefig` would
    # also draw everything twice
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine("none")
    svg, png = io.BytesIO(), io.BytesIO()
    vector: Any = FigureCanvasSVG(figure)
    vector.print_svg(svg, metadata={"Date": None, "Creator": None})
    figure.set_dpi(DOTS_PER_INCH)
    pixels: Any = FigureCanvasAgg(figure)
    pixels.print_png(png, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def shown(name: str, longest: int = _LONGEST) -> str:
    """A name that a figure can hold: one line, printable, not endless, and not hidden from legends by an underscore."""
    clean = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split()) or "(no name)"
    clean = f"\u2009{clean}" if clean.startswith("_") else clean
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"
