"""From a workspace to a folder of evidence: what reports are made from, small enough to keep beside them.

    run folders            -> runs/<run id>.json, runs/<run id>.rows.npz     finished test runs, no trials
    studies/<name>/        -> studies/<name>.json
    prepared datasets      -> neighbours/<dataset>.json                      label ids, no texts

`harness.report.evidence` reads it back. Equal content gives equal files on every machine: JSON has sorted keys, and the
archives of rows have no clock in them. A file that has its content already is not touched, and nothing is removed.
What is damaged is left out with a sentence, so that the rest can be kept.
"""

import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from harness.data.card import describe_faults
from harness.data.prepare import load_matrix
from harness.data.ragged import Texts
from harness.errors import DataError, UserError
from harness.files import MANIFEST, checked_name, home, read_json, read_manifest, write_bytes
from harness.record import RunRecord, read_record
from harness.report import is_trial
from harness.report.collecting.neighbours import find_neighbours
from harness.report.evidence import DAMAGED, Study, Trial, kept_columns, run_rows, shown_space
from harness.report.grids.defaults import settings

STORED = 1e-3
"""Percent by which the mean of a column of float32 may miss the metric it belongs to."""
_BEGINNING = (1980, 1, 1, 0, 0, 0)
"""The time that every member of an archive has; the earliest that the format knows."""
_ENDED = ("COMPLETE", "PRUNED", "FAIL")


@dataclass(frozen=True)
class Collected:
    """What was found, and what it changed."""

    runs: int
    studies: int
    neighbours: int
    written: tuple[Path, ...]
    """Files that are new or have new content."""
    left_out: tuple[str, ...]
    """A sentence for everything that was not taken, and why."""


def collect(runs: list[Path], studies: Path | None, datasets: list[str], out: Path) -> Collected:
    """Gathers evidence.

    Args:
        runs: Folders of run folders, or run folders.
        studies: A folder of studies; None for none.
        datasets: Names of those whose label neighbours are wanted; they must be prepared on this machine.
        out: The folder of evidence; made if it is not there.
    """
    shelf = _Shelf(out)
    records = list(_found_runs(runs, shelf))
    for folder, record in records:
        shelf.keep(f"runs/{record.run_id}.json", _json(record.model_dump(mode="json")))
        _keep_rows(folder, record, shelf)
    found = list(_found_studies(studies, shelf)) if studies else []
    for study in found:
        shelf.keep(f"studies/{study.name}.json", _json(study.model_dump(mode="json")))
    done = sum(_keep_neighbours(name, [record for _, record in records], shelf) for name in dict.fromkeys(datasets))
    return Collected(len(records), len(found), done, tuple(shelf.written), tuple(shelf.left_out))


def keep_study(folder: Path, out: Path) -> list[Path]:
    """Gathers one study, as far as its trials have ended; the file, if it is new or has new content."""
    shelf = _Shelf(out)
    study = read_study(folder / "study.json")
    if study.trials:
        shelf.keep(f"studies/{study.name}.json", _json(study.model_dump(mode="json")))
    return shelf.written


class _Shelf:
    """Writes what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written: list[Path] = []
        self.left_out: list[str] = []

    def keep(self, name: str, content: bytes) -> None:
        """Writes a file unless it has this content; of an archive the members count, not how they were compressed."""
        path = self._folder / name
        if path.is_file():
            there = path.read_bytes()
            if there == content or (name.endswith(".npz") and _members(there) == _members(content)):
                return
        write_bytes(path, content)
        self.written.append(path)

    def leave_out(self, what: str, reason: Exception | str) -> None:
        """Remembers why something is not there."""
        self.left_out.append(f"{what}: {str(reason).splitlines()[0]}")


def _found_runs(folders: Iterable[Path], shelf: _Shelf) -> Iterator[tuple[Path, RunRecord]]:
    """Finished test runs with their folders, by run id, each once."""
    places = {place.absolute() for folder in folders for place in (folder, *folder.glob("*/"))}
    seen: set[str] = set()
    for place in sorted(
        (place for place in places if (place / "record.json").is_file()), key=lambda path: (path.name, path)
    ):
        try:
            record = read_record(place)
            checked_name("run", record.run_id)
            _json(record.model_dump(mode="json"))
        except UserError as error:
            shelf.leave_out(f"run folder {place.name}", error)
            continue
        except ValueError as error:
            shelf.leave_out(f"run folder {place.name}", f"its record has a number that is none ({error})")
            continue
        if record.status != "finished" or is_trial(record.config):
            continue
        if record.run_id in seen:
            shelf.leave_out(f"run folder {place.name}", f"a second one with the run id {record.run_id}")
            continue
        seen.add(record.run_id)
        yield place, record


def _keep_rows(folder: Path, record: RunRecord, shelf: _Shelf) -> None:
    """Stores the per-row scores of every view, float32 [M, kept columns] each; all views or none."""
    columns = kept_columns(record)
    if not columns:
        shelf.leave_out(f"rows of {record.run_id}", "the record names no per-row scores")
        return
    views: dict[str, NDArray[np.float32]] = {}
    try:
        for view, scores in (record.views or {"": record.metrics}).items():
            rows = run_rows(folder, record, view)
            if rows is None:
                raise UserError(f"there are none{f' of {view}' if view else ''}; run it again to have them")
            views[view] = np.stack([rows[name] for name in columns], axis=1).astype(np.float32)
            _require_sound(view, views[view], dict(zip(columns, (scores.get(name) for name in columns), strict=True)))
    except UserError as error:
        shelf.leave_out(f"rows of {record.run_id}", error)
        return
    shelf.keep(f"runs/{record.run_id}.rows.npz", _archive(views))


def _require_sound(view: str, rows: NDArray[np.float32], reported: dict[str, float | None]) -> None:
    """Refuses rows whose means are not the metrics of the record."""
    for place, (name, metric) in enumerate(reported.items()):
        mean = float(rows[:, place].astype(np.float64).mean()) if len(rows) else float("nan")
        if metric is None or not abs(mean - metric) < STORED:
            of = f" of {view}" if view else ""
            raise DataError(f"their mean {name}{of} is {mean:.4f}, but the record says {metric}; not of one run")


def _archive(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Arrays as `np.savez_compressed` stores them, but without a clock."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(arrays):
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", _BEGINNING)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.create_system = 3  # otherwise it says which system wrote it
            member.external_attr = 0o644 << 16
            archive.writestr(member, content.getvalue(), compresslevel=9)
    return stream.getvalue()


def _members(archive: bytes) -> dict[str, bytes] | None:
    """What is in an archive; None if it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    except DAMAGED:
        return None


