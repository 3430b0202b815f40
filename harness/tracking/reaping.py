"""`harness runs reap`: closes runs that MLflow believes to be at work, but whose process is gone.

A run whose folder lies here is settled by its own log. Any other is judged by its tags: on this machine by its process,
elsewhere by its heartbeat. Runs that are not ours have no tag `harness.run_id` and are left alone.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.errors import DataError, UserError
from harness.runlock import Holder, held_by_another, lives, this_process
from harness.tracking.events import LOG, has_ended
from harness.tracking.mlflow_store import search
from harness.tracking.syncing import log_folders, run_id_of, send

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
Verdict = Literal["alive", "killed", "synced"]


@dataclass(frozen=True)
class Reaped:
    """A run that MLflow had as running, and what was found out about it."""

    run: str
    verdict: Verdict
    reason: str


def parse_age(text: str) -> timedelta:
    """`90s`, `5m`, `2h` or `1d`."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if match is None:
        raise UserError(f"--older-than takes a number and s, m, h or d, for example 5m (got {text!r})")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def reap(
    client: Any,
    older_than: timedelta,
    *,
    runs: Path | None = None,
    dry_run: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Reaped]:
    """Looks at every run of ours that is marked as running; closes the dead ones.

    Args:
        client: An open MLflow store.
        older_than: Silence after which a run on another machine counts as dead.
        runs: Folder of run folders to look for logs in; by default the whole workspace.
        dry_run: Say what would be done, and do nothing.
        advance: Told of every run that was looked at.
    """
    folders = _folders(runs)
    verdicts = []
    for run in search(client, "attributes.status = 'RUNNING'"):
        if "harness.run_id" in run.data.tags:
            verdicts.append(_judge(client, run, folders, older_than, dry_run))
        advance(1)
    return verdicts


def _folders(runs: Path | None) -> dict[str, Path]:
    """Folders with a log, by the id of the run."""
    found = {}
    for folder in log_folders([], runs):
        with suppress(DataError):  # `sync` says what is wrong with it
            found[run_id_of(folder / LOG)] = folder
    return found


def _judge(client: Any, run: Any, folders: dict[str, Path], older_than: timedelta, dry_run: bool) -> Reaped:
    run_id = run.data.tags["harness.run_id"]
    folder = folders.get(run_id)
    why = _why_dead(run, older_than)
    if folder is not None and (has_ended(folder / LOG) or (why and held_by_another(folder) is None)):
        if dry_run:
            return Reaped(run_id, "synced", "would be closed as its log says")
        try:
            outcome = send(client, folder, run_id, dead=True)
        except UserError as error:  # its log cannot be read, so it is closed like a run that has none here
            why = why or str(error).splitlines()[0]
        else:
            if outcome.result == "running":
                return Reaped(run_id, "alive", outcome.reason)
            return Reaped(run_id, "synced", outcome.reason or "closed as its log says")
    if why is None:
        return Reaped(run_id, "alive", "its process is at work")
    if not dry_run:
        client.set_tag(run.info.run_id, "reaped", why)
        client.set_terminated(run.info.run_id, status="KILLED")
    return Reaped(run_id, "killed", why)


def _why_dead(run: Any, older_than: timedelta) -> str | None:
    """Why a run counts as dead; None if it does not."""
    writer, here = _writer(run.data.tags), this_process()
    if writer is not None and (writer.host, writer.namespace) == (here.host, here.namespace):
        return None if lives(writer) else f"process {writer.pid} of this machine has ended"
    last = _heartbeat(run)
    silent = datetime.now(UTC) - last
    if silent <= older_than:
        return None
    where = f"on {writer.host} " if writer else ""
    return f"nothing was heard from it {where}since {last.isoformat(timespec='seconds')}"


def _writer(tags: dict[str, str]) -> Holder | None:
    start = tags.get("harness.process_start", "")
    try:
        return Holder(
            pid=int(tags["harness.pid"]),
            host=tags["harness.host"],
            namespace=tags.get("harness.namespace", ""),
            process_start=int(start) if start.isdecimal() else None,
            since="",
            token="",
        )
    except (KeyError, ValueError, OverflowError, ValidationError):
        return None


def _heartbeat(run: Any) -> datetime:
    """The last sign of life; a run that never gave one has its start."""
    try:
        heard = datetime.fromisoformat(run.data.tags["harness.heartbeat"])
        return heard if heard.tzinfo else heard.replace(tzinfo=UTC)
    except (KeyError, ValueError, OverflowError):
        return datetime.fromtimestamp(run.info.start_time / 1000, UTC)
