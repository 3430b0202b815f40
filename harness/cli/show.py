"""How commands print: a table for people, JSON for programs."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from harness.io.printable import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from harness.report.cells import Table


def say(text: str, err: bool = False) -> None:
    """Lines for a person; a name or reason in them may be somebody else's, and steers no terminal.

    Args:
        text: What to say.
        err: On standard error.
    """
    typer.echo(printable_lines(text), err=err)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str)))


_PIPE_WIDTH = 160
"""A pipe has no width; what a program or a log will read is not folded early."""
_LEAST_WORDS = 12
"""Characters of a column of words before a table becomes wider than the terminal rather than unreadable."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[str] = ()) -> None:
    """A table on standard output; the texts are taken as they are, never as markup.

    Words are folded to make a table fit, numbers never: a table that does not fit is printed wider than the terminal.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    right, cells = {*map(printable, numeric)}, [[*map(printable, row)] for row in rows]
    for place, column in enumerate(map(printable, columns)):
        justify: Literal["left", "right"] = "right" if column in right else "left"
        longest = max([len(column), *(len(row[place]) for row in cells)])
        least = longest if column in right else min(longest, 2 * _LEAST_WORDS if place == 0 else _LEAST_WORDS)
        table.add_column(Text(column), justify=justify, overflow="fold", no_wrap=column in right, min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    width = console.width if console.is_terminal else _PIPE_WIDTH
    wanted = os.environ.get("COLUMNS", "")
    width = int(wanted) if wanted.isdecimal() and int(wanted) > 0 else width
    size = Measurement.get(console, console.options.update(max_width=10**6), table)
    say(printable(title))
    Console(highlight=False, width=width if size.minimum <= width else size.maximum).print(table)


def show_tables(tables: "Iterable[Table]", star: str = "best") -> None:
    """Tables of a report; `star` is what a star stands for."""
    for table in tables:
        cells = [
            [cell.shown + (" *" if cell.best else " ·" if cell.second else "") for cell in row] for row in table.rows
        ]
        print_table(table.title, table.columns, cells, numeric=table.columns[table.words :])
        signs = {
            f"* {star}": any(cell.best for row in table.rows for cell in row),
            "· second best": any(cell.second for row in table.rows for cell in row),
        }
        legend = ", ".join(sign for sign, used in signs.items() if used)
        say("\n".join([f"{table.caption}{f' {legend}.' if legend else ''}", *table.notes]) + "\n")


def format_value(value: Any) -> str:
    """A value for a cell of a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def short_path(path: Path) -> str:
    """A path as a person would type it: relative to the current folder where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
