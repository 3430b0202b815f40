"""Balanced clusters of queries: similar queries share a batch, so the positives of one are hard negatives of another.

Recursive 2-means under the cosine, level by level. A node of n rows is cut into two halves whose sizes differ by at
most one. With unit rows x, unit centroids c_0 and c_1, and s_h the sum of the rows of half h, one iteration is

    half 0 = the rows with the largest x . (c_0 - c_1), ties by row number;    c_h = s_h / |s_h|.

Both steps can only raise the mean similarity of rows and centroids, (|s_0| + |s_1|) / n. Cluster k of C holds the rows
floor(k N / C) to floor((k + 1) N / C) of the final order; every level cuts at some of these bounds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError
from harness.index import whole_number
from harness.index.task import as_tensor, full_precision, plain_arithmetic
from harness.io.progress import progress as show_progress
from harness.machine.threads import Threads
from harness.seeds import stream

# vector elements that are split together: on a CPU they stay in its cache over all iterations
_BLOCK_ELEMENTS = {"cpu": 1 << 20}
_BLOCK_ELEMENTS_ELSEWHERE = 1 << 26
MOST_ITERATIONS, TOLERANCE = 10, 1e-4
"""A split ends after `MOST_ITERATIONS`, or when one raises the mean similarity by less than `TOLERANCE`."""


def cluster_count(rows: int, size: int) -> int:
    """Return the number of clusters of at least `size` rows: 2^floor(log2(rows / size)), 1 if `size` exceeds `rows`."""
    require_rows(rows)
    return 1 << max(0, (rows // whole_number("the size of a cluster or batch", size, 1)).bit_length() - 1)


def bounds(rows: int, parts: int) -> NDArray[np.int64]:
    """Return the bounds of `parts` parts of `rows` rows, [parts + 1]; their sizes differ by at most one."""
    return np.arange(parts + 1, dtype=np.int64) * rows // parts


def balanced_clusters(
    vectors: NDArray[Any] | Tensor,
    size: int,
    seed: int,
    *,
    device: str | torch.device | None = None,
    progress: str | None = None,
) -> list[NDArray[np.int64]]:
    """Split rows into `cluster_count(N, size)` clusters of similar vectors; their sizes differ by at most one.

    Args:
        vectors: vectors [N, D], numpy or torch, any float type, compared by the cosine; a zero one is similar to none.
        size: at least this many rows in a cluster, and at most twice as many.
        seed: the same vectors, seed and machine give the same clusters.
        device: where to compute; by default where a tensor is, and the CPU for an array.
        progress: what to call a progress bar; none by default.

    Returns:
        Row numbers of each cluster in ascending order; every row is in exactly one cluster.
    """
    values = as_tensor(vectors, "vectors to cluster")
    clusters = cluster_count(len(values), size)
    where, depth = values.device if device is None else torch.device(device), clusters.bit_length() - 1
    bar = nullcontext(lambda _: None) if progress is None else show_progress(progress, depth, "levels")
    with full_precision(), plain_arithmetic(where), _workers(where) as side_by_side, bar as advance:
        tree = _Tree.of(_unit_vectors(values, where), spare=depth > 1)
        for level in range(depth):
            tree.split(level, seed, side_by_side, last=level + 1 == depth)
            advance(1)
        order = tree.rows.cpu().numpy()
    return np.split(order, bounds(len(order), clusters)[1:-1])


def require_rows(rows: int) -> None:
    """Raise if there are no rows to cluster or batch."""
    if rows < 1:
        raise UserError("no train rows left to make batches of; use fewer validation rows, or check the data")


def _unit_vectors(values: Tensor, device: torch.device) -> Tensor:
    """Return a float32 copy [N, D] with rows of length one; zero rows stay zero."""
    count, dimension = values.shape
    unit, bad = torch.empty(count, dimension, device=device), 0
    step = _per_block(device, dimension)
    for start in range(0, count, step):
        block = unit[start : start + step].copy_(values[start : start + step])
        largest = block.abs().amax(1, keepdim=True)
        bad += int((~torch.isfinite(largest)).sum())
        block /= torch.where(largest == 0, 1, largest)  # float32 cannot hold the squares of very large or small numbers
        block /= torch.linalg.vector_norm(block, dim=1, keepdim=True).clamp_min_(1)
    if bad:
        raise UserError(
            f"{bad:,} of {count:,} vectors to cluster hold a NaN or an infinity: the encoder has diverged; "
            "lower the learning rate and start from a checkpoint before that"
        )
    return unit


def _per_block(device: torch.device, elements: int) -> int:
    """Return how many items of `elements` elements each are processed together."""
    return max(1, _BLOCK_ELEMENTS.get(device.type, _BLOCK_ELEMENTS_ELSEWHERE) // elements)


_SideBySide = Callable[[Callable[[slice], None], list[slice]], None]


@contextmanager
def _workers(device: torch.device) -> Iterator[_SideBySide]:
    """Yield a function that runs work on blocks of nodes; on a CPU in parallel if each thread gets a block.

    Threads that each split their own nodes never wait for each other, as the threads inside an operation do.
    """
    threads = torch.get_num_threads()
    shared = device.type == "cpu" and threads > 1

    def run(work: Callable[[slice], None], blocks: list[slice]) -> None:
        def alone(block: slice) -> None:
            with plain_arithmetic(device):  # holds for one thread only
                work(block)

        for _ in pool.map(alone, blocks) if shared and len(blocks) >= threads else map(work, blocks):
            pass

    try:
        with Threads(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield run
    finally:  # once these threads have ended: the latest setting is also that of all threads that start afterwards
        torch.set_num_threads(threads)


@dataclass
class _Tree:
    """Rows in the order of the nodes found so far, ascending inside a node, and their vectors in the same order."""

    rows: Tensor
    vectors: Tensor
    spare: Tensor

    @classmethod
    def of(cls, vectors: Tensor, spare: bool) -> "_Tree":
        """Return a tree of one node, the root; `spare` reserves the memory that `split` needs."""
        rows = torch.arange(len(vectors), device=vectors.device)
        return cls(rows, vectors, torch.empty_like(vectors if spare else vectors[:0]))

    def split(self, level: int, seed: int, side_by_side: _SideBySide, last: bool) -> None:
        """Cut each of the 2^level nodes in two; after the last level the vectors are no longer in order."""
        count, nodes = len(self.rows), 1 << level
        edges, halves = bounds(count, nodes), bounds(count, 2 * nodes)
        seeds = _two_rows(np.diff(edges), seed, level)

        def work(block: slice) -> None:
            at = slice(edges[block.start], edges[block.stop])
            half_sizes = np.diff(halves[2 * block.start : 2 * block.stop + 1]).reshape(-1, 2)
            order = _split_nodes(self.vectors[at], half_sizes, seeds[block])
            self.rows[at] = self.rows[at][order]
            if not last:
                torch.index_select(self.vectors[at], 0, order, out=self.spare[at])

        step = _per_block(self.vectors.device, -(-count // nodes) * self.vectors.shape[1])
        side_by_side(work, [slice(start, min(start + step, nodes)) for start in range(0, nodes, step)])
        self.vectors, self.spare = self.spare, self.vectors


def _two_rows(sizes: NDArray[np.int64], seed: int, level: int) -> NDArray[np.int64]:
    """Draw two different positions in each node of a level, [nodes, 2]."""
    draw = stream(seed, "clusters", level)
    first = draw.integers(sizes)
    return np.stack([first, (first + draw.integers(1, sizes)) % sizes], axis=1)


def _split_nodes(vectors: Tensor, half_sizes: NDArray[np.int64], seeds: NDArray[np.int64]) -> Tensor:
    """Return the order [n] of the rows `vectors` [n, D] of G nodes that puts each node's first half before its second.

    Halves `half_sizes` [G, 2] differ by one among nodes. Nodes are padded to one width W with zero vectors; a pad of
    score +inf or -inf is a member of the half that is short of one, so that all nodes are cut at the same rank.
    """
    sizes, widest = half_sizes.sum(1), half_sizes.max(0)
    column = np.arange(widest.sum())
    is_row = column < sizes[:, None]
    is_first_pad = ~is_row & (column < (sizes + widest[0] - half_sizes[:, 0])[:, None])
    offset = np.where(is_row, 0, np.where(is_first_pad, np.inf, -np.inf)).astype(np.float32)
    begin = np.cumsum(sizes) - sizes
    starts, kept, pads, picked = (
        torch.from_numpy(array).to(vectors.device) for array in (begin, is_row, offset, seeds)
    )
    if is_row.all():
        nodes = vectors.view(*is_row.shape, -1)
    else:
        rows = torch.from_numpy(np.where(is_row, begin[:, None] + column, 0).ravel()).to(vectors.device)
        padding = torch.from_numpy(np.flatnonzero(~is_row)).to(vectors.device)
        nodes = vectors.index_select(0, rows).index_fill_(0, padding, 0).view(*is_row.shape, -1)
    first = _two_means(nodes, pads, int(widest[0]), picked)
    order = torch.where(kept, (~first).to(torch.uint8), 2).argsort(dim=1, stable=True)
    return (order + starts[:, None])[kept]


def _two_means(nodes: Tensor, offset: Tensor, cut: int, seeds: Tensor) -> Tensor:
    """Return which rows of `nodes` [G, W, D] form the first half of their node, bool [G, W], true for `cut` of each.

    `offset` [G, W] is added to the scores; `seeds` [G, 2] are the rows that serve as the first centroids. All nodes go
    on until the last one is finished.
    """
    total, counts = nodes.sum(1), (offset == 0).sum(1)
    seed_vectors = nodes[torch.arange(len(nodes), device=nodes.device)[:, None], seeds]
    direction = seed_vectors[:, 0] - seed_vectors[:, 1]
    similarity = torch.full_like(total[:, 0], -torch.inf)
    for _ in range(MOST_ITERATIONS):
        # a row vector times the transpose: the other way round the product of a batch is four times slower on a CPU
        first = _largest(torch.bmm(direction[:, None], nodes.mT)[:, 0] + offset, cut)
        sums = torch.bmm(first[:, None].to(nodes.dtype), nodes)[:, 0]
        sums = torch.stack([sums, total - sums])
        lengths = torch.linalg.vector_norm(sums, dim=2, keepdim=True)
        before, similarity = similarity, lengths.sum((0, 2)) / counts
        if bool((similarity - before < TOLERANCE).all()):
            break
        centroids = sums / torch.where(lengths == 0, 1, lengths)
        direction = centroids[0] - centroids[1]
    return first


def _largest(scores: Tensor, count: int) -> Tensor:
    """Mark the `count` largest scores in each row of [G, W]; among equal ones those that come first."""
    lowest = _nth_largest(scores, count)
    marked = scores >= lowest
    if bool((marked.count_nonzero(1) == count).all()):
        return marked
    above, equal = scores > lowest, scores == lowest
    missing = count - above.sum(1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= missing))


def _nth_largest(scores: Tensor, count: int) -> Tensor:
    """Return the `count`-th largest score of each row of [G, W], as [G, 1]."""
    if scores.device.type != "cpu":
        return scores.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    place = scores.shape[1] - count
    # numpy partitions ten times faster than torch finds the largest half
    return torch.from_numpy(np.partition(scores.numpy(), place, axis=1)[:, place : place + 1])
