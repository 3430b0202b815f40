"""The run log: everything that happens to a run or to a group of runs, in the order it happens.

A `RunLog` is the context in which a run happens. It appends every event to events.jsonl, and always ends with the
right status: finished, failed (any exception), pruned, or killed (SIGTERM, Ctrl-C). A tracker reads this log in another
process and sends it elsewhere; its faults do not reach the run. `GroupLog` is the same for a bench or a sweep; its runs
name it in `parent`.
"""

import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from harness.errors import Pruned, Terminated, UserError, terminate
from harness.io.files import write_json, write_manifest
from harness.io.printable import printable
from harness.io.private import without_paths, without_secrets
from harness.machine.usage import SystemMetrics
from harness.runs.events import LOG, Event, EventLog, LogReader, drop_cut_off_line, read_events
from harness.runs.lock import run_lock
from harness.runs.metadata import recorded_origins
from harness.runs.record import RunRecord, Status, runs_folder, write_record
from harness.runs.resume import Earlier, require_unfinished


class Tracker(Protocol):
    """Sends the log of a run elsewhere while it is written; neither call raises because of an outage."""

    def start(self, folder: Path) -> None:
        """Begin to follow the log in `folder`, which already has its first event."""
        ...

    def finish(self, folder: Path, wait: bool = True) -> None:
        """Wait a bounded time until everything is sent; called when log and folder are complete.

        Without `wait` return at once; the rest is sent while the caller goes on, or after it has ended.
        """
        ...


