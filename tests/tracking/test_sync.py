"""`harness sync`: twice is once, a moved folder is a folder, and what is complete costs nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.io.files import locked
from harness.runs.lock import run_lock
from harness.tracking.mlflow_run import MlflowRun
from harness.tracking.store import open_store
from harness.tracking.uploader import upload_lock
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.servers import free_port
from tests.support.tracked_runs import cut_off, everything, logged, steps_of, stored_runs


@pytest.fixture
def client(mlflow_store: str) -> Any:
    return open_store(mlflow_store)


@pytest.fixture
def runs(workspace: Path) -> Path:
    return workspace / "runs"


def test_twice_is_once(runs: Path, client: Any, capsys: pytest.CaptureFixture[str], account: Account) -> None:
    """fault 24"""
    for name in ("a", "b"):
        logged(runs / name, [{"P@1": float(step), "loss": 0.5} for step in range(5)])
    assert call("sync") == 0
    assert "2 runs looked at: 2 sent, 0 already complete" in capsys.readouterr().out
    first = [everything(client, name) for name in ("a", "b")]
    assert first[0]["metrics"]["loss"][4][0] == 4
    assert call("sync", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"looked_at": 2, "sent": 0, "complete": 2, "running": [], "failed": []}
    assert [everything(client, name) for name in ("a", "b")] == first
    # the same when nothing says that it was sent
    for run in stored_runs(client):
        client.delete_tag(run.info.run_id, "harness.synced")
    assert call("sync", "a", "b") == 0
    assert "2 sent" in capsys.readouterr().out
    assert [everything(client, name) for name in ("a", "b")] == first
    points = sum(len(history) for run in first for history in run["metrics"].values())
    account.did("two logs sent three times, the third time with MLflow's note of the first taken away")
    account.saw(f"{points} points, parameters, tags and artifacts after the third as after the first")


def test_what_is_complete_is_not_replayed(
    runs: Path, client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = logged(runs / "a", [{"loss": 1.0}])
    logged(runs / "b", [{"loss": 1.0}])
    assert call("sync") == 0
    replayed: list[str] = []
    handle = MlflowRun.handle

    def counted(self: MlflowRun, event: dict[str, Any]) -> None:
        replayed.append(self._folder.name)
        handle(self, event)

    monkeypatch.setattr(MlflowRun, "handle", counted)
    assert call("sync") == 0
    assert replayed == []
    # a run that goes on is sent again, and one whose status in MLflow is not that of its log
    with (folder / "events.jsonl").open("a") as log:
        log.write('{"time": "2026-01-01T00:00:00+00:00", "event": "metrics", "step": 9, "values": {"loss": 2}}\n')
    (b,) = stored_runs(client, "b")
    client.set_terminated(b.info.run_id, "FAILED")
    assert call("sync") == 0
    assert set(replayed) == {"a", "b"}
    assert steps_of(client, "a", "loss") == [0, 9]
    assert stored_runs(client, "b")[0].info.status == "FINISHED"
    capsys.readouterr()


def test_a_run_folder_may_be_moved(
    runs: Path, tmp_path: Path, client: Any, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 28"""
    logged(runs / "a", [{"loss": 1.0}])
    shutil.move(runs / "a", tmp_path / "else" / "where" / "a")
    assert call("sync", "--runs", str(tmp_path / "else" / "where")) == 0
    assert "1 runs looked at: 1 sent" in capsys.readouterr().out
    before = everything(client, "a")
    shutil.move(tmp_path / "else" / "where" / "a", tmp_path / "a")
    assert call("sync", str(tmp_path / "a")) == 0
    assert "1 already complete" in capsys.readouterr().out
    assert everything(client, "a") == before
    assert {path for path, _ in before["artifacts"]} >= {"record.json", "events.jsonl"}
    (run,) = stored_runs(client, "a")
    for name in ("record.json", "events.jsonl"):
        sent = Path(client.download_artifacts(run.info.run_id, name))
        assert sent.read_bytes() == (tmp_path / "a" / name).read_bytes()
    account.did("a run folder moved twice, and sent to MLflow from both places")
    account.saw(f"one run in MLflow, then already complete; its {len(before['artifacts'])} artifacts resolve")


def test_a_killed_run_is_closed_and_one_at_work_is_not(
    runs: Path, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 5: SIGKILL leaves a log without an end"""
    for name in ("dead", "alive", "followed"):
        cut_off(logged(runs / name, [{"loss": 1.0}]))
    with run_lock(runs / "alive"), locked(upload_lock(runs / "followed")):
        assert call("sync", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sent"] == 1
    assert [found["run"] for found in report["running"]] == ["alive", "followed"]
    assert stored_runs(client, "dead")[0].info.status == "KILLED"
    assert stored_runs(client, "alive")[0].info.status == "RUNNING"
    assert steps_of(client, "alive", "loss") == [0]
    assert stored_runs(client, "followed") == []


def test_one_broken_log_does_not_stop_the_others(runs: Path, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        logged(runs / name, [{"loss": 1.0}])
    (runs / "a" / "events.jsonl").write_text("nonsense\n")
    lines = (runs / "b" / "events.jsonl").read_text().splitlines()
    (runs / "b" / "events.jsonl").write_text("\n".join([lines[0], '{"half', lines[2]]) + "\n")
    assert call("sync") == 1
    text = capsys.readouterr().out
    assert "3 runs looked at: 1 sent, 0 already complete, 0 at work, 2 failed" in text
    assert "events.jsonl:1: the log does not begin with a start" in text
    assert "events.jsonl:2: not an event" in text
    assert stored_runs(client, "c")[0].info.status == "FINISHED"


def test_a_store_that_is_out_is_one_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    assert call("sync") == 0  # there is nothing to send
    logged(runs / "a", [])
    assert call("sync") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("MLflow is out (URLError")
    assert errors.count("\n") == 1
    assert "secret" not in errors
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    assert call("sync") == 2
    assert "folder of files" in capsys.readouterr().err


def test_a_store_that_goes_out_half_way_stops_the_sync(
    runs: Path, client: Any, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        logged(runs / name, [{"loss": 1.0}])
    complete = MlflowRun.complete

    def breaking(self: MlflowRun) -> list[str]:
        faults = complete(self)
        (workspace / "mlflow.db").unlink()
        (workspace / "mlflow.db").write_text("not a database any more")
        return faults

    monkeypatch.setattr(MlflowRun, "complete", breaking)
    assert call("sync") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("MLflow went out (DatabaseError")
    assert errors.count("\n") == 1


def test_unknown_runs_and_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sync", "nothing") == 2
    assert "no run 'nothing'" in capsys.readouterr().err
    assert call("sync", "--runs", str(tmp_path / "nothing")) == 2
    assert "is no folder" in capsys.readouterr().err
