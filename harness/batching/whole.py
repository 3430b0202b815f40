"""Random batches with the whole label space as their pool: for one-vs-all training and for the full softmax.

Nothing is mined: batches are a function of (rows, batch size, seed, epoch), and drawn positives of (seed, step).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching import LabelSpace
from harness.batching.pairs import draw, pairs_of, rows_of
from harness.batching.plan import glued_steps, random_plan, warn_of_large_batch
from harness.seeds import stream
from harness.settings.method import Inputs


class WholeSpaceBatches:
    """Nearly equal batches of random rows, ceil(N / batch size) an epoch; a `harness.train.BatchSource`."""

    def __init__(self, inputs: Inputs, batch_size: int, *, beta: int | None = None, seed: int | None = None) -> None:
        """Prepare the batch plan and the positives.

        Args:
            inputs: Train rows and labels.
            batch_size: Most rows of a batch.
            beta: Positives drawn per query at a step; None for all it has.
            seed: Seed of every draw; by default the run's.
        """
        rows = inputs.train.shape[0]
        self._picker = LabelSpacePicker(inputs.train, inputs.train_filter, beta=beta, soft=inputs.soft)
        self._plan = random_plan(rows, batch_size, steps=glued_steps(rows, batch_size))
        self._seed = inputs.seed if seed is None else seed
        self.steps = self._plan.steps
        warn_of_large_batch(inputs, batch_size)

    def refresh(self, epoch: int) -> dict[str, float]:
        """Do nothing: nothing is mined."""
        return {}

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the rows of every batch of the epoch."""
        return self._plan.batches(self._seed, epoch)

    def pool(self, rows: NDArray[np.int64], step: int) -> LabelSpace:
        """Return all labels, with the known pairs of rows [B] and the positives that they draw at this step."""
        return self._picker.pick(rows, stream(self._seed, "positives", step))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return an empty dict: everything follows from the arguments."""
        return {}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Do nothing: there is no state."""


class LabelSpacePicker:
    """Picks all labels as the pool, with the known pairs of the batch; the cost of a pick does not depend on N or L."""

    def __init__(
        self, train: csr_array, filter_pairs: csr_array, *, beta: int | None = None, soft: bool = False
    ) -> None:
        """Store the pairs of all train rows.

        Args:
            train: Positives [N, L]; every stored entry is one.
            filter_pairs: Pairs [N, L] that are neither positive nor negative.
            beta: Positives drawn per query; None for all it has.
            soft: Whether stored values are targets in (0, 1], to which draws are proportional; otherwise every stored
                entry has the target 1.
        """
        self._labels, self._soft = train.shape[1], soft
        self._train, self._filter, self._beta = rows_of(train, values=soft), rows_of(filter_pairs), beta

    def pick(self, rows: NDArray[np.int64], positives: np.random.Generator) -> LabelSpace:
        """Return all labels with the known pairs of the train rows [B]; `positives` gives the random numbers."""
        known, masked = pairs_of(self._train, rows), pairs_of(self._filter, rows)
        drawn, target = np.ones(len(known.label), np.bool_), known.target
        if self._beta is not None:
            target = np.ones_like(target)  # drawn in proportion to it, so counted in full
            drawn[:] = False
            drawn[draw(known.query, self._beta, positives, weight=known.target if self._soft else None)] = True
        order = np.argsort(known.label, kind="stable")
        outside = ~np.isin(masked.keys(self._labels), known.keys(self._labels), assume_unique=True)
        masked_order = np.flatnonzero(outside)[np.argsort(masked.label[outside], kind="stable")]
        return LabelSpace(
            len(rows),
            self._labels,
            known.query[order],
            known.label[order],
            target[order],
            drawn[order],
            masked.query[masked_order],
            masked.label[masked_order],
        )
