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
        """Takes the labels.

        Args:
            inputs: The train side.
            batch_size: Most rows of a batch.
            beta: Positives a query draws at a step; None for all it has.
            seed: Of every draw; by default the run's.
        """
        rows = inputs.train.shape[0]
        self._picker = LabelSpacePicker(inputs.train, inputs.train_filter, beta=beta, soft=inputs.soft)
        self._plan = random_plan(rows, batch_size, steps=glued_steps(rows, batch_size))
        self._seed = inputs.seed if seed is None else seed
        self.steps = self._plan.steps
        warn_of_large_batch(inputs, batch_size)

    def refresh(self, epoch: int) -> dict[str, float]:
        """Mine nothing."""
        return {}

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Rows of every batch of the epoch."""
        return self._plan.batches(self._seed, epoch)

    def pool(self, rows: NDArray[np.int64], step: int) -> LabelSpace:
        """All labels for rows [B], with the positives they draw at this step."""
        return self._picker.pick(rows, stream(self._seed, "positives", step))

    def state(self) -> dict[str, NDArray[Any]]:
        """Empty: everything follows from the arguments."""
        return {}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Takes `state` back."""


class LabelSpacePicker:
    """Knows the pairs of all train rows; a pick costs what the batch holds."""

    def __init__(
        self, train: csr_array, filter_pairs: csr_array, *, beta: int | None = None, soft: bool = False
    ) -> None:
        """Takes the labels.

        Args:
            train: Positives [N, L]; every stored entry is one.
            filter_pairs: Pairs [N, L] that are neither positive nor negative.
            beta: Positives a query draws; None for all it has.
            soft: Stored values are targets in (0, 1], and draws are in proportion to them; otherwise every stored entry
                is a whole positive.
        """
        self._labels, self._soft = train.shape[1], soft
        self._train, self._filter, self._beta = rows_of(train, values=soft), rows_of(filter_pairs), beta

    def pick(self, rows: NDArray[np.int64], positives: np.random.Generator) -> LabelSpace:
        """All labels for the train rows [B]; `positives` draws."""
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
