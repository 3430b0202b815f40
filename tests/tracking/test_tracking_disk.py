"""A tracking store on a disk that is really full, fills up or is read-only: a line, and nothing is lost."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.runs.record import read_record
from harness.tracking import mlflow_run, uploader
from harness.tracking.store import open_store
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.tracked_runs import events_of, logged, steps_of, stored_runs
from tests.support.training_runs import only_run
from tests.tracking.test_tracking_process import uploading

STEPS = 3000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as made:
        yield made


@pytest.fixture
def store(disk: SmallDisk, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a store on that disk, ready, to which runs are sent."""
    shutil.copy(mlflow_template, disk.folder / "mlflow.db")
    uri = f"sqlite:///{disk.folder / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run that nobody has sent yet, by a uploader that tries once, in small batches."""
    monkeypatch.setattr(uploader, "_AFTER_END_SECONDS", 0.0)
    monkeypatch.setattr(mlflow_run, "_METRICS", 100)
    return logged(tmp_path / "run", [{"loss": float(step)} for step in range(STEPS)])


def stored_points(client: Any) -> int:
    return len(steps_of(client, "run", "loss")) if stored_runs(client, "run") else 0


def check_the_line(errors: str, folder: Path) -> None:
    assert errors.count("\n") == 1
    assert "events.jsonl has everything" in errors
    assert f"python -m harness sync {folder}" in errors


def check_that_all_is_sent(client: Any, folder: Path) -> None:
    assert call("sync", str(folder)) == 0
    assert steps_of(client, "run", "loss") == list(range(STEPS))
    assert stored_runs(client, "run")[0].info.status == "FINISHED"


@pytest.mark.parametrize("problem", ["full", "read-only"])
def test_a_store_on_a_disk_that_takes_nothing_costs_a_line(
    problem: str, folder: Path, disk: SmallDisk, store: str, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 23: and with room again no figure is missing"""
    if problem == "full":
        disk.leave(0)
    else:
        disk.read_only()
    assert uploading(folder).run() == uploader.INCOMPLETE
    disk.room_again()
    check_the_line(capsys.readouterr().err, folder)
    client = open_store(store)
    assert stored_points(client) == 0
    check_that_all_is_sent(client, folder)
    account.did(f"MLflow's SQLite file on a tmpfs that is {problem}")
    account.saw(f"one line that names events.jsonl and `sync`; with room, `sync` sent all {STEPS} points")


def test_a_store_whose_disk_fills_up_gets_the_rest_later(
    folder: Path, disk: SmallDisk, store: str, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 23: a part got through, and no figure is there twice"""
    room, before, client = 60_000, 0, open_store(store)
    while not before:
        disk.leave(room)
        assert uploading(folder).run() == uploader.INCOMPLETE
        disk.room_again()
        check_the_line(capsys.readouterr().err, folder)
        room, before = room * 3 // 2, stored_points(client)
    assert before < STEPS
    check_that_all_is_sent(client, folder)
    account.did(f"the disk under MLflow's SQLite file filled up after {before} of {STEPS} points")
    account.saw(f"one line that names events.jsonl; after `sync` {STEPS} points, each once")


@pytest.mark.usefixtures("forked_uploader")
def test_a_run_does_not_need_a_store_that_takes_nothing(
    workspace: Path, disk: SmallDisk, store: str, capfd: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 23: the whole command, with the process beside it"""
    if not disk.apart:
        pytest.skip("root that may not mount: the run itself could not write either")
    disk.read_only()
    code = call("run", "--method", "zeroshot", "--dataset", "synthetic", "--encoder", "tiny")
    disk.room_again()
    shown = capfd.readouterr()
    assert code == 0
    assert shown.err.count("MLflow is out") == 1
    assert "Traceback" not in shown.err
    last = shown.err.strip().splitlines()[-1]
    assert "events.jsonl has everything" in last
    folder = only_run(workspace)
    assert read_record(folder).status == "finished"
    assert events_of(folder)[-1]["event"] == "end"
    assert call("sync") == 0
    (run,) = stored_runs(open_store(store))
    assert run.data.metrics["P_at_1"] == pytest.approx(read_record(folder).metrics["P@1"])
    account.did("a whole run while the disk under MLflow's SQLite file was read-only")
    account.saw(f"exit {code}, record finished, last line: '{last[:60]}...'; after `sync` MLflow had its P@1")
