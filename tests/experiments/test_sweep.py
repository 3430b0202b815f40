"""The command `harness sweep`: what it refuses, what it shows, and what it leaves in the folder of a study.

A forked process stands in for the workers, which need seconds to import torch.
"""

import csv
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna import Study, Trial
from optuna.trial import TrialState

from harness.experiments.sweep.results import Results
from harness.experiments.sweep.study import open_study
from harness.experiments.sweep.trials import claim, fail
from harness.io.files import read_json, write_bytes, write_json
from harness.run import resolve_config
from harness.runs.events import read_events
from harness.settings.layers import read_config_file
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.forks import fork_jobs
from tests.support.sweeps import SWEEP, Act, begun, do_trials, empty_database, planned, states
from tests.support.training_runs import DATASET


def well(study: Study, trial: Trial, slot: int) -> None:
    """Ends a trial with a value that depends on what was drawn."""
    study.tell(trial, [100 * trial.params["lambda"] - slot] * len(study.directions))


@pytest.fixture
def workers(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Sets what a worker does with a trial; nothing is drawn, and the tables of the database are there."""
    monkeypatch.setattr(Results, "draw", lambda results: [])
    write_bytes(workspace / "studies" / "small" / "study.db", empty_database())
    return lambda act: fork_jobs(monkeypatch, lambda words: do_trials(act))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trials", "0"], "--trials takes a number from 1"),
        (["--max-retry", "-1"], "--max-retry takes a number from 0"),
        (["--objective", "P@2"], "unknown objective 'P@2'; did you mean"),
        (["--objective", ""], "--objective takes one metric or two"),
        (["--objective", "P@1,P@3,P@5"], "--objective takes one metric or two"),
        (["--over", "lambada"], "did you mean 'lambda'?"),
        (["--over", " , "], "--over is empty"),
        (["--over", "epochs=1:9"], "--set epochs=3: --over searches it"),
        (["--method", "unidek"], "did you mean 'unidec'?"),
        (["--dataset", "nowhere"], "nowhere"),
        (["--study", "a/b"], "study name 'a/b' cannot be used"),
        (["--sampler", "grid"], "unknown sampler 'grid'"),
        (["--pruner", "medium"], "did you mean 'median'?"),
        (["--set", "evaluate=test"], "never on test rows"),
        (["--set", "validation.size=0"], "never on test rows"),
        (["--set", "validation.size=100000"], "leave some to train on"),
        (["--set", "validation.metric=P@5"], "judged by P@1"),
        (["--set", "seed=1"], "this is what --seed is for"),
        (["--set", "epochz=1"], "unknown key"),
        (["--storage", "mysql://host/x"], "--storage takes postgresql://"),
        (["--storage", "postgresql://127.0.0.1:1/x"], "127.0.0.1:1/x cannot be used"),
        (["--track", "wandb"], "--track takes mlflow or none"),
        (["--recover"], "nothing to recover"),
    ],
    ids=lambda value: value if isinstance(value, str) else "_".join(value),
)
def test_mistakes_are_told_in_one_line(
    words: list[str], line: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*SWEEP, *words) == 2
    said = capsys.readouterr()
    assert line in said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not list(workspace.glob("studies/*/study.db"))


def test_a_metric_that_the_card_has_no_constants_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 52, in a sweep"""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "labels.jsonl").write_text("".join(f'{{"id": "{n}", "text": "label {n}"}}\n' for n in range(5)))
    for split in ("train", "test"):
        rows = [{"text": f"row {n}", "labels": [str(n % 5)]} for n in range(20)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call(*SWEEP, "--dataset", str(folder), "--objective", "P@1,PSP@5") == 2
    assert "no propensity constants" in capsys.readouterr().err


def test_a_sweep_from_end_to_end(
    workspace: Path,
    workers: Callable[[Act], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workers(well)
    drawn: list[Results] = []
    monkeypatch.setattr(Results, "draw", lambda results: drawn.append(results) or [])
    assert call(*SWEEP, "--trials", "4", "--workers", "2") == 0
    assert drawn
    said = capsys.readouterr()
    folder = workspace / "studies" / "small"
    metadata = read_json(folder / "study.json")
    rows = metadata["slots"]
    assert [row["state"] for row in rows] == ["COMPLETE"] * 4
    best = max(rows, key=lambda row: row["values"][0])
    assert metadata["best"] == [best["slot"]]
    assert f"python -m harness run --config {folder / 'best.yaml'}" in said.out
    assert "4 of 4 trials done" in said.out
    assert "[4/4]" in said.err
    assert f"P@1 {best['values'][0]:.2f}, best so far" in said.err
    with (folder / "trials.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["lambda"]) for row in table] == [row["params"]["lambda"] for row in rows]
    chosen = read_config_file(folder / "best.yaml")
    config, _ = resolve_config("unidec", DATASET, [chosen])
    assert config.params["lambda"] == best["params"]["lambda"]
    assert (config.evaluate, config.validation.size, config.encoder) == ("test", 0.0, "tiny")
    events = read_events(folder / "events.jsonl")
    assert (events[0]["event"], events[0]["kind"], events[-1]["status"]) == ("start", "sweep", "finished")
    assert events[0]["params"]["sampler"] == "tpe"
    figures = [event["values"] for event in events if event["event"] == "metrics" and "best/P@1" in event["values"]]
    assert figures[-1]["best/P@1"] == best["values"][0]

    assert call(*SWEEP, "--trials", "6", "--json") == 0  # tops up
    again = capsys.readouterr()
    metadata = json.loads(again.out)
    assert [row["state"] for row in metadata["slots"]] == ["COMPLETE"] * 6
    assert "4 of 6 trials were done before" in again.err
    logged = [event["slot"] for event in read_events(folder / "events.jsonl") if event["event"] == "trial"]
    assert sorted(logged) == list(range(6))
    assert call(*SWEEP, "--trials", "6", "--over", "lambda") == 2
    assert "space.beta" in capsys.readouterr().err


def test_trials_that_are_lost_too_often_do_not_stop_the_sweep(
    workspace: Path, workers: Callable[[Act], None], capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 16"""

    def act(study: Study, trial: Trial, slot: int) -> None:
        if slot == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        well(study, trial, slot)

    workers(act)
    assert call(*SWEEP, "--trials", "3", "--max-retry", "1", "--json") == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["slots"]
    assert [row["state"] for row in rows] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert rows[1]["reason"] == "its worker died 2 times"
    assert said.err.count("ended by SIGKILL") == 2
    assert states(open_study(planned())) == ["COMPLETE", "FAIL", "COMPLETE", "FAIL"]
    account.did("every worker that takes trial 1 of 3 dies of SIGKILL; --max-retry 1")
    account.saw(f"exit code 0; trials {', '.join(row['state'] for row in rows)}, the reason: {rows[1]['reason']}")


def test_a_sweep_whose_trials_fail_alike_stops(
    workers: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:

    def act(study: Study, trial: Trial, slot: int) -> None:
        fail(study, trial._trial_id, f"the loss became nan at step {10 + slot}")
        time.sleep(0 if slot < 2 else 60)

    workers(act)
    assert call(*SWEEP, "--trials", "12") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: all of the first ")
    assert "the loss became nan at step 10" in error
    study = open_study(planned())
    assert states(study).count("WAITING") == 9
    workers(well)
    assert call(*SWEEP, "--trials", "8") == 0  # the cause is gone; what failed before does not count again
    assert states(open_study(planned())).count("RUNNING") == 0


def test_one_trial_that_fails_is_told_and_stops_nothing(
    workers: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    workers(lambda study, trial, slot: fail(study, trial._trial_id, "diverged"))
    assert call(*SWEEP, "--trials", "1") == 1
    assert "failed: trial 0: diverged" in capsys.readouterr().out
    workers(well)
    assert call(*SWEEP, "--trials", "2") == 0  # there is a best trial


@pytest.mark.parametrize("code", [2, 1])
def test_a_fault_of_the_machine_stops_the_sweep_and_loses_nothing(
    code: int, workers: Callable[[Act], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(words: list[str]) -> int:
        sys.stderr.write("error: No space left on device\n")
        return code

    fork_jobs(monkeypatch, full)
    assert call(*SWEEP, "--trials", "2") == 2
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]
    assert states(open_study(planned())) == ["WAITING"] * 2
    workers(well)
    assert call(*SWEEP, "--trials", "2") == 0


def test_a_truncated_database_and_its_recovery(
    workspace: Path, workers: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 18"""
    workers(well)
    assert call(*SWEEP, "--trials", "3") == 0
    folder = workspace / "studies" / "small"
    file = folder / "study.db"
    before = read_json(folder / "study.json")["slots"]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    assert call(*SWEEP, "--trials", "3") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(file) in said
    assert "--recover" in said
    assert call(*SWEEP, "--trials", "4", "--recover", "--json") == 0
    said = capsys.readouterr()
    assert "rebuilt the study's database with 3 ended trials" in said.err
    after = json.loads(said.out)["slots"]
    assert [(row["params"], row["values"]) for row in after[:3]] == [(row["params"], row["values"]) for row in before]
    assert len(after) == 4
    assert len(list(folder.glob("study.db.damaged-*"))) == 1
    assert call(*SWEEP, "--trials", "4") == 0  # the table shows trials whose clock is lost
    metadata = read_json(folder / "study.json")
    slot = metadata["slots"][1]
    (name,) = list(slot["params"])[:1]
    for wrong in ({"values": None}, {"values": [1.0, 2.0]}, {"params": {name: "x"}}, {"params": {}}):
        rows = [row | wrong if row is slot else row for row in metadata["slots"]]
        write_json(folder / "study.json", metadata | {"slots": rows})
        kept = file.read_bytes()
        capsys.readouterr()
        assert call(*SWEEP, "--trials", "4", "--recover") == 2, wrong
        assert "trial 1" in capsys.readouterr().err
        assert file.read_bytes() == kept, "the database stays where it is"


def test_two_objectives_say_that_nothing_is_pruned(
    workspace: Path, workers: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    workers(lambda study, trial, slot: study.tell(trial, [slot, -slot]))
    assert call(*SWEEP, "--trials", "3", "--objective", "P@1,PSP@5") == 0
    said = capsys.readouterr()
    assert "no pruning" in said.err
    assert "3 trials that no other beats" in said.out
    folder = workspace / "studies" / "small"
    assert {path.name for path in folder.glob("*.yaml")} == {"best.yaml", *(f"pareto-{n}.yaml" for n in range(3))}


def test_trials_of_another_machine_are_waited_for(
    workers: Callable[[Act], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its worker is silent, so its trial is done here after the grace period."""
    workers(well)
    plan, study, _ = begun(trials=2)
    trial_id = claim(study, plan, "elsewhere:1:a")
    with sqlite3.connect(plan.folder / "study.db") as connection:
        connection.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-5 seconds')")
    assert call(*SWEEP, "--trials", "2", "--heartbeat", "1", "--grace", "6") == 0
    assert "trial 0 was lost; it waits again (attempt 2)" in capsys.readouterr().err
    assert study._storage.get_trial(trial_id or 0).state == TrialState.FAIL
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]


def test_a_folder_that_cannot_be_written_to(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(workspace / "studies", ignore_errors=True)
    (workspace / "studies").write_text("a file")
    assert call(*SWEEP) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert call(*SWEEP, "--out", str(workspace / "studies")) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
