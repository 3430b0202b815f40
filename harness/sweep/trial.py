"""One trial: a point of the space, an ordinary run on held-out rows, and what became of it."""

import errno
import math
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harness.config import Layer
from harness.errors import Pruned, Terminated
from harness.printable import printable
from harness.record import RunRecord
from harness.resume import Earlier
from harness.run import resolve_config, run
from harness.sweep import Plan
from harness.sweep.queue import fail, give_back, slot_of
from harness.sweep.runs import left_behind, parent_facts, trial_runs
from harness.sweep.samplers import make_pruner, make_sampler
from harness.sweep.space import settings_of, suggest
from harness.sweep.storage import StorageOutage, patiently
from harness.threads import begin
from harness.tracking import without_paths

if TYPE_CHECKING:
    from optuna import Study

_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors that the next trial would meet as well."""


class Overtaken(Terminated):
    """The trial was silent for too long and has been given to another worker."""


class Attempt:
    """One attempt of a worker at a claimed trial."""

    def __init__(self, study: "Study", plan: Plan, group: str, trial_id: int, worker: str) -> None:
        """Draws the point of the trial, or takes that of an earlier attempt."""
        import optuna

        self._study, self._plan, self._group, self._id, self._worker = study, plan, group, trial_id, worker
        frozen = study._storage.get_trial(trial_id)
        self.number, self.slot = frozen.number, slot_of(frozen)
        self._reported = set(frozen.intermediate_values)
        self._named = False
        study.sampler, study.pruner = make_sampler(plan, self.slot), make_pruner(plan)
        self._trial = optuna.Trial(study, trial_id)
        self.values = suggest(self._trial, plan.space)

    def run(self) -> None:
        """Runs the trial to an end and tells the study; what was lost meanwhile is left alone.

        Raises:
            KeyboardInterrupt, Terminated, OSError: The worker has to stop; the trial waits again.
        """
        with Heartbeat(self._study, self._id, self._plan.timing.heartbeat):
            try:
                self._finish(self._record())
            except Overtaken:
                self._say("was given to another worker meanwhile; dropped")
            except Pruned as pruned:
                self._tell("PRUNED")
                self._say(str(pruned))
            except (KeyboardInterrupt, Terminated):
                give_back(self._study, self._id)
                raise
            except StorageOutage:  # the record is on disk; whoever claims the trial next tells it
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
                    give_back(self._study, self._id)
                    raise
                self._fail(error)

    def _record(self) -> RunRecord:
        """Runs what the point means, from where an earlier attempt stopped if there was one on this machine."""
        plan = self._plan
        point = Layer(f"trial {self.number}", settings_of(self.values, plan.space))
        config, origins = resolve_config(plan.method, plan.dataset, [*plan.layers, point])
        found = left_behind(plan, self._group, self.slot, config)
        if isinstance(found, RunRecord):
            self._name(found.run_id)
            if found.status == "pruned":
                raise Pruned(found.error or "pruned")
            return found
        earlier: Earlier | None = found
        parent = parent_facts(plan, self._group, self.number, self.slot, self.values)
        self._say("goes on where it stopped" if earlier else "begins")
        return run(
            config,
            origins=origins,
            out=plan.runs,
            track=plan.track,
            earlier=earlier,
            parent=parent,
            on_validation=self._validated,
        )

    def _validated(self, epoch: int, scores: dict[str, float]) -> None:
        """Reports the value of an epoch; ends a trial that others are clearly ahead of."""
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import OperationalError

        try:
            self._require_own()
            if not self._named:
                own = next((one for one in trial_runs(self._plan.runs, self._group) if one.slot == self.slot), None)
                self._name(own.folder.name if own else "")
            self._report(epoch, scores)
        except (StorageInternalError, OperationalError) as error:  # the end is told with patience; this can be missed
            self._say(f"the study's database did not take the value of epoch {epoch}: {str(error).splitlines()[0]}")

    def _report(self, epoch: int, scores: dict[str, float]) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        values = [scores[name] for name in self._plan.objectives]
        try:
            if len(values) > 1:
                self._trial.set_user_attr("epoch", [epoch, *values])
            elif epoch not in self._reported:
                self._trial.report(values[0], epoch)
        except UpdateFinishedTrialError as error:
            raise Overtaken from error
        if self._plan.pruning and self._trial.should_prune():
            raise Pruned(f"pruned in epoch {epoch}: {self._plan.objectives[0]} {values[0]:.2f} is behind other trials")

    def _require_own(self) -> None:
        now = self._study._storage.get_trial(self._id)
        if now.state.name != "RUNNING" or now.user_attrs.get("worker") != self._worker:
            raise Overtaken

    def _finish(self, record: RunRecord) -> None:
        values = [record.metrics.get(name, math.nan) for name in self._plan.objectives]
        self._name(record.run_id)
        if not all(map(math.isfinite, values)):
            missing = ", ".join(self._plan.objectives)
            fail(self._study, self._id, f"the run gave no number for {missing}")
            return
        self._tell("COMPLETE", values)

    def _tell(self, state: str, values: list[float] | None = None) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        def tell() -> Any:
            return self._study.tell(self._trial, values, state=TrialState[state], skip_if_finished=True)

        try:
            told = patiently(tell)
        except UpdateFinishedTrialError:
            told = None
        if told is None or told.state.name != state:
            self._say("was given to another worker meanwhile; dropped")

    def _fail(self, error: Exception) -> None:
        import traceback

        traceback.print_exc()
        words = str(error).splitlines()
        reason = without_paths(words[0] if words else type(error).__name__)
        if patiently(lambda: fail(self._study, self._id, reason)):
            self._say(f"failed: {reason}")
        else:
            self._say(f"was given to another worker meanwhile; dropped, though it failed: {reason}")

    def _name(self, run_id: str) -> None:
        """Notes which run belongs to the trial, for people."""
        from optuna.exceptions import UpdateFinishedTrialError

        self._named = True
        try:
            patiently(lambda: self._trial.set_user_attr("run_id", run_id))
        except UpdateFinishedTrialError as error:
            raise Overtaken from error

    def _say(self, what: str) -> None:
        print(f"trial {self.number}: {printable(what)}", file=sys.stderr, flush=True)  # noqa: T201


class Heartbeat:
    """Records a sign of life of one trial every so many seconds: Optuna does so only inside its own loop."""

    def __init__(self, study: "Study", trial_id: int, seconds: float) -> None:
        self._storage, self._trial_id, self._seconds = study._storage, trial_id, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        begin(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._stop.wait(self._seconds):
                with suppress(Exception):  # a database that is out for a moment; the trial goes on
                    self._storage.record_heartbeat(self._trial_id)  # type: ignore[attr-defined]
        finally:
            self._storage.remove_session()  # an SQLite connection belongs to the thread that opened it
