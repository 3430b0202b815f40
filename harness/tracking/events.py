"""The event log of a run or of a group of runs: one JSON object per line, appended whole or not at all.

One process writes; any number may read while it does. NaN and infinity are not JSON, so they are kept as the words that
Python and pandas read back as numbers.
"""

import errno
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

from harness.errors import DataError
from harness.event import Event, parse_event
from harness.files import place_inside
from harness.record import utc_now

LOG = "events.jsonl"
_CHUNK = 4 * 2**20
"""Bytes that a reader takes at a time; a line may be longer."""
_TAIL = 2**16
"""Bytes in which the last line of a log is looked for; an `end` is far shorter."""


class EventLog:
    """Appends events to a file; safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        """Opens the log, new or at its end."""
        self._file = path.open("ab", buffering=0)
        self._lock = threading.RLock()

    def write(self, kind: str, facts: dict[str, Any]) -> None:
        """Appends one event; on a full disk the log stays as it was."""
        event = finite({"time": utc_now(), "event": kind, **facts})
        line = (json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n").encode()
        with self._lock:
            before = os.fstat(self._file.fileno()).st_size
            written = self._file.write(line)
            if written != len(line):
                os.ftruncate(self._file.fileno(), before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class LogReader:
    """Reads the events of a log that may still grow; a line without its end is not an event yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._line = 0

    def read(self) -> list[Event]:
        """The next events, some megabytes at most; empty when there is nothing new."""
        with place_inside(self.path.parent, self.path.name).open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read(_CHUNK)
            if len(data) == _CHUNK and b"\n" not in data:
                data += stream.readline()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [self._parsed(line) for line in whole.splitlines()]

    def _parsed(self, line: bytes) -> Event:
        self._line += 1
        return parse_event(line, self.path, self._line)


def last_event(log: Path) -> Event:
    """The last complete line of a log if it is an event of ordinary length, as every `end` is; else empty."""
    with place_inside(log.parent, log.name).open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        last = stream.read(_TAIL).rpartition(b"\n")[0].rpartition(b"\n")[2]
    try:
        return parse_event(last, log, 0)
    except DataError:
        return {}


def has_ended(log: Path) -> bool:
    """Whether the last thing in a log is an `end`."""
    return last_event(log).get("event") == "end"


def finite(value: Any) -> Any:
    """A JSON value with NaN and infinity as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
