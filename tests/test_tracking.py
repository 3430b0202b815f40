"""Events first, the right status always, MLflow as a sink that may fail."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.files import read_manifest
from harness.mlflow_sink import MlflowSink, metric_name, original_name
from harness.record import RunRecord, read_record
from harness.tracking import Event, Journal, Sink


def draft(run_id: str = "a-run") -> dict[str, Any]:
    return {
        "run_id": run_id,
        "started": "2026-01-01T00:00:00.000+00:00",
        "config": {"method": "zeroshot", "encoder": "tiny", "dataset": "synthetic", "seed": 3, "search": {"k": 5}},
        "dataset": {
            "name": "synthetic",
            "digest": "d" * 64,
            "statistics": {"test": 2},
            "filter": True,
            "propensity": None,
        },
        "metric_version": 1,
        "environment": {"harness": "0", "git": {"commit": "c", "dirty": False}},
    }


def finished(run_id: str = "a-run") -> RunRecord:
    return RunRecord(**draft(run_id), status="finished", seconds=1.0, metrics={"P@1": 50.0})


class Memory:
    """A sink that remembers."""

    name = "memory"

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.status = ""

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self, status: str, folder: Path) -> None:
        assert (folder / "record.json").exists()
        self.status = status


class Broken(Memory):
    def handle(self, event: Event) -> None:
        raise ConnectionError("no server")


def events_of(folder: Path) -> list[Event]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_finished_run_is_complete_and_hashed(tmp_path: Path) -> None:
    sink = Memory()
    with Journal(tmp_path / "run", draft(), [sink]) as journal:
        journal.metrics({"P@1": 50.0, "loss": math.nan}, step=7)
        journal.warn("look here")
        journal.complete(finished())
    assert [event["event"] for event in events_of(tmp_path / "run")] == ["start", "metrics", "warning", "end"]
    assert events_of(tmp_path / "run")[1]["values"] == {"P@1": 50.0, "loss": "nan"}
    assert [event["event"] for event in sink.events] == ["start", "metrics", "warning", "end"]
    assert sink.status == "finished"
    assert read_record(tmp_path / "run").metrics == {"P@1": 50.0}
    manifest = read_manifest(tmp_path / "run", verify=True)
    assert manifest is not None
    assert set(manifest["files"]) == {"events.jsonl", "record.json"}


@pytest.mark.parametrize(("error", "status"), [(ValueError("boom\nmore"), "failed"), (KeyboardInterrupt(), "killed")])
def test_an_exception_gives_the_right_status(tmp_path: Path, error: BaseException, status: str) -> None:
    sink = Memory()
    with pytest.raises(type(error)), Journal(tmp_path / "run", draft(), [sink]):
        raise error
    record = read_record(tmp_path / "run")
    assert (record.status, sink.status) == (status, status)
    assert record.error is not None
    assert "more" not in record.error
    assert record.metrics == {}


def test_a_broken_sink_never_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 21"""
    good = Memory()
    sinks: list[Sink] = [Broken(), good]
    with Journal(tmp_path / "run", draft(), sinks) as journal:
        journal.metrics({"P@1": 1.0})
        journal.complete(finished())
    assert journal.record.status == "finished"
    assert "no server" in capsys.readouterr().err
    kinds = [event["event"] for event in events_of(tmp_path / "run")]
    assert kinds == ["start", "warning", "metrics", "end"]
    assert good.status == "finished"


def test_sigterm_closes_the_run_as_killed(tmp_path: Path, workspace: Path, mlflow_store: str) -> None:
    """fault 5"""
    script = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.test_tracking import draft
