"""Keeps the folder of a study up to date while it is worked on: results, plots, and the log that a tracker follows.

Several sweeps of one machine may work on one study. One of them keeps its folder; if that one ends first, the next.
"""

import socket
import time
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from harness.sweep import Plan
from harness.sweep.queue import Slot
from harness.sweep.results import Results, best_slots, values_of
from harness.tracking import make_tracker
from harness.tracking.events import LOG, LogReader
from harness.tracking.follower import wait_for
from harness.tracking.group import GroupLog

if TYPE_CHECKING:
    from optuna import Study

_PLOT_SECONDS = 60.0
KEEPER_LOCK = ".keeper.lock"
"""Held by the sweep that keeps the folder, as long as it runs."""


class Keeper:
    """Writes results after every trial; `close` it with what ended the sweep."""

    def __init__(self, plan: Plan, study: "Study", group: str) -> None:
        self._plan, self._study, self._group = plan, study, group
        self._results = Results(plan, study, group)
        self._lock = FileLock(plan.folder / KEEPER_LOCK, timeout=0)
        self._log: GroupLog | None = None
        self._ended: set[int] = set()
        self._drawn = time.monotonic()

    def note(self, found: list[Slot]) -> None:
        """Takes in how the slots stand."""
        if not self._keeps():
            return
        ended = {slot.number for slot in found if slot.ended(self._plan.max_retry)}
        if ended == self._ended:
            return
        for slot in found:
            if slot.number in ended - self._ended:
                self._log_trial(slot)
        self._ended = ended
        self._log_best(found)
        self._write(draw=time.monotonic() - self._drawn > _PLOT_SECONDS)

    def close(self, error: BaseException | None) -> None:
        """The last word: results and plots as they are now; `error` is what cut the sweep short."""
        if self._log is None:
            return
        try:
            self._write(draw=True)
        finally:
            wait_for(self._plan.runs.glob("*/"))  # workers do not wait until MLflow has everything of a trial
            self._log.__exit__(type(error) if error else None, error, None)
            self._log = None
            self._lock.release()

    def _keeps(self) -> bool:
        """Whether this process keeps the folder, from now on if nobody else does."""
        if self._log is not None:
            return True
        try:
            self._lock.acquire()
        except Timeout:
            return False
        plan = self._plan
        search = self._study.user_attrs["search"]
        events = LogReader(plan.folder / LOG).read() if (plan.folder / LOG).exists() else []
        logged = {event["slot"] for event in events if event["event"] == "trial"}
        log = GroupLog(
            plan.folder,
            "sweep",
            self._group,
            experiment=plan.identity["dataset"]["name"],
            name=plan.study,
            params=_params(plan, search),
            tags={"method": plan.method, "optuna": search["optuna"], "sampler": search["sampler"]},
            # the machine that began the study speaks for it; two that send one parent run would end it twice
            tracker=make_tracker(plan.track if self._study.user_attrs.get("host") == socket.gethostname() else "none"),
        )
        self._log = log.__enter__()
        self._ended = logged
        self._write(draw=False)
        return True

    def _write(self, draw: bool) -> None:
        files = self._results.write()
        if draw:
            files += self._results.draw()
            self._drawn = time.monotonic()
        for path in files:
            if self._log is not None:
                self._log.artifact(path)

    def _log_trial(self, slot: Slot) -> None:
        if self._log is None or slot.current is None:
            return
        trial = slot.current
        self._log.event("trial", trial=trial.number, slot=slot.number, state=slot.state, params=trial.params)
        values = dict(zip((f"trial/{name}" for name in self._plan.objectives), values_of(slot), strict=False))
        if values:
            self._log.metrics(values, slot.number)

    def _log_best(self, found: list[Slot]) -> None:
        best = best_slots(found)
        if self._log is None or not best:
            return
        # of two objectives the best of each, which need not be one trial's
        columns = zip(*(values_of(slot) for slot in best), strict=True)
        figures = {f"best/{name}": max(column) for name, column in zip(self._plan.objectives, columns, strict=True)}
        self._log.metrics(figures | {"trials/ended": float(len(self._ended))}, len(self._ended))


def _params(plan: Plan, search: dict[str, Any]) -> dict[str, Any]:
    """The settings of the sweep, for the tracker."""
    from harness.sweep.space import describe

    config = plan.identity["config"]
    return {
        "method": plan.method,
        "dataset": plan.identity["dataset"]["name"],
        "encoder": config["encoder"],
        "over": ",".join(plan.space),
        "ranges": "; ".join(describe(plan.space)),
        "objective": ",".join(plan.objectives),
        "trials": plan.trials,
        "seed": plan.seed,
        "validation.size": config["validation"]["size"],
        "max_retry": plan.max_retry,
        **search,
    }
