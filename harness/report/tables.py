"""Render a `Table` as Markdown, LaTeX or CSV, and fill templates; the HTML page renders its tables itself.

Names and texts are not ours: in a template every value is escaped for its format unless it is marked
`safe`; in `*.txt.j2`, a text for all formats, none is. `*.tex.j2` has `<% %>` and `<< >>`, as braces are LaTeX's; the
others have Jinja's usual signs.

Best is bold and second best underlined in Markdown and LaTeX. CSV is for programs: a column with figures
becomes `mean`, `std`, `n`, `paper` and `difference`, which are numbers or empty.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from harness.errors import unknown_name
from harness.io.printable import printable
from harness.report.cells import Cell, Figure, Table

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGES = ("array", "booktabs", "graphicx")
"""LaTeX packages that a table needs; `in_document` makes a whole document."""
_LINES = 48
"""Largest number of lines of a LaTeX float; more would be too small to read on one page."""
_FORMULA_SIGNS = {
    *"=+-@",
    *("\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}"),
    *("\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}"),
}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def as_markdown(table: Table) -> str:
    """Render a table as GitHub-flavoured Markdown, which has no rules between rows."""
    return render_template("table.md.j2", table=table)


def as_latex(table: Table) -> str:
    """Render a table as LaTeX; if too long for a page, as several floats of one number, the last with the notes."""
    return render_template("table.tex.j2", parts=table.parts(_LINES), packages=",".join(PACKAGES))


def as_csv(tables: list[Table]) -> str:
    """Render tables as CSV with the columns of all of them, after the title of each row's table.

    Columns that a table lacks are empty. Marks, and whether the paper's figure is wrong, are in columns of their own
    beside the figures.
    """
    import pandas as pd

    rows: list[dict[str, str]] = []
    for table in tables:
        columns = [_csv_column(name, [row[place] for row in table.rows]) for place, name in enumerate(table.columns)]
        for number in range(len(table.rows)):
            values = {csv_text(name): entries[number] for column in columns for name, entries in column.items()}
            rows.append({"table": csv_text(table.title), **values})
    frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=["table"])
    return str(frame.to_csv(index=False, lineterminator="\n"))


FORMATS = ("md", "tex", "csv")


def render(tables: list[Table], form: str) -> str:
    """Render tables in one of `FORMATS`."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    if form == "csv":
        return as_csv(tables)
    return "\n".join(map(as_markdown if form == "md" else as_latex, tables))


def in_document(fragments: Iterable[str]) -> str:
    """Return a whole LaTeX document of tables from `as_latex`, each on pages of its own."""
    return render_template("document.tex.j2", pages=list(fragments), packages=",".join(PACKAGES))


# -- CSV


def csv_text(text: str) -> str:
    """Make a text safe for spreadsheets, on one line; a leading formula sign gets an apostrophe.

    The sign of a number is not a formula. Line breaks are removed because some readers take a quoted one for the end of
    a row. Some readers accept the full-width signs of East Asian keyboards too, and some skip spaces.
    """
    text = printable(text)
    formula = text.lstrip()[:1] in _FORMULA_SIGNS and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


def _csv_column(name: str, cells: list[Cell]) -> dict[str, list[str]]:
    """Return the CSV columns of a column of the table; text among figures is in the column of the mean."""
    figures = [cell.figure for cell in cells]
    found = {name: [csv_text(cell.main) for cell in cells]}
    if any(figures):
        found = {
            f"{name} mean": [
                _number(one.mean, one) if one else csv_text(cell.text) for cell, one in zip(cells, figures, strict=True)
            ],
            f"{name} std": [_number(one.std, one) if one else "" for one in figures],
            f"{name} n": [str(one.n) if one else "" for one in figures],
            f"{name} paper": [_number(one.paper, one) if one else "" for one in figures],
            f"{name} difference": [_number(one.difference, one) if one else "" for one in figures],
        }
    if any(one and one.slip for one in figures):
        found[f"{name} slip"] = ["yes" if one and one.slip else "" for one in figures]
    if any(cell.mark for cell in cells):
        found[f"{name} mark"] = [csv_text(cell.mark) for cell in cells]
    return found


def _number(value: float | None, figure: Figure) -> str:
    """Format a number with at most six decimals, or whole if the figure is; further digits are rounding noise."""
    if value is None:
        return ""
    return str(round(value)) if figure.digits == 0 else repr(round(value, 6) + 0.0)


# -- templates


def render_template(name: str, **values: Any) -> str:
    """Fill the template of that name."""
    form = name.split(".")[-2]
    return _environment(form).get_template(name).render(**values)


@cache
def _environment(form: str) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    signs: dict[str, str] = {}
    escape: Callable[[str], str] = str
    filters: dict[str, Callable[..., str]] = {}
    if form == "md":
        escape, filters = markdown_text, {"sentence": markdown_sentence, "code": markdown_code}
    elif form == "tex":
        from harness.report.latex import column_types, latex_text

        escape, filters = latex_text, {"column_types": lambda table: _safe(column_types(table))}
        signs = {"block_start_string": "<%", "block_end_string": "%>", "comment_start_string": "<#"}
        signs |= {"comment_end_string": "#>", "variable_start_string": "<<", "variable_end_string": ">>"}
    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,  # anything that `finalize` has not marked safe would be escaped as HTML
        finalize=lambda value: value if isinstance(value, Markup) else _safe(escape(str(value))),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **signs,  # type: ignore[arg-type]
    )
    environment.filters.update(filters)
    return environment


def _safe(text: str) -> Markup:
    """Mark text as escaped for its format."""
    return Markup(text)  # noqa: S704


def markdown_text(text: str) -> str:
    """Escape text so that Markdown shows it as it is, on one line."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", " ".join(printable(text).split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_sentence(text: str) -> str:
    """Escape a sentence that begins a line, so that it is not taken for an item of a list."""
    return _safe(re.sub(r"^(\d*)([-+.)])", r"\1\\\2", markdown_text(text)))


def markdown_code(text: str) -> str:
    """Format any text as a Markdown code span."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return _safe(f"{fence}{space}{' '.join(printable(text).split())}{space}{fence}")
