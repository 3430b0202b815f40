"""A search for good settings: trials on validation rows, spread over processes and machines through one database.

    Request -> make_plan (all faults at once) -> Plan -> slots in the database -> workers -> trials -> best.yaml, plots

    <study>/study.db      the study, for Optuna and its dashboard; elsewhere with --storage
            study.json    what is searched, and every trial, to read and for `--recover`
            runs/         one run folder per trial
            best.yaml     the best settings, for `harness run --config`; pareto-<n>.yaml with two objectives
            plots/        images
            trials.csv    one line per trial
            events.jsonl  the log that is uploaded to MLflow
            logs/         output of the workers

The budget is a queue: slot 0 to N-1, each waiting in the database until a worker claims it. So any number of workers on
any number of machines do N trials, not one more, and what a dead worker held is put back and done by another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.io.files import home
from harness.settings.layers import Layer
from harness.settings.method import SearchRange

SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "hyperband", "none")
DATABASE = "study.db"
STUDY_FILE = "study.json"
WRITER_LOCK = ".keeper.lock"
"""Name of the lock file held by the one sweep that writes the folder of a study."""


@dataclass(frozen=True)
class Timing:
    """When a worker counts as dead, in seconds."""

    heartbeat: int = 60
    """Seconds between two heartbeats of a worker."""
    grace: int = 180
    """Seconds without a heartbeat after which a trial is given to another worker."""


@dataclass(frozen=True)
class Request:
    """Arguments of a sweep, as typed."""

    method: str
    dataset: str
    """Name of a dataset, or a folder on this machine."""
    trials: int
    encoder: str | None = None
    over: str | None = None
    """Ranges with commas between: names, or `parameter=low:high`; None for the parameters of the papers."""
    objective: str = "P@1"
    settings: tuple[str, ...] = ()
    """Settings of all trials, each `key=value`."""
    seed: int = 0
    study: str | None = None
    storage: str | None = None
    sampler: str = "tpe"
    pruner: str = "median"
    max_retry: int = 2
    track: str = "mlflow"
    out: Path | None = None
    points: tuple[Mapping[str, Any], ...] = ()
    """Points to try after the settings as given: values by name of a range, such as the best of another search."""


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """A checked request, with everything that a worker needs."""

    study: str
    storage: str
    """Address of the database; may hold a password, so it is neither shown nor written down."""
    folder: Path
    layers: tuple[Layer, ...]
    """Settings that all trials share."""
    space: dict[str, SearchRange]
    starts: tuple[Mapping[str, Any], ...]
    """Points of the first trials: the settings as given, then `points`; only values inside the ranges."""
    objectives: tuple[str, ...]
    identity: dict[str, Any]
    """What two sweeps must have in common to work on the same study."""
    epochs: int | None
    """Epochs of a trial, the largest resource of the pruner hyperband; None if the method has no fixed number."""
    timing: Timing

    @property
    def runs(self) -> Path:
        """Folder of the trials' run folders."""
        return self.folder / "runs"

    @property
    def pruning(self) -> bool:
        """Whether trials may be ended early; never with two objectives, as these give no single order."""
        return self.pruner != "none" and len(self.objectives) == 1

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, to send to a worker."""
        values: dict[str, Any] = TypeAdapter(Plan).dump_python(self, mode="json")
        return values


def plan_from(values: dict[str, Any]) -> Plan:
    """Return the plan that `Plan.as_dict` made plain values of."""
    return TypeAdapter(Plan).validate_python(values)


def study_folder(name: str, out: Path | None = None) -> Path:
    """Return the folder of a study."""
    return (out.absolute() if out else home() / "studies") / name
