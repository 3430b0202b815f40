"""What a line of an event log is: a JSON object with a name and a moment, and by its name the facts that readers use.

A log travels with its run folder, so a reader cannot rely on this harness having written it. A line that is anything
else is refused here, with its number, and nobody behind has to ask again.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from harness.errors import DataError
from harness.files import parse_json
from harness.record import Status

Event = dict[str, Any]
_FACTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "metrics": (("step", int), ("values", dict)),
    "warning": (("message", str),),
    "artifact": (("path", str),),
    "end": (("status", str), ("error", str | None)),
}
"""By the name of an event: what must be in it."""


def parse_event(line: bytes, log: Path, number: int) -> Event:
    """One line of a log; `DataError` at that line if it is not an event."""
    try:
        event: Event = parse_json(line.decode())
        _check(event)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError("not an event of this harness", log, number) from error
    return event


def first_event(log: Path) -> Event | None:
    """What a log begins with; None if it cannot be read, or if that is no event, or not a whole one yet."""
    try:
        with log.open("rb") as stream:
            line = stream.readline()
        return parse_event(line, log, 1) if line.endswith(b"\n") else None
    except (OSError, DataError):
        return None


def _check(event: Event) -> None:
    """Raises whatever a fact raises that is none."""
    kind = event["event"]
    if not isinstance(kind, str) or datetime.fromisoformat(event["time"]).tzinfo is None:
        raise TypeError
    for name, wanted in _FACTS.get(kind, ()):
        if not isinstance(event[name], wanted):
            raise TypeError
    if kind == "end" and event["status"] not in get_args(Status):
        raise ValueError
    if not isinstance(event.get("resumed", []), list):
        raise TypeError
    if kind == "metrics":
        for value in event["values"].values():
            float(value)  # NaN and infinity stand there as words
