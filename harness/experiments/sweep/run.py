"""Run a sweep: start workers as jobs, put lost trials back into the queue, keep the study's folder up to date."""

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
"""Names of states for the user; all others are `waiting`: a LOST one waits to be put back into the queue."""
_READ_SECONDS = 0.7
"""Seconds between two reads of the database."""
_REPAIR_SECONDS = 5.0
"""Seconds between two searches for lost trials."""
_OUTAGE_SECONDS = 60.0
"""Seconds that the sweep waits for a database that does not answer; its workers wait longer."""
_FAREWELL_SECONDS = 10.0
"""Seconds that workers have to end once every slot has ended."""
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_HOPELESS = 3
"""Failures for the same reason, without any success, after which the sweep stops."""


class Sweep(Work):
    """The trials of a study as work for the runner: each job is a worker that does trials until none waits."""

    def __init__(self, plan: Plan, study: "Study", group: str, workers: int) -> None:
        self._plan, self._study, self._group = plan, study, group
        self._results = Results(plan, study, group)
        self.slots: list[Slot] = []
        """The slots as last read from the database."""
        self._seen: set[str] = set()
        """Names of workers that have had a trial."""
        self._logs: dict[str, Job] = {}
        self._read = self._repaired = float("-inf")
        self._before: set[int] | None = None
        """Numbers of slots that had ended before this sweep began; None until the first read."""
        self._barren = 0
        """Workers in a row that failed before they had a trial."""
        self._trouble: str | None = None
        """Why the sweep stopped by itself; None if it did not."""
        columns = ("trial", "status", "epoch", *plan.objectives, *plan.space, "seconds")
        self.display = Display("trials", columns, self.rows, workers=workers, summary=self._best)

    def rows(self) -> list[Row]:
        """Return the trials as rows of the display."""
        best = best_slots(self.slots)
        return [self._row(slot, best[: 1 if len(self._plan.objectives) == 1 else None]) for slot in self.slots]

    def begin(self) -> None:
        """Put a trial for every slot into the queue."""
        self._ask(lambda: fill(self._study, self._plan, lambda: self.runner.interrupted))

    def next(self) -> Job | None:
        """Return a new worker if more trials wait than there are workers without a trial, else None."""
        waiting = sum(slot.state == "WAITING" for slot in self.slots)
        idle = sum(handle.job.name not in self._seen for handle in self.runner.running)
        if idle >= waiting:
            return None
        token = secrets.token_hex(3)
        name = f"{socket.gethostname()}:{os.getpid()}:{token}"  # unique among the workers of all machines
        log = self._plan.folder / "logs" / f"worker-{os.getpid()}-{token}.log"
        order = {"plan": self._plan.as_dict(), "group": self._group, "worker": name}
        self._logs[name] = Job(name, COMMAND, log, order=json.dumps(order).encode())
        return self._logs[name]

    def not_started(self, job: Job, error: OSError) -> None:
        """Raise the error: without a worker the sweep ends."""
        raise error

    def ended(self, job: Job, code: int) -> None:
        """Put back the trials of a worker that has ended; stop if another worker would fail in the same way."""
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
        """Read the slots, put back lost trials, and update display and folder."""
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
            self.runner.stop(None, _FAREWELL_SECONDS)  # a worker that lost its trial to another may never end by itself

    def over(self) -> bool:
        """Return whether every slot has ended."""
        return all(slot.ended for slot in self.slots)

    def finish(self) -> None:
        """Raise `UserError` if the sweep stopped by itself."""
        if self._trouble is not None:
            raise UserError(self._trouble)

    def dropped(self, job: Job) -> None:
        """Return the worker's trial to the queue."""
        with suppress(Exception):  # the error that ended the sweep is reported, not this one
            self._put_back(job.name, give_back)

    def close(self, error: BaseException | None) -> None:
        """Write the results a last time."""
        self._results.close(error)

    def _give_up(self, reason: str) -> None:
        self._trouble = self._trouble or reason
        self.runner.stop(signal.SIGTERM)

    def _stop_if_hopeless(self) -> None:
        """Stop if all trials fail for the same reason; numbers in it, such as a step, are not compared."""
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
        """Apply `put` to the trials of a worker that has ended; returns whether it had any."""
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
    """Work on a study until every slot has ended; returns the slots, and the signal that ended this early or None.

    Raises:
        UserError: The trials cannot succeed, or the database or the disk failed.
    """
    sweep = Sweep(plan, study, group, workers)
    number = Runner(sweep, workers).run()
    return sweep.slots, number


def summary(found: list[Slot]) -> str:
    """Return how many trials are done, running, pruned and failed, in words."""
    words = [_STATUS.get(slot.state, "waiting") for slot in found]
    others = [f"{words.count(word)} {word}" for word in ("running", "pruned", "failed") if word in words]
    return ", ".join([f"{words.count('done')} of {len(words)} trials done", *others])


def format_value(value: Any) -> str:
    """Format a value of a range, floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)


def _figures(slot: Slot) -> list[str]:
    """Format the objectives of a slot, final or as last validated."""
    trial = slot.current
    if trial is None:
        return []
    now = trial.user_attrs.get("epoch", [])[1:] or list(dict(sorted(trial.intermediate_values.items())).values())[-1:]
    return [f"{value:.2f}" for value in slot.values or now]
