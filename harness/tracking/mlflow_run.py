"""Replaying the events of one log into MLflow.

A `MlflowRun` always takes a log from its first event on, however much of it the store has already: it finds the run by
its tag `harness.run_id`, and leaves out parameters and metrics that are already there. So following a run as it
happens, reconnecting after an outage, and sending it again later are the same.

    start -> run, tags, params, dataset, parent     metrics -> log_batch           artifact -> a file
    warning -> tag                                  resume, package -> tag         end -> status, artifacts, description
"""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import DataError
from harness.io.files import home, locked, sha256_file, sha256_json
from harness.runs.events import LOG, Event, LogReader
from harness.tracking import metadata
from harness.tracking.artifacts import send_files, send_made
from harness.tracking.metadata import PARAM_LIMIT, TAG_LIMIT, full_name_tag, metric_name, milliseconds
from harness.tracking.store import experiment_id, find_run, reason

SYNCED = "harness.synced"
"""Name of the tag that holds the sha256 of the log once all of it was sent."""
_METRICS = 1000
_PARAMS_TAGS = 100
_OF_BAD_ENDS = {"error", "pruned", "reaped"}
_KILLED: Event = {"status": "killed", "error": None}
"""The `end` assumed for a log without one."""


class MlflowRun:
    """One run, or one group of runs, in an MLflow store."""

    def __init__(self, client: Any, folder: Path, progressed: Callable[[], None] = lambda: None) -> None:
        """Prepare to send the log in `folder`; `progressed` is called after every successful transfer."""
        self._client, self._folder, self._progressed = client, folder, progressed
        self._start: Event = {}
        self._end: Event | None = None
        self._last_time = ""
        self._run: Any = None
        self._known: set[tuple[str, int]] = set()
        """(name, step) of the metrics that were sent or are buffered."""
        self._metrics: list[Any] = []
        self._tags: dict[str, str] = {}
        self._sent_tags: dict[str, str] = {}
        self._non_finite: Counter[str] = Counter()
        self._first_non_finite: dict[str, str] = {}
        self._files: dict[str, str] = {}
        """Files of a group that were sent: path in the folder -> sha256."""
        self._new_files: dict[str, None] = {}

    @property
    def ended(self) -> bool:
        """Whether the run has ended, as far as the log was read, and was not resumed."""
        return self._end is not None

    @property
    def is_group(self) -> bool:
        """Whether this is a bench or a sweep."""
        return metadata.is_group(self._start)

    def replay(self, reader: LogReader) -> None:
        """Handle all events that the log has by now."""
        while events := reader.read():
            for event in events:
                self.handle(event)

    def handle(self, event: Event) -> None:
        """Handle one event; what it adds is buffered until the next `flush`."""
        kind = event["event"]
        if kind != "start":
            self._require_run()
        self._last_time = event["time"]
        if kind == "start" and self._run is None:
            self._open(event)
        elif kind == "resume":
            self._end = None
            self._tags["resumed"] = str(len(event.get("resumed", [])) or int(self._tags.get("resumed", 0)) + 1)
        elif kind == "metrics":
            self._add_metrics(event)
        elif kind == "warning":
            self._tags["warning"] = event["message"][:TAG_LIMIT]
        elif kind == "package" and "left_out" in event:
            self._tags["model"] = f"left out: {event['left_out']}"[:TAG_LIMIT]
        elif kind == "artifact":
            self._new_files[event["path"]] = None  # a plot is logged after every trial; the file is sent as it is now
        elif kind == "end":
            self._end = event

    def tag(self, tags: dict[str, str]) -> None:
        """Buffer tags until the next `flush`."""
        self._tags |= tags

    def flush(self) -> None:
        """Send buffered events."""
        from mlflow.entities import RunTag

        for start in range(0, len(self._metrics), _METRICS):
            self._client.log_batch(self._id, metrics=self._metrics[start : start + _METRICS])
            self._progressed()
        self._metrics.clear()
        changed = [RunTag(key, value) for key, value in self._tags.items() if self._sent_tags.get(key) != value]
        for start in range(0, len(changed), _PARAMS_TAGS):
            self._client.log_batch(self._id, tags=changed[start : start + _PARAMS_TAGS])
            self._progressed()
        self._sent_tags |= self._tags
        for name in list(self._new_files):
            self._send_file(name)
            del self._new_files[name]

    def go_on(self) -> None:
        """Flush, and mark the run as running if the store has it as ended."""
        self.flush()
        if self._run.info.status != "RUNNING":
            self._client.update_run(self._id, status="RUNNING")

    def settle(self) -> None:
        """Send the rest and the final status; without an `end` in the log it is killed."""
        self._require_run()
        end = self._end or _KILLED
        tag = {"pruned": "pruned", "failed": "error"}.get(end["status"])
        self._tags |= {tag: str(end["error"])[:TAG_LIMIT]} if tag else {}
        self.flush()
        if end["status"] == "finished":  # remove tags of a failed attempt that was resumed
            for key in _OF_BAD_ENDS & self._sent_tags.keys():
                self._client.delete_tag(self._id, key)
                del self._sent_tags[key]
        status = metadata.STATUS[end["status"]]
        self._client.set_terminated(self._id, status=status, end_time=milliseconds(self._last_time))
        self._progressed()

    def complete(self, mark: Callable[[], None] = lambda: None) -> list[str]:
        """Send the files and the description of a settled run; return one message per file that was not sent.

        `mark` is called when everything but the model is sent; the model is packed and sent after that.
        """
        end = self._end or _KILLED
        place = (self._client, self._id, self._folder)
        faults = self._send_changed_files() if self.is_group else send_files(*place, self._progressed)
        note = metadata.description(self._start, self._folder, end["status"], end["error"])
        self._tags["mlflow.note.content"] = note
        self.flush()
        mark()
        if not self.is_group:
            faults += send_made(*place, self._start, self._progressed)
        if not faults:
            self._tags[SYNCED] = sha256_file(self._folder / LOG)
        self.flush()
        return faults

    def _require_run(self) -> None:
        if self._run is None:
            raise DataError("the log does not begin with a start", self._folder / LOG, 1)

    @property
    def _id(self) -> str:
        identifier: str = self._run.info.run_id
        return identifier

    def _open(self, start: Event) -> None:
        metadata.require_start(start, self._folder / LOG)
        self._start = start
        experiment = experiment_id(self._client, metadata.experiment_name(start))
        tags = {metric_name(key): value for key, value in metadata.tags_of(start).items()}
        if parent := start.get("parent"):
            own = {"harness.run_id": str(parent["id"]), "harness.kind": str(parent["kind"])}
            group = self._found_or_made(experiment, str(parent["name"]), own, start)
            tags["mlflow.parentRunId"] = group.info.run_id
        self._run = self._found_or_made(experiment, metadata.run_name(start), tags, start)
        for name in self._run.data.metrics:
            self._known |= {(name, point.step) for point in self._client.get_metric_history(self._id, name)}
        self._tags |= tags
        self._sent_tags = dict(self._run.data.tags)
        if self.is_group:  # a run of the group may have created it with another name
            self._tags["mlflow.runName"] = metadata.run_name(start)
        self._log_params(metadata.params_of(start))
        self._log_dataset(metadata.dataset_of(start))
        self._progressed()

    def _found_or_made(self, experiment: str, name: str, tags: dict[str, str], start: Event) -> Any:
        found = find_run(self._client, experiment, tags["harness.run_id"])
        if found is not None:
            return found
        lock = sha256_json(experiment)[:16]  # an id from a server may be unsafe as a file name
        with locked(home() / "locks" / f"{lock}.create"):  # runs of a group may create it at the same moment
            found = find_run(self._client, experiment, tags["harness.run_id"])
            if found is not None:
                return found
            moment = milliseconds(start["time"])
            return self._client.create_run(experiment, start_time=moment, tags=tags, run_name=name[:250])

    def _log_params(self, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        named = {metric_name(key): (key, value) for key, value in params.items()}
        there = self._run.data.params
        missing = [Param(name, value[:PARAM_LIMIT]) for name, (_, value) in named.items() if name not in there]
        for start in range(0, len(missing), _PARAMS_TAGS):
            self._client.log_batch(self._id, params=missing[start : start + _PARAMS_TAGS])
        for key, value in params.items():
            self._tags |= full_name_tag(key)
            if len(value) > PARAM_LIMIT:
                self._tags[metric_name(f"truncated.{key}")] = f"{len(value):,} characters; whole in params.json"

    def _log_dataset(self, dataset: dict[str, str] | None) -> None:
        inputs = self._run.inputs
        if dataset is None or (inputs is not None and inputs.dataset_inputs):
            return
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tag = InputTag("mlflow.data.context", "train and test")
        self._client.log_inputs(self._id, [DatasetInput(Dataset(**dataset), [tag])])

    def _add_metrics(self, event: Event) -> None:
        from mlflow.entities import Metric

        moment, step = milliseconds(event["time"]), int(event["step"])
        for key, given in event["values"].items():
            name, value = metric_name(key), float(given)  # the log holds NaN and infinity as words
            self._tags |= full_name_tag(key)
            if not math.isfinite(value):  # MLflow would store infinity as 1.8e308
                first = self._first_non_finite.setdefault(key, f"{value} at step {step}")
                more = f", and {self._non_finite[key]} times more" if self._non_finite[key] else ""
                self._tags[metric_name(f"non_finite.{key}")] = first + more
                self._non_finite[key] += 1
            elif (name, step) not in self._known:
                self._known.add((name, step))
                self._metrics.append(Metric(name, value, moment, step))
        if len(self._metrics) >= _METRICS:
            self.flush()

    def _send_file(self, name: str) -> None:
        path = (self._folder / name).resolve()
        if not path.is_relative_to(self._folder.resolve()) or not path.is_file():
            return
        place, digest = Path(name).parent.as_posix(), sha256_file(path)
        if self._files.get(name) == digest:
            return
        self._client.log_artifact(self._id, str(path), None if place == "." else place)
        self._files[name] = digest
        self._progressed()

    def _send_changed_files(self) -> list[str]:
        faults = []
        for name in [*self._files, LOG]:
            try:
                self._send_file(name)
            except Exception as error:
                faults.append(f"{name} ({reason(error)})")
        return faults
