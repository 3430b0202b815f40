"""The run store of a bench: which runs a folder holds already, finished ones and interrupted ones to resume."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.experiments.bench import Cell
from harness.io.printable import printable
from harness.report.results import results_folder, stored_records
from harness.runs.events import first_event
from harness.runs.lock import held_by_another
from harness.runs.metadata import recorded
from harness.runs.record import RunRecord, read_record, resumable_at
from harness.settings.identity import fixed, key_of


@dataclass(frozen=True)
class StoredRun:
    """What a bench reads of a run folder or a record file."""

    path: Path
    """The run folder; for a record file, that file."""
    run_id: str
    started: str
    key: str
    config: dict[str, Any]
    record: RunRecord | None = None
    """None for a run that was interrupted before it wrote one."""

    @property
    def finished(self) -> bool:
        """Whether the run has finished, and so has metrics."""
        return self.record is not None and self.record.status == "finished"


@dataclass(frozen=True)
class Found:
    """What the store has for a cell: a finished run, one that another process runs, one to resume, or none."""

    done: RunRecord | None = None
    elsewhere: str | None = None
    """What holds the cell, in words, if another process runs it."""
    resumable: str | None = None
    """Id of an interrupted run that can be resumed."""

    @property
    def status(self) -> str:
        """done, running elsewhere, resumable or missing."""
        if self.done:
            return "done"
        return "running elsewhere" if self.elsewhere else "resumable" if self.resumable else "missing"


class RunStore:
    """The runs of one folder, and what is finished in others; read again for every cell, as processes add to it."""

    def __init__(self, folder: Path, known: Sequence[Path] = ()) -> None:
        """Open a store whose runs go to `folder`; finished runs in the folders `known` count too."""
        self.folder = folder
        others = {path.resolve(): None for path in known if path.resolve() != folder.resolve()}
        self._known = [RunStore(results_folder(path)) for path in others]
        self._read: dict[Path, tuple[int, StoredRun | None]] = {}

    def look(self, cell: Cell, *, anew: bool = False) -> Found:
        """Return what there is for a cell; with `anew`, interrupted runs are not resumed."""
        runs = self._of(cell.key)
        for run in chain(runs, *(store._of(cell.key) for store in self._known)):
            if run.finished:
                return Found(done=run.record)
        for run in runs:
            if holder := held_by_another(run.path):
                return Found(elsewhere=holder)
        wanted = fixed(recorded(cell.config))
        for run in runs:
            if not anew and _worth_taking_up(run) and fixed(run.config) == wanted:
                return Found(resumable=run.run_id)
        return Found()

    def _of(self, key: str) -> list[StoredRun]:
        """Return the runs of a key in this folder, the newest first."""
        runs = (run for run in self._runs() if run.key == key)
        return sorted(runs, key=lambda run: (run.started, run.run_id), reverse=True)

    def finished(self) -> list[RunRecord]:
        """Return the records of all finished runs, of any settings."""
        own = [run.record for run in self._runs() if run.record and run.finished]
        return own + [record for store in self._known for record in store.finished()]

    def newest(self, key: str) -> str | None:
        """Return the id of the newest run of a key, finished or not; None if there is none."""
        return next((run.run_id for run in self._of(key)), None)

    def _runs(self) -> list[StoredRun]:
        """Return every readable run; a file is read again only if it has changed."""
        logs = {path.parent for path in self.folder.glob("*/events.jsonl")}
        folders = logs | {path.parent for path in self.folder.glob("*/record.json")}
        now = {}
        results = sorted(self.folder.glob("*.parquet"))
        for path in sorted([*folders, *(() if results else self.folder.glob("*.json"))]):
            record = path / "record.json" if path in folders else path
            changed = _changed(record)
            known = self._read.get(path, (-1, None))
            fresh = known[0] == changed and (known[1] or changed)  # a log that was empty may have a line by now
            now[path] = known if fresh else (changed, _read_run(path, record, bool(changed)))
        self._read = now
        return [*(run for _, run in now.values() if run), *(run for file in results for run in _kept(file))]


@cache
def _kept(file: Path) -> list[StoredRun]:
    """Return the runs of a Parquet file of results, read once."""
    return [_of_record(file, one) for one in stored_records(file)]


def _of_record(path: Path, one: RunRecord) -> StoredRun:
    key = key_of(one.config, one.dataset, one.metric_version, one.encoder.get("identity"))
    return StoredRun(path, one.run_id, one.started, key, one.config, one)


def _changed(path: Path) -> int:
    """Return when a file was last written, in nanoseconds; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _read_run(path: Path, record: Path, recorded_already: bool) -> StoredRun | None:
    if not recorded_already:
        return _unfinished(path)
    try:
        one = read_record(record)
    except UserError as error:
        if record.exists():  # else a process has just resumed the run
            reason = str(error).splitlines()[0]
            print(f"warning: left out a damaged record. {printable(reason)}", file=sys.stderr)  # noqa: T201
        return None
    return _of_record(path, one)


def _unfinished(folder: Path) -> StoredRun | None:
    """Return a run without a record from the first line of its log; None if it was killed before it wrote that line."""
    start = first_event(folder / "events.jsonl") or {}
    try:
        mark = key_of(start["config"], start["dataset"], start["metric_version"], start["encoder"]["identity"])
        return StoredRun(folder, folder.name, str(start["started"]), mark, start["config"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _worth_taking_up(run: StoredRun) -> bool:
    """Return whether to resume an interrupted run.

    One that failed is resumed once, from its last checkpoint: what was wrong may be gone, a full disk for instance. If
    it fails again, the fault may lie in what was saved, so it is begun anew.
    """
    if not run.path.is_dir():
        return False
    if run.record is None or run.record.status == "killed":
        return True
    return run.record.status == "failed" and not run.record.resumed and resumable_at(run.path) is not None
