"""The style of all figures: for a text width of 6.3 inches, readable in colour and in grey.

The palette is the one of Okabe and Ito without yellow, which vanishes on paper; markers and line styles differ too, so
that no figure depends on its colours.
"""

import io
import itertools
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

Floats = NDArray[np.float64]

WIDTH = 6.3
"""Width of a figure, inches: the text width of a page, so that sizes in points are those on paper."""
SMALL = 8.0
"""Smallest font size, points."""
GREY = "0.35"
"""Colour of frontiers, leader lines and remarks: dark enough for print."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "d")
DOTS_PER_INCH = 160
PNG_COLOURS = 256
"""Size of the palette of a PNG file, one byte a pixel: a third of the size of full colour."""
DIGEST = "data"
"""Name of the PNG text chunk with the digest of what is drawn."""

RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "0.25",
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": "0.88",
    "grid.linewidth": 0.7,
    "legend.edgecolor": "none",
    "legend.fontsize": SMALL,
    "legend.framealpha": 0.85,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    # names of methods and labels are data: a dollar sign in one is a dollar sign
    "text.parse_math": False,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}


class Look(NamedTuple):
    """Colour, marker and line style of a method or a setting."""

    colour: str
    marker: str
    linestyle: "LineStyleType" = "-"


_FAMILIES = {
    BLUE: ("unidec", "unidec-thesis", "unidec-v1"),
    VERMILION: ("depsl", "depsl-v1"),
    GREEN: ("dexml", "dexml-hnm", "dexml-topk", "dexml-inbatch"),
    PURPLE: ("ngame",),
    ORANGE: ("renee",),
    SKY: ("ance", "dpr"),
    BLACK: ("parabel", "tfidf-knn", "zeroshot", "xr-linear"),
}
_METHODS = [(colour, name) for colour, names in _FAMILIES.items() for name in names]
_KNOWN = {
    name: Look(colour, marker) for (colour, name), marker in zip(_METHODS, itertools.cycle(MARKERS), strict=False)
}


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return looks by name: the same in every figure, and different for all given names while there are enough."""
    wanted = set(names)
    found = {name: look for name, look in _KNOWN.items() if name in wanted}
    free = [Look(colour, marker) for marker in MARKERS for colour in COLOURS]
    for name in sorted(wanted - found.keys()):
        start = zlib.crc32(name.encode("utf-8", "replace")) % len(free)
        turned = free[start:] + free[:start]
        found[name] = next((look for look in turned if look not in found.values()), turned[0])
    return found


@contextmanager
def in_style() -> Iterator[None]:
    """Inside the block, use `RC` over matplotlib's defaults, not the user's settings: these are read while drawing."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # a letter that the font lacks is drawn as a box with its number
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def new_figure(
    rows: int = 1, columns: int = 1, width: float = WIDTH, height: float = 3.6, **shared: Any
) -> "tuple[Figure, NDArray[Any]]":
    """Make an empty figure of this width and height, inches, and its axes [rows, columns].

    `shared` are more arguments for `Figure.subplots`, such as `sharey=True`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def as_png(figure: "Figure", digest: str = "") -> bytes:
    """Draw a figure as a PNG file that carries the digest of its data.

    Equal figures give equal bytes on one machine: no clock, no version. On different machines only the digest is equal.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    figure.set_dpi(DOTS_PER_INCH)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3]))
    image = image.quantize(PNG_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    about = PngInfo()
    about.add_text(DIGEST, digest)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True, pnginfo=about)
    return stream.getvalue()


def png_metadata(png: bytes) -> tuple[int, int, str]:
    """Return width, height and data digest of a PNG file; zeros and an empty digest if it is not an image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png)) as image:
            return *image.size, str(image.info.get(DIGEST, ""))
    except (OSError, SyntaxError, ValueError):
        return 0, 0, ""


def log_ticks(axis: "Axis", template: str = "{x:g}", steps: Sequence[float] = (1.0,)) -> None:
    """Label few ticks of a logarithmic axis, as plain numbers or, with an empty template, not at all."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=steps, numticks=5))
    axis.set_major_formatter(StrMethodFormatter(template) if template else NullFormatter())
    axis.set_minor_formatter(NullFormatter())


def format_name(name: str, longest: int = 36) -> str:
    """Format a name for a figure: one line, printable, not endless, and not hidden from legends by an underscore."""
    clean = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split()) or "(no name)"
    clean = f"\u2009{clean}" if clean.startswith("_") else clean
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"
