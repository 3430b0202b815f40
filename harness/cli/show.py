"""How commands print: a table for people, JSON for programs."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import typer


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[str] = ()) -> None:
    """A table on standard output; the texts are taken as they are, never as markup."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    right = set(numeric)
    for place, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width; do not fold what a program or a log will read
        console = Console(highlight=False, width=int(os.environ.get("COLUMNS") or 160))
    typer.echo(title)
    console.print(table)


def short_path(path: Path) -> str:
    """A path as a person would type it: relative to the current folder where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
