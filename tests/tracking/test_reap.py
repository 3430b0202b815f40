"""`harness runs reap`: the dead are closed, the living are not, and others' runs are none of our business."""

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.errors import UserError
from harness.runs.lock import this_process
from harness.runs.log import GroupLog
from harness.tracking.store import experiment_id, open_store
from harness.tracking.sync import parse_age
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.forks import ended_pid
from tests.support.tracked_runs import at_work, cut_off, eventually, everything, logged, steps_of, stored_runs
from tests.support.training_runs import begin_child, exit_code


@pytest.fixture
def client(mlflow_store: str) -> Any:
    return open_store(mlflow_store)


def running(client: Any, run_id: str, pid: int = 0, **tags: str) -> None:
    """A run that MLflow has as running, by a process of this machine unless `tags` say otherwise."""
    writer = this_process(pid or os.getpid())
    own = {
        "harness.run_id": run_id,
        "harness.pid": str(writer.pid),
        "harness.host": writer.host,
        "harness.namespace": writer.namespace,
        "harness.process_start": str(writer.process_start),
        "harness.heartbeat": datetime.now(UTC).isoformat(),
    }
    named = {f"harness.{key}": value for key, value in tags.items()}
    client.create_run(experiment_id(client, "synthetic"), tags=own | named)


