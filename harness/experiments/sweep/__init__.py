"""A search for good settings: trials on validation rows, spread over processes and machines through one database.

    Request -> make_plan (every fault first) -> Plan -> slots in the database -> workers -> trials -> best.yaml, plots

    <study>/study.db      the study, for Optuna and its dashboard; elsewhere with --storage
            study.json    what is searched, and every trial, for people and for `--recover`
            runs/         one run folder per trial
            best.yaml     the best settings, for `harness run --config`; pareto-<n>.yaml with two objectives
            plots/        images
            trials.csv    one line per trial
            events.jsonl  the log that a tracker follows
            logs/         what the workers wrote

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
"""Held by the sweep that writes the folder of a study, as long as it runs."""


@dataclass(frozen=True)
class Timing:
    """How a dead worker is told from a slow one, in seconds."""

    heartbeat: int = 60
    """Between two signs of life."""
    grace: int = 180
    """Silence after which a trial is given to another worker."""


@dataclass(frozen=True)
class Request:
    """What the user asked for, as typed."""

    method: str
    dataset: str
    """A name or a folder on this machine."""
    trials: int
    encoder: str | None = None
    over: str | None = None
    """Names of ranges with commas between, `parameter=low:high`; None for what the method's papers sweep."""
    objective: str = "P@1"
    settings: tuple[str, ...] = ()
    """`key=value`."""
    seed: int = 0
    study: str | None = None
    storage: str | None = None
    sampler: str = "tpe"
    pruner: str = "median"
    max_retry: int = 2
    track: str = "mlflow"
    out: Path | None = None
    points: tuple[Mapping[str, Any], ...] = ()
    """Tried after the settings as they stand: values by range, such as what another search found."""


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """A request that was checked, with everything that a worker has to know."""

    study: str
    storage: str
    """Address of the database; may hold a password, so it is neither shown nor written down."""
    folder: Path
    layers: tuple[Layer, ...]
    """Settings that all trials share."""
    space: dict[str, SearchRange]
    starts: tuple[Mapping[str, Any], ...]
    """Points of the first trials: the settings as they stand, then those that were asked for, where in the ranges."""
    objectives: tuple[str, ...]
    identity: dict[str, Any]
    """What makes it this study and no other; two studies with one identity can be worked on together."""
    epochs: int | None
    """Of a trial, where the method counts them; what a pruner halves."""
    timing: Timing

    @property
    def runs(self) -> Path:
        """Where the run folders of trials are."""
        return self.folder / "runs"

    @property
    def pruning(self) -> bool:
        """Whether trials may be ended early; with two objectives there is no order to judge them by."""
        return self.pruner != "none" and len(self.objectives) == 1

    def as_dict(self) -> dict[str, Any]:
        """For a worker."""
        values: dict[str, Any] = TypeAdapter(Plan).dump_python(self, mode="json")
        return values


def plan_from(values: dict[str, Any]) -> Plan:
    """The reverse of `Plan.as_dict`."""
    return TypeAdapter(Plan).validate_python(values)


def study_folder(name: str, out: Path | None = None) -> Path:
    """Where a study is kept."""
    return (out.absolute() if out else home() / "studies") / name
