"""The page: results -> `page_data` -> `build_page` -> one HTML file that loads nothing from elsewhere.

Style, script and data are inside the file, so it works from a disk and offline. Pictures are read from `figures/`
beside it, and the prediction explorer reads scripts in `explorer/`, made by `harness.report.explorer`.
Names and texts are not ours. They reach the page as escaped HTML or as JSON that scripts show as text, never as
markup, and a content security policy lets nothing run but the page's own script (by its hash) and those of the
explorer.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from harness.io.printable import printable
from harness.report.cells import Table
from harness.report.documents import Document
from harness.report.explorer.shards import as_json
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.figures.style import png_metadata
from harness.report.page.data import page_data

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["build_page", "page_data"]

SCRIPTS = ("dom.js", "charts.js", "table.js", "drawer.js", "shards.js", "explorer.js", "compare.js", "page.js")
"""Script files, joined into one script in this order, in which they build on each other."""
_DIGITS = 4
"""Significant digits kept of a fraction; percentages are shown with two decimals."""

Figures = Mapping[str, Sequence[Drawing | Missing]]
"""Figures by dataset, in the order in which they are shown."""


def build_page(data: dict[str, Any], figures: Figures, tables: Sequence[Table | Document] = ()) -> str:
    """Return the whole page as HTML; the same arguments give the same text.

    Args:
        data: Data of the page, from `page_data`.
        figures: Figures by dataset; their pictures are expected beside the page, at `figure_stem`.
        tables: Tables of the papers and others, in the order in which they are shown.
    """
    style = _asset("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"
    titles = {one["name"]: one["title"] for one in data["datasets"]}
    page = _template().render(
        policy=_policy(style, script),
        style=style,
        script=script,
        data=script_json(packed(data)),
        runs=len(data["runs"]),
        methods=len({run["method"] for run in data["runs"].values()}),
        datasets=len({one["name"] for one in data["datasets"]}),
        tables=[(one.title, one.id, _parts(one)) for one in tables],
        figures=[
            (titles.get(name, name), [(one, *_picture(name, one)) for one in drawn]) for name, drawn in figures.items()
        ],
    )
    # a name with half a surrogate pair has no UTF-8 form; the reader gets a question mark for it
    return page.encode("utf-8", "replace").decode("utf-8")


@cache
def _template() -> "Template":
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_printable)
    return environment.from_string(_asset("page.html"))


def _printable(value: Any) -> Any:
    """Replace control characters by visible text; values that are not plain `str`, such as markup, stay."""
    return printable(value) if type(value) is str else value


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return the content security policy: the page's style and script, and pictures and scripts from its own place.

    `'self'` covers a page from a server; a page from a disk has no origin in some browsers, so `file:` is named too.
    """
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
        for text in (script, style)
    ]
    return (
        f"default-src 'none'; script-src {hashes[0]} 'self' file:; style-src {hashes[1]}; "
        "img-src 'self' file: data:; base-uri 'none'; form-action 'none'"
    )


def _parts(one: Table | Document) -> list[tuple[str, Table]]:
    """Return tables of a document with a measured figure, the fullest first, each with a distinct short title."""
    if isinstance(one, Table):
        return [("", one)]

    def measured(table: Table) -> int:
        return sum(cell.figure is not None and cell.figure.mean is not None for row in table.rows for cell in row)

    ordered = sorted(filter(measured, one.tables), key=measured, reverse=True) or list(one.tables[:1])
    apart = [table.title.removeprefix(f"{one.id} on ").removesuffix(f": {one.title}") for table in ordered]
    return list(zip(apart if len(ordered) > 1 else [""], ordered, strict=True))


def _picture(dataset: str, figure: Drawing | Missing) -> tuple[str, int, int]:
    """Return address, width and height of a figure's picture; empty and zeros if it is missing."""
    if isinstance(figure, Missing):
        return "", 0, 0
    return quote(f"{figure_stem(dataset, figure.id)}.png"), *png_metadata(figure.png)[:2]


def packed(value: Any) -> dict[str, Any]:
    """Store every list and dict of a value once: configurations and curves repeat from run to run, keys everywhere.

    A node is [shape, values...]; shape is -1 for a list, else the place of a dict's keys in `shapes`. A value that is a
    list or dict itself is [place of its node]. Nodes come after those they hold, so the last one is the whole.
    """
    shapes: dict[tuple[str, ...], int] = {}
    nodes: dict[str, int] = {}

    def pack(value: Any) -> Any:
        if isinstance(value, dict):
            keys = tuple(map(str, value))
            node = [shapes.setdefault(keys, len(shapes)), *map(pack, value.values())]
        elif isinstance(value, list | tuple):
            node = [-1, *map(pack, value)]
        else:
            return value
        return [nodes.setdefault(script_json(node), len(nodes))]

    pack(value)
    return {"shapes": [list(keys) for keys in shapes], "nodes": [json.loads(node) for node in nodes]}


def script_json(value: Any) -> str:
    """Format a value as JSON for a script element; fractions are rounded, NaN becomes null."""
    return as_json(rounded(value))


def rounded(value: Any) -> Any:
    """Return a value with fractions rounded to four significant digits, and None for floats that are not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = value if value.is_integer() else float(f"{value:.{_DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 2**53 else short
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
