"""One `Table`, four forms. Names and texts in it are other people's, so every form escapes for its own reader.

Best is bold and second best underlined in all forms that people read. CSV is for programs: a column with figures
becomes `mean`, `std`, `n`, `paper` and `difference`, which are numbers or empty.
"""

import csv
import html
import io
import re

from harness.errors import unknown_name
from harness.printable import printable
from harness.report.cells import Cell, Figure, Table
from harness.report.latex import as_latex

_FORMULA_SIGNS = {
    *"=+-@",
    *("\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}"),
    *("\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}"),
}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", " ".join(printable(text).split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def csv_text(text: str) -> str:
    """Text that a spreadsheet takes for text, on one line; a leading formula sign gets an apostrophe.

    The sign of a number is none. Line breaks go because not every reader knows a quoted one from the end of a row. Some
    readers take the wide signs of East Asian keyboards for the others, and some skip spaces.
    """
    text = printable(text)
    formula = text.lstrip()[:1] in _FORMULA_SIGNS and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


def as_markdown(table: Table) -> str:
    """GitHub-flavoured Markdown; it has no rules between rows."""
    lines = [
        f"### {markdown_text(table.title)}",
        "",
        "| " + " | ".join(markdown_text(name) for name in table.columns) + " |",
        "|" + "|".join("---" if index < table.words else "---:" for index in range(len(table.columns))) + "|",
        *("| " + " | ".join(_markdown_cell(entry) for entry in row) + " |" for row in table.rows),
        "",
        _markdown_line(table.caption),
        *(["", *(f"- {_markdown_line(note)}" for note in table.notes)] if table.notes else []),
        *(["", "```", table.command, "```"] if table.command else []),
    ]
    return "\n".join(lines) + "\n"


def _markdown_cell(entry: Cell) -> str:
    main = markdown_text(entry.main)
    if entry.best:
        main = f"**{main}**"
    elif entry.second:
        main = f"<ins>{main}</ins>"
    return f"{main}{markdown_text(entry.mark)}" + (f" ({markdown_text(entry.beside)})" if entry.beside else "")


def _markdown_line(text: str) -> str:
    """A sentence of its own: one that starts like an item of a list is none."""
    return re.sub(r"^(\d*)([-+.)])", r"\1\\\2", markdown_text(text))


def as_html(table: Table) -> str:
    """An HTML fragment; each group of rows between rules is a `tbody`."""
    head = "".join(
        f'<th scope="col"{_classes("words" if place < table.words else "number")}>{html.escape(name)}</th>'
        for place, name in enumerate(table.columns)
    )
    bodies = "".join(
        "<tbody>\n" + "".join(f"<tr>{_html_row(row, table.words)}</tr>\n" for row in rows) + "</tbody>\n"
        for rows in table.groups() or [()]
    )
    title = f'<span class="title">{html.escape(table.heading)}</span>'
    caption = f"<caption>{' '.join(part for part in (title, html.escape(table.caption)) if part)}</caption>"
    notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in table.notes)
    below = f'<ul class="notes">\n{notes}</ul>\n' if notes else ""
    below += f'<p class="command"><code>{html.escape(table.command)}</code></p>\n' if table.command else ""
    return f'<table class="table">\n{caption}\n<thead><tr>{head}</tr></thead>\n{bodies}</table>\n{below}'


def _classes(*names: str) -> str:
    return f' class="{" ".join(names)}"'


def _html_row(row: tuple[Cell, ...], words: int) -> str:
    return "".join(_html_cell(entry, place == 0, place < words) for place, entry in enumerate(row))


def _html_cell(entry: Cell, heads_row: bool, words: bool) -> str:
    main = html.escape(entry.main)
    classes = ["words" if words else "number"]
    if entry.figure is not None:
        classes.append("figure" if entry.figure.mean is not None else "missing")
    if entry.best:
        main, classes = f"<strong>{main}</strong>", [*classes, "best"]
    elif entry.second:
        main, classes = f"<u>{main}</u>", [*classes, "second"]
    main += f"<sup>{html.escape(entry.mark)}</sup>" if entry.mark else ""
    main += f' <span class="paper">({html.escape(entry.beside)})</span>' if entry.beside else ""
    return f'<th scope="row"{_classes(*classes)}>{main}</th>' if heads_row else f"<td{_classes(*classes)}>{main}</td>"


def as_csv(table: Table) -> str:
    """Comma-separated values, the table's title in the first column.

    A column with marks, or with figures that the paper has wrong, has a column of them beside it.
    """
    return joined_csv([table])


def joined_csv(tables: list[Table]) -> str:
    """Several tables as one, with the columns of all; a table that has no such column leaves it empty."""
    rows: list[dict[str, str]] = []
    for table in tables:
        columns = [_csv_column(name, [row[place] for row in table.rows]) for place, name in enumerate(table.columns)]
        for number in range(len(table.rows)):
            entries = [pair for names, values in columns for pair in zip(names, values[number], strict=True)]
            rows.append({"table": csv_text(table.title), **dict(entries)})
    heads = list(dict.fromkeys(name for row in rows for name in row)) or ["table"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([csv_text(name) for name in heads])
    writer.writerows([[row.get(name, "") for name in heads] for row in rows])
    return stream.getvalue()


def _csv_column(name: str, entries: list[Cell]) -> tuple[list[str], list[list[str]]]:
    """The names that a column of the table has in the file, and for each row its values."""
    names, values = [name], [[csv_text(entry.main)] for entry in entries]
    if any(entry.figure is not None for entry in entries):
        names = [f"{name} {part}" for part in ("mean", "std", "n", "paper", "difference")]
        values = [_numbers(entry) for entry in entries]
    if any(entry.figure is not None and entry.figure.slip for entry in entries):
        names.append(f"{name} slip")
        values = [
            [*row, "yes" if entry.figure and entry.figure.slip else ""]
            for row, entry in zip(values, entries, strict=True)
        ]
    if any(entry.mark for entry in entries):
        names.append(f"{name} mark")
        values = [[*row, csv_text(entry.mark)] for row, entry in zip(values, entries, strict=True)]
    return names, values


def _numbers(entry: Cell) -> list[str]:
    """Mean, std, n, paper, difference; words in a column of figures stand in place of the mean."""
    figure = entry.figure
    if figure is None:
        return [csv_text(entry.text), "", "", "", ""]
    ours = [_number(value, figure) for value in (figure.mean, figure.std)]
    return [*ours, str(figure.n), *(_number(value, figure) for value in (figure.paper, figure.difference))]


def _number(value: float | None, figure: Figure) -> str:
    """Six decimals at most, whole where whole numbers are shown; more would be noise of the arithmetic."""
    if value is None:
        return ""
    return str(round(value)) if figure.digits == 0 else repr(round(value, 6) + 0.0)


FORMATS = {"md": as_markdown, "tex": as_latex, "html": as_html, "csv": as_csv}


def render(tables: list[Table], form: str) -> str:
    """All tables in one of `FORMATS`."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return joined_csv(tables) if form == "csv" else "\n".join(FORMATS[form](table) for table in tables)
