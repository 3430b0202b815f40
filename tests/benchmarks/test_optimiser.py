"""Steps of the optimisers of tables: whether their time depends on the size of the table, and what others take.

Only `step` is timed, and `gather` with it where rows are caught up there. Before each one, rows are drawn (and
gathered) and their gradients made, as in training. Moments are filled beforehand, so that no step pays for memory
written for the first time. One thread: a step is a dozen short loops, and two threads that share their cores with
others mostly wait for each other.
"""

import numpy as np
import pytest
import torch
from torch import nn

from harness.model.tables import RowTable
from harness.train.optim import Group, Optimiser, Schedule
from tests.benchmarks.race import Race, size

LABELS, FEWER, DIMENSION, TOUCHED = size(1_300_000, 4_000), size(131_073, 2_000), 256, size(10_000, 500)
POOL = size(3_000, 300)
"""Labels of a pool, in the papers' settings of LF-AmazonTitles-1.3M."""
STEPS, DONE = 200_000, 100_000
CORES = torch.get_num_threads()
_INPUTS = f"{TOUCHED:,} touched rows of {LABELS:,} x {DIMENSION}"

pytestmark = pytest.mark.usefixtures("one_thread")


class RowSteps:
    """Training of a table [labels, DIMENSION] of which every step touches `TOUCHED` random rows."""

    def __init__(self, labels: int) -> None:
        self._generator = np.random.default_rng(0)
        self._table = RowTable(torch.from_numpy(_noise(self._generator, labels)))
        self._optimiser = Optimiser([Group("rows", 1e-3, 0.05, [], [self._table])], Schedule("constant"), 1000)
        for tensor in self._optimiser.state().values():
            tensor.fill_(1)

    def prepare(self) -> None:
        """Leave gradients in the rows of the next step."""
        chosen = np.sort(self._generator.choice(len(self._table.weight), TOUCHED, replace=False))
        gathered = self._table.gather(torch.from_numpy(chosen))
        torch.autograd.backward(gathered, torch.from_numpy(_noise(self._generator, TOUCHED)))

    def step(self) -> None:
        """What is timed."""
        self._optimiser.step(0)


def test_step_does_not_grow_with_the_table(race: Race) -> None:
    many, few = RowSteps(LABELS), RowSteps(FEWER)

    def prepare() -> None:
        many.prepare()
        few.prepare()

    prepare()
    reference = f"as many touched rows of {FEWER:,}"
    race("row-sparse AdamW step", _INPUTS, reference, many.step, few.step, prepare=prepare, at_most=1.2, rounds=15)


def test_against_a_dense_step(race: Race) -> None:
    ours, generator = RowSteps(LABELS), np.random.default_rng(0)
    weight = nn.Parameter(torch.from_numpy(_noise(generator, FEWER)))
    weight.grad = torch.from_numpy(_noise(generator, FEWER))
    dense = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.05, fused=True)
    reference = f"torch's fused AdamW over all of {FEWER:,} x {DIMENSION}, a tenth of ours"
    race(
        *("row-sparse AdamW step", _INPUTS, reference, ours.step, dense.step),
        prepare=ours.prepare,
        at_least=1.0,
        rounds=15,
    )


class PoolSteps:
    """Training in its middle: a table [labels, DIMENSION] of which a step gathers and moves a pool of random rows."""

    def __init__(self, labels: int, *, exact: bool) -> None:
        self._generator = np.random.default_rng(0)
        self.table = RowTable(torch.from_numpy(_noise(self._generator, labels)))
        group = Group("rows", 1e-3, 0.05, [], [self.table], exact)
        self.optimiser = Optimiser([group], Schedule("cosine", 1000), STEPS)
        self._gradient = torch.from_numpy(1e-3 * _noise(self._generator, POOL))
        self._next = DONE
        for name, tensor in self.optimiser.state().items():
            if name.endswith("done"):
                tensor.fill_(DONE)
            elif name.endswith("at_step"):
                seldom = DONE - np.minimum(self._generator.geometric(POOL / labels, labels) - 1, DONE)
                tensor.copy_(torch.from_numpy(seldom))
            else:
                tensor.fill_(1 if name.endswith("steps") else 1e-6)

    def prepare(self) -> None:
        """Draw the pool of the next step."""
        chosen = np.sort(self._generator.choice(len(self.table.weight), POOL, replace=False))
        self._rows = torch.from_numpy(chosen)

    def step(self) -> None:
        """What is timed."""
        self.table.gather(self._rows).grad = self._gradient
        self.optimiser.step(self._next)
        self._next += 1


def test_exact_steps_against_those_of_touched_rows(race: Race) -> None:
    exact, touched = PoolSteps(LABELS, exact=True), PoolSteps(LABELS, exact=False)

    def prepare() -> None:
        exact.prepare()
        touched.prepare()

    prepare()
    race(
        *("gather and step, exact AdamW", f"pool of {POOL:,} rows of {LABELS:,} x {DIMENSION}"),
        *("the same, rows of the pool alone move", exact.step, touched.step),
        prepare=prepare,
        at_most=1.1,
        rounds=60,
        warmup=5,
    )


def test_a_whole_table_is_caught_up_like_a_copy(race: Race) -> None:
    exact = PoolSteps(LABELS, exact=True)
    stored = [tensor for name, tensor in exact.optimiser.state().items() if "exp_avg" in name]
    stored.append(exact.table.whole().clone())
    copies = [torch.empty_like(tensor) for tensor in stored]

    def twice() -> None:
        for _ in range(2):
            for tensor, copy in zip(stored, copies, strict=True):
                copy.copy_(tensor)

    def prepare() -> None:
        exact.prepare()
        exact.step()

    prepare()
    torch.set_num_threads(CORES)  # as in a run
    race(
        *("all rows caught up, exact AdamW", f"{LABELS:,} x {DIMENSION}, with moments"),
        *("reading and writing them twice", exact.optimiser.settle, twice),
        prepare=prepare,
        at_most=1.0,
        rounds=15,
    )


def _noise(generator: np.random.Generator, rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Normal random numbers, [rows, DIMENSION]."""
    return generator.standard_normal((rows, DIMENSION), dtype=np.float32)
