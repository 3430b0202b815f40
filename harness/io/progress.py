"""Progress for long work: a live bar in a terminal, one line at the start and end otherwise.

Everything goes to standard error, so that `--json` and pipes stay clean.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[int], None]
_QUIET_BELOW_SECONDS = 2.0


@cache
def terminal() -> "Console":
    """Return the one console on standard error; nested bars share it, or they would overwrite each other."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def progress(description: str, total: int | None = None, unit: str = "rows") -> Iterator[Advance]:
    """Show `description` while the block runs; call the yielded function with the number of units done."""
    started, done = time.perf_counter(), 0

    def count(units: int) -> None:
        nonlocal done
        done += units

    if sys.stderr.isatty():
        with _live_bar(description, total, unit) as advance:
            yield advance
        return
    yield count
    seconds = time.perf_counter() - started
    if seconds > _QUIET_BELOW_SECONDS:
        print(f"{description}: {done:,} {unit} in {seconds:.1f} s", file=sys.stderr)  # noqa: T201


@contextmanager
def _live_bar(description: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal(), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda units: bar.advance(task, units)


def clock(seconds: float) -> str:
    """Return a duration as text: 42 s, 3:20 min, 1:05:00 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