def status_of(error: BaseException | None) -> Status:
    """Return the status of a run that ends with this exception; None for no exception."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt | Terminated):
        return "killed"
    return "pruned" if isinstance(error, Pruned) else "failed"


def in_one_line(error: BaseException | None) -> str | None:
    """Return an exception in one line without secrets and paths, for the record; None for no exception."""
    if error is None:
        return None
    return without_secrets(without_paths(f"{type(error).__name__}: {error}".splitlines()[0]))


class _Log:
    """A folder with an event log; safe to log from several threads."""

    folder: Path
    _log: EventLog

    def event(self, kind: str, /, **metadata: Any) -> None:
        """Append one event to the log."""
        self._log.write(kind, metadata)

    def metrics(self, values: dict[str, float], step: int = 0) -> None:
        """Log numbers of one step."""
        self.event("metrics", step=step, values=values)


class RunLog(_Log):
    """Event log, tracker and final status of one run; use as a context manager."""

    def __init__(
        self,
        folder: Path,
        metadata: dict[str, Any],
        tracker: Tracker | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        """Start the log in `folder`, or carry on the one of an `earlier` run.

        `metadata` holds the fields that a record needs even when the run fails.
        """
        self.folder = folder
        self.earlier = earlier
        self.warnings = [event["message"] for event in earlier.events if event["event"] == "warning"] if earlier else []
        self._record: RunRecord | None = None
        self.metadata = metadata
        self._tracker = tracker
        self._warning = threading.Lock()
        self._started = time.perf_counter()
        self._previous_handler: Any = None
        if earlier is None:
            folder.mkdir(parents=True, exist_ok=False)
        else:
            drop_cut_off_line(folder / LOG)
            for name in ("record.json", "manifest.json"):  # they describe the run before it was resumed
                (folder / name).unlink(missing_ok=True)
        self._log = EventLog(folder / LOG)

    def events(self) -> list[Event]:
        """Return all events so far, from the start of the run."""
        return read_events(self.folder / LOG)

    def warn(self, message: str) -> None:
        """Log a warning, print it, and keep it for the record; a repeated one is ignored."""
        message = without_secrets(without_paths(message))
        with self._warning:
            if message in self.warnings:
                return
            self.warnings.append(message)
        self.event("warning", message=message)
        print(f"warning: {printable(message)}", file=sys.stderr)  # noqa: T201

    def complete(self, record: RunRecord) -> None:
        """Set the record of the finished run; it is written when the run log closes."""
        self._record = record

    @property
    def seconds_before(self) -> float:
        """Seconds that an interrupted run had spent before it was resumed."""
        return 0.0 if self.earlier is None else self.earlier.seconds

    @property
    def record(self) -> RunRecord:
        """The record as written; `RuntimeError` before the run log is closed."""
        if self._record is None:
            raise RuntimeError("the run log is still open")
        return self._record

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, terminate)
        try:
            self.event("start" if self.earlier is None else "resume", **self.metadata)
            if self._tracker is not None:
                self._tracker.start(self.folder)
        except BaseException:  # killed while the tracker starts: `with` does not call `__exit__` if `__enter__` raises
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            try:
                self._close(status_of(error), in_one_line(error))
            finally:  # also on a full disk, so that the tracker does not wait for an `end` that never comes
                if self._tracker is not None:
                    # whoever started several runs waits for all of them once, see `harness.tracking.uploader.wait_for`
                    self._tracker.finish(self.folder, wait=self.metadata.get("parent") is None)
        finally:
            if self._previous_handler is not None:
                signal.signal(signal.SIGTERM, self._previous_handler)

    def _close(self, status: Status, reason: str | None) -> None:
        self.event("end", status=status, error=reason)
        self._log.close()
        if self._record is None or status != "finished":
            seconds = round(time.perf_counter() - self._started + self.seconds_before, 3)
            self._record = RunRecord(
                **self.metadata, status=status, error=reason, seconds=seconds, warnings=self.warnings
            )
        write_record(self.folder, self._record)
        # checkpoints have manifests of their own, and are removed when the run is done
        write_manifest(self.folder, {"run_id": self._record.run_id, "status": status}, leave_out=("checkpoints",))


@contextmanager
def open_run(
    metadata: dict[str, Any],
    origins: dict[str, str],
    tracker: Tracker | None,
    out: Path | None,
    earlier: Earlier | None,
) -> Iterator[RunLog]:
    """Open and lock the run folder, new or that of an `earlier` run; remove checkpoints when the run is done.

    `metadata` holds the fields of the record that are known at the start.
    """
    if earlier is not None:
        metadata = earlier.continued(metadata)
    folder = runs_folder(out) / metadata["run_id"] if earlier is None else earlier.folder
    with run_lock(folder):
        if earlier is not None:
            require_unfinished(folder)  # another process may have finished it since it was looked up
        run_log = RunLog(folder, metadata, tracker, earlier)
        try:
            with run_log:
                if earlier is None:
                    settings = {"config": metadata["config"], "origins": recorded_origins(origins)}
                    write_json(folder / "config.json", settings)
                for change in metadata.get("resumed", [{}])[-1].get("environment", []):
                    run_log.warn(f"resumed in another environment: {change}")
                began = time.monotonic() - run_log.seconds_before

                def by_second(values: dict[str, float]) -> None:
                    """Log figures of the machine; their step is the seconds since the run began."""
                    run_log.metrics(values, step=round(time.monotonic() - began))

                with SystemMetrics(by_second, folder, metadata["config"]["tracking"]["system_seconds"]):
                    yield run_log
        except (KeyboardInterrupt, Terminated):
            if run_log.record.status != "finished":
                again = (
                    "the same command again" if metadata.get("fusion") else _how_to_resume(folder, metadata["config"])
                )
                print(f"to go on: {again}", file=sys.stderr)  # noqa: T201
            raise
        except Pruned:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # a pruned run is never resumed
            raise
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the model of a finished run is in model/


def _how_to_resume(folder: Path, config: dict[str, Any]) -> str:
    """Return the command that resumes a run; PATH stands for folders, which are recorded by name alone."""
    name = folder.name if folder.parent == runs_folder() else shlex.quote(str(folder))
    places = [f"--{key} PATH" for key in ("dataset", "encoder") if config[key].startswith("./")]
    return " ".join(["python -m harness run --resume", name, *places])


Kind = Literal["bench", "sweep"]


class GroupLog(_Log):
    """Events, figures and files of a group of runs; use as a context manager.

    A folder that has a log already is continued.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        group_id: str,
        *,
        experiment: str,
        name: str,
        params: dict[str, Any],
        tags: dict[str, Any],
        tracker: Tracker | None = None,
    ) -> None:
        """Open the log.

        Args:
            folder: Folder of the log and of the files that it names; created if absent.
            kind: Whether the group is a bench or a sweep.
            group_id: Id of the group, `parent.id` of its runs.
            experiment: MLflow experiment, which is the name of the dataset.
            name: Name shown to people.
            params: Settings of the group, nested or flat.
            tags: Further tags to search by.
            tracker: Sends the log to MLflow while it is written.
        """
        self.folder = folder
        self._tracker = tracker
        self._metadata = {
            "kind": kind,
            "run_id": group_id,
            "experiment": experiment,
            "name": name,
            "params": params,
            "tags": tags,
        }
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / LOG
        self._continues = log.exists() and log.stat().st_size > 0
        if self._continues:
            drop_cut_off_line(log)
            first = next(iter(LogReader(log).read()), {})
            self._continues = bool(first)
            if first and first.get("run_id") != group_id:
                raise UserError(f"{folder} holds the log of {first.get('run_id')!r}, not of {group_id!r}")
        self._log = EventLog(log)

    @property
    def parent(self) -> dict[str, Any]:
        """The `parent` of the runs of this group: id, kind, name and params."""
        return {key: self._metadata["run_id" if key == "id" else key] for key in ("id", "kind", "name", "params")}

    def artifact(self, path: Path) -> None:
        """Log a file of the folder that belongs to the group; it is sent now, and again if it has changed."""
        inside = path.absolute().relative_to(self.folder.absolute())
        self.event("artifact", path=inside.as_posix())

    def __enter__(self) -> Self:
        self.event("resume" if self._continues else "start", **self._metadata)
        if self._tracker is not None:
            self._tracker.start(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.event("end", status=status_of(error), error=in_one_line(error))
        self._log.close()
        if self._tracker is not None:
            self._tracker.finish(self.folder)
