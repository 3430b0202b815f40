"""The process beside a run: what it does when the run dies, and what a run notices of a store that is out."""

import math
import multiprocessing
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.runs.log import RunLog
from harness.runs.record import read_record
from harness.tracking import make_tracker, uploader
from harness.tracking.store import open_store
from tests.faults.accounts import Account
from tests.support.forks import Forked
from tests.support.servers import free_port
from tests.support.tracked_runs import (
    at_work,
    cut_off,
    draft,
    events_of,
    eventually,
    finished,
    logged,
    started,
    stored_runs,
)
from tests.support.training_runs import begin_child, exit_code, in_child


@pytest.mark.usefixtures("forked_uploader")
def test_a_run_that_is_stopped_or_killed_is_killed_in_mlflow(
    tmp_path: Path, mlflow_store: str, account: Account
) -> None:
    """fault 5"""
    stopped = started(tmp_path / "stopped", 600)
    killed = begin_child(lambda: at_work(tmp_path / "killed", 600), tmp_path / "said")
    client = open_store(mlflow_store)
    eventually(lambda: [run.info.status for run in stored_runs(client)] == ["RUNNING"] * 2)
    os.kill(killed, signal.SIGKILL)
    for uploader_of_it in psutil.Process(stopped.pid).children():  # as if a scheduler told all processes of a job
        uploader_of_it.terminate()
    stopped.terminate()
    began = time.monotonic()
    _, errors = stopped.communicate(timeout=120)
    seconds = time.monotonic() - began  # told, not judged: it is the machine's
    assert "Terminated" in errors
    assert read_record(tmp_path / "stopped").status == "killed"
    assert exit_code(killed) == -signal.SIGKILL
    eventually(lambda: stored_runs(client, "killed")[0].data.tags.get("harness.synced"))
    for name in ("stopped", "killed"):
        (run,) = stored_runs(client, name)
        assert (run.info.status, run.data.metrics) == ("KILLED", {"P_at_1": 1.0})
    assert run.data.tags["harness.pid"] == str(killed)
    account.did("SIGTERM to a run and its MLflow process at once, as a scheduler does; SIGKILL to another run")
    account.saw(f"{seconds:.1f} s later the first was KILLED in MLflow, the second soon after; no figure was lost")


