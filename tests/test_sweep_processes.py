"""Sweeps with real workers: killed, stopped, interrupted, and on several machines."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.files import read_json
from harness.record import read_record
from harness.resume import read_events
from harness.sweep.results import Results
from harness.sweep.storage import open_study
from tests.commands import call
from tests.sweeps import SWEEP, alive, by_slot, planned, stopped_in_training, training_workers, wait_for


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Results, "draw", lambda results: [])  # takes seconds, and is looked at elsewhere


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_workers_that_are_killed_lose_nothing(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 15: re-queued once, with the same point, and continued from the checkpoint"""
    folder, killed = workspace / "studies" / "small", []

    def kill_two() -> None:
        for _ in range(2):
            pid, run = stopped_in_training(folder, but=dict(killed))
            os.kill(pid, signal.SIGKILL)
            killed.append((pid, run))

    killer = in_background(kill_two)
    words = ["--trials", "4", "--workers", "2", "--set", "epochs=6", "--json"]
    assert call(*SWEEP, *words) == 0
    killer.join()
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert [row["state"] for row in facts["slots"]] == ["COMPLETE"] * 4
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
    for _, run in killed:  # the folder that the killed worker left is the one that was finished
        events = read_events(run / "events.jsonl")
        assert [event["event"] for event in events if event["event"] in ("start", "resume")] == ["start", "resume"]
        assert read_record(run).status == "finished"
    assert len([path for path in (folder / "runs").iterdir() if path.is_dir()]) == 4
    assert not any(alive(pid) for pid, _ in killed)


@pytest.mark.slow
def test_a_worker_that_was_stopped_wakes_up_to_the_next_trial(workspace: Path) -> None:
    """fault 17: silent for longer than the grace period, it finds its trial given away and dies of nothing"""
    folder, stopped = workspace / "studies" / "small", []

    def stop_one() -> None:
        pid, run = stopped_in_training(folder)
        stopped.append(run)
        study = open_study(planned())
        wait_for(lambda: any(trial.user_attrs["attempts"] for trial in study.get_trials(deepcopy=False)))
        os.kill(pid, signal.SIGCONT)

    thread = in_background(stop_one)
    words = ["--trials", "2", "--workers", "1", "--set", "epochs=8", "--heartbeat", "1", "--grace", "3"]
    assert call(*SWEEP, *words) == 0
    thread.join()
    facts = read_json(folder / "study.json")
    assert [row["state"] for row in facts["slots"]] == ["COMPLETE"] * 2
    assert [row["attempts"] for row in facts["slots"]] == [2, 1]
    (log,) = (folder / "logs").iterdir()  # one worker did it all
    assert "was given to another worker meanwhile; dropped" in log.read_text()
    assert read_record(stopped[0]).status in ("killed", "finished")


def test_interrupted_sweep_goes_on(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 6: workers save, their trials wait again without an attempt counted, no process is left"""
    folder = workspace / "studies" / "small"
    words = [*SWEEP, "--trials", "2", "--set", "epochs=8"]
    family: list[psutil.Process] = []

    def interrupt() -> None:
        wait_for(lambda: training_workers(folder))
        family.extend(psutil.Process().children(recursive=True))
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_background(interrupt)
    assert call(*words) == 130
    thread.join()
    said = capsys.readouterr().err
    assert "to go on: python -m harness sweep" in said
    assert "--trials 2" in said
    assert family
    assert not any(alive(child.pid) for child in family)
    facts = read_json(folder / "study.json")
    assert [row["state"] for row in facts["slots"]] == ["WAITING"] * 2
    assert [row["attempts"] for row in facts["slots"]] == [1, 1]
    assert call(*words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["slots"]
    assert [(row["state"], row["trial"]) for row in rows] == [("COMPLETE", 0), ("COMPLETE", 1)]
    runs = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 2
    assert sorted(len(read_record(run).resumed) for run in runs) == [0, 1]
