"""Steps of the row-sparse optimiser: whether their time depends on the size of the table, and what a dense step takes.

Only `step` is timed. Before each one, rows are drawn and gathered and their gradients made, as in training. Moments are
filled beforehand, so that no step pays for memory written for the first time. One thread: a step is a dozen short
loops, and two threads that share their cores with others mostly wait for each other.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from harness.model.rows import RowTable
from harness.perf import Row, Sample, compare
from harness.train.optim import Group, Optimiser, Schedule

LABELS, FEWER_LABELS, FEW_LABELS, DIMENSION, TOUCHED = 1_300_000, 131_073, 13_000, 256, 10_000
AT_MOST, AT_LEAST = 1.2, 1.0
_TURNS = 15


def rows() -> Iterator[Row]:
    """A large table against two smaller ones, then against dense AdamW."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours, fewer, few, dense = timed_steps(
            RowSteps(LABELS), RowSteps(FEWER_LABELS), RowSteps(FEW_LABELS), DenseSteps(FEWER_LABELS)
        )
    finally:
        torch.set_num_threads(threads)
    size = f"{TOUCHED:,} touched rows of {LABELS:,} x {DIMENSION}"
    cached = f", which with its moments is {3 * FEW_LABELS * DIMENSION * 4 / 2**20:.0f} MiB and may stay in the cache"
    for labels, seconds, remark in ((FEWER_LABELS, fewer, ""), (FEW_LABELS, few, cached)):
        yield compare(
            "row-sparse AdamW step, large table against small",
            size,
            f"as many touched rows in a table of {labels:,}{remark}",
            ours,
            seconds,
            at_most=AT_MOST,
        )
    yield compare(
        "row-sparse AdamW step against a dense one",
        size,
        f"torch {torch.__version__} fused AdamW over all of {FEWER_LABELS:,} x {DIMENSION}, a tenth of ours",
        ours,
        dense,
        at_least=AT_LEAST,
    )


class RowSteps:
    """Training of a table [labels, DIMENSION] of which every step touches `TOUCHED` random rows."""

    def __init__(self, labels: int) -> None:
        self._generator = np.random.default_rng(0)
        self._table = RowTable(torch.from_numpy(_noise(self._generator, labels)))
        self._optimiser = Optimiser([Group("rows", 1e-3, 0.05, [], [self._table])], Schedule("constant"), 1000)
        for tensor in self._optimiser.state().values():
            tensor.fill_(1)

    def prepare(self) -> None:
        """Leaves gradients in the rows of the next step."""
        chosen = np.sort(self._generator.choice(len(self._table.weight), TOUCHED, replace=False))
        gathered = self._table.gather(torch.from_numpy(chosen))
        torch.autograd.backward(gathered, torch.from_numpy(_noise(self._generator, TOUCHED)))

    def step(self) -> None:
        """What is timed."""
        self._optimiser.step(0)


class DenseSteps:
    """Training of the same kind of table by torch's AdamW, which moves all of its rows."""

    def __init__(self, labels: int) -> None:
        generator = np.random.default_rng(0)
        self._weight = nn.Parameter(torch.from_numpy(_noise(generator, labels)))
        self._weight.grad = torch.from_numpy(_noise(generator, labels))
        self._optimiser = torch.optim.AdamW([self._weight], lr=1e-3, weight_decay=0.05, fused=True)
        self.step()

    def prepare(self) -> None:
        """Nothing: the gradient stays."""

    def step(self) -> None:
        """What is timed."""
        self._optimiser.step()


def timed_steps(*trainings: RowSteps | DenseSteps) -> list[Sample]:
    """Seconds of the steps of each, the trainings taking turns; what prepares a step is not timed."""
    times: list[list[float]] = [[] for _ in trainings]
    for _ in range(_TURNS):
        for training, record in zip(trainings, times, strict=True):
            training.prepare()
            started = time.perf_counter()
            training.step()
            record.append(time.perf_counter() - started)
    return [Sample(tuple(record), "s") for record in times]


def _noise(generator: np.random.Generator, rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Normal random numbers, [rows, DIMENSION]."""
    return generator.standard_normal((rows, DIMENSION), dtype=np.float32)
