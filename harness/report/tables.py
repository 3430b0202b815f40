"""One `Table`, five forms. Names and texts in it are other people's, so every form escapes for its own reader."""

import csv
import html
import io
import re

from harness.errors import unknown_name
from harness.report import Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def csv_text(text: str) -> str:
    """Text that a spreadsheet takes for text: a leading formula sign gets an apostrophe."""
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def as_markdown(table: Table) -> str:
    """GitHub-flavoured Markdown."""

    def cell(entry: Cell) -> str:
        return f"**{markdown_text(entry.text)}**" if entry.best else markdown_text(entry.text)

    lines = [
        f"### {markdown_text(table.title)}",
        "",
        "| " + " | ".join(markdown_text(name) for name in table.columns) + " |",
        "|" + "|".join("---" if index < table.words else "---:" for index in range(len(table.columns))) + "|",
        *("| " + " | ".join(cell(entry) for entry in row) + " |" for row in table.rows),
        "",
        markdown_text(table.caption),
    ]
    return "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    """A booktabs table."""

    def cell(entry: Cell) -> str:
        return rf"\textbf{{{latex_text(entry.text)}}}" if entry.best else latex_text(entry.text)

    lines = [
        r"\begin{table}",
        rf"\caption{{{latex_text(table.title)}. {latex_text(table.caption)}}}",
        rf"\begin{{tabular}}{{{'l' * table.words}{'r' * (len(table.columns) - table.words)}}}",
        r"\toprule",
        " & ".join(latex_text(name) for name in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(cell(entry) for entry in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_html(table: Table) -> str:
    """An HTML fragment."""

    def cell(entry: Cell) -> str:
        text = html.escape(entry.text)
        return f"<td><strong>{text}</strong></td>" if entry.best else f"<td>{text}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    body = "\n".join("<tr>" + "".join(cell(entry) for entry in row) + "</tr>" for row in table.rows)
    caption = f"{html.escape(table.title)}. {html.escape(table.caption)}"
    return (
        f"<table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"
    )


def as_csv(table: Table) -> str:
    """Comma-separated values, the table's title in the first column."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["dataset", *table.columns])
    for row in table.rows:
        writer.writerow([csv_text(table.title), *(csv_text(entry.text) for entry in row)])
    return stream.getvalue()


FORMATS = {"md": as_markdown, "tex": as_latex, "html": as_html, "csv": as_csv}


def render(tables: list[Table], form: str) -> str:
    """All tables in one of `FORMATS`."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return "\n".join(FORMATS[form](table) for table in tables)
