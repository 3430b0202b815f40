"""`harness sync`: sends the logs of runs to MLflow, as often as one likes with the same result.

One look at the store tells which runs need nothing: those whose tag `harness.synced` is the sha256 of the log that lies
here. Everything else is replayed from its first event, and what the store has already is left out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from harness.errors import DataError, UserError
from harness.event import first_event
from harness.files import home, sha256_file
from harness.record import run_folder
from harness.runlock import held_by_another
from harness.tracking.events import LOG, LogReader, last_event
from harness.tracking.follower import follow_lock
from harness.tracking.mlflow_facts import STATUS
from harness.tracking.mlflow_run import SYNCED, MlflowRun
from harness.tracking.mlflow_store import probe, search
from harness.tracking.places import reason, tracking_uri

Result = Literal["sent", "complete", "running", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one log."""

    run: str
    result: Result
    reason: str = ""


def log_folders(runs: list[str], out: Path | None) -> list[Path]:
    """Folders with a log: the named runs, or all below `out`, or all of the workspace, groups among them."""
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
    """Sends what is missing; one log that cannot be sent does not stop the others, a store that is out does."""
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
        if outage():  # the others would fare no better
            raise
        return Outcome(folder.name, "failed", reason(error))


def outage() -> str | None:
    """Why the store does not answer; None if it does."""
    try:
        probe(tracking_uri())
    except Exception as error:
        return reason(error)
    return None


def send(client: Any, folder: Path, run_id: str, *, dead: bool = False) -> Outcome:
    """Replays one log; that of a run at work is left to the process that follows it, if there is one.

    A run without an end was killed if nobody holds its lock. A group has no lock: it is open until it says otherwise,
    or until somebody knows that it is `dead`.
    """
    lock = follow_lock(folder)
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            run, reader = MlflowRun(client, folder), LogReader(folder / LOG)
            while events := reader.read():
                for event in events:
                    run.handle(event)
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
    """The id that the first event of a log names."""
    start = first_event(log)
    if start is None or "run_id" not in start:
        raise DataError("the log does not begin with a start: it cannot be sent, remove its folder", log, 1)
    return str(start["run_id"])


def _final_status(log: Path) -> str:
    """As MLflow calls it; a log without an end is that of a process that was killed."""
    end = last_event(log)
    return STATUS[end["status"]] if end.get("event") == "end" else STATUS["killed"]
