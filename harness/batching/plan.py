"""From clusters of train rows to the batches of an epoch.

One rule makes all three kinds of batches. Each epoch shuffles the clusters, and the rows inside each of them, into one
sequence of all N rows, which is then cut into batches:

    random      one cluster of all rows, cut into nearly equal batches
    clustered   one cluster = one batch (UniDEC)
    glued       many small clusters, one after the other, cut into nearly equal batches (NGAME)

The batches are a pure function of (plan, seed, epoch), so a resumed run computes them again instead of storing them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness.batching.cluster import bounds, cluster_count, require_rows
from harness.errors import UserError
from harness.seeds import stream
from harness.settings.method import Inputs


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Which rows may share a batch, and how many batches an epoch has."""

    rows: NDArray[np.int64]
    """All train rows 0..N-1, cluster after cluster, [N]."""
    edges: NDArray[np.int64]
    """Cluster c holds rows[edges[c] : edges[c + 1]], [C + 1]."""
    parts: int
    """Number of nearly equal batches into which the sequence is cut; 0 = each cluster is one batch."""

    @property
    def steps(self) -> int:
        """Number of batches in every epoch."""
        return self.parts or len(self.edges) - 1

    def batches(self, seed: int, epoch: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each batch of an epoch, in the order of the steps; every row is in one batch."""
        draw = stream(seed, "order", epoch)
        sizes = np.diff(self.edges)
        order = draw.permutation(len(sizes))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        shuffled = draw.permutation(len(self.rows))
        # rows meet in random order and a stable sort by the place of their cluster keeps that order inside it
        sequence = self.rows[shuffled[np.argsort(np.repeat(place, sizes)[shuffled], kind="stable")]]
        cuts = bounds(len(sequence), self.parts)[1:] if self.parts else np.cumsum(sizes[order])
        return np.split(sequence, cuts[:-1])

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the plan as int64 arrays by name, for a checkpoint; `from_arrays` is the inverse."""
        return {"rows": self.rows, "edges": self.edges, "parts": np.array([self.parts], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], count: int) -> Self:
        """Return the plan of `count` rows with these `arrays`; they are checked, as a checkpoint may not be ours."""
        integers = {name: array for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "iu"}
        rows, edges, parts = (integers.get(name, np.zeros(0, np.int64)) for name in ("rows", "edges", "parts"))
        once = np.array_equal(np.sort(rows), np.arange(count))
        whole = len(edges) > 1 and edges[0] == 0 and edges[-1] == count and bool((np.diff(edges) > 0).all())
        if not (once and whole and len(parts) == 1 and 0 <= parts[0] <= count):
            raise UserError(
                f"the stored batch plan does not hold every one of {count:,} rows once; start from another checkpoint"
            )
        return cls(rows.astype(np.int64), edges.astype(np.int64), int(parts[0]))


def warn_of_large_batch(inputs: Inputs, size: int) -> None:
    """Warn if a batch of `size` rows is more than the train rows there are."""
    rows = inputs.train.shape[0]
    if size > rows:
        inputs.warn(f"a batch of {size:,} is more than the {rows:,} train rows: one batch of all")


def random_plan(rows: int, size: int, *, steps: int | None = None) -> BatchPlan:
    """Return a plan of batches of random rows, nearly equal in size.

    Args:
        rows: Number of train rows N.
        size: as many batches as `clustered_plan` of clusters of this size would have, so that warm-up epochs with
            random batches are as long as the ones that follow.
        steps: another number of batches, such as `glued_steps(rows, size)`.
    """
    parts = cluster_count(rows, size) if steps is None else steps
    return BatchPlan(np.arange(rows, dtype=np.int64), np.array([0, rows], np.int64), parts)


def clustered_plan(clusters: Sequence[NDArray[np.int64]]) -> BatchPlan:
    """Return a plan in which each cluster is a batch."""
    return _joined(clusters, parts=0)


def glued_plan(clusters: Sequence[NDArray[np.int64]], size: int) -> BatchPlan:
    """Return a plan of batches of at most `size` rows, cut from a shuffled sequence of small clusters.

    Sizes of batches differ by at most one: a cluster that meets the end of a batch goes on in the next one.
    """
    return _joined(clusters, glued_steps(sum(map(len, clusters)), size))


def glued_steps(rows: int, size: int) -> int:
    """Return the number of batches per epoch of `glued_plan`: ceil(rows / size)."""
    require_rows(rows)
    return -(-rows // size)


def _joined(clusters: Sequence[NDArray[np.int64]], parts: int) -> BatchPlan:
    sizes = np.fromiter(map(len, clusters), np.int64, len(clusters))
    rows = np.concatenate([np.zeros(0, np.int64), *clusters])
    return BatchPlan(rows, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), parts)
