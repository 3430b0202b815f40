"""Real servers on loopback: MLflow's on SQLite and on PostgreSQL, and PostgreSQL without one."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.runs.log import RunLog
from harness.runs.record import read_record
from harness.tracking import uploader
from harness.tracking.store import open_store
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.servers import MlflowServer, free_port
from tests.support.tracked_runs import draft, events_of, eventually, everything, finished, logged, steps_of, stored_runs
from tests.support.training_runs import DATASET, only_run
from tests.tracking.test_tracking_process import uploading


def sent_twice(folder: Path, name: str) -> tuple[Any, dict[str, Any]]:
    """A run that was sent two times to the store of the environment; returns the client and what there is of it."""
    import os

    logged(folder / name, [{"P@1": float(step)} for step in range(1200)], text="y" * 20_000)
    assert call("sync", str(folder / name)) == 0
    client = open_store(os.environ["MLFLOW_TRACKING_URI"])
    first = everything(client, name)
    for run in stored_runs(client, name):
        client.delete_tag(run.info.run_id, "harness.synced")
    assert call("sync", str(folder / name)) == 0
    assert everything(client, name) == first
    return client, first


def check(client: Any, stored: dict[str, Any], name: str) -> None:
    """What every store has to have of such a run."""
    assert stored["info"][1] == "FINISHED"
    assert [point[0] for point in stored["metrics"]["P_at_1"]] == list(range(1200))
    assert stored["inputs"] == [("synthetic", "d" * 36)]
    assert len(stored["params"]["text"]) == 6000
    assert {"events.jsonl", "params.json", "record.json"} <= {path for path, _ in stored["artifacts"]}
    (run,) = stored_runs(client, name)
    downloaded = Path(client.download_artifacts(run.info.run_id, "record.json"))
    assert '"finished"' in downloaded.read_text()


def test_a_server_on_sqlite(mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 24"""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    check(*sent_twice(tmp_path, "on-sqlite"), "on-sqlite")


@pytest.mark.usefixtures("forked_uploader")
def test_a_training_does_not_need_its_server(
    mlflow_server: MlflowServer,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 21: down from the start to the end, and everything is sent when it is back"""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    settings = [f"--set={key}" for key in ("encoder=tiny", "epochs=3", "batch_size=60", "tracking.model=never")]
    mlflow_server.stop()
    try:
        code = call("run", "--method", "unidec", "--dataset", DATASET, *settings)
    finally:
        mlflow_server.start()
    errors = capfd.readouterr().err
    assert code == 0, errors
    assert errors.count("MLflow is out") == 1
    folder = only_run(workspace)
    record, events = read_record(folder), events_of(folder)
    assert record.status == events[-1]["status"] == "finished"
    losses = {
        event["step"]: event["values"]["train/loss"] for event in events if "train/loss" in event.get("values", {})
    }
    assert len(losses) == 3
    assert call("sync") == 0
    client = open_store(mlflow_server.uri)
    (run,) = stored_runs(client, record.run_id)
    sent = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((point.step, point.value) for point in sent) == sorted(losses.items())
    assert run.data.metrics["P_at_1"] == pytest.approx(record.metrics["P@1"])
    account.did("a real MLflow server stopped, then a training of 3 epochs")
    account.saw(
        f"exit {code}, one warning, {len(events)} events logged; server back, `sync`: {len(sent)} of 3 losses there"
    )


def test_a_server_that_dies_and_returns(
    mlflow_server: MlflowServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 22"""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(uploader, "_FLUSH_SECONDS", 0.1)
    monkeypatch.setattr(uploader, "_HEARTBEAT_SECONDS", 0.1)
    client, codes = open_store(mlflow_server.uri), []
    with RunLog(tmp_path / "interrupted", draft("interrupted")) as run_log:
        thread = threading.Thread(target=lambda: codes.append(uploading(tmp_path / "interrupted").run()))
        thread.start()
        for step in range(20):
            run_log.metrics({"loss": float(step)}, step)
        eventually(lambda: stored_runs(client, "interrupted") and steps_of(client, "interrupted", "loss"))
        (run,) = stored_runs(client, "interrupted")
        assert run.info.status == "RUNNING"
        first = run.data.tags["harness.heartbeat"]
        eventually(lambda: stored_runs(client, "interrupted")[0].data.tags["harness.heartbeat"] > first)
        mlflow_server.stop()
        began = time.monotonic()
        for step in range(20, 40):
            run_log.metrics({"loss": float(step)}, step)
        assert time.monotonic() - began < 20
        time.sleep(1.0)
        mlflow_server.start()
        for step in range(40, 60):
            run_log.metrics({"loss": float(step)}, step)
        eventually(lambda: len(steps_of(client, "interrupted", "loss")) == 60)
        run_log.complete(finished("interrupted"))
    thread.join(60)
    assert codes == [uploader.SENT]
    stored = steps_of(client, "interrupted", "loss")
    assert stored == list(range(60))
    assert stored_runs(client, "interrupted")[0].info.status == "FINISHED"
    assert capsys.readouterr().err.count("MLflow is out") == 1
    account.did("a real MLflow server killed after 20 of 60 steps and started again after 40")
    account.saw(f"the run waited for nothing; MLflow has steps 0 to {max(stored)}, {len(stored)} points, each once")


def test_a_database_that_is_down_is_asked_once() -> None:
    """fault 21: MLflow itself would try again for minutes"""
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        open_store(f"postgresql://me:secret@127.0.0.1:{free_port()}/runs")
    assert time.monotonic() - began < 10


def test_postgresql_with_and_without_a_server(
    postgres: str, mlflow_server_postgres: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server_postgres.uri)
    check(*sent_twice(tmp_path, "by-server"), "by-server")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "direct")  # an experiment belongs to whoever made it first
    client, stored = sent_twice(tmp_path, "direct")
    check(client, stored, "direct")
    assert call("runs", "reap") == 0
