"""The event log of a run or of a group of runs: one JSON object per line, appended whole or not at all.

One process writes; any number may read while it does. NaN and infinity are not JSON, so they are kept as the words that
Python and pandas read back as numbers. A log travels with its run folder and may have been written by somebody else: a
line that is not an event is refused here, with its number.
"""

import errno
import json
import math
import os
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from harness.errors import DataError
from harness.io.files import parse_json, place_inside
from harness.runs.record import Status, utc_now

LOG = "events.jsonl"
Event = dict[str, Any]
_LONGEST = 1 << 24
"""Most bytes of a first line that are read; settings and metadata of a run have some thousand."""
_FACTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "metrics": (("step", int), ("values", dict)),
    "warning": (("message", str),),
    "artifact": (("path", str),),
    "end": (("status", str), ("error", str | None)),
}
"""Required fields and their types, by the name of an event."""


def parse_event(line: bytes, log: Path, number: int) -> Event:
    """Parse one line of a log; `DataError` at that line if it is not an event."""
    try:
        event: Event = parse_json(line.decode())
        _check(event)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)[:100] or "not its form"
        raise DataError(f"not an event of this harness ({why}); take the log from a copy", log, number) from error
    return event


def first_event(log: Path) -> Event | None:
    """Return the first event of a log; None if there is no complete, valid one."""
    try:
        with place_inside(log.parent, log.name).open("rb") as stream:
            line = stream.readline(_LONGEST)
        return parse_event(line, log, 1) if line.endswith(b"\n") else None
    except (OSError, DataError):
        return None


def _check(event: Event) -> None:
    """Raise if a required field is missing or has the wrong type."""
    kind = event["event"]
    if not isinstance(kind, str) or datetime.fromisoformat(event["time"]).tzinfo is None:
        raise TypeError("no name, or a time without a zone")
    for name, wanted in _FACTS.get(kind, ()):
        if not isinstance(event[name], wanted):
            raise TypeError(f"{name} is {type(event[name]).__name__}")
    if kind == "end" and event["status"] not in get_args(Status):
        raise ValueError("it has no valid status")
    if not isinstance(event.get("resumed", []), list):
        raise TypeError("resumed is no list")
    if kind == "metrics":
        if not 0 <= event["step"] < 2**53:  # whole numbers that a float holds
            raise ValueError("it has no valid step")
        for value in event["values"].values():
            float(value)  # NaN and infinity are stored as words


_CHUNK = 4 * 2**20
"""Bytes that a reader takes at a time; a line may be longer."""
_TAIL = 2**16
"""Bytes at the end of a log in which its last line is searched; an `end` is far shorter."""


class EventLog:
    """Appends events to a file; safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        """Open the log for appending; create it if absent."""
        self._file = path.open("ab", buffering=0)
        self._lock = threading.RLock()

    def write(self, kind: str, metadata: dict[str, Any]) -> None:
        """Append one event; on a full disk raise `OSError` and leave the log as it was."""
        event = finite({"time": utc_now(), "event": kind, **metadata})
        line = (json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n").encode()
        with self._lock:
            before = os.fstat(self._file.fileno()).st_size
            written = self._file.write(line)
            if written != len(line):
                os.ftruncate(self._file.fileno(), before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LogReader:
    """Reads the events of a log that may still grow; an incomplete last line is not read yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._line = 0

    def read(self) -> list[Event]:
        """Return the next events, some megabytes at most; empty if there are no new ones."""
        with place_inside(self.path.parent, self.path.name).open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read(_CHUNK)
            if len(data) == _CHUNK and b"\n" not in data:
                data += stream.readline()
        *lines, rest = data.split(b"\n")
        events = [parse_event(line, self.path, number) for number, line in enumerate(lines, start=self._line + 1)]
        self._offset, self._line = self._offset + len(data) - len(rest), self._line + len(lines)
        return events


def read_events(log: Path) -> list[Event]:
    """Return all events of a log; an incomplete last line, left by a killed process, is ignored."""
    events: list[Event] = []
    reader = LogReader(log)
    while found := reader.read():
        events += found
    return events


def drop_cut_off_line(log: Path) -> None:
    """Cut a log back to its last complete line."""
    with log.open("rb+") as stream:
        whole = stream.read().rpartition(b"\n")
        stream.truncate(len(whole[0]) + len(whole[1]))
        os.fsync(stream.fileno())


def last_event(log: Path) -> Event:
    """Return the last event of a log; empty if its last complete line is not an event of ordinary length."""
    with place_inside(log.parent, log.name).open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        last = stream.read(_TAIL).rpartition(b"\n")[0].rpartition(b"\n")[2]
    try:
        return parse_event(last, log, 0)
    except DataError:
        return {}


def has_ended(log: Path) -> bool:
    """Return whether the last event of a log is an `end`."""
    return last_event(log).get("event") == "end"


def finite(value: Any) -> Any:
    """Return a JSON value with NaN and infinity as the words nan, inf and -inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
