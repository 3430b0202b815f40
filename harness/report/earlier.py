"""Read a folder of reports as earlier versions wrote it; only for `harness report --collect`, which converts it.

runs/<run id>.json         a record
<run id>.rows.npz     its per-row scores, a float32 array [M, number of `kept_columns`] a scorer
studies/<name>.json        `Study`
neighbours/<dataset>.json  `Neighbours`
"""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.errors import DataError, UserError
from harness.io.arrays import DAMAGED
from harness.report.results import (
    LARGEST_ROWS,
    ROWS,
    Floats,
    Neighbours,
    Results,
    Scores,
    Study,
    kept_columns,
    packed_rows,
    read_models,
)
from harness.runs.record import RunRecord, find_records

RUNS, STUDIES, NEIGHBOURS = "runs", "studies", "neighbours"


def read_earlier(folder: Path) -> Results:
    """Read all records, studies and neighbours; what is damaged is reported and left out."""
    studies = [one for path in sorted(folder.glob(f"{STUDIES}/*.json")) for one in read_models(path, Study)]
    neighbours = [one for path in sorted(folder.glob(f"{NEIGHBOURS}/*.json")) for one in read_models(path, Neighbours)]
    records = find_records([folder / RUNS]) if any(folder.glob(f"{RUNS}/*.json")) else []
    return Results(tuple(records), tuple(studies), {one.dataset: one for one in neighbours})


def earlier_scores(folder: Path, record: RunRecord) -> Scores:
    """Return per-row scores of a run, empty if it has no file of them; raises `UserError` if that file is damaged."""
    file = folder / RUNS / f"{record.run_id}.rows.npz"
    found = read_rows(file, kept_columns(record)) if file.is_file() else {}
    if found and found.keys() != {*(record.scorers or [""])}:
        raise UserError(f"{file}: scores of {', '.join(found)}, which are not the scorers of the record")
    return {scorer: packed_rows(record, scorer, rows, file) for scorer, rows in found.items()}


def read_rows(file: Path, columns: Sequence[str] = ROWS) -> dict[str, dict[str, Floats]]:
    """Return per-row scores by scorer and metric, [M] each, from a file whose columns are `columns`."""
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST_ROWS:
                raise ValueError("larger than any rows of a run")
        with np.load(file, allow_pickle=False) as stored:
            return {
                scorer: dict(zip(columns, np.asarray(stored[scorer], np.float64).T, strict=True))
                for scorer in stored.files
            }
    except (*DAMAGED, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"not rows of a run ({error})", file) from error


def remove_converted(folder: Path, runs: set[str], studies: set[str], neighbours: set[str]) -> None:
    """Remove the files of the named runs, studies and datasets, and folders that are then empty."""
    for name, converted in ((RUNS, runs), (STUDIES, studies), (NEIGHBOURS, neighbours)):
        for path in (folder / name).glob("*"):
            if path.is_file() and path.name.removesuffix(".json").removesuffix(".rows.npz") in converted:
                path.unlink()
        if (folder / name).is_dir() and not any((folder / name).iterdir()):
            (folder / name).rmdir()
