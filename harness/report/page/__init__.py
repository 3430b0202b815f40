"""The page: evidence -> `page_data` -> `build_page` -> one HTML file that asks nothing of another place.

Styles, scripts and data are inside the file, so it works from a disk and offline. Pictures are read from `figures/`
beside it, where the report has them anyway: inside, they would be two thirds of the page. The prediction explorer reads
scripts in `explorer/`, made by `harness.report.explorer`.
Names and texts are other people's. They reach the page as escaped HTML or as JSON that scripts show as text, never as
markup, and a content security policy lets nothing run but the page's own script (by its hash) and those shards.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

from harness.printable import printable
from harness.report import Table
from harness.report.documents import Document
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.page.data import page_data
from harness.report.page.embedding import script_json
from harness.report.tables import as_html

__all__ = ["build_page", "page_data"]

SCRIPTS = (
    "dom.js",
    "state.js",
    "charts.js",
    "table.js",
    "drawer.js",
    "shards.js",
    "list.js",
    "explorer.js",
    "compare.js",
    "page.js",
)
"""In the order in which they build on each other; together they are one script."""


Figures = Mapping[str, Sequence[Drawing | Missing]]
"""By dataset, in the order in which they are shown."""


def build_page(data: dict[str, Any], figures: Figures, tables: Sequence[Table | Document] = ()) -> str:
    """The whole page as HTML; the same arguments give the same text.

    Args:
        data: What `page_data` gives.
        figures: Their pictures are expected beside the page, at `figure_stem`.
        tables: Tables of the papers and others, in the order in which they are shown.
    """
    style = _asset("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"
    page = Template(_asset("page.html")).substitute(
        policy=_text(_policy(style, script)),
        lead=_text(_lead(data)),
        style=style,
        script=script,
        data=script_json(data),
        tables="\n".join(map(_tables, tables)) or _nothing("No table could be made from these runs."),
        figures=_figures(data, figures) or _nothing("No figure could be drawn from these runs."),
    )
    # a name with half a surrogate pair has no UTF-8 form; the reader gets a question mark for it
    return page.encode("utf-8", "replace").decode("utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """What the page may do: its own style and script, pictures and shards from where it lies.

    `'self'` covers a page from a server; a page from a disk has no origin in some browsers, so `file:` is named too.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_source(script)} 'self' file:",
            f"style-src {_source(style)}",
            "img-src 'self' file: data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _lead(data: dict[str, Any]) -> str:
    runs = len(data["runs"])
    if not runs:
        return "No finished run yet. Make one with `python -m harness run`, then make this page again."
    methods = len({run["method"] for run in data["runs"].values()})
    datasets = len({one["name"] for one in data["datasets"]})
    return f"{_counted(runs, 'run')} of {_counted(methods, 'method')} on {_counted(datasets, 'dataset')}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _nothing(text: str) -> str:
    return f'<p class="nothing">{_text(text)}</p>'


def _tables(one: Table | Document) -> str:
    """A table, or those of a document, behind its title until it is wanted: there are many."""
    if isinstance(one, Table):
        return _closed(f"<h3>{_text(one.title)}</h3>", _article(one, ""))
    fullest_first = sorted(one.tables, key=_measured, reverse=True)
    articles = [_article(table, _dataset_in(table, one) if len(fullest_first) > 1 else "") for table in fullest_first]
    return _closed(f"<h3>{_text(one.title)}</h3> <span>{_text(one.id)}</span>", "\n".join(articles))


def _measured(table: Table) -> int:
    """How many of its figures are ours."""
    return sum(cell.figure is not None and cell.figure.mean is not None for row in table.rows for cell in row)


def _closed(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n{content}</details>"


def _article(table: Table, heading: str) -> str:
    return (
        f'<article data-table="{_text(table.id or table.title)}">{f"<h4>{_text(heading)}</h4>" if heading else ""}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.title)}">{as_html(table)}</div>'
        "</article>\n"
    )


def _dataset_in(table: Table, document: Document) -> str:
    """What tells the tables of one document apart: without what its title says already."""
    return table.title.removeprefix(f"{document.id} on ").removesuffix(f": {document.title}")


def _figures(data: dict[str, Any], figures: Figures) -> str:
    """All figures; with several datasets those of the first are in sight, and the others open on demand."""
    galleries = {name: _gallery(name, drawn) for name, drawn in figures.items()}
    if len(galleries) < 2:
        return "".join(galleries.values())
    titles = {one["name"]: one["title"] for one in data["datasets"]}
    shown = [_closed(f"<h3>{_text(titles.get(name, name))}</h3>", gallery) for name, gallery in galleries.items()]
    return "\n".join([shown[0].replace("<details>", "<details open>", 1), *shown[1:]])


def _gallery(dataset: str, figures: Sequence[Drawing | Missing]) -> str:
    drawn = "\n".join(_figure(one, quote(f"{figure_stem(dataset, one.id)}.svg")) for one in figures)
    return f'<div class="gallery">\n{drawn}\n</div>' if drawn else ""


def _figure(figure: Drawing | Missing, address: str) -> str:
    """A picture that is an image even if its SVG held a script, or what to run to get it."""
    head = f'<figure data-figure="{_text(figure.id)}"'
    title = f"<strong>{_text(figure.title)}</strong>"
    if isinstance(figure, Missing):
        return (
            f'{head} class="missing"><figcaption>{title} {_text(figure.why)}</figcaption>'
            f'<div class="command"><code>{_text(figure.command)}</code></div></figure>'
        )
    return (
        f'{head}><button class="enlarge" type="button" aria-label="Enlarge: {_text(figure.title)}">'
        f'<img src="{_text(address)}" alt="{_text(figure.alt)}"{_size(figure.svg)} loading="lazy"></button>'
        f"<figcaption>{title} {_text(figure.caption)}</figcaption></figure>"
    )


def _size(svg: bytes) -> str:
    """Width and height as attributes, so that the page keeps the place of a picture it has not drawn yet."""
    found = re.search(rb'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg[:2000])
    return "" if found is None else ' width="{:.0f}" height="{:.0f}"'.format(*map(float, found.groups()))
