"""Small sweeps for tests: generated data, an encoder of a few thousand weights, trials of a second."""

import dataclasses
import json
import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from optuna import Study
from optuna.trial import FrozenTrial, Trial

from harness.errors import DataError
from harness.experiments.sweep import Plan, Request, Timing, plan_from
from harness.experiments.sweep.plan import make_plan
from harness.experiments.sweep.space import suggest
from harness.experiments.sweep.study import join, open_storage, open_study
from harness.experiments.sweep.trials import claim, fill, make_sampler
from harness.io.files import home, read_json
from harness.run import resolve_config, run
from harness.train.loop import Training
from tests.support.tracked_runs import eventually
from tests.support.training_runs import DATASET, begin_child, exit_code

SETTINGS = (
    "batch_size=60",
    "epochs=3",
    "random_epochs=1",
    "warmup_epochs=1.0",
    "lr_encoder=1e-3",
    "lr_heads=1e-3",
    "checkpoint.min_seconds=0",
    "tracking.system_seconds=0",
)
REQUEST = Request(
    method="unidec",
    dataset=DATASET,
    trials=3,
    encoder="tiny",
    over="lambda,beta",
    settings=SETTINGS,
    study="small",
    track="none",
)
WORDS = ["--dataset", DATASET, "--encoder", "tiny", "--over", "lambda,beta", "--study", "small", "--track", "none"]
WORDS += [word for setting in SETTINGS for word in ("--set", setting)]
SWEEP = ["sweep", *WORDS]


def planned(timing: Timing | None = None, **changes: Any) -> Plan:
    """Return the plan of a small sweep."""
    return make_plan(dataclasses.replace(REQUEST, **changes), timing or Timing())


@cache
def empty_database() -> bytes:
    """Return a database with Optuna's tables, all empty; making them takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        plan = dataclasses.replace(planned(), folder=Path(folder), storage=f"sqlite:///{folder}/study.db")
        open_storage(plan)
        return (plan.folder / "study.db").read_bytes()


def begun(timing: Timing | None = None, **changes: Any) -> tuple[Plan, Study, str]:
    """Start a small sweep whose slots wait; return its plan, study and group run."""
    plan = planned(timing, **changes)
    if plan.storage.startswith("sqlite") and not (plan.folder / "study.db").exists():
        plan.folder.mkdir(parents=True, exist_ok=True)
        (plan.folder / "study.db").write_bytes(empty_database())
    study, group = join(plan)
    fill(study, plan)
    return plan, study, group


def drawn(study: Study, plan: Plan, worker: str) -> int:
    """Claim a trial for a worker and draw its settings; return its id."""
    trial_id = claim(study, plan, worker)
    assert trial_id is not None
    study.sampler = make_sampler(plan, study._storage.get_trial(trial_id).user_attrs["slot"])
    suggest(Trial(study, trial_id), plan.space)
    return trial_id


Act = Callable[[Study, Trial, int], object]
"""Function that a worker calls with study, trial and slot once the trial's settings are drawn."""


def do_trials(act: Act) -> None:
    """Act as a worker of a sweep that calls `act` in place of a training."""
    order = json.loads(sys.stdin.readline())
    plan = plan_from(order["plan"])
    study = open_study(plan)
    while (trial_id := claim(study, plan, order["worker"])) is not None:
        slot = study._storage.get_trial(trial_id).user_attrs["slot"]
        study.sampler = make_sampler(plan, slot)
        trial = Trial(study, trial_id)
        suggest(trial, plan.space)
        act(study, trial, slot)


def states(study: Study) -> list[str]:
    """Return the states of all trials, in order of their number."""
    return [trial.state.name for trial in study.get_trials(deepcopy=False)]


def by_slot(study: Study) -> dict[int, list[FrozenTrial]]:
    """Return all trials, by slot."""
    found: dict[int, list[FrozenTrial]] = {}
    for trial in study.get_trials(deepcopy=False):
        found.setdefault(trial.user_attrs["slot"], []).append(trial)
    return found


def in_training(folder: Path) -> dict[int, tuple[Path, int]]:
    """Return, by pid, the run folders with a saved epoch, and the number of epochs in their newest checkpoint."""
    found = {}
    try:
        for state in sorted(folder.glob("runs/*/checkpoints/step-*/state.json")):
            run, epochs = state.parents[2], int(read_json(state)["epoch"])
            if epochs and not (run / "record.json").exists():
                found[int(read_json(run.with_name(f".{run.name}.lock"))["pid"])] = run, epochs
    except (OSError, DataError):
        return {}  # an older checkpoint was removed in this very moment
    return found


def stop(pid: int, database: Path) -> None:
    """Suspend a process while it has no transaction open, which would block the database until it goes on."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: stands_still(pid), pause=0.01)
        if can_be_written(database):
            return
        os.kill(pid, signal.SIGCONT)


@cache
def import_for_forks() -> None:
    """Train once in this process, so that forked ones need not import again what a training needs."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", folder)
        plan = planned()
        run(resolve_config(plan.method, plan.dataset, list(plan.layers))[0], track="none")


def hold_behind(step: int, patch: pytest.MonkeyPatch, until: Callable[[], object] = bool) -> None:
    """Make trainings wait after a step until they are told to stop or `until` is true.

    A signal sent to one that runs on might come too late.
    """
    count = Training._count

    def held(self: Training, *rest: Any) -> None:
        count(self, *rest)
        if self.position.step > step:
            eventually(lambda: self.boundary.pending or until(), pause=0.01)

    patch.setattr(Training, "_count", held)


def stands_still(pid: int) -> bool:
    """Return whether no thread of a process runs or waits for the disk."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return not alive(pid)
    return all(task.rpartition(")")[2].split()[0] in "TZX" for task in tasks)


def can_be_written(database: Path) -> bool:
    """Return whether no other process has a transaction open."""
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def in_processes(count: int, work: Callable[[int], None]) -> None:
    """Call `work` in `count` forked processes at once, of which none may fail."""
    said = [home().with_name(f"process-{number}") for number in range(count)]
    children = [begin_child(partial(work, number), said[number]) for number in range(count)]
    codes = [exit_code(child) for child in children]
    assert codes == [0] * count, [path.read_text() for path in said]
