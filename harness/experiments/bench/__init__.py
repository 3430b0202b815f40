"""The matrix methods x datasets x seeds, or the rows of published tables, of which only what is missing is run.

    Request -> plan (every fault at once) -> cells -> run store (done, resumable, missing) -> a job per cell -> records

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
"""`resumed` is running too, from where an earlier process stopped; `stopped` ended because the bench did."""
METRICS = ("P@1", "P@5", "PSP@5")
"""Shown while a bench runs."""


@dataclass(frozen=True)
class Request:
    """What the user asked for, as typed."""

    methods: str
    """Names with commas between; `all` for every one, a leading minus leaves one out."""
    datasets: str | None
    """None for those of the tables."""
    seeds: str | None
    """None for those of the tables, and 0 where they name none."""
    encoder: str | None = None
    settings: tuple[str, ...] = ()
    """`key=value` for all methods, `method:key=value` for one."""
    tables: str | None = None
    """Published tables, whose rows take the place of the methods."""
    rows: str | None = None
    """Of these tables; None for all."""


@dataclass(frozen=True)
class Cell:
    """One run of the matrix, resolved."""

    config: RunConfig
    given: dict[str, Any]
    """The settings the user gave, nested as in `RunConfig`; the process resolves them to `config` again."""
    key: str
    """What decides its numbers."""
    name: str
    """Unique, and safe as a file name."""
    data_name: str
    """The dataset as records call it."""
    variant: str = ""
    """The settings that tell it from others of its method, where a bench has several."""

    @property
    def title(self) -> str:
        """The method, with what is special about it."""
        return f"{self.config.method} {self.variant}".rstrip()

    def __str__(self) -> str:
        return f"{self.title} on {self.config.dataset}, seed {self.config.seed}"


@dataclass
class State:
    """Where a cell stands."""

    cell: Cell
    status: Status = "waiting"
    attempt: Literal["new", "resumed"] | None = None
    """How this bench ran it; None if it did not."""
    run_id: str | None = None
    record: RunRecord | None = None
    seconds: float | None = None
    """Of the run, as its record has it; of the attempt if it failed."""
    reason: str = ""
    """Why it failed or was left alone, in one line."""
    began: float = 0.0
    """When the attempt began, on the monotonic clock."""
    took: float | None = None
    """Seconds of the attempt, with the start of its process."""
    refused: bool = field(default=False, repr=False)
    """The interrupted run could not be resumed, so the next attempt begins anew."""

    def finish(self, record: RunRecord) -> None:
        """Marks it done."""
        self.status, self.reason = "done", ""
        self.record, self.run_id, self.seconds = record, record.run_id, record.seconds

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
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
    """What the process of a cell writes to standard error, beside the run folders."""
    return runs / "bench-logs" / f"{cell.name}.log"


def summary(states: list[State], seconds: float) -> str:
    """How the bench ended, in one line."""
    counts = Counter(state.status for state in states)
    earlier = sum(state.status == "done" and state.attempt is None for state in states)
    parts = [f"{counts['done']} of {len(states)} cells done"]
    parts += [f"{earlier} of them before"] if earlier else []
    others: tuple[Status, ...] = ("failed", "stopped", "running elsewhere", "waiting")
    parts += [f"{counts[status]} {status.replace('waiting', 'not begun')}" for status in others if counts[status]]
    return f"{', '.join(parts)}; {clock(seconds)}"
