"""Sweeps whose workers train: killed, stopped and interrupted; forked, because torch takes seconds to import."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.experiments.sweep import Timing, worker
from harness.experiments.sweep.results import Results
from harness.experiments.sweep.study import open_study
from harness.experiments.sweep.trials import repair
from harness.io.files import read_json
from harness.runs.events import read_events
from harness.runs.record import read_record
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.forks import fork_jobs
from tests.support.sweeps import (
    SWEEP,
    alive,
    begun,
    by_slot,
    hold_behind,
    import_for_forks,
    in_training,
    planned,
    states,
    stop,
)
from tests.support.tracked_runs import eventually
from tests.support.training_runs import begin_child, exit_code

pytestmark = pytest.mark.usefixtures("one_thread")

_SECOND_EPOCH = 5
"""A step of it: an epoch has four, and a checkpoint."""


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Results, "draw", lambda results: [])  # takes seconds, and is looked at elsewhere
    import_for_forks()
    fork_jobs(monkeypatch, lambda words: worker.main())


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_workers_that_are_killed_lose_nothing(
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 15: re-queued once, with the same point, and continued from the checkpoint"""
    folder, go = workspace / "studies" / "small", tmp_path / "go"
    killed: dict[int, tuple[Path, int]] = {}
    hold_behind(_SECOND_EPOCH, monkeypatch, go.exists)

    def kill_both() -> None:
        killed.update(eventually(lambda: len(found := in_training(folder)) == 2 and found))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        go.touch()

    killer = in_background(kill_both)
    assert call(*SWEEP, "--trials", "3", "--workers", "2", "--json") == 0
    killer.join()
    told = capsys.readouterr()
    metadata = json.loads(told.out)
    assert [row["state"] for row in metadata["slots"]] == ["COMPLETE"] * 3
    assert told.err.count("ended by SIGKILL") == 2
    assert told.err.count("it waits again (attempt 2)") == 2
    study = open_study(planned())
    trials = by_slot(study)
    again = [slot for slot in trials.values() if len(slot) == 2]
    assert sorted(map(len, trials.values())) == [1, 2, 2]
    for lost, done in again:
        assert (lost.state.name, done.state.name) == ("FAIL", "COMPLETE")
        assert lost.params == done.params
        assert done.user_attrs["attempts"] == 1
    for run, saved in killed.values():  # what the killed worker left is what was finished
        before, after = epochs_by_attempt(run)
        assert min(after) == saved + 1 > 1
        assert sorted({*before, *after}) == [1, 2, 3]
        assert read_record(run).status == "finished"
    assert len([path for path in (folder / "runs").iterdir() if path.is_dir()]) == 3
    assert not any(map(alive, killed))
    account.did(f"SIGKILL of {len(killed)} sweep workers in the second of 3 epochs of their trials")
    account.saw("both put back once, same point, went on in the second epoch of their run folders; 3 of 3 COMPLETE")


def epochs_by_attempt(run: Path) -> list[list[int]]:
    """The epochs that were trained between start and resume, and after that."""
    attempts: list[list[int]] = []
    for event in read_events(run / "events.jsonl"):
        if event["event"] in ("start", "resume"):
            attempts.append([])
        elif event["event"] == "metrics" and "train/epoch" in event["values"]:
            attempts[-1].append(int(event["values"]["train/epoch"]))
    return attempts


def test_a_worker_that_misses_its_heartbeat_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    """fault 17: SIGSTOP in the midst of a trial, for twice the grace period"""
    timing = Timing(heartbeat=1, grace=1)
    plan, study, group = begun(timing, trials=2)
    hold_behind(_SECOND_EPOCH, monkeypatch, (tmp_path / "go").exists)
    order = {"plan": plan.as_dict(), "group": group, "worker": "the only one"}
    child = begin_child(lambda: worker._work(order), tmp_path / "said")
    try:
        (run, _) = eventually(lambda: in_training(plan.folder).get(child))
        stop(child, plan.folder / "study.db")
        began = time.monotonic()
        (tmp_path / "go").touch()
        patient = dataclasses.replace(plan, timing=Timing(heartbeat=1, grace=60))
        assert repair(open_study(patient), patient) == []  # its last sign of life is fresh
        time.sleep(2 * timing.grace)
        (given_away,) = repair(study, plan)
        silent = time.monotonic() - began
        os.kill(child, signal.SIGCONT)
        code = exit_code(child)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    said = (tmp_path / "said").read_text()
    assert code == 0, said
    assert given_away.number == 0
    assert "trial 0: was given to another worker meanwhile; dropped" in said
    assert "Cannot tell" not in said
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[2].params == study.trials[0].params
    assert len(read_record(run).resumed) == 1  # nobody else had taken it up, so the same folder went on
    account.did(
        f"SIGSTOP of a worker in a trial for {silent:.1f} s with a grace period of {timing.grace} s, then SIGCONT"
    )
    account.saw(
        f"exit code {code}, never 'Cannot tell a FAIL trial': it dropped trial 0, did the next, and that point again: "
        f"{', '.join(states(study))}"
    )


def test_interrupted_sweep_goes_on(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 6: workers save, their trials wait again without an attempt counted, no process is left"""
    folder = workspace / "studies" / "small"
    words = [*SWEEP, "--trials", "2"]
    family: set[psutil.Process] = set()
    others = set(psutil.Process().children(recursive=True))

    def interrupt() -> None:
        eventually(lambda: in_training(folder))
        family.update(psutil.Process().children(recursive=True))
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        hold_behind(_SECOND_EPOCH, patch)
        thread = in_background(interrupt)
        assert call(*words) == 130
        thread.join()
    said = capsys.readouterr().err
    assert "the same command goes on" in said
    family -= others
    assert family
    left = [child for child in family if child.is_running()]  # true of a zombie, too
    assert not left
    (marked,) = (path for path in (folder / "runs").iterdir() if path.is_dir())
    assert read_record(marked).status == "killed"
    metadata = read_json(folder / "study.json")
    assert [row["state"] for row in metadata["slots"]] == ["WAITING"] * 2
    assert [row["attempts"] for row in metadata["slots"]] == [1, 1]
    assert call(*words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["slots"]
    assert [(row["state"], row["trial"]) for row in rows] == [("COMPLETE", 0), ("COMPLETE", 1)]
    runs = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 2
    assert sorted(len(read_record(run).resumed) for run in runs) == [0, 1]
    account.did("SIGINT to a sweep of 2 trials while its worker trained the first")
    account.saw(
        f"exit code 130, run killed, both trials WAITING, {len(left)} of {len(family)} child processes left, dead ones "
        "included; same command: 2 COMPLETE"
    )
