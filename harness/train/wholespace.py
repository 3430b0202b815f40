"""Random batches that are scored against every label: for one-vs-all training and for the full softmax.

Nothing is mined, so batches are a function of (rows, batch size, seed, epoch) alone, and drawn positives of
(seed, step).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching import LabelSpace
from harness.batching.plan import glued_steps, random_plan
from harness.batching.space import LabelSpacePicker
from harness.repro import stream


class WholeSpaceBatches:
    """Nearly equal batches of random rows, ceil(N / batch size) an epoch; a `harness.train.BatchSource`."""

    def __init__(
        self,
        train: csr_array,
        filter_pairs: csr_array,
        batch_size: int,
        *,
        beta: int | None,
        soft: bool,
        seed: int,
        warn: Callable[[str], None],
    ) -> None:
        """Takes the labels.

        Args:
            train: Train labels, [N, L].
            filter_pairs: Pairs that are neither positive nor negative, [N, L].
            batch_size: Most rows of a batch.
            beta: Positives a query draws at a step; None for all it has.
            soft: Stored values of `train` are targets in (0, 1].
            seed: Of every draw.
            warn: Gets one line for a setting that has no effect.
        """
        rows = train.shape[0]
        self._picker = LabelSpacePicker(train, filter_pairs, beta=beta, soft=soft)
        self._plan = random_plan(rows, batch_size, steps=glued_steps(rows, batch_size))
        self._seed = seed
        self.steps = self._plan.steps
        if batch_size > rows:
            warn(f"a batch of {batch_size:,} is more than the {rows:,} train rows: one batch of all")

    def refresh(self, epoch: int) -> dict[str, float]:
        """Nothing is ever due."""
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
