"""What a line of an event log is: a JSON object with a name and a moment, and by its name the facts that readers use.

A log travels with its run folder, so a reader cannot rely on this harness having written it. A line that is anything
else is refused here, with its number, and nobody behind has to ask again.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from harness.errors import DataError
from harness.files import parse_json, place_inside
from harness.record import Status

Event = dict[str, Any]
_LONGEST = 1 << 24
"""Bytes of a first line; settings and facts of a run have some thousand."""
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
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)[:100] or "not its form"
        raise DataError(f"not an event of this harness ({why}); take the log from a copy", log, number) from error
    return event


def first_event(log: Path) -> Event | None:
    """What a log begins with; None if it cannot be read, or if that is no event, or not a whole one yet."""
    try:
        with place_inside(log.parent, log.name).open("rb") as stream:
            line = stream.readline(_LONGEST)
        return parse_event(line, log, 1) if line.endswith(b"\n") else None
    except (OSError, DataError):
        return None


def _check(event: Event) -> None:
    """Raises whatever a fact raises that is none."""
    kind = event["event"]
    if not isinstance(kind, str) or datetime.fromisoformat(event["time"]).tzinfo is None:
        raise TypeError("no name, or a time without a zone")
    for name, wanted in _FACTS.get(kind, ()):
        if not isinstance(event[name], wanted):
            raise TypeError(f"{name} is {type(event[name]).__name__}")
    if kind == "end" and event["status"] not in get_args(Status):
        raise ValueError("its status is none")
    if not isinstance(event.get("resumed", []), list):
        raise TypeError("resumed is no list")
    if kind == "metrics":
        if not 0 <= event["step"] < 2**53:  # whole numbers that a float holds
            raise ValueError("its step is none")
        for value in event["values"].values():
            float(value)  # NaN and infinity stand there as words