from harness.mlflow_sink import MlflowSink
from harness.tracking import Journal
with Journal(Path({str(tmp_path / "run")!r}), draft(), [MlflowSink({mlflow_store!r})]) as journal:
    journal.metrics({{"P@1": 1.0}})
    print("ready", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert read_record(tmp_path / "run").status == "killed"
    from mlflow import MlflowClient

    (experiment,) = [e for e in MlflowClient(mlflow_store).search_experiments() if e.name == "synthetic"]
    (run,) = MlflowClient(mlflow_store).search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    assert run.data.metrics == {"P_at_1": 1.0}


def test_mlflow_gets_params_metrics_dataset_and_artifacts(tmp_path: Path, mlflow_store: str) -> None:
    from mlflow import MlflowClient

    with Journal(tmp_path / "run", draft(), [MlflowSink(mlflow_store)]) as journal:
        for step in range(3):
            journal.metrics({"P@1": float(step), "loss": math.inf if step == 1 else 0.5}, step)
        journal.complete(finished())
    client = MlflowClient(mlflow_store)
    experiment = client.get_experiment_by_name("synthetic")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "a-run"
    assert run.data.params["search.k"] == "5"
    assert run.data.params["environment.git.commit"] == "c"
    assert run.data.tags["method"] == "zeroshot"
    assert run.data.tags["git.dirty"] == "False"
    assert [point.value for point in client.get_metric_history(run.info.run_id, "P_at_1")] == [0.0, 1.0, 2.0]
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [0, 2]
    assert run.data.tags["non_finite.loss"] == "inf at step 1"
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("synthetic", "d" * 36)
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} == {"record.json", "events.jsonl"}


def test_a_failed_run_is_failed_in_mlflow(tmp_path: Path, mlflow_store: str) -> None:
    from mlflow import MlflowClient

    with pytest.raises(ValueError, match="boom"), Journal(tmp_path / "run", draft(), [MlflowSink(mlflow_store)]):
        raise ValueError("boom")
    client = MlflowClient(mlflow_store)
    (run,) = client.search_runs([client.get_experiment_by_name("synthetic").experiment_id])
    assert run.info.status == "FAILED"


def test_a_kill_while_tracking_starts_is_recorded(tmp_path: Path) -> None:
    """fault 5"""

    class Slow(Memory):
        def handle(self, event: Event) -> None:
            if event["event"] == "start":
                raise KeyboardInterrupt

    sink = Slow()
    with pytest.raises(KeyboardInterrupt), Journal(tmp_path / "run", draft(), [sink]):
        raise AssertionError("the block must not be entered")
    assert read_record(tmp_path / "run").status == "killed"
    assert sink.status == "killed"


@pytest.mark.parametrize("broken", ["log_artifact", "log_batch"])
def test_a_failing_call_does_not_leave_the_run_open(
    tmp_path: Path, mlflow_store: str, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    from mlflow import MlflowClient

    def fails(*_: object, **__: object) -> None:
        raise PermissionError("no")

    with Journal(tmp_path / "run", draft(), [MlflowSink(mlflow_store)]) as journal:
        monkeypatch.setattr(MlflowClient, broken, fails)
        journal.metrics({"P@1": 1.0})
        journal.complete(finished())
    client = MlflowClient(mlflow_store)
    (run,) = client.search_runs([client.get_experiment_by_name("synthetic").experiment_id])
    assert run.info.status == "FINISHED"
    assert journal.record.status == "finished"


def test_an_unreachable_store_costs_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 23: the database cannot be written"""
    (tmp_path / "file").write_text("not a folder")
    with Journal(tmp_path / "run", draft(), [MlflowSink(f"sqlite:///{tmp_path}/file/x.db")]) as journal:
        journal.complete(finished())
    assert read_record(tmp_path / "run").status == "finished"
    assert "events.jsonl has everything" in capsys.readouterr().err


def test_several_processes_start_on_a_fresh_store(tmp_path: Path, workspace: Path) -> None:
    """fault 13"""
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.test_tracking import draft, finished
from harness.mlflow_sink import MlflowSink
from harness.tracking import Journal, tracking_uri
with Journal(Path(sys.argv[1]), draft(), [MlflowSink(tracking_uri())]) as journal:
    journal.metrics({{"P@1": 1.0}})
    journal.complete(finished())
assert journal.warnings == []
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / f"run{i}")], stderr=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert not any("stopped" in error for error in errors), errors
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{workspace / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("synthetic").experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 3


@pytest.mark.parametrize("key", ["P@1", "PSP@5", "seconds/encode", "loss (DE)", "λ"])
def test_metric_names_map_both_ways(key: str) -> None:
    """fault 26"""
    import re

    assert re.fullmatch(r"[\w\-. :/]+", metric_name(key), re.ASCII)
    assert original_name(metric_name(key)) == key
