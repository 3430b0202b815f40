"""Locks of runs: one process per run; a second one for the same run id is refused.

The lock of run `<id>` is the file `.<id>.lock` beside its folder (inside, it would be hashed as part of the run). It
names the process that holds it. The lock of a process that has ended on this machine is taken over; whether one on
another machine, or in another container, still runs cannot be seen, so a person has to decide.
"""

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from harness.errors import DataError, UserError
from harness.io.files import locked, read_json, write_json
from harness.io.models import Strict
from harness.io.printable import printable
from harness.runs.record import utc_now

_ENDED = 0
"""Stands for the start time of a process that has ended; no living one has it."""


class Holder(Strict):
    """A process that holds a lock."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    host: str
    namespace: str
    """Namespace of the pid: containers on one host may share the host name, but not its processes."""
    process_start: int | None
    """Clock ticks from boot to the start of the process, which tells it from a later one with its pid; Linux only."""
    since: str
    """Time when the lock was taken, UTC, ISO 8601."""
    token: str
    """Random string that tells two locks of one process apart."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the run in `folder`; raise `UserError` if another process does."""
    path = folder.with_name(f".{folder.name}.lock")
    holder = this_process()
    try:
        _take(path, folder.name, holder)
        yield
    finally:
        with suppress(DataError):  # damaged: somebody replaced it by hand
            if _read(path) == holder:
                path.unlink(missing_ok=True)


def held_by_another(folder: Path) -> str | None:
    """Return a sentence that names the process at work on the run in `folder`; None if there is no living one."""
    try:
        _ended_holder(folder.with_name(f".{folder.name}.lock"), folder.name, this_process())
    except UserError as error:
        return str(error)
    return None


def lock_state(path: Path) -> Literal["held", "ended", "elsewhere", "damaged"]:
    """Return the state of a lock file: its process lives, has ended, or is on another machine or container."""
    here = this_process()
    try:
        holder = _read(path)
    except DataError:
        return "damaged"
    if holder is None:
        return "ended"
    if (holder.host, holder.namespace) != (here.host, here.namespace):
        return "elsewhere"
    return "held" if lives(holder) else "ended"


def _take(path: Path, run_id: str, holder: Holder) -> None:
    with locked(path.with_name(".~runs")):  # no run id starts with ~
        other = _ended_holder(path, run_id, holder)
        if other is not None:
            print(  # noqa: T201
                f"note: run {printable(run_id)} was locked by pid {other.pid}, which has ended without unlocking it; "
                "going on",
                file=sys.stderr,
            )
        write_json(path, holder.model_dump())


def _ended_holder(path: Path, run_id: str, here: Holder) -> Holder | None:
    """Return the ended process that left this lock, None if there is no lock; `UserError` if it may still run."""
    other = _read(path)
    if other is None:
        return None
    message = f"run {run_id} is locked by pid {other.pid} on host {other.host} since {other.since}; "
    if (other.host, other.namespace) != (here.host, here.namespace):
        place = f"host {here.host}" if other.host != here.host else "this container"
        raise UserError(f"{message}{place} cannot see whether it still runs; if it does not, remove {path}")
    if lives(other):
        raise UserError(f"{message}wait for it or stop it")
    return other


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate(read_json(path))
    except FileNotFoundError:
        return None
    except (DataError, ValidationError) as error:
        raise DataError("not a lock of this harness; if no process works on this run, remove it", path) from error


def this_process(pid: int | None = None) -> Holder:
    """Return the identity of this process, or of the one with `pid` on this machine."""
    pid = os.getpid() if pid is None else pid
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return Holder(
        pid=pid,
        host=socket.gethostname(),
        namespace=namespace,
        process_start=_process_start(pid),
        since=utc_now(),
        token=secrets.token_hex(8),
    )


def lives(holder: Holder) -> bool:
    """Return whether a process of this machine still runs; a later one with the same pid does not count."""
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives and belongs to another user
        pass
    start = _process_start(holder.pid)
    return start is None or holder.process_start in (None, start)


def _process_start(pid: int) -> int | None:
    """Return the clock ticks from boot to a process's start; `_ENDED` for a zombie, None if it cannot be known."""
    try:
        # the name of the program, in parentheses, may itself hold spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, start = fields[0], fields[19]
    return _ENDED if state in "ZX" else int(start)
