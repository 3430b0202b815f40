"""The results that reports are made from, and the files they are stored in.

    reports/results/<dataset>.parquet   one row per run: a few columns to look at, the record as JSON, per-row scores
            results/studies.json        Study: the trials of a sweep
            results/neighbours.json     Neighbours: which labels occur together

The scores of a run's test rows are a list column for each scorer, `rows` or `rows.<scorer>`; an entry is the float32
values of one test row in all of `ROWS` (NaN where the run lacks a metric) as one binary value, so that Parquet stores
each distinct entry once: 6.5 MB for 565 runs that take 10.5 MB as six columns of floats.

Results are read from such a folder or from a folder of run folders. Files of earlier versions are converted by
`harness report --collect` (`harness.report.earlier`).
"""

import io
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from harness.errors import DataError, UserError
from harness.io.arrays import DAMAGED, load_array
from harness.io.files import parse_json, read_json, require_listed
from harness.io.models import Strict, describe_faults
from harness.io.printable import printable
from harness.runs.record import RunRecord, checked_record, find_records, per_row_file

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
"""Metrics whose per-row scores are kept."""
RESULTS, STUDIES, NEIGHBOURS = "results", "studies.json", "neighbours.json"
_STORED = 1e-3
"""Largest difference, in percentage points, between the mean of stored scores and the metric of the record."""
_LARGEST = 1e300
"""Largest value that can be drawn: the ends of an axis must be finite."""
LARGEST_ROWS = 2**30
"""Largest size of stored scores when unpacked, bytes; a million rows of three scorers have 72 MB."""
_LEVEL = 19
"""Compression level of zstd: results are written once and cloned often."""

Floats = NDArray[np.float64]
Scores = dict[str, NDArray[np.float32]]
"""Per-row scores [M, len(ROWS)] by scorer, NaN for unmeasured metrics; the name is empty if the record has none."""


class Trial(Strict):
    """One trial of a sweep, measured on validation rows."""

    number: int
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    values: dict[str, float]
    """Value by objective; empty unless complete."""
    params: dict[str, Any]
    """Drawn values by name of the range: lambda, beta, eta, tau."""
    seconds: float


class Study(Strict):
    """The parts of a sweep that reports show."""

    name: str
    method: str
    dataset: str
    digest: str
    objectives: list[str]
    space: dict[str, dict[str, Any]]
    """Ranges by name: low, high, log, step; or choices."""
    settings: dict[str, Any]
    """Sampler, pruner, seed, share of validation rows."""
    base: dict[str, Any] | None = None
    """Settings that all trials shared, by dotted key; None in studies that were stored without them."""
    trials: list[Trial]
    best: list[int]

    @property
    def ended(self) -> list[Trial]:
        """Complete trials with a value for each objective."""
        return [one for one in self.trials if one.state == "COMPLETE" and one.values.keys() >= {*self.objectives}]

    @property
    def chosen(self) -> Trial | None:
        """The trial with the largest sum of its objectives, the earliest of several; None if none completed."""
        return max(self.ended, key=lambda trial: (sum(trial.values.values()), -trial.number), default=None)


def format_value(value: object) -> str:
    """Format a drawn value, floats with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def shown_space(space: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the parts of a sweep's ranges that reports show."""
    shown = ("low", "high", "log", "step", "choices")
    return {name: {key: given[key] for key in shown if given.get(key) is not None} for name, given in space.items()}


class Neighbour(Strict):
    """A label that shares train rows with another."""

    label: str
    share: float
    """Share of the example's train rows that have this label too."""


class Example(Strict):
    """A label with the labels it occurs with most."""

    label: str
    train_rows: int
    neighbours: list[Neighbour]


class Neighbours(Strict):
    """Label co-occurrence on one dataset; labels by their ids, so that no text leaves the workspace."""

    dataset: str
    digest: str
    examples: list[Example]
    items: int = Field(default=0, ge=0)
    """Number of labels that are train rows too, by the filter pairs."""
    true_share: float | None = Field(default=None, ge=0, le=1)
    """Part of the sum of their neighbours' shares above 0.1 that belongs to labels of the item's own row."""


