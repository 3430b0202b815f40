"""The next batch is made in a thread while this one is computed.

What a batch holds is a function of its rows and its position, never of a weight, so it does not matter when and where
it is made. Only the next one is made ahead, and the iterator ends with its epoch: no pool from before mining is used
after.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.machine.threads import Threads
from harness.train import Batch, Stage
from harness.train.timing import Timer

Item = TypeVar("Item")
Made = TypeVar("Made")


def batches_ahead(stage: Stage, epoch: int, done: int, timer: Timer) -> Generator[Batch]:
    """Yield the batches of an epoch after the first `done`; the time spent waiting is charged to `pool`.

    Close the generator (`contextlib.closing`) to stop early without leaving a thread behind.
    """
    source, objective = stage.source, stage.objective

    def make(task: tuple[int, NDArray[np.int64]]) -> Batch:
        step, rows = task
        pool = source.pool(rows, step)
        return Batch(rows, pool, step, objective.texts(rows, pool))

    tasks = list(enumerate(source.batches(epoch)[done:], epoch * source.steps + done))
    with closing(made_ahead(make, tasks)) as batches:
        for _ in tasks:
            with timer.part("pool"):
                batch = next(batches)
            yield batch


def made_ahead(make: Callable[[Item], Made], items: Sequence[Item]) -> Generator[Made]:
    """Yield make(item) for every item, in order; the call for the next one runs beside the consumer's work.

    An exception of a call is raised where its result would have been yielded.
    """
    with Threads(1, "batches") as maker:
        ahead = [maker.submit(make, item) for item in items[:1]]
        for item in items[1:]:
            made = ahead.pop().result()
            ahead.append(maker.submit(make, item))
            yield made
        for last in ahead:
            yield last.result()
