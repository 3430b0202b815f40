"""A sweep on this machine: keeps workers at work until every slot has ended or somebody says stop."""

import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from harness.errors import Terminated, UserError
from harness.processes import STOP_SECONDS, Interrupts, share_of_cores
from harness.sweep import Plan
from harness.sweep.crew import Worker
from harness.sweep.display import Display
from harness.sweep.keeping import Keeper
from harness.sweep.queue import Slot, fail, fill, give_back, held_by, repair, slots
from harness.sweep.results import row_of
from harness.sweep.storage import Result, patiently

if TYPE_CHECKING:
    from optuna import Study

_LOOK_SECONDS = 0.1
_READ_SECONDS = 0.7
"""Between two looks at the database."""
_REPAIR_SECONDS = 5.0
"""Between two searches for silent trials."""
_OUTAGE_SECONDS = 60.0
"""How long the sweep waits for a database that does not answer; its workers wait longer."""
_FAREWELL_SECONDS = 10.0
"""What a worker may need to end when there is nothing left to do."""
_REFUSED = 2
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_HOPELESS = 3
"""So many trials that fail for one reason, and none that does not: the next ones would fail too."""


class Loop:
    """Works on a study until it is done; `slots` is how it stands."""

    def __init__(self, plan: Plan, study: "Study", group: str, display: Display, keeper: Keeper, workers: int) -> None:
        self._plan, self._study, self._group = plan, study, group
        self._display, self._keeper, self._wanted = display, keeper, workers
        self._order = plan.as_dict()
        self._environment = share_of_cores(workers)
        self._crew: list[Worker] = []
        self.slots: list[Slot] = []
        self._read = self._repaired = float("-inf")
        self._before: set[int] | None = None
        """Slots that had ended before this sweep came."""
        self._barren = 0
        """Workers in a row that ended badly before they had a trial."""
        self._trouble: str | None = None
        """Why the sweep cannot go on."""
        self._deadline: float | None = None
        """When workers that were told to stop are killed; None while nobody said stop."""

    def run(self) -> signal.Signals | None:
        """Runs until every slot has ended; returns the signal that cut this short, if one did.

        Raises:
            UserError: The trials cannot succeed, or the database or the disk failed.
        """
        error: BaseException | None = None
        with self._display, Interrupts() as interrupts:
            try:
                self._ask(lambda: fill(self._study, self._plan, lambda: interrupts.first is not None))
                self._pass_on(interrupts)
                self._look()
                while self._crew or not self._over():
                    self._staff()
                    time.sleep(_LOOK_SECONDS)
                    self._pass_on(interrupts)
                    self._collect()
                    self._look()
                if self._trouble is not None:
                    raise UserError(self._trouble)
                error = None if interrupts.first is None else Terminated()
            except BaseException as fault:
                error = fault
                raise
            finally:
                self._dismiss()
                self._keeper.close(error)
        return interrupts.first

    def _over(self) -> bool:
        if self._deadline is not None:
            return True
        return all(slot.ended(self._plan.max_retry) for slot in self.slots)

    def _look(self) -> None:
        """Reads how the slots stand, puts back what was lost, and tells the display and the folder."""
        now = time.monotonic()
        if now - self._read < _READ_SECONDS:
            return
        if now - self._repaired > min(_REPAIR_SECONDS, self._plan.timing.grace / 2) and self._deadline is None:
            self._repair()
        self.slots = self._ask(lambda: slots(self._study, self._plan.trials))
        self._read = time.monotonic()
        holders = {slot.current.user_attrs.get("worker") for slot in self.slots if slot.current}
        for worker in self._crew:
            worker.claimed = worker.claimed or worker.name in holders
        self._display.show(self.slots, len(self._crew))
        self._ask(lambda: self._keeper.note(self.slots))
        self._notice_hopelessness()

    def _repair(self) -> None:
        self._repaired = time.monotonic()
        for slot in self._ask(lambda: repair(self._study, self._plan)):
            trial = slot.trials[-1].number
            self._display.say(f"trial {trial} was lost; it waits again (attempt {slot.attempts + 2})")

    def _staff(self) -> None:
        """Starts workers for what waits."""
        if self._deadline is not None:
            return
        waiting = sum(slot.state == "WAITING" for slot in self.slots)
        idle = sum(not worker.claimed for worker in self._crew)
        while len(self._crew) < self._wanted and idle < waiting:
            self._crew.append(Worker(self._order, self._group, self._plan.folder / "logs", self._environment))
            idle += 1

    def _pass_on(self, interrupts: Interrupts) -> None:
        """Tells the workers what the sweep was told."""
        for number in interrupts.take():
            self._display.say(f"{number.name}: waiting for what runs ({len(self._crew)}) to save; once more to hurry")
            self._stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        if self._deadline is None and self.slots and self._over() and self._crew:
            self._deadline = time.monotonic() + _FAREWELL_SECONDS  # one that was overtaken may never end by itself
        if self._deadline is not None and time.monotonic() > self._deadline:
            for worker in self._crew:
                worker.kill()

    def _stop(self, number: signal.Signals) -> None:
        self._deadline = self._deadline or time.monotonic() + STOP_SECONDS
        for worker in self._crew:
            worker.send(number)

    def _collect(self) -> None:
        """What became of workers that have ended, and of the trials they held."""
        for worker in list(self._crew):
            code = worker.ended()
            if code is None:
                continue
            self._crew.remove(worker)
            self._read = float("-inf")
            asked = self._deadline is not None or code in _STOPPED
            held = self._ask(partial(self._put_back, worker, give_back if asked else fail))
            if asked or code == 0:
                self._barren = 0
                continue
            self._display.say(f"a worker {worker.reason(code)}" if code < 0 else worker.reason(code))
            self._repaired = float("-inf")
            self._judge(worker, code, held)

    def _judge(self, worker: Worker, code: int, held: bool) -> None:
        """Whether it makes sense to start another worker after one that ended badly."""
        self._barren = 0 if worker.claimed or held else self._barren + 1
        if code == _REFUSED or self._barren >= _HOPELESS:
            self._trouble = self._trouble or worker.reason(code)
            self._stop(signal.SIGTERM)

    def _notice_hopelessness(self) -> None:
        """Stops when trials fail one like the other; a number in the reason, such as a step, makes no difference."""
        ended = [row_of(slot, self._plan.max_retry) for slot in self.slots if slot.ended(self._plan.max_retry)]
        if self._before is None:
            self._before = {row["slot"] for row in ended}
        ended = [row for row in ended if row["slot"] not in self._before]
        reasons = [re.sub(r"\d[\d.,]*", "#", str(row["reason"])) for row in ended if row["state"] == "FAIL"]
        alike = len(reasons) == len(ended) >= _HOPELESS and len(set(reasons)) == 1
        if alike and self._trouble is None:
            count = f"all of the first {len(ended)} trials"
            self._trouble = f"{count} failed alike, so the sweep stopped: {ended[0]['reason']}"
            self._stop(signal.SIGTERM)

    def _put_back(self, worker: Worker, put: "Callable[[Study, int], bool]") -> bool:
        """Frees the trials of a worker that is gone; says whether there were any."""
        held = held_by(self._study, worker.name)
        for trial in held:
            put(self._study, trial._trial_id)
        return bool(held)

    def _ask(self, call: Callable[[], Result]) -> Result:
        return patiently(call, _OUTAGE_SECONDS)

    def _dismiss(self) -> None:
        """After a fault of our own: no process outlives the sweep, and what it held waits again."""
        for worker in self._crew:
            worker.kill()
            with suppress(Exception):  # what cut the sweep short is told, not this
                self._put_back(worker, give_back)
        self._crew.clear()
