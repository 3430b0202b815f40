"""One `Table` in three forms: Markdown, LaTeX and CSV; the page has its own template.

Names and texts in it are other people's, so every form escapes for its own reader.

Best is bold and second best underlined in all forms that people read. CSV is for programs: a column with figures
becomes `mean`, `std`, `n`, `paper` and `difference`, which are numbers or empty.
"""

import csv
import io
import re

from harness.errors import unknown_name
from harness.io.printable import printable
from harness.report.cells import Cell, Figure, Table

_FORMULA_SIGNS = {
    *"=+-@",
    *("\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}"),
    *("\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}"),
}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def csv_text(text: str) -> str:
    """Text that a spreadsheet takes for text, on one line; a leading formula sign gets an apostrophe.

    The sign of a number is not a formula. Line breaks go because not every reader knows a quoted one from the end of a
    row. Some readers take the wide signs of East Asian keyboards for the others, and some skip spaces.
    """
    text = printable(text)
    formula = text.lstrip()[:1] in _FORMULA_SIGNS and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


def as_markdown(table: Table) -> str:
    """GitHub-flavoured Markdown; it has no rules between rows."""
    from harness.report.render import render_template

    return render_template("table.md.j2", table=table)


def as_latex(table: Table) -> str:
    """LaTeX, see `harness.report.latex`."""
    from harness.report import latex

    return latex.as_latex(table)


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


FORMATS = {"md": as_markdown, "tex": as_latex, "csv": as_csv}


def render(tables: list[Table], form: str) -> str:
    """All tables in one of `FORMATS`."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return joined_csv(tables) if form == "csv" else "\n".join(FORMATS[form](table) for table in tables)
