"""A sweep at work: workers as jobs of the runner, lost trials put back, the study's folder kept up to date."""

import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.experiments.display import Display, Row
from harness.experiments.jobs import REFUSED, Job, Runner, Work, why_ended
from harness.experiments.sweep import Plan
from harness.experiments.sweep.results import Results
from harness.experiments.sweep.study import Result, patiently
from harness.experiments.sweep.trials import Slot, best_slots, fail, fill, give_back, held_by, repair, slots

if TYPE_CHECKING:
    from optuna import Study

COMMAND = (sys.executable, "-m", "harness.experiments.sweep.worker")
_STATUS = {"RUNNING": "running", "COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
"""What a state is called; all others are `waiting`: one that is LOST waits to be put back."""
_READ_SECONDS = 0.7
"""Between two looks at the database."""
_REPAIR_SECONDS = 5.0
"""Between two searches for silent trials."""
_OUTAGE_SECONDS = 60.0
"""How long the sweep waits for a database that does not answer; its workers wait longer."""
_FAREWELL_SECONDS = 10.0
"""What a worker may need to end when there is nothing left to do."""
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_HOPELESS = 3
"""So many trials that fail for one reason, and none that does not: the next ones would fail too."""


class Sweep(Work):
    """The trials of a study as work for the runner: each job is a worker that does trials until none waits."""

    def __init__(self, plan: Plan, study: "Study", group: str, workers: int) -> None:
        self._plan, self._study, self._group = plan, study, group
        self._results = Results(plan, study, group)
        self.slots: list[Slot] = []
        """As last read."""
        self._seen: set[str] = set()
        """Workers that were seen with a trial."""
        self._logs: dict[str, Job] = {}
        self._read = self._repaired = float("-inf")
        self._before: set[int] | None = None
        """Slots that had ended before this sweep came."""
        self._barren = 0
        """Workers in a row that ended badly before they had a trial."""
        self._trouble: str | None = None
        """Why the sweep cannot go on."""
        columns = ("trial", "status", "epoch", *plan.objectives, *plan.space, "seconds")
        self.display = Display("trials", columns, self.rows, workers=workers, summary=self._best)

    def rows(self) -> list[Row]:
        """The trials for the display."""
        best = best_slots(self.slots)
        return [self._row(slot, best[: 1 if len(self._plan.objectives) == 1 else None]) for slot in self.slots]

    def begin(self) -> None:
        """Fill the queue."""
        self._ask(lambda: fill(self._study, self._plan, lambda: self.runner.interrupted))

    def next(self) -> Job | None:
        """A worker, if more trials wait than there are workers without one."""
        waiting = sum(slot.state == "WAITING" for slot in self.slots)
        idle = sum(handle.job.name not in self._seen for handle in self.runner.running)
        if idle >= waiting:
            return None
        token = secrets.token_hex(3)
        name = f"{socket.gethostname()}:{os.getpid()}:{token}"  # tells the workers of all machines apart
        log = self._plan.folder / "logs" / f"worker-{os.getpid()}-{token}.log"
        order = {"plan": self._plan.as_dict(), "group": self._group, "worker": name}
        self._logs[name] = Job(name, COMMAND, log, order=json.dumps(order).encode())
        return self._logs[name]

    def not_started(self, job: Job, error: OSError) -> None:
        """Without workers there is no sweep."""
        raise error

    def ended(self, job: Job, code: int) -> None:
        """Free the trials of a worker that is gone; stop if another one would end like it."""
        self._read = float("-inf")
        asked = self.runner.stopping or code in _STOPPED
        held = self._ask(partial(self._put_back, job.name, give_back if asked else fail))
        if asked or code == 0:
            self._barren = 0
            return
        reason, self._repaired = why_ended(code, job.log), float("-inf")
        self.display.say(f"a worker {reason}" if code < 0 else reason)
        self._barren = 0 if job.name in self._seen or held else self._barren + 1
        if code == REFUSED or self._barren >= _HOPELESS:
            self._give_up(reason)

    def look(self) -> None:
        """Read how the slots stand, put back what was lost, and tell the display and the folder."""
        now = time.monotonic()
        if now - self._read < _READ_SECONDS:
            return
        if now - self._repaired > min(_REPAIR_SECONDS, self._plan.timing.grace / 2) and not self.runner.stopping:
            self._repaired = now
            for slot in self._ask(lambda: repair(self._study, self._plan)):
                trial = slot.trials[-1].number
                self.display.say(f"trial {trial} was lost; it waits again (attempt {slot.attempts + 2})")
        self.slots = self._ask(lambda: slots(self._study, self._plan))
        self._read = time.monotonic()
        self._seen |= {slot.current.user_attrs.get("worker") or "" for slot in self.slots if slot.current}
        self.display.refresh()
        self._ask(lambda: self._results.note(self.slots))
        self._stop_if_hopeless()
        if self.over() and self.runner.running and not self.runner.stopping:
            self.runner.stop(None, _FAREWELL_SECONDS)  # a worker whose trial was given away may never end by itself

    def over(self) -> bool:
        """Whether every slot has ended."""
        return all(slot.ended for slot in self.slots)

    def finish(self) -> None:
        """Raise what made the sweep stop, if it stopped by itself."""
        if self._trouble is not None:
            raise UserError(self._trouble)

    def dropped(self, job: Job) -> None:
        """Put back what the worker held."""
        with suppress(Exception):  # what cut the sweep short is reported, not this
            self._put_back(job.name, give_back)

    def close(self, error: BaseException | None) -> None:
        """Write the last results."""
        self._results.close(error)

    def _give_up(self, reason: str) -> None:
        self._trouble = self._trouble or reason
        self.runner.stop(signal.SIGTERM)

    def _stop_if_hopeless(self) -> None:
        """Stop when trials fail one like the other; a number in the reason, such as a step, makes no difference."""
        ended = [slot for slot in self.slots if slot.ended]
        if self._before is None:
            self._before = {slot.number for slot in ended}
        rows = [slot.as_dict() for slot in ended if slot.number not in self._before]
        alike = {re.sub(r"\d[\d.,]*", "#", str(row["reason"])) for row in rows if row["state"] == "FAIL"}
        if len(rows) >= _HOPELESS and len(alike) == 1 and all(row["state"] == "FAIL" for row in rows):
            self._give_up(
                f"all of the first {len(rows)} trials failed alike, so the sweep stopped: {rows[0]['reason']}"
            )

    def _put_back(self, worker: str, put: "Callable[[Study, int], bool]") -> bool:
        """Free the trials of a worker that is gone; says whether there were any."""
        held = held_by(self._study, worker)
        for trial in held:
            put(self._study, trial._trial_id)
        return bool(held)

    def _ask(self, call: Callable[[], Result]) -> Result:
        return patiently(call, _OUTAGE_SECONDS)

    def _row(self, slot: Slot, best: list[Slot]) -> Row:
        plan, row, trial = self._plan, slot.as_dict(), slot.current
        status = _STATUS.get(slot.state, "waiting")
        if status == "running" and len(row["params"]) < len(plan.space):
            status = "waiting"  # its point is being drawn
        figures = dict(zip(plan.objectives, _figures(slot), strict=False))
        point = {name: format_value(value) for name, value in row["params"].items()}
        number = slot.number if row["trial"] is None else row["trial"]
        seconds, reason = row.get("seconds"), row.get("reason")
        parts = [f"trial {number}: {status}" + (f", attempt {slot.attempts + 1}" if slot.attempts else "")]
        parts += [f"{name} {value}" for name, value in figures.items()]
        parts += ["best so far"] if status == "done" and len(plan.objectives) == 1 and slot in best else []
        parts += [f"{name} {value}" for name, value in point.items()]
        parts += [f"{seconds:.1f} s"] if seconds is not None else []
        job = self._logs.get(trial.user_attrs.get("worker", "")) if trial else None
        return Row(
            name=str(slot.number),
            status=status,
            cells={"trial": str(number), "epoch": str(slot.epochs or ""), **figures, **point},
            text=", ".join(parts) + (f": {reason}" if reason else ""),
            attempt=slot.attempts,
            alike=("trial",),
            seconds=seconds,
            counts=status in ("done", "pruned"),
            remark="best" if slot in best else reason or "",
            log=job.log if job else None,
        )

    def _best(self) -> str:
        best = best_slots(self.slots)
        if not best:
            return ""
        two = len(self._plan.objectives) > 1
        return f"{len(best)} on the front" if two else f"best {self._plan.objectives[0]} {best[0].values[0]:.2f}"


def work_on(plan: Plan, study: "Study", group: str, workers: int) -> tuple[list[Slot], signal.Signals | None]:
    """Work on a study until every slot has ended; returns how they stand and the signal that cut this short, if any.

    Raises:
        UserError: The trials cannot succeed, or the database or the disk failed.
    """
    sweep = Sweep(plan, study, group, workers)
    number = Runner(sweep, workers).run()
    return sweep.slots, number


def summary(found: list[Slot]) -> str:
    """How many trials are where, in words."""
    words = [_STATUS.get(slot.state, "waiting") for slot in found]
    others = [f"{words.count(word)} {word}" for word in ("running", "pruned", "failed") if word in words]
    return ", ".join([f"{words.count('done')} of {len(words)} trials done", *others])


def format_value(value: Any) -> str:
    """A value of a range, short."""
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)


def _figures(slot: Slot) -> list[str]:
    """The objectives of a slot: at its end, or as last validated."""
    trial = slot.current
    if trial is None:
        return []
    now = trial.user_attrs.get("epoch", [])[1:] or list(dict(sorted(trial.intermediate_values.items())).values())[-1:]
    return [f"{value:.2f}" for value in slot.values or now]
