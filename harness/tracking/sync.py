"""`harness sync` and `harness runs reap`: complete and correct what MLflow has of the runs in this workspace.

Syncing sends the logs of runs; repeating it changes nothing. One query finds the runs that are complete: those whose
tag `harness.synced` is the sha256 of the log in this workspace. Every other log is replayed from its first event, and
what the store has already is left out.

Reaping closes runs that MLflow has as running, but whose process is gone. A run whose folder is here is closed as its
log says. Any other is judged by its tags: on this machine by its process, elsewhere by its heartbeat. Runs of other
software have no tag `harness.run_id` and are left alone.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from filelock import Timeout
from pydantic import ValidationError

from harness.errors import DataError, UserError
from harness.io.files import home, locked, sha256_file
from harness.runs.events import LOG, LogReader, first_event, has_ended, last_event
from harness.runs.lock import Holder, held_by_another, lives, this_process
from harness.runs.record import run_folder
from harness.tracking.metadata import STATUS
from harness.tracking.mlflow_run import SYNCED, MlflowRun
from harness.tracking.store import probe, reason, search, tracking_uri
from harness.tracking.uploader import upload_lock

Result = Literal["sent", "complete", "running", "failed"]


@dataclass(frozen=True)
class Outcome:
    """Result of sending one log."""

    run: str
    result: Result
    reason: str = ""


def log_folders(runs: list[str], out: Path | None) -> list[Path]:
    """Return the folders with a log: of the named runs, else all below `out` or the workspace, groups included."""
    if runs:
        return [run_folder(run, out) for run in runs]
    if out is not None and not out.is_dir():
        raise UserError(f"--runs {out} is no folder")
    top = home() if out is None else out.absolute()
    runs_and_groups = ("*/", "benches/*/", "runs/*/", "*/runs/*/")
    depths = [f"*/{depth}" for depth in runs_and_groups] if out is None else ["", *runs_and_groups]
    found = {path.parent for depth in depths for path in top.glob(f"{depth}{LOG}")}
    return sorted(found, key=lambda folder: (folder.name, str(folder)))


def sync(client: Any, folders: Iterable[Path], advance: Callable[[int], None] = lambda count: None) -> list[Outcome]:
    """Send what the store lacks; a log that cannot be sent does not stop the others, an outage of the store does."""
    complete = {
        (run.data.tags.get("harness.run_id"), run.data.tags.get(SYNCED), run.info.status)
        for run in search(client, f"tags.`{SYNCED}` LIKE '%'")
    }
    outcomes = []
    for folder in folders:
        outcomes.append(_sync_one(client, folder, complete))
        advance(1)
    return outcomes


def _sync_one(client: Any, folder: Path, complete: set[tuple[str | None, str | None, str]]) -> Outcome:
    log = folder / LOG
    try:
        if not log.is_file():
            raise DataError("there is no log in this folder", log)
        run_id = run_id_of(log)
        if (run_id, sha256_file(log), _final_status(log)) in complete:
            return Outcome(run_id, "complete")
        return send(client, folder, run_id)
    except UserError as error:
        return Outcome(folder.name, "failed", str(error).splitlines()[0])
    except Exception as error:
        if outage():  # the other logs would fail too
            raise
        return Outcome(folder.name, "failed", reason(error))


def outage() -> str | None:
    """Return why the store does not answer; None if it does."""
    try:
        probe(tracking_uri())
    except Exception as error:
        return reason(error)
    return None


def send(client: Any, folder: Path, run_id: str, *, dead: bool = False) -> Outcome:
    """Replay one log, unless another process is sending it.

    A run without an `end` was killed if no process holds its lock. A group has no lock: without an `end` it counts as
    running, unless the caller knows that it is `dead`.
    """
    try:
        with locked(upload_lock(folder), timeout=0):
            run = MlflowRun(client, folder)
            run.replay(LogReader(folder / LOG))
            open_still = not dead if run.is_group else held_by_another(folder) is not None
            if not run.ended and open_still:
                run.flush()
                return Outcome(run_id, "running", "still at work; what it has logged so far was sent")
            run.settle()
            faults = run.complete()
    except Timeout:
        return Outcome(run_id, "running", "is being sent by another process")
    if faults:
        return Outcome(run_id, "failed", "not sent: " + "; ".join(faults))
    return Outcome(run_id, "sent")


def run_id_of(log: Path) -> str:
    """Return the run id in the first event of a log."""
    start = first_event(log)
    if start is None or "run_id" not in start:
        raise DataError("the log does not begin with a start: it cannot be sent, remove its folder", log, 1)
    return str(start["run_id"])


def _final_status(log: Path) -> str:
    """Return the final status of a log, as MLflow names it; killed if there is no `end`."""
    end = last_event(log)
    return STATUS[end["status"]] if end.get("event") == "end" else STATUS["killed"]


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
Verdict = Literal["alive", "killed", "synced"]


@dataclass(frozen=True)
class Reaped:
    """Verdict on a run that MLflow has as running."""

    run: str
    verdict: Verdict
    reason: str


def parse_age(text: str) -> timedelta:
    """Return the duration of a text such as `90s`, `5m`, `2h` or `1d`."""
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
    """Check every run of the harness that MLflow has as running; close those whose process is gone.

    Args:
        client: An open MLflow store.
        older_than: Silence after which a run on another machine counts as dead.
        runs: Folder of run folders to look for logs in; by default the whole workspace.
        dry_run: Return what would be done, and change nothing.
        advance: Called with 1 after every run.
    """
    folders = _folders(runs)
    verdicts = []
    for run in search(client, "attributes.status = 'RUNNING'"):
        if "harness.run_id" in run.data.tags:
            verdicts.append(_judge(client, run, folders, older_than, dry_run))
        advance(1)
    return verdicts


def _folders(runs: Path | None) -> dict[str, Path]:
    """Return the folders with a log, by run id."""
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
    """Return why a run counts as dead; None if it does not."""
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
    """Return the time of the last heartbeat of a run; its start if there was none."""
    try:
        heard = datetime.fromisoformat(run.data.tags["harness.heartbeat"])
        return heard if heard.tzinfo else heard.replace(tzinfo=UTC)
    except (KeyError, ValueError, OverflowError):
        return datetime.fromtimestamp(run.info.start_time / 1000, UTC)
