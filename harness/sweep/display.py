"""What a person sees while a sweep runs: a live table in a terminal, one line per change otherwise.

Everything goes to standard error, so that `--json` and pipes stay clean.
"""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from harness.printable import printable
from harness.progress import clock, terminal
from harness.sweep import Plan
from harness.sweep.queue import Slot
from harness.sweep.results import best_slots, epochs_of, row_of, values_of

if TYPE_CHECKING:
    from rich.console import Group

WORDS = {"WAITING": "waiting", "RUNNING": "running", "COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
"""What a state is called; one that is LOST waits to be put back."""
_STYLES = {"running": "cyan", "done": "green", "pruned": "yellow", "failed": "bold red"}
_LINES_AROUND = 9
"""Of the terminal's height, not for rows: head, foot, and what was typed."""


class Display(Protocol):
    """Shows the slots of a sweep while its block is open."""

    def show(self, slots: list[Slot], workers: int) -> None:
        """How the slots stand, and how many workers there are; called about once a second."""
        ...

    def say(self, line: str) -> None:
        """Something worth a line of its own."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display(plan: Plan) -> Display:
    """A table if somebody is watching, else lines."""
    return LiveTable(plan) if sys.stderr.isatty() else Lines(plan)


def shown(value: Any) -> str:
    """A value of a range, short."""
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)


def word_of(slot: Slot, plan: Plan) -> str:
    """The state of a slot in a word."""
    return WORDS.get(row_of(slot, plan.max_retry)["state"], "waiting")


def figures_of(slot: Slot) -> list[str]:
    """The objectives of a slot: at its end, or as last validated."""
    trial = slot.current
    if trial is None:
        return []
    now = trial.user_attrs.get("epoch", [])[1:] or list(dict(sorted(trial.intermediate_values.items())).values())[-1:]
    return [f"{value:.2f}" for value in values_of(slot) or now]


class Lines:
    """One line per trial that begins, ends or is lost."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[int, tuple[str, int]] = {}
        self._began = time.monotonic()
        self._first = True

    def show(self, slots: list[Slot], workers: int) -> None:
        """Prints what is new."""
        for slot in slots:
            now = (word_of(slot, self._plan), slot.attempts)
            if now[0] == "running" and slot.current and len(slot.current.params) < len(self._plan.space):
                continue  # its point is being drawn
            if self._known.get(slot.number, ("waiting", 0)) != now and now[0] != "waiting":
                if not (self._first and now[0] != "running"):  # what was done before is summed up
                    self.say(f"[{_ended(slots, self._plan)}/{len(slots)}] {told(slot, slots, self._plan)}")
            self._known[slot.number] = now
        if self._first and (before := _ended(slots, self._plan)):
            self.say(f"{before} of {len(slots)} trials were done before")
        self._first = False

    def say(self, line: str) -> None:
        """Prints a line."""
        print(printable(line), file=sys.stderr, flush=True)  # noqa: T201

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _ended(slots: Sequence[Slot], plan: Plan) -> int:
    return sum(slot.ended(plan.max_retry) for slot in slots)


def told(slot: Slot, slots: list[Slot], plan: Plan) -> str:
    """A trial in one line."""
    row, word = row_of(slot, plan.max_retry), word_of(slot, plan)
    parts = [f"trial {row['trial']}: {word}" + (f", attempt {row['attempts']}" if row["attempts"] > 1 else "")]
    parts += [f"{name} {value}" for name, value in zip(plan.objectives, figures_of(slot), strict=False)]
    if word == "done" and len(plan.objectives) == 1 and best_slots(slots)[0] == slot:
        parts.append("best so far")
    parts += [f"{name} {shown(value)}" for name, value in row["params"].items()]
    parts += [f"{row['seconds']:.1f} s"] if row["seconds"] is not None else []
    return ", ".join(parts) + (f": {row['reason']}" if row["reason"] else "")


class LiveTable:
    """A row per trial and a line of totals, redrawn twice a second."""

    def __init__(self, plan: Plan) -> None:
        from rich.live import Live

        self._plan = plan
        self._slots: list[Slot] = []
        self._workers = 0
        self._began = time.monotonic()
        self._open = True
        self._live = Live(get_renderable=self.render, console=terminal(), refresh_per_second=2)

    def show(self, slots: list[Slot], workers: int) -> None:
        """Takes what the next drawing shows."""
        self._slots, self._workers = slots, workers

    def say(self, line: str) -> None:
        """Prints a line above the table."""
        terminal().print(printable(line), highlight=False, markup=False)

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

        plan, slots = self._plan, self._slots
        table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=False)
        for name in ("trial", "state", "epoch", *plan.objectives, *plan.space, "seconds"):
            table.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
        table.add_column("", no_wrap=True, overflow="ellipsis")
        best = [slot.number for slot in best_slots(slots)][: 1 if len(plan.objectives) == 1 else None]
        room = terminal().height - _LINES_AROUND if self._open else len(slots)
        for slot in window(slots, max(3, room), plan):
            row, word = row_of(slot, plan.max_retry), word_of(slot, plan)
            figures = figures_of(slot) or [""] * len(plan.objectives)
            point = [shown(row["params"][name]) if name in row["params"] else "" for name in plan.space]
            seconds = "" if row.get("seconds") is None else f"{row['seconds']:.1f}"
            remark = "best" if slot.number in best else row.get("reason") or ""
            cells = [str(epochs_of(slot) or ""), *figures, *point, seconds, remark]
            trial = str(slot.number if row["trial"] is None else row["trial"])
            table.add_row(
                Text(trial), Text(word, style=_STYLES.get(word, "")), *(Text(printable(cell)) for cell in cells)
            )
        return Group(table, Text(self.totals()))

    def totals(self) -> str:
        """Counts, the best so far, time spent, time left."""
        plan, slots = self._plan, self._slots
        parts = [counted(slots, plan)]
        if (best := best_slots(slots)) and len(plan.objectives) == 1:
            parts.append(f"best {plan.objectives[0]} {values_of(best[0])[0]:.2f}")
        elif best:
            parts.append(f"{len(best)} on the front")
        parts.append(f"{clock(time.monotonic() - self._began)} so far")
        left = time_left(slots, max(1, self._workers), plan)
        parts += [f"about {clock(left)} to go"] if left else []
        return ", ".join(parts)


def counted(slots: Sequence[Slot], plan: Plan) -> str:
    """How many trials are where, in words."""
    words = [word_of(slot, plan) for slot in slots]
    parts = [f"{words.count('done')} of {plan.trials} trials done"]
    parts += [f"{words.count(word)} {word}" for word in ("running", "pruned", "failed") if word in words]
    return ", ".join(parts)


def window(slots: Sequence[Slot], room: int, plan: Plan) -> Sequence[Slot]:
    """As many rows as there is room for: those around what is running."""
    active = [place for place, slot in enumerate(slots) if not slot.ended(plan.max_retry)]
    first = max(0, min(active[0] if active else len(slots), len(slots) - room + 2) - 2)
    return slots[first : first + room] if len(slots) > room else slots


def time_left(slots: Sequence[Slot], workers: int, plan: Plan) -> float | None:
    """Seconds until the end, by the mean of the trials that ended well; None while there is none."""
    rows = [row_of(slot, plan.max_retry) for slot in slots]
    spent = [row["seconds"] for row in rows if row["state"] in ("COMPLETE", "PRUNED") and row["seconds"]]
    if not spent:
        return None
    open_slots = sum(not slot.ended(plan.max_retry) for slot in slots)
    return float(open_slots * sum(spent) / len(spent) / workers)
