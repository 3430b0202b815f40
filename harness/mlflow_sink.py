"""MLflow as a sink of run events.

`start` creates the run with its parameters, its tags and a metadata-only dataset that carries our digest; `metrics` is
buffered and written in batches (a single `log_metric` costs 17 ms, a batched value 0.2 ms); the end uploads config,
record and events. MLflow forbids `@` in metric names, so P@1 is stored as P_at_1.
"""

import json
import logging
import math
import os
import re
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from harness.config import flatten
from harness.files import home, locked
from harness.record import Status
from harness.tracking import Event

_PARAM_LIMIT = 6000
_BATCH = 500
_FLUSH_SECONDS = 20.0
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


def metric_name(key: str) -> str:
    """Our metric key as MLflow accepts it; see `original_name` for the way back."""
    return re.sub(r"[^\w\-. :/]", lambda match: f"_u{ord(match[0]):x}_", key.replace("@", "_at_"), flags=re.ASCII)


def original_name(name: str) -> str:
    """The inverse of `metric_name`."""
    return re.sub(r"_u([0-9a-f]+)_", lambda match: chr(int(match[1], 16)), name).replace("_at_", "@")


class MlflowSink:
    """Writes one run to an MLflow store; any failure is raised to the journal, which goes on without it."""

    name = "MLflow"

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client: Any = None
        self._run_id = ""
        self._metrics: list[Any] = []
        self._known: set[tuple[str, int]] = set()
        """(name, step) of the figures that an interrupted run has already sent."""
        self._flushed = time.monotonic()

    def handle(self, event: Event) -> None:
        """Takes one event."""
        if event["event"] == "start":
            self._start(event)
        elif event["event"] == "resume":
            self._reopen(event)
        elif event["event"] == "metrics":
            self._log_metrics(event)
        elif event["event"] == "warning":
            self._client.set_tag(self._run_id, "warning", event["message"][:5000])

    def close(self, status: Status, folder: Path) -> None:
        """Flushes, uploads the small files and sets the final status."""
        if not self._run_id:
            return
        try:
            self._flush()
            for name in ("config.json", "record.json", "events.jsonl"):
                if (folder / name).exists():
                    self._client.log_artifact(self._run_id, str(folder / name))
        finally:
            self._client.set_terminated(self._run_id, status=_STATUS[status])

    def _reopen(self, event: Event) -> None:
        """Carries on the run that was started under this id; one that never got there begins now."""
        self._client = open_store(self._uri)
        experiment = experiment_id(self._client, _experiment_name(event))
        found = self._client.search_runs([experiment], f"tags.`harness.run_id` = '{event['run_id']}'", max_results=1)
        if not found:
            self._start(event)
            return
        self._run_id = found[0].info.run_id
        for name in found[0].data.metrics:
            self._known |= {(name, point.step) for point in self._client.get_metric_history(self._run_id, name)}
        self._client.update_run(self._run_id, status="RUNNING")
        self._client.set_tag(self._run_id, "resumed", str(len(event.get("resumed", []))))

    def _start(self, event: Event) -> None:
        self._client = open_store(self._uri)
        from mlflow.entities import Param, RunTag

        config = event["config"]
        experiment = experiment_id(self._client, _experiment_name(event))
        git = event["environment"].get("git", {})
        tags = {
            "method": config["method"],
            "dataset": event["dataset"]["name"],
            "encoder": config["encoder"],
            "seed": config["seed"],
            "harness.run_id": event["run_id"],
            "harness.version": event["environment"].get("harness"),
            "git.commit": git.get("commit"),
            "git.dirty": git.get("dirty"),
        }
        run = self._client.create_run(
            experiment, tags={key: str(value) for key, value in tags.items()}, run_name=event["run_id"]
        )
        self._run_id = run.info.run_id
        params = {**flatten(config), **flatten({"environment": event["environment"]})}
        self._log_dataset(event["dataset"])
        self._client.log_batch(
            self._run_id,
            params=[Param(key, value[:_PARAM_LIMIT]) for key, value in params.items()],
            tags=[RunTag(f"truncated.{key}", "true") for key, value in params.items() if len(value) > _PARAM_LIMIT],
        )

    def _log_dataset(self, facts: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        profile = json.dumps(facts["statistics"], sort_keys=True)
        # the digest field takes 36 characters; the whole one goes into the source
        source = json.dumps({key: facts[key] for key in ("digest", "filter", "propensity")}, sort_keys=True)
        dataset = Dataset(facts["name"], facts["digest"][:36], "xmc-harness", source, profile=profile)
        tag = InputTag("mlflow.data.context", "train and test")
        self._client.log_inputs(self._run_id, [DatasetInput(dataset, [tag])])

    def _log_metrics(self, event: Event) -> None:
        from mlflow.entities import Metric

        moment = int(datetime.fromisoformat(event["time"]).timestamp() * 1000)
        for key, value in event["values"].items():
            value = float(value)  # the log holds NaN and infinity as words
            if (metric_name(key), event["step"]) in self._known:
                continue
            self._known.add((metric_name(key), event["step"]))
            if math.isfinite(value):
                self._metrics.append(Metric(metric_name(key), float(value), moment, event["step"]))
            else:  # MLflow would store infinity as 1.8e308
                self._client.set_tag(self._run_id, f"non_finite.{metric_name(key)}", f"{value} at step {event['step']}")
        if len(self._metrics) >= _BATCH or time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        for start in range(0, len(self._metrics), _BATCH):
            self._client.log_batch(self._run_id, metrics=self._metrics[start : start + _BATCH])
        self._metrics.clear()
        self._flushed = time.monotonic()


def _experiment_name(event: Event) -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(event["dataset"]["name"])


def open_store(uri: str) -> Any:
    """An MLflow client whose database is ready.

    Creating the tables from two processes at once crashes all but one of them, so that happens under a lock.
    """
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    probe(uri)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # after the import, which sets levels of its own
        logging.getLogger(name).setLevel(logging.WARNING)
    with locked(home() / "mlflow.db"):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


def probe(uri: str) -> None:
    """Raises at once if a store cannot be used; MLflow itself would try again for up to two minutes."""
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        if path.exists():
            with closing(sqlite3.connect(path, timeout=5)) as store:
                # asks for the write lock, which a folder, another format or a read-only file refuses
                store.execute("begin immediate")
                store.rollback()
    elif uri.startswith(("http://", "https://")):
        server = urlsplit(uri)
        try:
            with urlopen(server._replace(netloc=server.netloc.rpartition("@")[2]).geturl(), timeout=5):
                pass
        except HTTPError:  # it wants a password or another page, but it answers
            pass
    elif "://" not in uri:
        raise ValueError(f"MLFLOW_TRACKING_URI is {uri!r}; it takes sqlite:///file, postgresql://... or http://server")


def experiment_id(client: Any, name: str) -> str:
    """The experiment called `name`, created if need be; local stores keep artifacts in the workspace."""
    found = client.get_experiment_by_name(name)
    if found is None:
        with locked(home() / "mlflow.db"):
            found = client.get_experiment_by_name(name)
            if found is None:
                local = str(client.tracking_uri).startswith("sqlite:")
                location = (home() / "mlartifacts").as_uri() if local else None
                created: str = client.create_experiment(name, artifact_location=location)
                return created
    identifier: str = found.experiment_id
    return identifier
