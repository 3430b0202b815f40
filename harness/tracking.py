"""Events first, MLflow second.

A `Journal` is the context in which a run happens. It appends every event to events.jsonl before anything else, hands
the same event to its sinks, and always ends with the right status: finished, failed (any exception) or killed (SIGTERM,
Ctrl-C). A sink that breaks is switched off with one warning; the run goes on, and its event log stays complete.
"""

import json
import math
import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from harness.errors import Terminated, UserError, terminate
from harness.files import home, write_manifest
from harness.record import RunRecord, Status, utc_now, write_record
from harness.resume import Earlier, drop_cut_off_line

Event = dict[str, Any]


class Sink(Protocol):
    """A place that events go to besides the log."""

    name: str
    """What to call it in a warning."""

    def handle(self, event: Event) -> None:
        """Takes one event."""
        ...

    def close(self, status: Status, folder: Path) -> None:
        """Ends the run there, with the run folder complete on disk."""
        ...


class Journal:
    """Event log, sinks and final status of one run; use as a context manager."""

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        sinks: list[Sink] | None = None,
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
        self._sinks = list(sinks or [])
        self._broken: list[Sink] = []
        """Sinks that failed; they get nothing more but the end, so that no run is left open there."""
        self._started = time.perf_counter()
        self._previous_handler: Any = None
        if earlier is None:
            folder.mkdir(parents=True, exist_ok=False)
        else:
            drop_cut_off_line(folder / "events.jsonl")
            (folder / "record.json").unlink(missing_ok=True)
        self._log = (folder / "events.jsonl").open("a", encoding="utf-8")

    def event(self, kind: str, **facts: Any) -> None:
        """Appends one event to the log, then offers it to the sinks."""
        event = {"time": utc_now(), "event": kind, **facts}
        # NaN and infinity are not JSON; they are kept as the strings Python and pandas read back as numbers
        self._log.write(json.dumps(_finite(event), ensure_ascii=False, allow_nan=False) + "\n")
        self._log.flush()
        self._offer(event)

    def _offer(self, event: Event) -> None:
        for sink in list(self._sinks):
            try:
                sink.handle(event)
            except Exception as error:
                self._drop(sink, error)

    def metrics(self, values: dict[str, float], step: int = 0) -> None:
        """Logs numbers of one step."""
        self.event("metrics", step=step, values=values)

    def warn(self, message: str) -> None:
        """Logs a warning, shows it, and keeps it for the record; once, however often it is said."""
        if message in self.warnings:
            return
        self.warnings.append(message)
        self.event("warning", message=message)
        print(f"warning: {message}", file=sys.stderr)  # noqa: T201

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
            self._replay()
        except BaseException:  # killed while the tracker starts up: this block's own exit will not be called
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _replay(self) -> None:
        """Offers the figures of an interrupted run to the sinks again; a sink leaves out what it has."""
        for event in [] if self.earlier is None else self.earlier.events:
            if event["event"] == "metrics":
                self._offer(event)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status: Status = "finished"
        if error is not None:
            status = "killed" if isinstance(error, KeyboardInterrupt | Terminated) else "failed"
        try:
            self._close(status, error)
        finally:
            if self._previous_handler is not None:
                signal.signal(signal.SIGTERM, self._previous_handler)

    def _close(self, status: Status, error: BaseException | None) -> None:
        reason = None if error is None else without_paths(f"{type(error).__name__}: {error}".splitlines()[0])
        self.event("end", status=status, error=reason)
        self._log.close()
        if self._record is None or status != "finished":
            seconds = round(time.perf_counter() - self._started + self.seconds_before, 3)
            self._record = RunRecord(**self.facts, status=status, error=reason, seconds=seconds, warnings=self.warnings)
        write_record(self.folder, self._record)
        # checkpoints vouch for themselves, and go when the run is done
        write_manifest(self.folder, {"run_id": self._record.run_id, "status": status}, leave_out=("checkpoints",))
        for sink in [*self._sinks, *self._broken]:
            try:
                sink.close(status, self.folder)
            except Exception as problem:
                if sink not in self._broken:
                    print(f"warning: {_outage(sink, problem)}", file=sys.stderr)  # noqa: T201

    def _drop(self, sink: Sink, error: Exception) -> None:
        self._sinks.remove(sink)
        self._broken.append(sink)
        self.warn(_outage(sink, error))


def _outage(sink: Sink, error: Exception) -> str:
    reason = textwrap.shorten(without_paths((str(error).splitlines() or [""])[0]), 160, placeholder=" ...")
    return f"{sink.name} is out ({type(error).__name__}: {reason}); the run goes on, and events.jsonl has everything"


def without_paths(text: str) -> str:
    """Text for a record that may travel: this machine's folders are replaced by what they mean."""
    for folder, name in ((home(), "$HARNESS_HOME"), (Path.cwd(), "."), (Path.home(), "~")):
        if folder != folder.parent:  # the root folder stands in every path
            text = text.replace(str(folder), name)
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def tracking_uri() -> str:
    """Where MLflow keeps runs: `MLFLOW_TRACKING_URI` if set, else an SQLite file in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow.db'}"


def make_sinks(track: str) -> list[Sink]:
    """The sinks called for on the command line: `mlflow` or `none`."""
    if track == "none":
        return []
    if track != "mlflow":
        raise UserError(f"--track takes mlflow or none (got {track!r})")
    from harness.mlflow_sink import MlflowSink

    return [MlflowSink(tracking_uri())]
