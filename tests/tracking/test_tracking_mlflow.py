"""What a log becomes in MLflow, sent in this process."""

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.runs.events import LogReader
from harness.runs.log import GroupLog, RunLog
from harness.tracking.metadata import original_name
from harness.tracking.mlflow_run import MlflowRun
from harness.tracking.store import open_store, patiently
from harness.tracking.sync import send
from tests.faults.accounts import Account
from tests.support.tracked_runs import draft, events_of, finished, logged, steps_of, stored_runs


@pytest.fixture
def client(mlflow_store: str) -> Any:
    return open_store(mlflow_store)


def test_what_is_not_a_number_is_a_tag(tmp_path: Path, client: Any, account: Account) -> None:
    """fault 25"""
    odd = {1: math.nan, 2: math.inf, 3: -math.inf}
    folder = logged(tmp_path / "a-run", [{"loss": odd.get(step, 0.5), "all_nan": math.nan} for step in range(5)])
    written = [event["values"]["loss"] for event in events_of(folder) if event["event"] == "metrics"]
    assert written == [0.5, "nan", "inf", "-inf", 0.5]
    assert send(client, folder, "a-run").result == "sent"
    (run,) = stored_runs(client)
    assert steps_of(client, "a-run", "loss") == [0, 4]
    assert run.data.metrics == {"loss": 0.5}
    flags = {key: value for key, value in run.data.tags.items() if key.startswith("non_finite.")}
    assert set(flags) == {"non_finite.loss", "non_finite.all_nan"}
    assert flags["non_finite.loss"].startswith("nan at step 1, and 2 times more")
    with sqlite3.connect(client.tracking_uri.removeprefix("sqlite:///")) as store:
        (rows,) = store.execute("select count(*) from metrics where abs(value) > 1e300 or is_nan").fetchone()
    assert rows == 0
    account.did("a loss that is NaN, inf and -inf at steps 1 to 3 of 5")
    account.saw(f"in the log {written}; in MLflow 2 points, {rows} rows of 1.8e308, a tag: {flags['non_finite.loss']}")


def test_mlflow_gets_params_metrics_dataset_and_artifacts(tmp_path: Path, client: Any) -> None:
    folder = logged(tmp_path / "a-run", [{"P@1": float(step)} for step in range(4)])
    (folder / "sample.json").write_text("[]")
    assert send(client, folder, "a-run").result == "sent"
    (run,) = stored_runs(client)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "zeroshot tiny s3 run"
    expected = {"search.k": "5", "environment.git.commit": "c", "encoder": "tiny", "encoder.dim": "8"}
    assert expected.items() <= run.data.params.items()
    assert {"method": "zeroshot", "git.dirty": "False", "seed": "3"}.items() <= run.data.tags.items()
    assert [point.value for point in client.get_metric_history(run.info.run_id, "P_at_1")] == [0.0, 1.0, 2.0, 3.0]
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("synthetic", "d" * 36)
    paths = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert {"record.json", "events.jsonl", "sample.json"} <= paths
    assert "P@1 50.00" in run.data.tags["mlflow.note.content"]


def test_long_params_and_names_are_whole_somewhere(tmp_path: Path, client: Any, account: Account) -> None:
    """fault 26, fault 27"""
    key, text = "λ@" + "x" * 300, "y" * 20_000
    folder = logged(tmp_path / "a-run", [{key: 1.0}], text=text)
    send(client, folder, "a-run")
    (run,) = stored_runs(client)
    (name,) = run.data.metrics
    assert original_name(name, run.data.tags) == key
    assert run.data.params["text"] == text[:6000]
    assert "20,000 characters" in run.data.tags["truncated.text"]
    stored = Path(client.download_artifacts(run.info.run_id, "params.json"))
    assert json.loads(stored.read_text())["text"] == text
    account.did(f"a metric called λ@xxx... of {len(key)} characters and a parameter of {len(text):,}")
    account.saw(
        f"metric stored as {name[:12]}... ({len(name)}), read back whole; parameter cut at "
        f"{len(run.data.params['text']):,}, marked, whole in params.json"
    )


def test_a_run_that_failed_says_why(tmp_path: Path, client: Any) -> None:
    with pytest.raises(ValueError, match="boom"), RunLog(tmp_path / "a-run", draft()):
        raise ValueError("boom")
    send(client, tmp_path / "a-run", "a-run")
    (run,) = stored_runs(client)
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "ValueError: boom")