@dataclass(frozen=True)
class Results:
    """All results that tables, figures and the page are made from."""

    records: tuple[RunRecord, ...]
    """Records, oldest first."""
    studies: tuple[Study, ...] = ()
    neighbours: dict[str, Neighbours] = field(default_factory=dict)
    """Label neighbours by dataset."""
    folders: tuple[Path, ...] = ()
    """Folders in which per-row scores are looked for."""

    def rows(self, record: RunRecord, scorer: str | None, column: str) -> Floats | None:
        """Return scores of the test rows in one metric, percent, [M]; None if they were not stored.

        Raises:
            DataError: They are damaged, or their mean is not what the record reports.
        """
        if scorer and record.scorers and scorer not in record.scorers:
            return None
        wanted = (scorer or own_scorer(record)) if record.scorers else ""
        for folder in self.folders:
            found = run_rows(folder, record, wanted)
            if found is not None:
                if column not in found:
                    return None
                _require_mean(record, wanted, column, found[column], folder)
                return found[column]
        return None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of a record is a number that can be drawn; not all of a record is checked."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def conditions(record: RunRecord) -> tuple[Any, ...]:
    """Return what runs must share to be comparable: data, filter, propensity constants, metric version."""
    data = record.dataset
    constants = json.dumps(data.get("propensity"), sort_keys=True)
    return data.get("digest"), bool(data.get("filter")), constants, record.metric_version


def machine_of(record: RunRecord) -> str:
    """Describe the machine of a run: seconds of different machines cannot be compared."""
    where = record.environment
    named = f"{where.get('cpu') or 'unknown processor'}, {where.get('cores') or '?'} cores"
    device = where.get("device") or "cpu"
    return named if device == "cpu" else f"{named}, {device}"


def own_scorer(record: RunRecord) -> str:
    """Return the scorer whose scores are the run's metrics; empty if there is none.

    Of several with the same scores, as `fused` has with a weight of 0, 1/2 or 1, the one that the settings name.
    """
    params = record.config.get("params")
    named = params.get("scorer") if isinstance(params, dict) else None
    ordered = sorted(record.scorers.items(), key=lambda item: item[0] != named)
    return next((scorer for scorer, scores in ordered if scores == record.metrics), "")


def kept_columns(record: RunRecord) -> tuple[str, ...]:
    """Return those of `ROWS` that the run has: without propensity constants there is no PSP."""
    return tuple(name for name in ROWS if name in record.per_row)


# -- per-row scores


def run_rows(place: Path, record: RunRecord, scorer: str) -> dict[str, Floats] | None:
    """Return scores of the test rows by metric, percent, [M] each; None if they were not stored.

    Args:
        place: A folder of Parquet files, a folder of run folders, or the folder of the run.
        record: Record of the run.
        scorer: A scorer of the record; empty if it names none.
    """
    stored = stored_file(place, record)
    if stored.is_file():
        scores = stored_scores(stored, record.run_id, scorer)
        if scores is None:
            return None
        return {name: scores[:, ROWS.index(name)].astype(np.float64) for name in kept_columns(record)}
    folder = place if (place / "record.json").is_file() else place / record.run_id
    file = folder / per_row_file(scorer or None)
    if not file.is_file() and record.scorers.get(scorer, record.metrics) == record.metrics:
        file = folder / per_row_file()
    if not file.is_file():
        return None
    require_listed(folder, file.name)
    rows = load_array(file, 2, "f").astype(np.float64)
    if rows.shape[1] != len(record.per_row):
        raise DataError(f"{rows.shape[1]} columns, but the record of the run names {len(record.per_row)}", file)
    return dict(zip(record.per_row, rows.T, strict=True))


def scores_of(place: Path, record: RunRecord) -> Scores:
    """Return the per-row scores of all scorers of a run, from a folder that `run_rows` reads.

    Raises:
        UserError: A scorer has none, or they do not fit the record.
    """
    kept = kept_columns(record)
    if not kept:
        raise UserError("the record names no per-row scores")
    found: Scores = {}
    for scorer in record.scorers or [""]:
        rows = run_rows(place, record, scorer)
        if rows is None:
            raise UserError(f"there are none{f' of {scorer}' if scorer else ''}; run it again to have them")
        found[scorer] = packed_rows(record, scorer, rows, place)
    return found


def packed_rows(record: RunRecord, scorer: str, rows: Mapping[str, Floats], place: Path) -> NDArray[np.float32]:
    """Return per-row scores as stored, [M, len(ROWS)]; raises `DataError` if they do not fit the record."""
    packed = np.full((len(next(iter(rows.values()))), len(ROWS)), np.nan, np.float32)
    for name in kept_columns(record):
        packed[:, ROWS.index(name)] = rows[name]
        _require_mean(record, scorer, name, packed[:, ROWS.index(name)], place)
    return packed


def _require_mean(record: RunRecord, scorer: str, column: str, scores: NDArray[np.floating[Any]], place: Path) -> None:
    reported = record.scorers.get(scorer, record.metrics).get(column)
    mean = float(scores.astype(np.float64).mean()) if len(scores) else float("nan")
    if reported is None or not abs(mean - reported) < _STORED:
        raise DataError(
            f"the mean {column} of the rows of {record.run_id} is {mean:.4f}, but its record says {reported}; rows and "
            "record are not of one run",
            place,
        )


# -- Parquet


