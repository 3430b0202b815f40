"""What reports are made from: one folder with run records, rows, sweeps and label neighbours, and nothing else.

    reports/runs/<run id>.json          RunRecord
            runs/<run id>.rows.npz      per-row scores of its test rows: one float32 array [M, names] a view
            studies/<name>.json         Study: the trials of a sweep
            neighbours/<dataset>.json   Neighbours: which labels occur together
            speed.json                  harness.perf.saved.Speed: what `harness perf --write` measured
            trust.json                  harness.report.trust.Trust: what was tried on purpose, and what happened

`harness report --collect` fills such a folder from a workspace. A folder of run folders is evidence too: its records
are read, and rows come from the run folders themselves.
"""

import json
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness import arrays
from harness.arrays import load_array
from harness.data.card import describe_faults
from harness.errors import DataError, UserError
from harness.files import MANIFEST, read_json, require_listed
from harness.perf.saved import SPEED, Speed, read_speed
from harness.printable import printable
from harness.record import RunRecord, find_records, per_row_file
from harness.report.trust import TRUST, Trust, read_trust

ROWS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
"""Columns that are kept of a run's rows."""
_STORED = 1e-3
"""Percent by which the mean of a stored column may miss the metric it belongs to."""


_LARGEST = 1e300
"""An axis with more than this has no ends that a float holds."""
_LARGEST_ROWS = 2**30
"""Bytes of stored rows, unpacked; a million rows of three scorers have 72 MB."""
DAMAGED = (*arrays.DAMAGED, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a file of numbers raises that is none."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Trial(_Frozen):
    """One trial of a sweep, measured on held-out train rows."""

    number: int
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    values: dict[str, float]
    """By objective; empty unless complete."""
    params: dict[str, Any]
    """By the name a user knows: lambda, beta, eta, tau."""
    seconds: float


class Study(_Frozen):
    """A sweep, as far as a reader wants to see it."""

    name: str
    method: str
    dataset: str
    digest: str
    objectives: list[str]
    space: dict[str, dict[str, Any]]
    """By name: low, high, log; or choices."""
    settings: dict[str, Any]
    """Sampler, pruner, seed, share of held-out rows."""
    base: dict[str, Any] | None = None
    """What all trials shared but for what was searched, by dotted key; None in studies that were kept without it."""
    trials: list[Trial]
    best: list[int]

    @property
    def ended(self) -> list[Trial]:
        """Trials that came to their end, with all their figures."""
        return [one for one in self.trials if one.state == "COMPLETE" and one.values.keys() >= {*self.objectives}]

    @property
    def chosen(self) -> Trial | None:
        """The trial with the largest sum of its objectives, the earliest of several; None if none came to its end."""
        return max(self.ended, key=lambda trial: (sum(trial.values.values()), -trial.number), default=None)


def shown_value(value: object) -> str:
    """What a trial had drawn, with as many digits as tell two trials apart."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def shown_space(space: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Ranges as far as a reader wants to see them, from all that a sweep knows of them."""
    shown = ("low", "high", "log", "step", "choices")
    return {name: {key: given[key] for key in shown if given.get(key) is not None} for name, given in space.items()}


class Neighbour(_Frozen):
    """A label that shares train rows with another."""

    label: str
    share: float
    """Of the rows of the example that have this label too."""


class Example(_Frozen):
    """A label with those it occurs with most."""

    label: str
    train_rows: int
    neighbours: list[Neighbour]


class Neighbours(_Frozen):
    """Label co-occurrence on one dataset; labels by their ids, so that no text leaves the workspace."""

    dataset: str
    digest: str
    examples: list[Example]
    items: int = Field(default=0, ge=0)
    """Labels that are train rows too, by the filter pairs: items that point at items."""
    true_share: float | None = Field(default=None, ge=0, le=1)
    """Of what their neighbours' shares above a tenth add up to, the part of labels that the item's own row has."""


@dataclass(frozen=True)
class Evidence:
    """Everything that tables, figures and the page are functions of."""

    records: tuple[RunRecord, ...]
    """Oldest first."""
    studies: tuple[Study, ...] = ()
    neighbours: dict[str, Neighbours] = field(default_factory=dict)
    """By dataset."""
    folders: tuple[Path, ...] = ()
    """Where rows are looked for."""
    speed: Speed | None = None
    trust: Trust | None = None

    def rows(self, record: RunRecord, view: str | None, column: str) -> NDArray[np.float64] | None:
        """Scores of the test rows in one metric, percent, [M]; None where they were not kept."""
        scores = self._stored(record, view) if not (view and record.views) or view in record.views else None
        if scores is None or column not in scores:
            return None
        reported = (record.views[view] if view and record.views else record.metrics).get(column)
        if reported is None or not abs(float(scores[column].mean()) - reported) < _STORED:
            raise DataError(
                f"the mean {column} of the rows of {record.run_id} is {scores[column].mean():.4f}, but its record says "
                f"{reported}; rows and record are not of one run",
                self.folders[0],
            )
        return scores[column]

    def _stored(self, record: RunRecord, view: str | None) -> dict[str, NDArray[np.float64]] | None:
        wanted = (view or own_view(record)) if record.views else ""
        for folder in self.folders:
            file = folder / f"{record.run_id}.rows.npz"
            if file.is_file():
                return read_rows(file, kept_columns(record)).get(wanted)
            found = run_rows(folder / record.run_id, record, wanted)
            if found is not None:
                return found
        return None


def is_number(value: object) -> TypeGuard[float]:
    """Whether what a record says can be drawn; parts of it are free, and a record may be edited by hand."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def conditions(record: RunRecord) -> tuple[Any, ...]:
    """What must be the same for figures to be of one kind: data, filter, propensity constants, metric version."""
    data = record.dataset
    constants = json.dumps(data.get("propensity"), sort_keys=True)
    return data.get("digest"), bool(data.get("filter")), constants, record.metric_version


def machine_of(record: RunRecord) -> str:
    """What a run was measured on: seconds of two machines do not compare."""
    where = record.environment
    named = f"{where.get('cpu') or 'unknown processor'}, {where.get('cores') or '?'} cores"
    device = where.get("device") or "cpu"
    return named if device == "cpu" else f"{named}, {device}"


def own_view(record: RunRecord) -> str:
    """The view that a run reports as its own; by its metrics, as a stored record has sorted keys. Empty if none."""
    return next((view for view, scores in record.views.items() if scores == record.metrics), "")


def kept_columns(record: RunRecord) -> tuple[str, ...]:
    """Those of `ROWS` that the run has: without propensity constants there is no PSP."""
    return tuple(name for name in ROWS if name in record.per_row)


def run_rows(folder: Path, record: RunRecord, view: str) -> dict[str, NDArray[np.float64]] | None:
    """Scores of the test rows by metric, [M] each, from a run folder; None where they were not kept."""
    file = folder / per_row_file(view or None)
    if not file.is_file() and record.views.get(view, record.metrics) == record.metrics:
        file = folder / per_row_file()
    if not file.is_file():
        return None
    if (folder / MANIFEST).is_file():
        require_listed(folder, file.name)
    scores = load_array(file, 2).astype(np.float64)
    if scores.shape[1] != len(record.per_row):
        raise DataError(f"{scores.shape[1]} columns, but the record of the run names {len(record.per_row)}", file)
    return dict(zip(record.per_row, scores.T, strict=True))


def read_rows(file: Path, columns: Sequence[str] = ROWS) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Stored rows, by view (the empty name where there is one view) and metric.

    Args:
        file: As `harness.report.collecting` writes it.
        columns: What the run has of `ROWS`, see `kept_columns`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST_ROWS:
                raise ValueError("larger than any rows of a run")
        with np.load(file, allow_pickle=False) as stored:
            return {
                view: dict(zip(columns, np.asarray(stored[view], np.float64).T, strict=True)) for view in stored.files
            }
    except DAMAGED as error:
        raise DataError(f"not rows of a run ({error})", file) from error


def read_evidence(folder: Path) -> Evidence:
    """Everything in a folder of reports; what is damaged is told and left out, so that the rest can be reported.

    Measured speed is one file, and so is what was tried, so a damaged one raises: without it, all that was made from it
    would seem to be stale.
    """
    studies = read_studies(folder)
    neighbours = {one.dataset: one for one in _parsed(folder / "neighbours", Neighbours)}
    runs = folder / "runs"
    speed, trust = read_speed(folder / SPEED), read_trust(folder / TRUST)
    return Evidence(tuple(find_records([runs])), tuple(studies), neighbours, (runs,), speed, trust)


def read_studies(folder: Path) -> list[Study]:
    """The studies in a folder of reports; what is damaged is told and left out."""
    return _parsed(folder / "studies", Study)


Model = TypeVar("Model", bound=BaseModel)


def _parsed(folder: Path, model: type[Model]) -> list[Model]:
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(model.model_validate(read_json(path)))
        except (UserError, ValidationError) as error:
            reason = describe_faults(error, str(path))[0] if isinstance(error, ValidationError) else str(error)
            print(f"warning: left out a damaged file. {printable(reason.splitlines()[0])}", file=sys.stderr)  # noqa: T201
    return found
