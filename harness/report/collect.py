"""Collect the results of a workspace into a folder of reports, small enough to be committed with these.

    run folders            -> results/<dataset>.parquet     finished runs on test rows, no trials
    studies/<name>/        -> results/studies.json
    prepared datasets      -> results/neighbours.json       label ids, no texts

`harness.report.results` describes the files and reads them back. What earlier versions kept (`harness.report.earlier`)
is converted, and those files are removed. A file that has its content already is not touched. What is damaged is left
out and reported, so that the rest can be kept.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from harness.data.prepare import load_matrix, prepared_folders
from harness.data.ragged import Texts
from harness.errors import DataError, UserError
from harness.io.files import MANIFEST, checked_name, locked, read_json, write_bytes
from harness.io.models import describe_faults
from harness.report.earlier import earlier_scores, read_earlier, remove_converted
from harness.report.neighbours import find_neighbours
from harness.report.results import (
    NEIGHBOURS,
    RESULTS,
    STUDIES,
    Neighbours,
    Scores,
    Study,
    Trial,
    as_json_lines,
    as_parquet,
    compact_json,
    read_results,
    read_studies,
    scores_of,
    shown_space,
    stored_file,
)
from harness.report.rows import settings
from harness.runs.record import RunRecord, is_trial, read_record

_ENDED = ("COMPLETE", "PRUNED", "FAIL")


@dataclass(frozen=True)
class Collected:
    """How much was found, and which files it changed."""

    runs: int
    studies: int
    neighbours: int
    written: tuple[Path, ...]
    """Files that are new or have new content."""
    left_out: tuple[str, ...]
    """Sentences that say what was left out and why."""


def collect(runs: list[Path], studies: Path | None, datasets: list[str], out: Path) -> Collected:
    """Add results to a folder of reports, and convert those of earlier versions in it.

    Args:
        runs: Run folders, or folders of these.
        studies: Folder of studies; None to collect none.
        datasets: Names of datasets whose label neighbours are wanted; these must be prepared on this machine.
        out: Folder of reports; made if it does not exist.
    """
    with locked(out / RESULTS / "collect"):  # of two writers at once, one would lose its changes
        return _collect(runs, studies, datasets, out)


def _collect(runs: list[Path], studies: Path | None, datasets: list[str], out: Path) -> Collected:
    left_out: list[str] = []
    there, before = read_results(out, strict=True), read_earlier(out)
    found = list(_found_runs(runs, left_out))
    of_studies = {one.name: one for one in _found_studies(studies, left_out)} if studies else {}
    of_labels = {
        one.dataset: one
        for name in dict.fromkeys(datasets)
        if (one := _neighbours(name, [record for _, record in found], left_out))
    }
    kept = {
        record.run_id: (record, _scores(scores_of, out / RESULTS, record, left_out, required=False))
        for record in there.records
    }
    changed: set[Path] = set()
    converted: set[str] = set()
    for record in before.records:
        scores = _scores(earlier_scores, out, record, left_out)
        stored = kept.get(record.run_id)
        if stored is None or (scores and not stored[1] and stored[0] == record):
            kept[record.run_id] = record, scores
            changed.add(stored_file(out / RESULTS, record))
        if scores and kept[record.run_id][1]:  # else the only copy of the run's scores would be removed
            converted.add(record.run_id)
    changed |= _add_runs(kept, found, out / RESULTS, left_out)
    by_file: dict[Path, list[tuple[RunRecord, Scores]]] = {}
    for run in kept.values():
        by_file.setdefault(stored_file(out / RESULTS, run[0]), []).append(run)
    written = [path for file in sorted(changed) if file in by_file for path in _write(file, as_parquet(by_file[file]))]
    all_studies = {one.name: one for one in (*before.studies, *there.studies)} | of_studies
    written += _write(out / RESULTS / STUDIES, as_json_lines(all_studies)) if all_studies else []
    labels = before.neighbours | there.neighbours | of_labels
    written += _write(out / RESULTS / NEIGHBOURS, as_json_lines(labels)) if labels else []
    remove_converted(out, converted, {*all_studies}, {*labels})
    return Collected(len(found), len(of_studies), len(of_labels), tuple(written), tuple(left_out))


def keep_study(folder: Path, out: Path) -> list[Path]:
    """Add the ended trials of one study; returns the file if it has new content."""
    study = read_study(folder / "study.json")
    if not study.trials:
        return []
    with locked(out / RESULTS / "collect"):
        there = read_studies(out, strict=True)
        return _write(out / RESULTS / STUDIES, as_json_lines({one.name: one for one in (*there, study)}))


def _write(path: Path, content: bytes) -> list[Path]:
    """Write a file unless it has this content; returns its path if it was written."""
    if path.is_file() and path.read_bytes() == content:
        return []
    write_bytes(path, content)
    return [path]


def _leave_out(left_out: list[str], what: str, reason: Exception | str) -> None:
    left_out.append(f"{what}: {str(reason).splitlines()[0]}")


def _scores(
    read: Callable[[Path, RunRecord], Scores],
    place: Path,
    record: RunRecord,
    left_out: list[str],
    *,
    required: bool = True,
) -> Scores:
    """Return per-row scores that `read` finds; if they are damaged or missing, none, and a sentence in `left_out`.

    Missing scores are reported only if `required`.
    """
    try:
        return read(place, record)
    except UserError as error:
        if required or isinstance(error, DataError):
            _leave_out(left_out, f"rows of {record.run_id}", error)
        return {}


def _add_runs(
    kept: dict[str, tuple[RunRecord, Scores]], found: list[tuple[Path, RunRecord]], place: Path, left_out: list[str]
) -> set[Path]:
    """Add runs with their scores to those that are kept; returns the files that change."""
    changed: set[Path] = set()
    for folder, record in found:
        before = kept.get(record.run_id)
        scores = _scores(scores_of, folder, record, left_out)
        if not scores and before is not None and before[0] == record:
            scores = before[1]  # of the same run, collected when its folder still had them
        if before is None or before[0] != record or not _equal(before[1], scores):
            changed |= {stored_file(place, one) for one in (record, *(before or ())[:1])}
        kept[record.run_id] = record, scores
    return changed


def _equal(one: Scores, other: Scores) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[scorer], other[scorer], equal_nan=True) for scorer in one
    )


def _found_runs(folders: Iterable[Path], left_out: list[str]) -> Iterator[tuple[Path, RunRecord]]:
    """Yield finished runs on test rows with their folders, by run id, each once."""
    places = {place.absolute() for folder in folders for place in (folder, *folder.glob("*/"))}
    seen: set[str] = set()
    for place in sorted(
        (place for place in places if (place / "record.json").is_file()), key=lambda path: (path.name, path)
    ):
        try:
            record = read_record(place)
            compact_json(record.model_dump(mode="json"))
        except UserError as error:
            _leave_out(left_out, f"run folder {place.name}", error)
            continue
        except ValueError as error:
            _leave_out(left_out, f"run folder {place.name}", f"its record has a number that is not finite ({error})")
            continue
        if record.status != "finished" or is_trial(record.config):
            continue
        if record.run_id in seen:
            _leave_out(left_out, f"run folder {place.name}", f"a second one with the run id {record.run_id}")
            continue
        seen.add(record.run_id)
        yield place, record


def _found_studies(folder: Path, left_out: list[str]) -> Iterator[Study]:
    """Yield the studies in a folder that have an ended trial, by name."""
    for path in sorted(folder.glob("*/study.json")):
        name = path.parent.name
        try:
            study = read_study(path)
        except UserError as error:
            _leave_out(left_out, f"study {name}", error)
            continue
        if study.trials:
            yield study
        else:
            _leave_out(left_out, f"study {name}", "no trial of it has ended")


def read_study(path: Path) -> Study:
    """Read a study from the study.json of a sweep; its trials are numbered by slot, as in `best`.

    Raises:
        DataError: It is not the file that a sweep writes.
    """
    metadata = read_json(path)
    try:
        identity = metadata["identity"]
        config, search, objectives = identity["config"], metadata["search"], list(metadata["objectives"])
        study = Study(
            name=checked_name("study", path.parent.name),
            method=metadata["method"],
            dataset=metadata["dataset"],
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
            trials=[_trial(row, objectives) for row in metadata["slots"] if row["state"] in _ENDED],
            best=metadata["best"],
        )
        compact_json(study.model_dump(mode="json"))  # refuses NaN and infinity
        return study
    except ValidationError as error:
        raise DataError(f"not a study ({describe_faults(error, path.name)[0]})", path) from error
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise DataError(f"not a study ({type(error).__name__}: {error})", path) from error


def _shared(config: dict[str, Any], space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return settings of a sweep that decide its outcome, without those it searched and its validation split."""
    searched = {key for name, given in space.items() for key in given.get("knobs") or [name]}
    drawn = searched | {f"params.{key}" for key in searched}
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


def _neighbours(name: str, records: list[RunRecord], left_out: list[str]) -> Neighbours | None:
    """Return the label neighbours of a dataset; None if it is not prepared on this machine."""
    try:
        folder = _prepared(checked_name("dataset", name), records)
    except UserError as error:
        _leave_out(left_out, f"label neighbours of {name}", error)
        return None
    if folder is None:
        hint = f"it is not prepared in this workspace; `python -m harness data prepare {name}` does that"
        _leave_out(left_out, f"label neighbours of {name}", hint)
        return None
    ids = Texts.load(folder, "labels.id")
    train = load_matrix(folder, "train.labels", len(ids))
    same = load_matrix(folder, "train.filter", len(ids))
    return find_neighbours(name, read_json(folder / MANIFEST)["digest"], train, ids, same)


def _prepared(name: str, records: list[RunRecord]) -> Path | None:
    """Return the prepared folder of a dataset, if any; of several that of the newest run, else the last by name."""
    folders = prepared_folders(name)
    measured = sorted((record for record in records if record.dataset.get("name") == name), key=lambda run: run.started)
    for record in reversed(measured):
        if record.dataset.get("digest") in folders:
            return folders[record.dataset["digest"]]
    return max(folders.values(), key=lambda path: path.name, default=None)
