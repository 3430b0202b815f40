"""A process that runs trials until none waits: `python -m harness.experiments.sweep.worker`, a job of a sweep.

Its plan comes as one line on standard input, so that the address of a database, which may hold a password, is on no
command line and in no file. The sweep keeps that pipe open; when it closes, the sweep is gone, and the worker saves,
returns its trial to the queue and ends as on SIGTERM.

A trial is a point of the space and an ordinary run on validation rows. A worker runs many, because importing torch
takes longer than a small trial.
"""

import errno
import gc
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from harness.errors import Pruned, Terminated, UserError, terminate
from harness.experiments.jobs import REFUSED
from harness.experiments.sweep import Plan, plan_from
from harness.experiments.sweep.runs import left_behind, trial_runs
from harness.experiments.sweep.space import settings_of, suggest
from harness.experiments.sweep.study import StorageOutage, open_study, patiently
from harness.experiments.sweep.trials import claim, fail, give_back, make_pruner, make_sampler, slot_of
from harness.io.printable import printable, printable_lines
from harness.io.private import without_paths
from harness.machine.threads import begin
from harness.run import resolve_config, run
from harness.runs.record import RunRecord
from harness.settings.layers import Layer
from harness.settings.method import load_method

if TYPE_CHECKING:
    from optuna import Study

_MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the machine, which the next trial would meet as well."""


class Overtaken(Terminated):
    """The trial has been given to another worker, because its heartbeats were overdue."""


class Attempt:
    """One attempt of a worker at a claimed trial."""

    def __init__(self, study: "Study", plan: Plan, group: str, trial_id: int, worker: str) -> None:
        """Draw the values of the trial, or take those of an earlier attempt."""
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
        """Run the trial and store its result in the study; dropped if another worker has the trial by now.

        Raises:
            KeyboardInterrupt, Terminated, OSError: The worker has to stop; the trial is back in the queue.
        """
        with _heartbeat(self._study, self._id, self._plan.timing.heartbeat):
            try:
                self._run()
            except Overtaken as overtaken:
                self._say(f"was given to another worker meanwhile; dropped{overtaken}")

    def _run(self) -> None:
        try:
            self._finish(self._record())
        except (Overtaken, StorageOutage):  # after an outage the next attempt finds the record on disk
            raise
        except Pruned as pruned:
            self._tell("PRUNED")
            self._say(str(pruned))
        except (KeyboardInterrupt, Terminated):
            give_back(self._study, self._id)
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
                give_back(self._study, self._id)
                raise
            traceback.print_exc()
            words = str(error).splitlines()
            reason = without_paths(words[0] if words else type(error).__name__)
            if not patiently(lambda: fail(self._study, self._id, reason)):
                raise Overtaken(f", though it failed: {reason}") from error
            self._say(f"failed: {reason}")

    def _record(self) -> RunRecord:
        """Run the trial's settings; resumes an earlier attempt if this machine has one."""
        plan = self._plan
        point = Layer(f"trial {self.number}", settings_of(self.values, plan.space))
        config, origins = resolve_config(plan.method, plan.dataset, [*plan.layers, point])
        found = left_behind(plan, self._group, self.slot, config)
        if isinstance(found, RunRecord):
            self._name(found.run_id)
            if found.status == "pruned":
                raise Pruned(found.error or "pruned")
            return found
        about = {"study": plan.study, "trial": self.number, "slot": self.slot, **self.values}
        self._say("goes on where it stopped" if found else "begins")
        return run(
            config,
            origins=origins,
            out=plan.runs,
            track=plan.track,
            earlier=found,
            parent={"id": self._group, "kind": "sweep", "name": plan.study, "params": about},
            on_validation=self._validated,
        )

    def _validated(self, epoch: int, scores: dict[str, float]) -> None:
        """Report the value of an epoch; raises `Pruned` if the pruner ends the trial."""
        from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
        from sqlalchemy.exc import OperationalError

        plan, values = self._plan, [scores[name] for name in self._plan.objectives]
        try:
            self._require_own()
            if not self._named:
                own = next((one for one in trial_runs(plan.runs, self._group) if one.slot == self.slot), None)
                self._name(own.folder.name if own else "")
            if len(values) > 1:
                self._trial.set_user_attr("epoch", [epoch, *values])
            elif epoch not in self._reported:
                self._trial.report(values[0], epoch)
            if plan.pruning and self._trial.should_prune():
                raise Pruned(f"pruned in epoch {epoch}: {plan.objectives[0]} {values[0]:.2f} is behind other trials")
        except UpdateFinishedTrialError as error:
            raise Overtaken from error
        except (StorageInternalError, OperationalError) as error:  # a value of an epoch may be lost, the final one not
            self._say(f"the study's database did not take the value of epoch {epoch}: {str(error).splitlines()[0]}")

    def _require_own(self) -> None:
        now = self._study._storage.get_trial(self._id)
        if now.state.name != "RUNNING" or now.user_attrs.get("worker") != self._worker:
            raise Overtaken

    def _finish(self, record: RunRecord) -> None:
        values = [record.metrics.get(name, math.nan) for name in self._plan.objectives]
        self._name(record.run_id)
        if not all(map(math.isfinite, values)):
            fail(self._study, self._id, f"the run gave no number for {', '.join(self._plan.objectives)}")
        else:
            self._tell("COMPLETE", values)

    def _tell(self, state: str, values: list[float] | None = None) -> None:
        from optuna.trial import TrialState

        ended = self._write(
            lambda: self._study.tell(self._trial, values, state=TrialState[state], skip_if_finished=True)
        )
        if ended.state.name != state:
            raise Overtaken

    def _name(self, run_id: str) -> None:
        """Store the run id in the trial, for readers of the study."""
        self._named = True
        self._write(lambda: self._trial.set_user_attr("run_id", run_id))

    def _write(self, change: Callable[[], Any]) -> Any:
        """Write to the database, waiting for it; raises `Overtaken` if another process has ended the trial."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            return patiently(change)
        except UpdateFinishedTrialError as error:
            raise Overtaken from error

    def _say(self, what: str) -> None:
        print(f"trial {self.number}: {printable(what)}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def _heartbeat(study: "Study", trial_id: int, seconds: float) -> Iterator[None]:
    """Record a heartbeat of a trial every `seconds`: Optuna does so only inside its own loop."""
    storage, stop = study._storage, threading.Event()

    def beat() -> None:
        try:
            while not stop.wait(seconds):
                with suppress(Exception):  # the database is out for a moment; the trial goes on
                    storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]
        finally:
            storage.remove_session()  # an SQLite connection belongs to the thread that opened it

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    begin(thread)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main() -> int:
    """Read the plan from standard input and run trials; returns the exit code."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        order = json.loads(sys.stdin.buffer.readline())
        begin(threading.Thread(target=_end_with_the_sweep, name="lifeline", daemon=True))
        _work(order)
    except UserError as error:
        return _refuse(str(error).splitlines()[0])
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _refuse(f"{error.strerror or error}{place}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    return 0


def _work(order: dict[str, Any]) -> None:
    """Claim and run trials until none waits."""
    plan, group, worker = plan_from(order["plan"]), order["group"], order["worker"]
    study = open_study(plan)
    load_method(plan.method)  # imports torch, which takes seconds: better before a trial is claimed
    while (trial_id := patiently(lambda: claim(study, plan, worker))) is not None:
        Attempt(study, plan, group, trial_id, worker).run()
        gc.collect()  # free the memory of a trial before the next one begins


def _end_with_the_sweep() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _refuse(reason: str) -> int:
    print(f"error: {printable_lines(reason)}", file=sys.stderr, flush=True)  # noqa: T201
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
