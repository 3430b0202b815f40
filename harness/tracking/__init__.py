"""Events first, MLflow second.

A `Journal` is the context in which a run happens. It appends every event to events.jsonl, and always ends with the
right status: finished, failed (any exception), pruned, or killed (SIGTERM, Ctrl-C). A tracker is a process beside the
run that reads this log and sends it to MLflow; nothing that happens there reaches the run.

    Journal -> events.jsonl -> harness.tracking.follow (live) or `harness sync` (later) -> MLflow
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from harness.errors import Pruned, Terminated, UserError, terminate
from harness.event import Event
from harness.files import write_manifest
from harness.printable import printable
from harness.record import RunRecord, Status, write_record
from harness.resume import Earlier, drop_cut_off_line
from harness.tracking.events import LOG, EventLog, LogReader
from harness.tracking.follower import Follower
from harness.tracking.places import check_uri, tracking_uri, without_paths, without_secrets

__all__ = ["Event", "Journal", "Tracker", "make_tracker", "tracking_uri", "without_paths"]


class Tracker(Protocol):
    """Sends the log of a run elsewhere while it is written; neither call raises because of an outage."""

    def start(self, folder: Path) -> None:
        """Begins to follow the log in `folder`, which has its first event."""
        ...

    def finish(self, folder: Path, wait: bool = True) -> None:
        """Waits a bounded time until everything is sent; the log has its `end`, and the folder is complete.

        Without `wait` the rest is sent while the caller goes on, or after it has ended.
        """
        ...


def make_tracker(track: str) -> Tracker | None:
    """The tracker called for on the command line: `mlflow` or `none`; refuses a store that cannot exist."""
    if track == "none":
        return None
    if track != "mlflow":
        raise UserError(f"--track takes mlflow or none (got {track!r})")
    check_uri(tracking_uri())
    return Follower()


def status_of(error: BaseException | None) -> Status:
    """How a run ends that is left with this exception."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt | Terminated):
        return "killed"
    return "pruned" if isinstance(error, Pruned) else "failed"


def in_one_line(error: BaseException | None) -> str | None:
    """Why it ended, for the record."""
    if error is None:
        return None
    return without_secrets(without_paths(f"{type(error).__name__}: {error}".splitlines()[0]))


class Journal:
    """Event log, tracker and final status of one run; use as a context manager. Safe to log from several threads."""

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        tracker: Tracker | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        """Starts the log in `folder`, or carries on the one of an `earlier` run.

        `facts` holds the fields that a record needs even when the run fails.
        """
        self.folder = folder
        self.earlier = earlier
        self.warnings = [event["message"] for event in earlier.events if event["event"] == "warning"] if earlier else []
        self._record: RunRecord | None = None
        self.facts = facts
        self._tracker = tracker
        self._warning = threading.Lock()
        self._started = time.perf_counter()
        self._previous_handler: Any = None
        if earlier is None:
            folder.mkdir(parents=True, exist_ok=False)
        else:
            drop_cut_off_line(folder / LOG)
            for name in ("record.json", "manifest.json"):  # they speak of the run as it was
                (folder / name).unlink(missing_ok=True)
        self._log = EventLog(folder / LOG)

    def event(self, kind: str, **facts: Any) -> None:
        """Appends one event to the log."""
        self._log.write(kind, facts)

    def events(self) -> Iterator[Event]:
        """What was logged so far, from the start of the run."""
        reader = LogReader(self.folder / LOG)
        while found := reader.read():
            yield from found

    def metrics(self, values: dict[str, float], step: int = 0) -> None:
        """Logs numbers of one step."""
        self.event("metrics", step=step, values=values)

    def warn(self, message: str) -> None:
        """Logs a warning, shows it, and keeps it for the record; once, however often it is said."""
        message = without_secrets(without_paths(message))
        with self._warning:
            if message in self.warnings:
                return
            self.warnings.append(message)
        self.event("warning", message=message)
        print(f"warning: {printable(message)}", file=sys.stderr)  # noqa: T201

    def complete(self, record: RunRecord) -> None:
        """Hands over the finished record; it is written when the journal closes."""
        self._record = record

    @property
    def seconds_before(self) -> float:
        """Time that an interrupted run had spent before this one took it up."""
        return 0.0 if self.earlier is None else self.earlier.seconds

    @property
    def record(self) -> RunRecord:
        """The record as written; there is one as soon as the journal is closed."""
        if self._record is None:
            raise RuntimeError("the journal is still open")
        return self._record

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, terminate)
        try:
            self.event("start" if self.earlier is None else "resume", **self.facts)
            if self._tracker is not None:
                self._tracker.start(self.folder)
        except BaseException:  # killed while the tracker starts up: this block's own exit will not be called
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            try:
                self._close(status_of(error), in_one_line(error))
            finally:  # also on a full disk: a tracker must not wait for what never comes
                self._let_go()
        finally:
            if self._previous_handler is not None:
                signal.signal(signal.SIGTERM, self._previous_handler)

    def _close(self, status: Status, reason: str | None) -> None:
        self.event("end", status=status, error=reason)
        self._log.close()
        if self._record is None or status != "finished":
            seconds = round(time.perf_counter() - self._started + self.seconds_before, 3)
            self._record = RunRecord(**self.facts, status=status, error=reason, seconds=seconds, warnings=self.warnings)
        write_record(self.folder, self._record)
        # checkpoints vouch for themselves, and go when the run is done
        write_manifest(self.folder, {"run_id": self._record.run_id, "status": status}, leave_out=("checkpoints",))

    def _let_go(self) -> None:
        if self._tracker is not None:
            # whoever started several runs waits for all of them once, see `harness.tracking.follower.wait_for`
            self._tracker.finish(self.folder, wait=self.facts.get("parent") is None)
