"""Progress of running jobs: a live table in a terminal, one line per change otherwise.

Everything goes to standard error, so that `--json` and pipes stay clean.
"""

import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from harness.io.printable import printable
from harness.io.progress import clock, terminal

if TYPE_CHECKING:
    from rich.console import Group

RUNNING = ("running", "resumed")
_STYLES = {
    "running": "cyan",
    "resumed": "cyan",
    "done": "green",
    "pruned": "yellow",
    "stopped": "yellow",
    "failed": "bold red",
}
_COUNTED = ("running", "pruned", "failed", "stopped")
_LINES_AROUND = 8
"""Lines of the terminal that are not for rows: header, totals, and what was typed."""
_TEXT_COLUMNS = ("method", "dataset", "status")
_TAIL_BYTES = 8192
_LINE_WIDTH = 300
"""Characters kept of a line of a log; a terminal shows fewer."""

Alike = tuple[Hashable, ...]
"""Keys that similar rows share, the closest similarity first; the time of a row is estimated from these."""


@dataclass(frozen=True)
class Row:
    """A run of a bench or a trial of a sweep, with its current status."""

    name: str
    status: str
    """`waiting`, one of `RUNNING`, or how it ended; `text` is printed whenever it or `attempt` changes."""
    cells: dict[str, str]
    """Text by column; `status` and `seconds` may be left out."""
    text: str
    attempt: int = 0
    alike: Alike = ()
    seconds: float | None = None
    """Seconds that it took, or has run so far."""
    counts: bool = False
    """Whether its seconds are used to estimate how long others take."""
    remark: str = ""
    log: Path | None = None
    """Log whose last line is shown as the remark while the row runs."""

    @property
    def running(self) -> bool:
        """Whether the row runs now."""
        return self.status in RUNNING

    @property
    def ended(self) -> bool:
        """Whether the row has ended: it neither runs nor waits."""
        return not self.running and self.status != "waiting"


class Display:
    """Shows rows while it is open as a context manager."""

    def __init__(
        self,
        what: str,
        columns: Sequence[str],
        rows: Callable[[], list[Row]],
        *,
        workers: int,
        earlier: Sequence[tuple[Alike, float]] = (),
        summary: Callable[[], str] = str,
    ) -> None:
        """Prepare the display.

        Args:
            what: Noun for the rows, in plural: cells, trials.
            columns: Columns of the table, `status` among them.
            rows: Function that returns the current rows.
            workers: How many run side by side.
            earlier: Similarity keys and seconds of earlier runs, to estimate the time left.
            summary: Function that returns text for the line of totals, such as the best so far.
        """
        self._what, self._columns, self._rows, self._summary = what, columns, rows, summary
        self._workers, self._earlier = workers, earlier
        self._began = time.monotonic()
        self._shown: dict[str, tuple[str, int]] | None = None
        self._open = True
        self._live = None
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(get_renderable=self.render, console=terminal(), refresh_per_second=2)

    def refresh(self) -> None:
        """Print what has changed; a live table is redrawn anyway."""
        rows = self._rows()
        if self._live is not None or not rows:
            return
        ended = sum(row.ended for row in rows)
        if self._shown is None and ended:
            self.say(f"{ended} of {len(rows)} {self._what} were done before")
        before = self._shown or {row.name: (row.status, row.attempt) for row in rows if row.ended}
        self._shown = {row.name: (row.status, row.attempt) for row in rows}
        for row in rows:
            if row.status == "waiting" or before.get(row.name) == (row.status, row.attempt):
                continue
            left = time_left(rows, self._workers, self._earlier)
            rest = f"; about {clock(left)} to go" if left else ""
            self.say(f"[{ended}/{len(rows)}] {row.text}{rest}")

    def say(self, line: str) -> None:
        """Print a line, above the table if there is one."""
        if self._live is not None:
            terminal().print(printable(line), highlight=False, markup=False)
        else:
            print(printable(line), file=sys.stderr, flush=True)  # noqa: T201

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._open = False  # the last drawing stays on the screen, with every row
        if self._live is not None:
            self._live.stop()

    def render(self) -> "Group":
        """Draw the table of the current rows."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = self._rows()
        table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=False)
        for name in self._columns:
            justify: Literal["left", "right"] = "left" if name in _TEXT_COLUMNS else "right"
            table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=36, justify=justify)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        room = terminal().height - _LINES_AROUND if self._open else len(rows)
        for row in window(rows, max(3, room)):
            cells = {"status": row.status, "seconds": "" if row.seconds is None else f"{row.seconds:.1f}", **row.cells}
            remark = (tail(row.log) or [""])[-1] if row.log and row.running else row.remark
            shown = {name: Text(printable(cells.get(name, ""))) for name in self._columns}
            shown["status"].stylize(_STYLES.get(row.status, ""))
            table.add_row(*shown.values(), Text(printable(remark)))
        return Group(table, Text(self._totals(rows)))

    def _totals(self, rows: Sequence[Row]) -> str:
        """Format counts, time spent and time left."""
        counts = Counter("running" if row.running else row.status for row in rows)
        parts = [f"{counts['done']}/{len(rows)} done"]
        parts += [f"{counts[status]} {status}" for status in _COUNTED if counts[status]]
        parts += [extra] if (extra := self._summary()) else []
        parts.append(f"{clock(time.monotonic() - self._began)} so far")
        left = time_left(rows, self._workers, self._earlier)
        parts += [f"about {clock(left)} to go"] if left else []
        return ", ".join(parts)


def window(rows: Sequence[Row], room: int) -> Sequence[Row]:
    """Return at most `room` rows: those around the first row that has not ended."""
    if len(rows) <= room:
        return rows
    active = next((place for place, row in enumerate(rows) if not row.ended), len(rows))
    first = max(0, min(active, len(rows) - room + 2) - 2)
    return rows[first : first + room]


def time_left(rows: Sequence[Row], workers: int, earlier: Sequence[tuple[Alike, float]] = ()) -> float | None:
    """Estimate the seconds until the last row ends; None while some row has no similar one that ended."""
    spent: dict[Hashable, list[float]] = {}
    ended = [(row.alike, row.seconds) for row in rows if row.counts and row.seconds is not None]
    for alike, seconds in (*earlier, *ended):
        for like in alike:
            spent.setdefault(like, []).append(seconds)
    busy: list[float] = []
    waiting: list[float] = []
    for row in (row for row in rows if not row.ended):
        known = next((spent[like] for like in row.alike if like in spent), None)
        if known is None:
            return None
        usual = sum(known) / len(known)
        if row.status == "waiting":
            waiting.append(usual)
        else:
            busy.append(max(0.0, usual - (row.seconds or 0.0)))
    # each waiting row goes to the worker that is free first
    free = busy + [0.0] * max(0, workers - len(busy))
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def tail(log: Path) -> list[str]:
    """Return the last lines of a log, without empty ones and without control characters."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = ("".join(letter for letter in line if letter.isprintable()).rstrip() for line in text.splitlines())
    return [line[:_LINE_WIDTH] for line in lines if line.strip()]
