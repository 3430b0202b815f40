"""The matrix methods x datasets x seeds, or the rows of published tables, of which only what is missing is run.

    Request -> plan (all faults at once) -> cells -> run store (done, resumable, missing) -> a job per cell -> records

A cell is done when the folder of runs holds a finished record with the cell's key: the same settings, the same data,
the same encoder weights, the same metric version. A run of that key which was interrupted is resumed where it stopped.
Every cell is a process of its own (`python -m harness run`), so that one that crashes takes nothing else down.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.io.progress import clock
from harness.runs.record import RunRecord
from harness.settings.schema import RunConfig

Status = Literal["waiting", "running", "resumed", "done", "failed", "stopped", "running elsewhere"]
"""`resumed`: running, from where an earlier process stopped. `stopped`: ended because the bench was stopped."""
METRICS = ("P@1", "P@5", "PSP@5")
"""Metrics shown while a bench runs."""


@dataclass(frozen=True)
class Request:
    """Arguments of a bench, as typed."""

    methods: str
    """Names of methods with commas between; `all` for every method, a leading minus leaves one out."""
    datasets: str | None
    """Names of datasets with commas between; None for those of the tables."""
    seeds: str | None
    """Seeds with commas between; None for those of the tables, or 0 if these name none."""
    encoder: str | None = None
    settings: tuple[str, ...] = ()
    """`key=value` for all methods, `method:key=value` for one."""
    tables: str | None = None
    """Published tables, whose rows take the place of the methods."""
    rows: str | None = None
    """Names of rows of these tables; None for all."""


@dataclass(frozen=True)
class Cell:
    """One run of the matrix, with its settings resolved."""

    config: RunConfig
    given: dict[str, Any]
    """The settings the user gave, nested as in `RunConfig`; the process resolves them to `config` again."""
    key: str
    """Hash of all that decides the result; equal keys are the same run."""
    name: str
    """Unique, and safe as a file name."""
    data_name: str
    """Name of the dataset in records."""
    variant: str = ""
    """Settings that differ between cells of the same method, as text; empty if there is one such cell."""

    @property
    def title(self) -> str:
        """Name of the method, with `variant` if there is one."""
        return f"{self.config.method} {self.variant}".rstrip()

    def __str__(self) -> str:
        return f"{self.title} on {self.config.dataset}, seed {self.config.seed}"


@dataclass
class State:
    """Status of a cell."""

    cell: Cell
    status: Status = "waiting"
    attempt: Literal["new", "resumed"] | None = None
    """How this bench ran the cell; None if it did not."""
    run_id: str | None = None
    record: RunRecord | None = None
    seconds: float | None = None
    """Seconds of the run by its record; of the attempt if it failed."""
    reason: str = ""
    """Why it failed or was not run, in one line."""
    began: float = 0.0
    """Start of the attempt, seconds on the monotonic clock."""
    took: float | None = None
    """Seconds of the attempt, including the start of its process."""
    refused: bool = field(default=False, repr=False)
    """Whether an interrupted run could not be resumed, so that the next attempt begins anew."""

    def finish(self, record: RunRecord) -> None:
        """Mark the cell as done by the run of `record`."""
        self.status, self.reason = "done", ""
        self.record, self.run_id, self.seconds = record, record.run_id, record.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain values for `--json`."""
        config = self.cell.config
        return {
            "cell": self.cell.name,
            "method": config.method,
            "variant": self.cell.variant,
            "dataset": config.dataset,
            "encoder": config.encoder,
            "seed": config.seed,
            "status": self.status,
            "attempt": self.attempt,
            "run_id": self.run_id,
            "metrics": self.record.metrics if self.record else {},
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "reason": self.reason or None,
        }


def log_path(runs: Path, cell: Cell) -> Path:
    """Return the file that takes standard error of a cell's process, beside the run folders."""
    return runs / "bench-logs" / f"{cell.name}.log"


def summary(states: list[State], seconds: float) -> str:
    """Return how the bench ended, in one line."""
    counts = Counter(state.status for state in states)
    earlier = sum(state.status == "done" and state.attempt is None for state in states)
    parts = [f"{counts['done']} of {len(states)} cells done"]
    parts += [f"{earlier} of them before"] if earlier else []
    others: tuple[Status, ...] = ("failed", "stopped", "running elsewhere", "waiting")
    parts += [f"{counts[status]} {status.replace('waiting', 'not begun')}" for status in others if counts[status]]
    return f"{', '.join(parts)}; {clock(seconds)}"
