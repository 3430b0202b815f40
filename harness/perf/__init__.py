"""Speed, measured as ratios in one process: `make bench` or `python -m harness perf`.

Each suite is a module with a function `rows() -> Iterator[Row]`. A row times our code against a named reference on the
same input in the same run, the two taking turns, because machines are shared and seconds drift.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from harness.report import Cell, Table
from harness.repro import environment

SUITES = (
    *("metrics", "parsing", "tokenising", "searching", "building", "starting", "reporting"),
    *("batching", "pooling", "losses", "optimising", "training", "onevsall", "fullspace", "memory"),
)


@dataclass(frozen=True)
class Row:
    """One measured comparison."""

    what: str
    size: str
    reference: str
    ours: str
    """Our figure, with its unit."""
    theirs: str
    """The reference's figure; the target itself where the reference is a fixed bound."""
    ratio: float
    """Larger is better for `at least`, smaller for `at most`."""
    target: str
    met: bool


@contextmanager
def fresh_workspace() -> Iterator[Path]:
    """An empty `HARNESS_HOME` for the block, removed behind it."""
    before = os.environ.get("HARNESS_HOME")
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as folder:
        os.environ["HARNESS_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["HARNESS_HOME"]
            else:
                os.environ["HARNESS_HOME"] = before


def median_seconds(*calls: Callable[[], object], repeats: int = 3) -> list[float]:
    """Median wall time of each call, the calls taking turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, record in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            record.append(time.perf_counter() - started)
    return [statistics.median(record) for record in times]


def as_table(rows: list[Row]) -> Table:
    """The rows as a table, with the machine they were measured on."""
    machine = environment("cpu")
    packages = ", ".join(
        f"{name} {machine['packages'][name]}" for name in ("torch", "numpy") if name in machine["packages"]
    )
    return Table(
        title="Speed against references",
        columns=("what", "size", "reference is", "ours", "reference", "ratio", "target", "met"),
        rows=tuple(
            tuple(
                Cell(text)
                for text in (
                    *(row.what, row.size, row.reference, row.ours, row.theirs),
                    *(f"{row.ratio:.2f}", row.target, "yes" if row.met else "NO"),
                )
            )
            for row in rows
        ),
        caption=f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {packages}.",
    )


def measure(suites: tuple[str, ...] = SUITES) -> Iterator[Row]:
    """Runs the named suites one after the other."""
    for suite in suites:
        yield from import_module(f"harness.perf.{suite}").rows()