def stored_file(folder: Path, record: RunRecord) -> Path:
    """Return the file that a run is stored in; the dataset's name is quoted, as it may have any characters."""
    return folder / f"{quote(str(record.dataset['name']), safe=' ')[:100]}.parquet"


def as_parquet(runs: Iterable[tuple[RunRecord, Scores]]) -> bytes:
    """Return the runs of a dataset as a Parquet file; equal runs give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = sorted(runs, key=lambda run: (run[0].started, run[0].run_id))
    records = [record for record, _ in ordered]
    columns: dict[str, Any] = {
        "run_id": [one.run_id for one in records],
        "started": [one.started for one in records],
        "dataset": [str(one.dataset["name"]) for one in records],
        "method": [str(one.config["method"]) for one in records],
        "encoder": [str(one.config["encoder"]) for one in records],
        "seed": pa.array([int(one.config["seed"]) for one in records], pa.int64()),
        **{name: pa.array([one.metrics.get(name) for one in records], pa.float64()) for name in ROWS},
        "record": [compact_json(one.model_dump(mode="json", exclude_unset=True)) for one in records],
    }
    for scorer in sorted({scorer for _, scores in ordered for scorer in scores}):
        columns[_column(scorer)] = _packed([scores.get(scorer) for _, scores in ordered])
    stream = io.BytesIO()
    pq.write_table(
        pa.table(columns),
        stream,
        row_group_size=max(1, len(records)),
        compression="zstd",
        compression_level=_LEVEL,
        # one page per column: runs are similar, and each page is compressed on its own
        data_page_size=LARGEST_ROWS,
        dictionary_pagesize_limit=LARGEST_ROWS,
        write_statistics=False,
        write_page_checksum=True,
    )
    return stream.getvalue()


def _column(scorer: str) -> str:
    return f"rows.{scorer}" if scorer else "rows"


def _packed(scores: list[NDArray[np.float32] | None]) -> "pa.ListArray[Any]":
    """Return scores [M, len(ROWS)] of each run, or None, as lists of binary values."""
    import pyarrow as pa

    there = [np.ascontiguousarray(one, "<f4") for one in scores if one is not None]
    ends = np.cumsum([0, *(0 if one is None else len(one) for one in scores)], dtype=np.int32)
    width = 4 * len(ROWS)
    content = pa.py_buffer(b"".join(one.tobytes() for one in there))
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), int(ends[-1]), [None, content])
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array([one is None for one in scores]))


def compact_json(value: Any) -> str:
    """Format JSON on one line with sorted keys; raises `ValueError` on NaN and infinity."""
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def stored_records(file: Path, strict: bool = False) -> list[RunRecord]:
    """Read the records of a Parquet file; a damaged one is reported and left out, or raises if `strict`."""
    found = []
    for run_id, text in zip(*(_texts(file, name) for name in ("run_id", "record")), strict=True):
        try:
            found.append(checked_record(_parsed_json(text), f"{file}: run {run_id}"))
        except UserError as error:
            if strict:
                raise DataError(f"{error}; {_KEPT}") from error
            warn(f"left out a damaged record. {str(error).splitlines()[0]}")
    return found


_KEPT = "nothing was written: restore the file, or remove it to begin anew"


def _texts(file: Path, column: str) -> list[str]:
    """Read a column of texts; raises `DataError` if they are not UTF-8."""
    try:
        return list(_read(file, column).to_pylist())
    except UnicodeDecodeError as error:
        raise DataError(f"not a file of results (column {column}: {error})", file) from error


def _parsed_json(text: object) -> Any:
    try:
        return parse_json(str(text))
    except (RecursionError, ValueError) as error:
        raise UserError(f"not JSON of this harness ({error})") from error


def stored_ids(file: Path) -> set[str]:
    """Return the ids of the runs in a Parquet file; none if there is no such file."""
    return set(_texts(file, "run_id")) if file.is_file() else set()


def stored_scores(file: Path, run_id: str, scorer: str) -> NDArray[np.float32] | None:
    """Return per-row scores [M, len(ROWS)] of a run from a Parquet file; None if they were not stored."""
    places, column = _scores(file, scorer, file.stat().st_mtime_ns)
    if column is None or run_id not in places:
        return None
    ends, flat = column
    start, stop = ends[places[run_id]], ends[places[run_id] + 1]
    return flat[start:stop] if stop > start else None


@lru_cache(maxsize=16)
def _scores(
    file: Path, scorer: str, changed: int
) -> tuple[dict[str, int], tuple[NDArray[np.int32], NDArray[np.float32]] | None]:
    """Read the index of each run, and a column: the offsets of the runs' rows, and their scores [sum M, len(ROWS)].

    `changed` is the time of the file's last change, so that a changed file is not taken from the cache.
    """
    import pyarrow as pa

    places = {run_id: place for place, run_id in enumerate(_texts(file, "run_id"))}
    lists = _read(file, _column(scorer), required=False)
    if lists is None:
        return places, None
    width = 4 * len(ROWS)
    if lists.type not in (pa.list_(pa.binary(width)), pa.list_(pa.field("element", pa.binary(width)))):
        raise DataError(f"column {_column(scorer)} is of {lists.type}, not of {width} bytes a row", file)
    ends = lists.offsets.to_numpy()
    values = lists.values
    flat = np.frombuffer(values.buffers()[1] or b"", "<f4", len(ROWS) * len(values), values.offset * width)
    return places, (ends, flat.reshape(-1, len(ROWS)))


def _read(file: Path, column: str, required: bool = True) -> Any:
    """Read a column of a Parquet file as one array; None if it is missing and not required."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            if column not in opened.schema_arrow.names:
                if required:
                    raise DataError(f"no column {column!r}; not a file of results", file)
                return None
            size = sum(opened.metadata.row_group(group).total_byte_size for group in range(opened.num_row_groups))
            if size > 4 * LARGEST_ROWS:
                raise ValueError("larger than any results")
            return opened.read([column]).column(0).combine_chunks()
    except (*DAMAGED, OSError, pa.ArrowException) as error:
        raise DataError(f"not a file of results ({str(error).splitlines()[0]})", file) from error


