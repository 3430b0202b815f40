"""What a folder of runs holds already: finished runs, and interrupted ones that can be taken up."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from harness.bench import Cell
from harness.config import flatten
from harness.errors import UserError
from harness.event import first_event
from harness.facts import recorded
from harness.files import sha256_json
from harness.model import ENCODERS
from harness.printable import printable
from harness.record import RunRecord, read_record, resumable_at
from harness.report import settings_of
from harness.report.grids.defaults import default_settings
from harness.runlock import held_by_another


def key_of(config: dict[str, Any], dataset: dict[str, Any], metric_version: int, identity: str | None) -> str:
    """What decides the numbers of a run; two runs with one key are the same run.

    Settings that change no result (device, micro-batches, checkpoints) are left out, as tables leave them out.
    `config` and `dataset` are as recorded. `identity` is the hash of the encoder's weights. It counts for a model
    folder alone, because a folder is recorded by its last name and other weights may lie in another one of that name.
    A setting that an older record lacks, because there was none, counts as its default, as tables count it.
    """
    names = [config[name] for name in ("method", "dataset", "encoder", "seed")]
    data = [dataset.get(name) for name in ("digest", "filter", "propensity")]
    weights = None if config["encoder"] in ENCODERS else identity
    kind = config["method"], dataset.get("name"), config["encoder"], config.get("augment", "none")
    usual = _defaults(*map(str, kind))
    return sha256_json([usual | json.loads(settings_of(config)), names, data, metric_version, weights])


@cache
def _defaults(method: str, dataset: str, encoder: str, augment: str) -> dict[str, str]:
    return flatten(default_settings(method, dataset, {"encoder": encoder, "augment": augment}) or {})


@dataclass(frozen=True)
class Shelved:
    """A run folder, or a record file, as far as a bench needs it."""

    path: Path
    """The run folder; for a record file, that file."""
    run_id: str
    started: str
    status: Literal["finished", "failed", "killed", "pruned", "unfinished"]
    key: str
    config: dict[str, Any]
    resumed: int = 0
    """How often it was taken up."""
    record: RunRecord | None = None


@dataclass(frozen=True)
class Found:
    """What there is for a cell: a finished run, a run of another process, one to take up, or none of these."""

    done: RunRecord | None = None
    elsewhere: str | None = None
    """Who works on it, as a sentence."""
    resumable: str | None = None
    """A run id."""

    @property
    def status(self) -> str:
        """In one or two words."""
        if self.done:
            return "done"
        return "running elsewhere" if self.elsewhere else "resumable" if self.resumable else "missing"


class Shelf:
    """The runs of one folder, and what is finished in others; read again for every cell, as processes add to it."""

    def __init__(self, folder: Path, known: Sequence[Path] = ()) -> None:
        """Runs go to `folder`; those that are finished in one of the folders `known` count, too."""
        self.folder = folder
        others = {path.resolve(): None for path in known if path.resolve() != folder.resolve()}
        self._known = [Shelf(path) for path in others]
        self._read: dict[Path, tuple[int, Shelved | None]] = {}

    def look(self, cell: Cell, *, anew: bool = False) -> Found:
        """What there is for a cell; `anew` leaves interrupted runs alone."""
        runs = self._of(cell)
        for run in chain(runs, chain.from_iterable(shelf._of(cell) for shelf in self._known)):
            if run.status == "finished":
                return Found(done=run.record)
        for run in runs:
            if holder := held_by_another(run.path):
                return Found(elsewhere=holder)
        wanted = recorded(cell.config)
        for run in runs:
            if not anew and _worth_taking_up(run) and _same_machine_settings(run.config, wanted):
                return Found(resumable=run.run_id)
        return Found()

    def _of(self, cell: Cell) -> list[Shelved]:
        """The runs of a cell in this folder, the newest first."""
        runs = (run for run in self._runs() if run.key == cell.key)
        return sorted(runs, key=lambda run: (run.started, run.run_id), reverse=True)

    def finished(self) -> list[RunRecord]:
        """Records of all finished runs, of whatever settings."""
        own = [run.record for run in self._runs() if run.status == "finished" and run.record]
        return own + [record for shelf in self._known for record in shelf.finished()]

    def newest(self, key: str) -> str | None:
        """The id of the last run of a key, whatever became of it."""
        return max(((run.started, run.run_id) for run in self._runs() if run.key == key), default=("", None))[1]

    def _runs(self) -> list[Shelved]:
        """Every readable run; a file is read again only when it has changed."""
        logs = {path.parent for path in self.folder.glob("*/events.jsonl")}
        folders = logs | {path.parent for path in self.folder.glob("*/record.json")}
        now = {}
        for path in sorted([*folders, *self.folder.glob("*.json")]):
            record = path / "record.json" if path in folders else path
            changed = _changed(record)
            known = self._read.get(path, (-1, None))
            fresh = known[0] == changed and (known[1] or changed)  # a log that was empty may have a line by now
            now[path] = known if fresh else (changed, _shelved(path, record, bool(changed)))
        self._read = now
        return [run for _, run in now.values() if run]


def _changed(path: Path) -> int:
    """When a file was last written, 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _shelved(path: Path, record: Path, recorded_already: bool) -> Shelved | None:
    if not recorded_already:
        return _unfinished(path)
    try:
        one = read_record(record)
    except UserError as error:
        if record.exists():  # else a process has just taken it up
            reason = str(error).splitlines()[0]
            print(f"warning: left out a damaged record, or what is none. {printable(reason)}", file=sys.stderr)  # noqa: T201
        return None
    key = key_of(one.config, one.dataset, one.metric_version, one.encoder.get("identity"))
    return Shelved(path, one.run_id, one.started, one.status, key, one.config, len(one.resumed), one)


def _unfinished(folder: Path) -> Shelved | None:
    """A run without a record, from the first line of its log; None if it was killed before it wrote one."""
    start = first_event(folder / "events.jsonl") or {}
    try:
        key = key_of(start["config"], start["dataset"], start["metric_version"], start["encoder"]["identity"])
        return Shelved(folder, folder.name, str(start["started"]), "unfinished", key, start["config"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _worth_taking_up(run: Shelved) -> bool:
    """Whether to go on with an interrupted run.

    One that failed is taken up once, from its last checkpoint: what was wrong may be gone, a full disk for instance. If
    it fails again, the fault may lie in what was saved, so it is begun anew.
    """
    if not run.path.is_dir() or run.status == "pruned":
        return False
    return run.status != "failed" or (not run.resumed and resumable_at(run.path) is not None)


def _same_machine_settings(config: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """A run goes on with the device and the micro-batches that it began with."""
    return all(config.get(name) == wanted[name] for name in ("device", "batch_tokens"))