@pytest.mark.usefixtures("forked_uploader")
def test_a_server_that_is_down_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 21"""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    assert in_child(lambda: at_work(tmp_path / "run", 0), tmp_path / "said") == 0
    errors = (tmp_path / "said").read_text()
    assert [event["event"] for event in events_of(tmp_path / "run")] == ["start", "metrics", "end"]
    assert read_record(tmp_path / "run").status == "finished"
    assert errors.count("\n") == 1
    for words in ("MLflow is out (URLError", "events.jsonl has everything", "python -m harness sync"):
        assert words in errors
    assert "secret" not in errors


@contextmanager
def silent_server() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.usefixtures("forked_uploader")
def test_a_server_that_hangs_costs_the_bounded_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uploader, "PATIENCE_SECONDS", 2.0)
    with silent_server() as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with RunLog(tmp_path / "run", draft(), make_tracker("mlflow")) as run_log:
            began = time.monotonic()
            for step in range(1000):
                run_log.metrics({"loss": 1.0}, step)
            assert time.monotonic() - began < 60  # a wait for each would take half an hour
            run_log.complete(finished())
            began = time.monotonic()
        assert time.monotonic() - began < 60
    assert len(events_of(tmp_path / "run")) == 1002
    assert "python -m harness sync" in capfd.readouterr().err


def uploading(folder: Path, lives: Any = lambda: True) -> uploader.Upload:
    return uploader.Upload(folder, os.getpid(), lives)


@pytest.mark.parametrize("problem", ["no folder", "not a database", "no locks"])
def test_what_cannot_be_used_costs_a_line(
    problem: str,
    tmp_path: Path,
    workspace: Path,
    mlflow_store: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """fault 23: a store or a workspace; tests/tracking/test_tracking_disk.py has disks that are full or read-only"""
    monkeypatch.setattr(uploader, "_AFTER_END_SECONDS", 0.0)
    if problem == "no folder":
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/file/x.db")
    elif problem == "not a database":
        (workspace / "mlflow.db").write_bytes(b"something else" * 100)
    else:
        (workspace / "locks").write_text("not a folder")
    folder = logged(tmp_path / "run", [{"loss": 1.0}])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert uploader.main([str(folder), "--writer", str(os.getppid())]) == uploader.INCOMPLETE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "events.jsonl has everything" in errors


def worker(folder: str, barrier: Any) -> None:
    """One run with 1,000 figures in a process of its own; the exit code is that of its uploader."""
    from harness.tracking import mlflow_run

    mlflow_run._METRICS = 100
    run = logged(Path(folder), [{f"m{i}": float(step) for i in range(10)} for step in range(100)])
    barrier.wait(60)
    os._exit(uploading(run).run())


def test_eight_processes_start_on_a_fresh_store(
    tmp_path: Path, workspace: Path, mlflow_template: Path, capfd: pytest.CaptureFixture[str], account: Account
) -> None:
    """faults 13 and 14: no file, so no tables; forked from a process that has imported MLflow, so all begin at once"""
    assert not (workspace / "mlflow.db").exists()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    workers = [context.Process(target=worker, args=(str(tmp_path / f"run{i}"), barrier)) for i in range(8)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(200)
    assert [process.exitcode for process in workers] == [0] * 8
    client = open_store(f"sqlite:///{workspace / 'mlflow.db'}")
    runs = stored_runs(client)
    assert sorted(run.data.tags["harness.run_id"] for run in runs) == [f"run{i}" for i in range(8)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    with sqlite3.connect(workspace / "mlflow.db") as database:
        counts = database.execute("select count(*), sum(value = step) from metrics group by run_uuid").fetchall()
        distinct = database.execute(
            "select count(*) from (select distinct run_uuid, key, step from metrics)"
        ).fetchone()
    assert (counts, distinct) == ([(1000, 1000)] * 8, (8000,))
    said = capfd.readouterr().err
    assert "locked" not in said
    assert "warning" not in said
    account.did(f"{len(workers)} processes sent 1,000 figures each at once to an SQLite store that was not there yet")
    account.saw(
        f"{len(workers)} exit codes 0, {len(runs)} runs FINISHED, {distinct[0]:,} distinct rows with their values; "
        "no 'database is locked'"
    )


def test_a_run_that_is_taken_up_again_has_one_uploader(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uploader of a killed process waits for a store that is out, and leaves when the run goes on."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    folder = logged(tmp_path / "run", [{"loss": 1.0}])
    cut_off(folder)
    waiting = uploading(folder, lambda: False)
    old = threading.Thread(target=waiting.run)
    old.start()
    eventually(lambda: waiting._died)  # it has seen how long the log is
    assert old.is_alive()
    with (folder / "events.jsonl").open("a") as log:
        log.write('{"time": "2026-01-01T00:00:00+00:00", "event": "resume"}\n')
    old.join(30)
    assert not old.is_alive()


def test_an_uploader_gives_up_some_time_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(uploader, "_AFTER_DEATH_SECONDS", 1.0)
    folder = logged(tmp_path / "run", [{"loss": math.nan}])
    began = time.monotonic()
    assert uploading(folder, lambda: False).run() == uploader.INCOMPLETE
    assert 1.0 < time.monotonic() - began < 20.0
    assert capsys.readouterr().err.count("\n") == 1


def test_the_mark_of_an_earlier_uploader_is_not_that_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 5: the uploader of a killed process may still be at work when its run is resumed"""
    folder = tmp_path / "run"
    ours, earlier = (Forked(lambda seconds=seconds: time.sleep(seconds)) for seconds in (0.6, 60.0))
    try:
        uploader.mark_file(folder, earlier.pid).parent.mkdir(parents=True, exist_ok=True)
        uploader.mark_file(folder, earlier.pid).touch()
        waiting = uploader.Uploader()
        monkeypatch.setattr(waiting, "_process", ours)
        waiting.finish(folder)
        assert ours.returncode == 0
    finally:
        earlier.kill()
        earlier.wait()
