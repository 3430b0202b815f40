"""Runs without training for tests of tracking: their metadata, their logs, and their data in MLflow."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.runs.events import Event
from harness.runs.log import RunLog, Tracker
from harness.runs.record import RunRecord
from harness.tracking import make_tracker


def at_work(folder: Path, seconds: float) -> None:
    """Make a run of so many seconds with one metric, which is sent to MLflow."""
    with RunLog(folder, draft(folder.name), make_tracker("mlflow")) as run_log:
        run_log.metrics({"P@1": 1.0}, 5)
        time.sleep(seconds)
        run_log.complete(finished(folder.name))


def started(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    """Start `at_work` in a new interpreter and wait until the run has begun; the interpreter loads no MLflow."""
    place = f"from pathlib import Path; folder = Path({str(folder)!r})"
    work = f"from tests.support.tracked_runs import at_work; at_work(folder, {seconds})"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{place}; {work}; import sys; assert 'mlflow' not in sys.modules"],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually((folder / "events.jsonl").exists)
    return process


def draft(run_id: str = "a-run", **config: Any) -> dict[str, Any]:
    """Return the metadata with which a run begins."""
    chosen = {"method": "zeroshot", "encoder": "tiny", "dataset": "synthetic", "seed": 3, "search": {"k": 5}}
    return {
        "run_id": run_id,
        "started": "2026-01-01T00:00:00.000+00:00",
        "config": chosen | config,
        "dataset": {
            "name": "synthetic",
            "digest": "d" * 64,
            "statistics": {"test": 2},
            "filter": True,
            "propensity": None,
        },
        "encoder": {"name": "tiny", "dim": 8, "max_len": 16, "identity": "e"},
        "metric_version": 1,
        "environment": {"harness": "0", "git": {"commit": "c", "dirty": False}},
    }


def finished(run_id: str = "a-run", **config: Any) -> RunRecord:
    """Return the record of a run that began with `draft`."""
    return RunRecord(**draft(run_id, **config), status="finished", seconds=1.0, metrics={"P@1": 50.0})


def logged(folder: Path, values: list[dict[str, float]], tracker: Tracker | None = None, **config: Any) -> Path:
    """Make a finished run in `folder` that logged these metrics, one step each; return the folder."""
    with RunLog(folder, draft(folder.name, **config), tracker) as run_log:
        for step, figures in enumerate(values):
            run_log.metrics(figures, step)
        run_log.complete(finished(folder.name, **config))
    return folder


def cut_off(folder: Path, end: bool = False) -> None:
    """Make a run look as if its process had been killed: without a record, and without an end in its log."""
    for name in ("record.json", "manifest.json"):
        (folder / name).unlink(missing_ok=True)
    if not end:
        lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
        (folder / "events.jsonl").write_text("".join(line for line in lines if '"event": "end"' not in line))


def events_of(folder: Path) -> list[Event]:
    """Return the events in the log of a run."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def stored_runs(client: Any, run_id: str | None = None) -> list[Any]:
    """Return the MLflow runs of one run, or of all."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments)
    return [run for run in runs if run_id in (None, run.data.tags.get("harness.run_id"))]


def everything(client: Any, run_id: str) -> dict[str, Any]:
    """Return all that MLflow stores of a run, in a form that can be compared."""
    (run,) = stored_runs(client, run_id)
    histories = {
        name: sorted((p.step, p.timestamp, p.value) for p in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }
    return {
        "info": (run.info.run_id, run.info.status, run.info.start_time, run.info.end_time, run.info.run_name),
        "metrics": histories,
        "params": dict(run.data.params),
        "tags": dict(run.data.tags),
        "inputs": [(given.dataset.name, given.dataset.digest) for given in run.inputs.dataset_inputs],
        "artifacts": sorted((a.path, a.file_size) for a in client.list_artifacts(run.info.run_id)),
    }


def steps_of(client: Any, run_id: str, name: str) -> list[int]:
    """Return the steps of a metric in MLflow, repeated as often as they are stored."""
    (run,) = stored_runs(client, run_id)
    return sorted(point.step for point in client.get_metric_history(run.info.run_id, name))


def eventually(condition: Callable[[], Any], seconds: float = 150.0, pause: float = 0.05) -> Any:
    """Wait until the condition returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
    return found