@pytest.mark.usefixtures("forked_uploader")
def test_a_killed_run_is_closed_and_a_living_one_goes_on(
    workspace: Path, tmp_path: Path, client: Any, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 20: two runs in processes; with the one that is killed its uploader, which would have told MLflow"""
    folders = [workspace / "runs" / name for name in ("dead", "live")]
    dead, live = (begin_child(lambda folder=folder: at_work(folder, 600), tmp_path / folder.name) for folder in folders)
    try:
        eventually(lambda: ["harness.heartbeat" in run.data.tags for run in stored_runs(client)] == [True, True])
        for process in (*psutil.Process(dead).children(), psutil.Process(dead)):
            process.kill()
        assert exit_code(dead) == -signal.SIGKILL
        assert [run.info.status for run in stored_runs(client)] == ["RUNNING"] * 2
        before = without_heartbeat(everything(client, "live"))
        assert call("runs", "reap", "--json") == 0
        verdicts = {found["run"]: found["verdict"] for found in json.loads(capsys.readouterr().out)["runs"]}
        assert verdicts == {"dead": "synced", "live": "alive"}  # the dead one as its log, which is here, says
        (closed,) = stored_runs(client, "dead")
        assert (closed.info.status, closed.data.metrics) == ("KILLED", {"P_at_1": 1.0})
        assert without_heartbeat(everything(client, "live")) == before
        assert psutil.Process(live).is_running()
    finally:
        os.kill(live, signal.SIGTERM)
        assert exit_code(live) == 1
    account.did("`runs reap` after SIGKILL of a run and of its MLflow process, beside a run at work")
    account.saw(f"the killed one {closed.info.status} in MLflow, the other RUNNING, its tags and figures as before")


def without_heartbeat(stored: dict[str, Any]) -> dict[str, Any]:
    """All that MLflow has of a run but the time of its last sign of life."""
    return stored | {"tags": {key: value for key, value in stored["tags"].items() if key != "harness.heartbeat"}}


def test_dead_runs_are_closed_and_living_ones_are_not(
    client: Any, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 20"""
    old = (datetime.now(UTC) - timedelta(minutes=10)).isoformat()
    others: dict[str, dict[str, Any]] = {
        "alive": {},
        "alive-but-silent": {"heartbeat": old},
        "dead": {"pid": ended_pid()},
        "pid-of-another": {"process_start": "1"},
        "elsewhere-alive": {"host": "other"},
        "elsewhere-dead": {"host": "other", "heartbeat": old},
        "other-container-dead": {"namespace": "pid:[1]", "heartbeat": old},
    }
    for name, tags in others.items():
        running(client, name, **tags)
    theirs = client.create_run(experiment_id(client, "synthetic"), tags={"by": "somebody else"})
    closed = {"dead", "pid-of-another", "elsewhere-dead", "other-container-dead"}
    assert call("runs", "reap", "--dry-run", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {found["run"] for found in report["runs"] if found["verdict"] == "killed"} == closed
    assert {run.info.status for run in stored_runs(client)} == {"RUNNING"}
    assert call("runs", "reap", "--older-than", "5m") == 0
    assert "4 runs closed, 3 at work" in capsys.readouterr().out
    statuses = {run.data.tags.get("harness.run_id"): run.info.status for run in stored_runs(client)}
    assert {name for name, status in statuses.items() if status == "KILLED"} == closed
    assert client.get_run(theirs.info.run_id).info.status == "RUNNING"
    (dead,) = stored_runs(client, "dead")
    assert "has ended" in dead.data.tags["reaped"]
    assert call("runs", "reap", "--older-than", "0s") == 0
    assert "1 runs closed, 2 at work" in capsys.readouterr().out
    account.did(f"`runs reap` of {len(statuses)} RUNNING runs: here, elsewhere, beating, silent for 10 min, not ours")
    account.saw(f"KILLED: {', '.join(sorted(closed))}; the silent one whose process lives, and that of others, stayed")


def test_a_run_whose_log_is_here_gets_its_true_status(
    workspace: Path, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 20: it finished, but MLflow was out"""
    logged(workspace / "runs" / "done", [{"loss": 1.0}])
    running(client, "done", pid=ended_pid())
    assert call("runs", "reap") == 0
    assert "1 runs closed" in capsys.readouterr().out
    (run,) = stored_runs(client, "done")
    assert run.info.status == "FINISHED"
    assert steps_of(client, "done", "loss") == [0]


def test_a_group_is_open_until_its_process_is_gone(workspace: Path, client: Any) -> None:
    """fault 20"""
    folder = workspace / "studies" / "mine"
    with GroupLog(folder, "sweep", "sweep-1", experiment="synthetic", name="study", params={}, tags={}) as log:
        log.metrics({"best": 1.0}, 1)
    cut_off(folder)
    assert call("sync") == 0
    (run,) = stored_runs(client, "sweep-1")
    assert (run.info.status, run.data.metrics) == ("RUNNING", {"best": 1.0})
    assert call("runs", "reap") == 0
    assert stored_runs(client, "sweep-1")[0].info.status == "RUNNING"  # younger than five minutes
    writer = this_process(ended_pid())
    for key in ("pid", "host", "namespace"):
        client.set_tag(run.info.run_id, f"harness.{key}", str(getattr(writer, key)))
    assert call("runs", "reap") == 0
    assert stored_runs(client, "sweep-1")[0].info.status == "KILLED"


def test_a_run_that_never_gave_a_sign_of_life_has_its_start(client: Any) -> None:
    moment = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000)
    for name, start in (("old", moment), ("new", None)):
        client.create_run(experiment_id(client, "synthetic"), start_time=start, tags={"harness.run_id": name})
    assert call("runs", "reap") == 0
    assert stored_runs(client, "old")[0].info.status == "KILLED"
    assert stored_runs(client, "new")[0].info.status == "RUNNING"


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5 weeks", "1.5h"])
def test_a_wrong_age_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--older-than takes"):
        parse_age(text)


def test_a_store_that_goes_out_half_way_is_one_line(
    client: Any, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running(client, "dead", pid=ended_pid())

    def breaking(*_: object) -> None:
        (workspace / "mlflow.db").write_text("not a database any more")
        raise ConnectionError("reset")

    monkeypatch.setattr("harness.tracking.sync._judge", breaking)
    assert call("runs", "reap") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("MLflow went out (DatabaseError")
    assert errors.count("\n") == 1
