"""Batches of similar queries and their hardest wrong labels, refreshed as the model learns.

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
from harness.batching.plan import BatchPlan, clustered_plan, glued_plan, glued_steps, random_plan
from harness.batching.pool import LabelPicker
from harness.errors import UserError
from harness.index import search
from harness.repro import peak_memory_gib, stream, stream_seed
from harness.train.settings import BatchSettings

Vectors = Callable[[], NDArray[np.float32]]


class MinedBatches:
    """Random batches first, then clusters with hard negatives; a `harness.train.BatchSource`."""

    def __init__(
        self,
        train: csr_array,
        filter_pairs: csr_array,
        picker: LabelPicker,
        queries: Vectors,
        labels: Vectors,
        settings: BatchSettings,
        *,
        eta: int,
        shortlist: int | None = None,
        seed: int,
        device: str,
        warn: Callable[[str], None],
    ) -> None:
        """Prepares to mine.

        Args:
            train: Train labels, [N, L].
            filter_pairs: Pairs that are neither positive nor negative, [N, L].
            picker: Picks the labels of a batch; its hard negatives are replaced at every refresh.
            queries: Vectors of the train rows as the model sees them now, [N, D].
            labels: Likewise of the labels, [L, D]; the inner product is the score.
            settings: Sizes and periods.
            eta: Hard negatives a query per step.
            shortlist: How many a query draws them from; None for eta x refresh_epochs, as if each were drawn once.
            seed: Of every draw.
            device: Where to search and cluster.
            warn: Gets one line for a setting that has no effect.
        """
        self._known = pattern(train) + pattern(filter_pairs)
        self._picker, self._queries, self._labels, self._settings = picker, queries, labels, settings
        self._eta, self._seed, self._device, self._warn = eta, seed, device, warn
        self._depth = eta * settings.refresh_epochs if shortlist is None else max(shortlist, eta)
        rows, size = train.shape[0], settings.batch_size
        # as many batches in every epoch, so that the learning rate follows the same steps whatever the order
        self._plan = random_plan(rows, size, steps=None if settings.batching == "clusters" else glued_steps(rows, size))
        self.steps = self._plan.steps
        if size > rows:
            warn(f"a batch of {size:,} is more than the {rows:,} train rows: one batch of all")

    def refresh(self, epoch: int) -> dict[str, float]:
        """Mines if it is due before this epoch."""
        since = epoch - self._settings.random_epochs
        grown = epoch > 0 and self._cluster_size(epoch) != self._cluster_size(epoch - 1)
        if since < 0 or (since % self._settings.refresh_epochs and not grown):
            return {}
        clustered = self._settings.batching != "random" and self._cluster_size(epoch) > 1
        if not clustered and not self._eta:
            return {}
        started = time.perf_counter()
        queries = self._queries()
        if self._eta:
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

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Rows of every batch of the epoch."""
        return self._plan.batches(self._seed, epoch)

    def pool(self, rows: NDArray[np.int64], step: int) -> LabelPool:
        """Picks labels for rows [B]."""
        return self._picker.pick(rows, stream(self._seed, "positives", step), stream(self._seed, "negatives", step))

    def state(self) -> dict[str, NDArray[Any]]:
        """Plan and hard negatives."""
        hard = {} if self._picker.hard is None else {"hard": self._picker.hard}
        return {**{f"plan.{name}": array for name, array in self._plan.arrays().items()}, **hard}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Takes `state` back."""
        plan = BatchPlan.from_arrays(
            {name.removeprefix("plan."): array for name, array in arrays.items() if name.startswith("plan.")}
        )
        if len(plan.rows) != self._known.shape[0]:
            raise UserError(f"the stored batch plan is one of {len(plan.rows):,} rows; start from another checkpoint")
        self._plan = plan
        self._picker.hard = arrays.get("hard")

    def _hard_negatives(self, queries: NDArray[np.float32]) -> NDArray[np.int32]:
        depth = min(self._depth, self._known.shape[1])
        device = self._device if self._device.startswith("cuda") else "cpu"
        found = search(queries, self._labels(), depth, self._known, device=device, progress="mine hard negatives")
        if not (found.ids >= 0).any():
            self._warn(f"eta is {self._eta}, but no label is left that is neither positive nor a filter pair")
        return found.ids

    def _cluster_size(self, epoch: int) -> int:
        settings = self._settings
        if settings.batching != "glued":
            return settings.batch_size
        return min(settings.batch_size, settings.cluster_size << bisect_right(sorted(settings.double_at), epoch))

    def _clustered(self, queries: NDArray[np.float32], epoch: int) -> BatchPlan:
        settings = self._settings
        glued = settings.batching == "glued"
        clusters = balanced_clusters(
            queries,
            self._cluster_size(epoch),
            stream_seed(self._seed, "clusters", epoch),
            device=self._device,
            progress="cluster queries",
        )
        return glued_plan(clusters, settings.batch_size) if glued else clustered_plan(clusters)


def pattern(pairs: csr_array) -> csr_array:
    """Ones wherever `pairs` [N, L] has an entry, whatever its value: a relevance of 0.3 is a label, too."""
    return csr_array((np.ones(pairs.nnz, np.int8), pairs.indices, pairs.indptr), shape=pairs.shape)