def _json(value: Any) -> bytes:
    """As `harness.files.write_json` writes it."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")


def _found_studies(folder: Path, shelf: _Shelf) -> Iterator[Study]:
    """All studies in a folder of them that have an ended trial, by name."""
    for path in sorted(folder.glob("*/study.json")):
        name = path.parent.name
        try:
            study = read_study(path)
        except UserError as error:
            shelf.leave_out(f"study {name}", error)
            continue
        if study.trials:
            yield study
        else:
            shelf.leave_out(f"study {name}", "no trial of it has ended")


def read_study(path: Path) -> Study:
    """A study from the study.json of a sweep; its trials are numbered by slot, as `best` names them.

    Raises:
        DataError: It is not the file that a sweep writes.
    """
    facts = read_json(path)
    try:
        identity = facts["identity"]
        config, search, objectives = identity["config"], facts["search"], list(facts["objectives"])
        study = Study(
            name=checked_name("study", path.parent.name),
            method=facts["method"],
            dataset=facts["dataset"],
            digest=identity["dataset"]["digest"],
            objectives=objectives,
            space=shown_space(identity["space"]),
            settings={
                "encoder": config["encoder"],
                "pruner": search["pruner"],
                "sampler": search["sampler"],
                "seed": config["seed"],
                "validation": config["validation"]["size"],
            },
            base=_shared(config, identity["space"]),
            trials=[_trial(row, objectives) for row in facts["slots"] if row["state"] in _ENDED],
            best=facts["best"],
        )
        _json(study.model_dump(mode="json"))  # a number that is none cannot be kept
        return study
    except ValidationError as error:
        raise DataError(f"not the facts of a study ({describe_faults(error, path.name)[0]})", path) from error
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise DataError(f"not the facts of a study ({type(error).__name__}: {error})", path) from error


def _shared(config: dict[str, Any], space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings of a sweep that decide its outcome, without those that it searched and what it held out."""
    searched = {knob for name, given in space.items() for knob in given.get("knobs") or [name]}
    drawn = searched | {f"params.{knob}" for knob in searched}
    return {
        key: value for key, value in settings(config).items() if key not in drawn and not key.startswith("validation.")
    }


def _trial(row: dict[str, Any], objectives: list[str]) -> Trial:
    complete = row["state"] == "COMPLETE"
    return Trial(
        number=row["slot"],
        state=row["state"],
        values=dict(zip(objectives, row["values"], strict=True)) if complete else {},
        params=row["params"],
        seconds=row["seconds"] or 0.0,
    )


def _keep_neighbours(name: str, records: list[RunRecord], shelf: _Shelf) -> bool:
    """Stores the label neighbours of a dataset; whether it is prepared here."""
    try:
        folder = _prepared(checked_name("dataset", name), records)
    except UserError as error:
        shelf.leave_out(f"label neighbours of {name}", error)
        return False
    if folder is None:
        shelf.leave_out(
            f"label neighbours of {name}",
            f"it is not prepared in this workspace; `python -m harness data prepare {name}` does that",
        )
        return False
    ids = Texts.load(folder, "labels.id")
    train = load_matrix(folder, "train.labels", len(ids))
    same = load_matrix(folder, "train.filter", len(ids))
    found = find_neighbours(name, read_json(folder / MANIFEST)["digest"], train, ids, same)
    shelf.keep(f"neighbours/{name}.json", _json(found.model_dump(mode="json")))
    return True


def _prepared(name: str, records: list[RunRecord]) -> Path | None:
    """The prepared folder of a dataset, nothing is built; of several that of the newest run, then the last by name."""
    folders = {}
    for path in sorted((home() / "cache" / "datasets").glob(f"{name}-*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        # the rest of the folder's name is a key without a dash, so that of `lf-a` and `lf-a-b` one is meant
        if manifest is not None and "-" not in path.parent.name.removeprefix(f"{name}-"):
            folders[manifest.get("digest")] = path.parent
    measured = sorted((record for record in records if record.dataset.get("name") == name), key=lambda run: run.started)
    for record in reversed(measured):
        if record.dataset.get("digest") in folders:
            return folders[record.dataset["digest"]]
    return max(folders.values(), key=lambda path: path.name, default=None)