def test_a_run_finds_its_group_whichever_comes_first(tmp_path: Path, client: Any) -> None:
    about: dict[str, Any] = {"experiment": "synthetic", "name": "my sweep", "params": {"trials": 20}}
    with GroupLog(tmp_path / "study", "sweep", "study-1", **about, tags={"by": "me"}) as log:
        log.metrics({"best": 1.0}, 3)
        (tmp_path / "study" / "plots").mkdir()
        (tmp_path / "study" / "plots" / "front.png").write_bytes(b"first")
        log.artifact(tmp_path / "study" / "plots" / "front.png")
        (tmp_path / "study" / "plots" / "front.png").write_bytes(b"second")
        log.event("artifact", path="../outside.txt")
        log.event("artifact", path="gone.png")
    (tmp_path / "outside.txt").write_text("not ours to send")
    for name in ("one", "two"):
        with RunLog(tmp_path / name, draft(name) | {"parent": log.parent}) as run_log:
            run_log.complete(finished(name))
    assert send(client, tmp_path / "one", "one").result == "sent"
    (parent,) = stored_runs(client, "study-1")
    assert parent.info.status == "RUNNING"
    assert send(client, tmp_path / "study", "study-1").result == "sent"
    assert send(client, tmp_path / "two", "two").result == "sent"
    (parent,) = stored_runs(client, "study-1")
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "my sweep")
    assert parent.data.params == {"trials": "20"}
    assert parent.data.tags["by"] == "me"
    assert parent.data.metrics == {"best": 1.0}
    picture = Path(client.download_artifacts(parent.info.run_id, "plots/front.png"))
    assert picture.read_bytes() == b"second"
    assert {artifact.path for artifact in client.list_artifacts(parent.info.run_id)} == {"plots", "events.jsonl"}
    for name in ("one", "two"):
        (child,) = stored_runs(client, name)
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.tags["parent.trials"] == "20"


def replay(client: Any, folder: Path) -> MlflowRun:
    run, reader = MlflowRun(client, folder), LogReader(folder / "events.jsonl")
    for event in reader.read():
        run.handle(event)
    return run


def test_a_run_is_taken_up_where_the_store_has_it(tmp_path: Path, client: Any) -> None:
    """Half of the figures are there, the status says killed; the whole log is sent again."""
    folder = logged(tmp_path / "a-run", [{"loss": float(step)} for step in range(6)])
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(lines[:4]))
    replay(client, folder).settle()
    (run,) = stored_runs(client)
    client.set_tag(run.info.run_id, "reaped", "by somebody who saw it dead")
    assert (run.info.status, steps_of(client, "a-run", "loss")) == ("KILLED", [0, 1, 2])
    resume = json.dumps(json.loads(lines[0]) | {"event": "resume", "resumed": [{}]}) + "\n"
    (folder / "events.jsonl").write_text("".join([*lines[:4], resume, *lines[3:-1]]))
    replay(client, folder).go_on()
    (run,) = stored_runs(client)
    assert run.info.status == "RUNNING"
    (folder / "events.jsonl").write_text("".join([*lines[:4], resume, *lines[3:]]))
    assert send(client, folder, "a-run").result == "sent"
    (run,) = stored_runs(client)
    assert (run.info.status, run.data.tags["resumed"]) == ("FINISHED", "1")
    assert "reaped" not in run.data.tags
    assert steps_of(client, "a-run", "loss") == list(range(6))


def test_a_batch_that_got_through_although_it_failed_is_not_sent_twice(tmp_path: Path, client: Any) -> None:
    """fault 22: the answer was lost, not the request"""
    folder = logged(tmp_path / "a-run", [{"loss": float(step)} for step in range(6)])
    log_batch = client._client.log_batch

    def lost(*arguments: Any, **named: Any) -> None:
        log_batch(*arguments, **named)
        if named.get("metrics"):
            raise ConnectionError("reset")

    client._client.log_batch = lost
    with pytest.raises(ConnectionError):
        send(client, folder, "a-run")
    client._client.log_batch = log_batch
    assert send(client, folder, "a-run").result == "sent"
    assert steps_of(client, "a-run", "loss") == list(range(6))


def test_a_model_is_sent_where_one_is_packed_and_may_fail_alone(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[str] = []

    def pack(folder: Path, out: Path) -> None:
        packed.append(folder.name)
        if folder.name == "failing":
            raise MemoryError("no")
        out.mkdir()

    monkeypatch.setattr("harness.tracking.artifacts.pack_model", pack)
    outcomes = {}
    for name in ("with", "failing", "without"):
        folder = logged(tmp_path / name, [])
        if name != "without":
            (folder / "package").mkdir()
        outcomes[name] = send(client, folder, name)
    assert packed == ["with", "failing"]
    assert [outcome.result for outcome in outcomes.values()] == ["sent", "failed", "sent"]
    assert "model (MemoryError: no)" in outcomes["failing"].reason
    (run,) = stored_runs(client, "failing")
    assert run.info.status == "FINISHED"
    assert "record.json" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert "harness.synced" not in run.data.tags  # so that the next sync tries again
    with RunLog(tmp_path / "large", draft("large")) as run_log:
        run_log.event("package", left_out="9,000 MB")
        run_log.complete(finished("large"))
    send(client, tmp_path / "large", "large")
    assert [run.data.tags.get("model") for run in stored_runs(client, "large")] == ["left out: 9,000 MB"]


def test_a_deleted_experiment_is_named(tmp_path: Path, client: Any) -> None:
    folder = logged(tmp_path / "a-run", [])
    send(client, folder, "a-run")
    client.delete_experiment(client.get_experiment_by_name("synthetic").experiment_id)
    with pytest.raises(UserError, match="'synthetic' was deleted"):
        send(client, folder, "a-run")


def test_a_locked_database_is_waited_for() -> None:
    """fault 14"""
    answers = iter([sqlite3.OperationalError("database is locked"), sqlite3.OperationalError("database is locked"), 7])

    def call(*_: object) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(call, "argument") == 7
    with pytest.raises(StopIteration):
        patiently(call)
