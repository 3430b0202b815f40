"""The run folder and the run record: the truth about a run, readable and movable without any server.

    <run id>/config.json       resolved configuration and the origin of every value
             events.jsonl      append-only log, one JSON object per line, written as things happen
             record.json       the RunRecord, written once at the end
             ids.npy           top labels of every row that was scored, int32 [M, K], -1 = none
             scores.npy        their scores, float32 [M, K]
             per_row.npy       per-row metric values, float32 [M, number of names in the record]
             per_row.V.npy     the same for another scorer, V, where a method has several
             sample.json       some test rows with their predictions, as texts
             model/            weights of a trained model, with a manifest of their own
             package/          what the model needs besides to be served, see `harness.runs.package`
             checkpoints/      while a training is not finished: what `--resume` needs
             manifest.json     sha256 of all of the above but the checkpoints

Nothing inside refers to an absolute path, so a folder can be moved or mailed.
"""

import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UserError
from harness.io.files import checked_name, home, is_file_name, is_folder, place_inside, read_json, write_json
from harness.io.models import describe_faults
from harness.io.printable import printable
from harness.settings.catalogue import ENCODERS

SCHEMA = 1
Status = Literal["finished", "failed", "killed", "pruned"]
"""Status of a run; `pruned`: a trial of a sweep that was ended early because others did better."""


class RunRecord(BaseModel):
    """Summary of one run; tables are made from such records and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    schema_version: int = SCHEMA
    run_id: str
    status: Status
    error: str | None = None
    """Why the run failed, in one line."""
    started: str
    """Start of the run, UTC, ISO 8601."""
    seconds: float
    config: dict[str, Any]
    parent: dict[str, Any] | None = None
    """The bench or sweep that the run belongs to: id, kind, name, params."""
    dataset: dict[str, Any]
    """The dataset: name, digest, measured statistics, propensity constants, filter on or off, validation rows drawn."""
    metrics: dict[str, float] = {}
    """Metrics in percent, by names of `harness.metrics`; without PSP if the card has no propensity constants."""
    scorers: dict[str, dict[str, float]] = Field(default={}, alias="views")
    """Metrics by scorer, for methods with several; `metrics` are those of the first. Called `views` in the file."""
    metric_version: int
    contributions: list[dict[str, Any]] = []
    """Share of head, torso and tail labels in P@k and PSP@k."""
    per_row: list[str] = []
    """Column names of per_row.npy."""
    search: dict[str, Any] = {}
    """The search: backend, measured recall, number of vectors that were not finite."""
    encoder: dict[str, Any] = {}
    augmentation: dict[str, Any] = {}
    """The augmentation: name, rows in all, augmented rows, targets of each; empty without augmentation."""
    fusion: dict[str, Any] = {}
    """For a run made from the predictions of others: how, of which runs, with which weights; else empty."""
    training: dict[str, Any] = {}
    """Steps, epochs, seconds, processor seconds, learning rates and chosen epoch; empty without training."""
    curves: dict[str, list[float | None]] = {}
    """Curves of the training: `step`, then one list of values at those steps per figure (`harness.runs.series`)."""
    resumed: list[dict[str, Any]] = []
    """One entry each time the run was resumed: the time, and how the environment differed."""
    timings: dict[str, float] = {}
    """Seconds of each step of the pipeline, by name."""
    peak_memory_gib: float | None = None
    environment: dict[str, Any] = {}
    warnings: list[str] = []


class _Checked(BaseModel):
    """Base of the fields that tables read from a finished run; other keys are allowed."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Config(_Checked):
    method: str
    encoder: str
    seed: int


class _Propensity(_Checked):
    a: float
    b: float


class _Dataset(_Checked):
    name: str
    title: str | None = None
    digest: str | None = None
    filter: bool | None = None
    propensity: _Propensity | None = None
    statistics: dict[str, float] = {}
    validation_rows: int | None = None


class _Finished(_Checked):
    seconds: float
    config: _Config
    dataset: _Dataset
    metrics: dict[str, float]
    views: dict[str, dict[str, float]]
    peak_memory_gib: float | None


def is_trial(config: dict[str, Any]) -> bool:
    """Return whether a run was scored on validation rows, as trials of a sweep are; no table shows such a run."""
    return bool(config.get("evaluate", "test") == "validation")


def per_row_file(scorer: str | None = None) -> str:
    """Return the file name of a scorer's per-row metrics; None stands for the first scorer."""
    return "per_row.npy" if scorer is None else f"per_row.{scorer}.npy"


