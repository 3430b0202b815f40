"""Sweeps whose workers train: killed, stopped and interrupted; forked, because torch takes seconds to import."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Container
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
from tests.support.sweeps import SETTINGS, SWEEP, alive, begun, by_slot, planned, states, stopped_in_training
from tests.support.tracked_runs import eventually
from tests.support.training_runs import begin_child, exit_code

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Results, "draw", lambda results: [])  # takes seconds, and is looked at elsewhere
    fork_jobs(monkeypatch, lambda words: worker.main())


def waiting_signals(pid: int) -> int:
    """Signals that a process which is stopped will get when it goes on, as bits."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["ShdPnd"], 16) | int(status["SigPnd"], 16)


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_workers_that_are_killed_lose_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 15: re-queued once, with the same point, and continued from the checkpoint"""
    folder, killed, epochs = workspace / "studies" / "small", [], []

    def kill_two() -> None:
        for _ in range(2):
            pid, run, saved = stopped_after_an_epoch(folder, but=dict(killed))
            os.kill(pid, signal.SIGKILL)
            killed.append((pid, run))
            epochs.append(saved)

    killer = in_background(kill_two)
    words = ["--trials", "4", "--workers", "2", "--set", "epochs=6", "--json"]
    assert call(*SWEEP, *words) == 0
    killer.join()
    told = capsys.readouterr()
    metadata = json.loads(told.out)
    assert [row["state"] for row in metadata["slots"]] == ["COMPLETE"] * 4
    assert told.err.count("ended by SIGKILL") == 2
    assert told.err.count("it waits again (attempt 2)") == 2
    study = open_study(planned())
    trials = by_slot(study)
    again = [slot for slot in trials.values() if len(slot) == 2]
    assert sorted(map(len, trials.values())) == [1, 1, 2, 2]
    for lost, done in again:
        assert (lost.state.name, done.state.name) == ("FAIL", "COMPLETE")
        assert lost.params == done.params
        assert done.user_attrs["attempts"] == 1
    for (_, run), saved in zip(killed, epochs, strict=True):  # what the killed worker left is what was finished
        before, after = epochs_by_attempt(run)
        assert min(after) == saved + 1 > 1
        assert sorted({*before, *after}) == list(range(1, 7))
        assert read_record(run).status == "finished"
    assert len([path for path in (folder / "runs").iterdir() if path.is_dir()]) == 4
    assert not any(alive(pid) for pid, _ in killed)
    account.did(f"SIGKILL of {len(killed)} sweep workers in trials of 6 epochs, {epochs[0]} and {epochs[1]} saved")
    account.saw(
        f"both put back once, same point, went on in epochs {epochs[0] + 1} and {epochs[1] + 1} of their run folders; "
        f"{len(metadata['slots'])} of 4 COMPLETE"
    )


def stopped_after_an_epoch(folder: Path, but: Container[int]) -> tuple[int, Path, int]:
    """A worker that was stopped in a trial, the folder of its run, and how many epochs its checkpoint knows."""
    while True:
        pid, run = stopped_in_training(folder, but)
        try:
            newest = max(run.glob("checkpoints/step-*/state.json"), default=None)
            if newest is not None and (epochs := read_json(newest)["epoch"]):
                return pid, run, epochs
        except BaseException:
            os.kill(pid, signal.SIGKILL)  # a sweep waits for a worker that is stopped
            raise
        os.kill(pid, signal.SIGCONT)  # what it has saved is from the midst of its first epoch
        time.sleep(0.01)


def epochs_by_attempt(run: Path) -> list[list[int]]:
    """The epochs that were trained between start and resume, and after that."""
    attempts: list[list[int]] = []
    for event in read_events(run / "events.jsonl"):
        if event["event"] in ("start", "resume"):
            attempts.append([])
        elif event["event"] == "metrics" and "train/epoch" in event["values"]:
            attempts[-1].append(int(event["values"]["train/epoch"]))
    return attempts


def test_a_worker_that_misses_its_heartbeat_lives_on(tmp_path: Path, account: Account) -> None:
    """fault 17: SIGSTOP in the midst of a trial, for twice the grace period"""
    timing = Timing(heartbeat=1, grace=1)
    plan, study, group = begun(timing, trials=2, settings=(*SETTINGS, "epochs=8"))
    order = {"plan": plan.as_dict(), "group": group, "worker": "the only one"}
    child = begin_child(lambda: worker._work(order), tmp_path / "said")
    try:
        stopped, run = stopped_in_training(plan.folder)
        began = time.monotonic()
        assert stopped == child
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


def test_interrupted_sweep_goes_on(workspace: Path, capsys: pytest.CaptureFixture[str], account: Account) -> None:
    """fault 6: workers save, their trials wait again without an attempt counted, no process is left"""
    folder = workspace / "studies" / "small"
    words = [*SWEEP, "--trials", "2", "--set", "epochs=8"]
    family: set[psutil.Process] = set()
    others = set(psutil.Process().children(recursive=True))

    def interrupt() -> None:
        pid, _ = stopped_in_training(folder)  # else it might be done before the signal is there
        family.update(psutil.Process().children(recursive=True))
        os.kill(os.getpid(), signal.SIGINT)
        try:
            eventually(lambda: waiting_signals(pid))
        finally:
            os.kill(pid, signal.SIGCONT)

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