# -- folders


def results_folder(folder: Path) -> Path:
    """Return the folder with the records: `results` in it if that has some, else the folder itself."""
    return folder / RESULTS if any((folder / RESULTS).glob("*.parquet")) else folder


def read_records(folders: Iterable[Path], strict: bool = False) -> list[RunRecord]:
    """Read all records in folders of run folders, of JSON records or of Parquet files, oldest first.

    With `strict`, a damaged record in a Parquet file raises, as writing that file again would lose it.
    """
    found: list[RunRecord] = []
    for folder in map(results_folder, folders):
        files = sorted(folder.glob("*.parquet"))
        if not files and any(folder.glob("*.rows.npz")):
            raise UserError(_of_earlier(folder.parent))
        if not files and any(folder.glob("runs/*.rows.npz")):
            raise UserError(_of_earlier(folder))
        found += (
            [record for file in files for record in stored_records(file, strict)] if files else find_records([folder])
        )
    return sorted(found, key=lambda record: (record.started, record.run_id))


def read_results(folder: Path, strict: bool = False) -> Results:
    """Read everything in a folder of reports; what is damaged is reported and left out, a damaged Parquet file raises.

    With `strict`, to write the folder again, anything damaged in it raises, and files of earlier versions are not
    reported.
    """
    place = folder / RESULTS
    stored = any(place.glob("*.parquet"))
    if not strict and any(folder.glob("runs/*.json")):
        warn(_of_earlier(folder))
    neighbours = read_models(place / NEIGHBOURS, Neighbours, strict)
    return Results(
        tuple(read_records([place], strict)) if stored else (),
        tuple(read_studies(folder, strict)),
        {one.dataset: one for one in neighbours},
        (place,) if stored else (),
    )


def _of_earlier(folder: Path) -> str:
    return (
        f"{folder} has records as an earlier version kept them, which are not read here; "
        f"`python -m harness report --collect --folder {folder}` converts them"
    )


def read_studies(folder: Path, strict: bool = False) -> list[Study]:
    """Read studies in a folder of reports, by name; damaged ones are reported and left out, or raise if `strict`."""
    return sorted(read_models(folder / RESULTS / STUDIES, Study, strict), key=lambda study: study.name)


Model = TypeVar("Model", bound=BaseModel)


def read_models(path: Path, model: type[Model], strict: bool = False) -> list[Model]:
    """Read a JSON file with one value or a list; a damaged value is reported and left out, or raises if `strict`."""
    if not path.is_file():
        return []
    values: list[Any] = []
    found, faults = [], []
    try:
        values = read if isinstance(read := read_json(path), list) else [read]
    except UserError as error:
        faults.append(str(error))
    for value in values:
        try:
            found.append(model.model_validate(value))
        except ValidationError as error:
            faults.append(describe_faults(error, str(path))[0])
    for fault in faults:
        if strict:
            raise DataError(f"{fault.splitlines()[0]}; {_KEPT}")
        warn(f"left out a damaged file. {fault.splitlines()[0]}")
    return found


def as_json_lines(values: Mapping[str, BaseModel]) -> bytes:
    """Format values as a JSON list in the order of their keys, one per line."""
    lines = ",\n".join(
        compact_json(values[name].model_dump(mode="json", exclude_unset=True)) for name in sorted(values)
    )
    return f"[\n{lines}\n]\n".encode()


def warn(text: str) -> None:
    """Print a warning to standard error."""
    print(f"warning: {printable(text)}", file=sys.stderr)  # noqa: T201
