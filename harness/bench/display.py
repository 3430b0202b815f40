"""What a person sees while a bench runs: a live table in a terminal, one line per change otherwise.

Everything goes to standard error, so that `--json` and pipes stay clean.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from harness.bench import State, log_path
from harness.bench.estimate import RUNNING, Estimate
from harness.printable import printable
from harness.processes import tail
from harness.progress import clock, terminal

if TYPE_CHECKING:
    from rich.console import Group

METRICS = ("P@1", "P@5", "PSP@5")
_STYLES = {"running": "cyan", "resumed": "cyan", "done": "green", "failed": "bold red", "stopped": "yellow"}
_TAIL_SECONDS = 1.0
_LINES_AROUND = 8
"""Of the terminal's height, not for rows: head, foot, and what was typed."""


class Display(Protocol):
    """Shows the states of a bench while its block is open."""

    def changed(self, state: State) -> None:
        """A cell has another status."""
        ...

    def say(self, line: str) -> None:
        """Something worth a line of its own."""
        ...

    def tick(self) -> None:
        """Called several times a second."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display(states: list[State], runs: Path, estimate: Estimate) -> Display:
    """A table if somebody is watching, else lines."""
    return LiveTable(states, runs, estimate) if sys.stderr.isatty() else Lines(states, estimate)


class Lines:
    """One line per change."""

    def __init__(self, states: list[State], estimate: Estimate) -> None:
        self._states, self._estimate = states, estimate

    def changed(self, state: State) -> None:
        """Prints the cell's new status and, while the bench goes on, how long it will."""
        ended = sum(state.status not in ("waiting", *RUNNING) for state in self._states)
        left = self._estimate.left(time.monotonic()) if state.attempt else None
        rest = f"; about {clock(left)} to go" if left else ""
        self.say(f"[{ended}/{len(self._states)}] {state.cell}: {told(state)}{rest}")

    def say(self, line: str) -> None:
        """Prints a line."""
        print(printable(line), file=sys.stderr, flush=True)  # noqa: T201

    def tick(self) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def told(state: State) -> str:
    """A status with its figures, or its reason."""
    parts: list[str] = [state.status]
    if state.status == "done":
        parts += [f"{name} {value}" for name, value in zip(METRICS, figures(state), strict=True) if value]
        parts += [f"{state.seconds:.1f} s"] if state.seconds is not None else []
        parts += ["resumed"] if state.attempt == "resumed" else ["was there"] if state.attempt is None else []
    return ", ".join(parts) + (f": {state.reason}" if state.reason else "")


def figures(state: State) -> list[str]:
    """The metrics of a cell that is done, as text; empty where there is none."""
    values = state.record.metrics if state.record else {}
    return [f"{values[name]:.2f}" if name in values else "" for name in METRICS]


class LiveTable:
    """A row per cell and a line of totals, redrawn twice a second."""

    def __init__(
        self, states: list[State], runs: Path, estimate: Estimate, clock_now: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.live import Live

        self._states, self._runs, self._estimate, self._now = states, runs, estimate, clock_now
        self._began = self._looked = clock_now()
        self._open = True
        self._live = Live(get_renderable=self.render, console=terminal(), refresh_per_second=2)

    def changed(self, state: State) -> None:
        """Nothing to do: the table is redrawn anyway."""

    def say(self, line: str) -> None:
        """Prints a line above the table."""
        terminal().print(printable(line), highlight=False, markup=False)

    def tick(self) -> None:
        """Reads what the running cells wrote last."""
        if self._now() - self._looked < _TAIL_SECONDS:
            return
        self._looked = self._now()
        for state in self._states:
            if state.status in RUNNING:
                state.reason = (tail(log_path(self._runs, state.cell)) or [""])[-1]

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False  # the last drawing stays on the screen, with every row
        self._live.stop()

    def render(self) -> "Group":
        """The table as it stands."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=False)
        for name in ("method", "dataset"):
            table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=36)
        for name in ("seed", "status", *METRICS, "seconds"):
            table.add_column(name, no_wrap=True, justify="left" if name == "status" else "right")
        table.add_column("", no_wrap=True, overflow="ellipsis")
        room = terminal().height - _LINES_AROUND if self._open else len(self._states)
        for state in window(self._states, max(3, room)):
            config = state.cell.config
            words = [state.cell.title, config.dataset, str(config.seed)]
            status = Text(state.status, style=_STYLES.get(state.status, ""))
            rest = [*figures(state), self._seconds(state), state.reason]
            table.add_row(*map(Text, words), status, *(Text(printable(cell)) for cell in rest))
        return Group(table, Text(self.totals()))

    def totals(self) -> str:
        """Done of all, running, failed, time spent, time left."""
        now = self._now()
        counts = {
            "running": sum(state.status in RUNNING for state in self._states),
            "failed": sum(state.status == "failed" for state in self._states),
        }
        parts = [f"{sum(state.status == 'done' for state in self._states)}/{len(self._states)} done"]
        parts += [f"{count} {name}" for name, count in counts.items() if count]
        parts.append(f"{clock(now - self._began)} so far")
        left = self._estimate.left(now)
        parts += [f"about {clock(left)} to go"] if left else []
        return ", ".join(parts)

    def _seconds(self, state: State) -> str:
        if state.status in RUNNING:
            return f"{self._now() - state.began:.0f}"
        return "" if state.seconds is None else f"{state.seconds:.1f}"


def window(states: Sequence[State], room: int) -> Sequence[State]:
    """As many rows as there is room for: those around what is running."""
    if len(states) <= room:
        return states
    active = [place for place, state in enumerate(states) if state.status in ("waiting", *RUNNING)]
    first = max(0, min(active[0] if active else len(states), len(states) - room + 2) - 2)
    return states[first : first + room]
