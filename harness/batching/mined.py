"""Batches of similar queries and their hardest negative labels, refreshed as the model learns.

Every `refresh_epochs` all train queries and labels are encoded with the dual-encoder head; queries are clustered into
batches, and each query's list of hard negatives H_i becomes the `shortlist` (eta x refresh_epochs) labels it scores
highest that are neither its positives nor its filter pairs. Epochs before `random_epochs` run in random order, without
hard negatives. Clusters that are glued together may grow: `cluster_size` doubles at the epochs of `double_at` (NGAME).
"""

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching import LabelPool
from harness.batching.cluster import balanced_clusters
from harness.batching.plan import BatchPlan, clustered_plan, glued_plan, glued_steps, random_plan, warn_of_large_batch
from harness.batching.pool import LabelPicker, require_hard
from harness.index import search
from harness.machine.memory import peak_memory_gib
from harness.seeds import stream, stream_seed
from harness.settings.method import Inputs
from harness.settings.parameters import MiningSettings

Vectors = Callable[[], NDArray[np.float32]]


class MinedBatches:
    """Random batches first, then clusters with hard negatives; a `harness.train.BatchSource`."""

    def __init__(
        self,
        inputs: Inputs,
        settings: MiningSettings,
        queries: Vectors,
        labels: Vectors,
        *,
        extra: int = 0,
        mark_drawn: bool = False,
        seed: int | None = None,
    ) -> None:
        """Prepare to mine; nothing is encoded yet.

        Args:
            inputs: Train rows and labels.
            settings: Sizes of batches and pools, and how often to mine.
            queries: Function that encodes the train rows with the current model, [N, D].
            labels: Function that encodes the labels with the current model, [L, D]; the inner product is the score.
            extra: Positives per query that the classifier alone scores.
            mark_drawn: Whether the pool says which positives each query drew.
            seed: Seed of every draw; by default the run's.
        """
        self._queries, self._labels, self._settings = queries, labels, settings
        self._device, self._warn, self._seed = inputs.device, inputs.warn, inputs.seed if seed is None else seed
        self._known = pattern(inputs.train) + pattern(inputs.train_filter)
        self._picker = LabelPicker(
            inputs.train,
            inputs.train_filter,
            beta=settings.beta,
            eta=settings.eta,
            extra=extra,
            pool_size=settings.pool_size,
            replacement=settings.replacement,
            fill=settings.fill,
            soft=inputs.soft,
            mark_drawn=mark_drawn,
        )
        eta, shortlist = settings.eta, settings.shortlist
        rows, count = inputs.train.shape
        self.depth = min(eta * settings.refresh_epochs if shortlist is None else max(shortlist, eta), count)
        """Hard negatives kept per query."""
        # as many batches in every epoch, so that the learning rate follows the same steps whatever the order
        steps = None if settings.batching == "clusters" else glued_steps(rows, settings.batch_size)
        self._plan = random_plan(rows, settings.batch_size, steps=steps)
        self.steps = self._plan.steps
        warn_of_large_batch(inputs, settings.batch_size)

    def refresh(self, epoch: int) -> dict[str, float]:
        """Mine if it is due before this epoch; return seconds and figures to log, none if it is not."""
        searched_for, clustered = self.due(epoch)
        if not searched_for and not clustered:
            return {}
        started = time.perf_counter()
        queries = self._queries()
        if searched_for:
            self._picker.hard = self._hard_negatives(queries)
        searched = time.perf_counter()
        if clustered:
            self._plan = self._clustered(queries, epoch)
        done = time.perf_counter()
        return {
            "mining/seconds": done - started,
            "mining/cluster_seconds": done - searched,
            "mining/peak_memory_gib": peak_memory_gib(),
        }

    def due(self, epoch: int) -> tuple[bool, bool]:
        """Return whether hard negatives are searched, and whether queries are clustered, before this epoch."""
        since = epoch - self._settings.random_epochs
        grown = epoch > 0 and self.cluster_size(epoch) != self.cluster_size(epoch - 1)
        if since < 0 or (since % self._settings.refresh_epochs and not grown):
            return False, False
        return self._settings.eta > 0, self._settings.batching != "random" and self.cluster_size(epoch) > 1

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the rows of every batch of the epoch."""
        return self._plan.batches(self._seed, epoch)

    def pool(self, rows: NDArray[np.int64], step: int) -> LabelPool:
        """Pick the labels that rows [B] are scored against at this step."""
        return self._picker.pick(rows, stream(self._seed, "positives", step), stream(self._seed, "negatives", step))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the batch plan and of the hard negatives."""
        hard = {} if self._picker.hard is None else {"hard": self._picker.hard}
        return {**{f"plan.{name}": array for name, array in self._plan.arrays().items()}, **hard}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore what `state` returned, after a check."""
        plan = BatchPlan.from_arrays(
            {name.removeprefix("plan."): array for name, array in arrays.items() if name.startswith("plan.")},
            self._known.shape[0],
        )
        hard = arrays.get("hard")
        require_hard(hard, *self._known.shape)
        self._plan, self._picker.hard = plan, hard

    def _hard_negatives(self, queries: NDArray[np.float32]) -> NDArray[np.int32]:
        device = self._device if self._device.startswith("cuda") else "cpu"
        found = search(queries, self._labels(), self.depth, self._known, device=device, progress="mine hard negatives")
        if not (found.ids >= 0).any():
            self._warn(f"eta is {self._settings.eta}, but no label is left that is neither positive nor a filter pair")
        return found.ids

    def cluster_size(self, epoch: int) -> int:
        """Return the number of queries in a cluster in this epoch."""
        settings = self._settings
        if settings.batching != "glued":
            return settings.batch_size
        return min(settings.batch_size, settings.cluster_size << bisect_right(sorted(settings.double_at), epoch))

    def _clustered(self, queries: NDArray[np.float32], epoch: int) -> BatchPlan:
        settings = self._settings
        glued = settings.batching == "glued"
        clusters = balanced_clusters(
            queries,
            self.cluster_size(epoch),
            stream_seed(self._seed, "clusters", epoch),
            device=self._device,
            progress="cluster queries",
        )
        return glued_plan(clusters, settings.batch_size) if glued else clustered_plan(clusters)


def pattern(pairs: csr_array) -> csr_array:
    """Return `pairs` [N, L] with every stored value replaced by 1: a relevance of 0.3 is a label, too."""
    return csr_array((np.ones(pairs.nnz, np.int8), pairs.indices, pairs.indptr), shape=pairs.shape)