def new_run_id(method: str, dataset: str, seed: int) -> str:
    """Return a new run id: unique, readable, and sortable by time."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return checked_name("run", f"{moment}-{method[:24]}-{dataset[:32]}-s{seed}-{secrets.token_hex(2)}")


def runs_folder(out: Path | None = None) -> Path:
    """Return the folder that holds run folders: `out`, by default `runs/` of the workspace."""
    return out.absolute() if out else home() / "runs"


def run_folder(run: str, out: Path | None = None) -> Path:
    """Return the folder of a run, finished or not, by its id in the folder of runs or by its path."""
    folder = Path(run) if "/" in run or is_folder(run) else runs_folder(out) / run
    if not run or not is_folder(folder):
        raise UserError(f"there is no run {run!r}; `python -m harness ls runs` lists what there is")
    return folder.absolute()


def require_place(run_id: str, key: str, recorded: str, given: str) -> None:
    """Raise if the folder of a dataset or encoder, recorded by its name alone, was not given and is not here."""
    if given == recorded and recorded.startswith("./") and not Path(recorded).is_dir():
        raise UserError(
            f"the {key} of run {run_id} is a folder called {recorded[2:]!r}, which is not in the current folder; "
            f"say where it is: --{key} PATH"
        )


def read_record(path: Path) -> RunRecord:
    """Read a record from a run folder or a JSON file."""
    file = path / "record.json" if path.is_dir() else path
    place_inside(file.parent, file.name)  # refuses a link that leads out of the folder
    if not file.is_file():
        raise UserError(f"{file}: no such record; `python -m harness ls runs` lists what there is")
    return checked_record(read_json(file), str(file))


def checked_record(values: Any, where: str) -> RunRecord:
    """Return parsed JSON as a record; `UserError` if it is not a valid one.

    Args:
        values: The parsed JSON; somebody else may have written it.
        where: Name of the file for messages.
    """
    if isinstance(values, dict) and values.get("schema_version") not in (None, SCHEMA):
        raise UserError(
            f"{where}: record of schema {values['schema_version']}, this harness reads {SCHEMA}; use its version"
        )
    try:
        record = RunRecord.model_validate(values)
        if record.status == "finished":
            _Finished.model_validate(record.model_dump())
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, where))) from error
    for name in (record.run_id, *record.scorers):  # these names become file names
        if not is_file_name(name):
            raise UserError(
                f"{where}: the name {name[:60]!r} cannot be used: it has to be that of a file, and to be seen"
            )
    return record


def refuse_places(where: Path | str, config: dict[str, Any]) -> None:
    """Raise if recorded settings name a folder by a path: a record must not decide which folders are read here.

    Args:
        where: The record or log that the settings come from; somebody else may have written it.
        config: Recorded settings, in which a folder must be `./name`.
    """
    options = config.get("encoder_options")
    teacher = options.get("teacher") if isinstance(options, dict) else None
    for place in (config.get("dataset"), config.get("encoder"), teacher):
        if isinstance(place, str) and _leads_away(place):
            raise UserError(f"{where} names the folder {place[:60]!r}; runs record folders as ./name, so it is refused")


def _leads_away(place: str) -> bool:
    """Return whether a recorded name is the path of a folder other than `./name`, the form that runs record."""
    if place.startswith("./"):
        return not is_file_name(place.removeprefix("./"))
    return "/" in place or place in (".", "..") or (place not in ENCODERS and is_folder(place))


def find_records(folders: list[Path]) -> list[RunRecord]:
    """Return all readable records, oldest first; a folder holds run folders or `*.json` records, or is one run."""
    paths: list[Path] = []
    for folder in folders:
        own = folder / "record.json"
        paths += [own] if own.is_file() else [*sorted(folder.glob("*/record.json")), *sorted(folder.glob("*.json"))]
    records = []
    for path in paths:
        try:
            records.append(read_record(path))
        except UserError as error:
            reason = str(error).splitlines()[0]
            print(f"warning: left out a damaged record; move its folder away. {printable(reason)}", file=sys.stderr)  # noqa: T201
    return sorted(records, key=lambda record: (record.started, record.run_id))


def resumable_at(folder: Path) -> int | None:
    """Return the step of a run's newest checkpoint; None if it has none."""
    names = [path.name.removeprefix("step-") for path in folder.glob("checkpoints/step-*")]
    steps = [int(name) for name in names if name.isascii() and name.isdigit()]
    return max(steps, default=None)


def unfinished(folder: Path) -> list[str]:
    """Return the names of run folders without a record: still running, or killed before they could write one."""
    return sorted(
        path.parent.name for path in folder.glob("*/events.jsonl") if not (path.parent / "record.json").exists()
    )


def write_record(folder: Path, record: RunRecord) -> None:
    """Write record.json."""
    write_json(folder / "record.json", record.model_dump(mode="json"))


def utc_now() -> str:
    """Return the current time, UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Stopwatch:
    """Measures the seconds of named steps, for the record."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = self._last = time.perf_counter()

    def lap(self, name: str) -> float:
        """Add the time since the last lap to step `name`; return it in seconds."""
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 4)
        return spent

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started
