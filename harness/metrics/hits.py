"""Where the truth was retrieved: predictions [M, K] and positives [M, L] to hits, and sums over the hits of each row.

Everything goes by blocks of rows that stay in the processor's cache, several blocks side by side, because the functions
of numpy and scipy that do the work let other threads run. No result depends on the size of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.errors import UserError
from harness.machine.threads import Threads, available_cores

_BLOCK_ROWS = 8192
_MOST_THREADS = 4

Result = TypeVar("Result")
Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Ranks:
    """The H true pairs that were retrieved, ordered by row; every other true pair was missed.

    Pass it instead of `topk` to several functions here, and the predictions are compared with the truth only once.
    """

    row: NDArray[np.int64]
    """Row of each hit, [H]."""
    label: NDArray[np.int64]
    """Label of each hit, [H]."""
    rank: NDArray[np.int64]
    """Best rank at which the label of each hit was predicted, counted from 0, [H]."""
    shape: tuple[int, int]
    """Shape (M, L) of the truth."""
    depth: int
    """Largest k these ranks can answer for."""

    def of_rows(self, rows: slice) -> slice:
        """Return the slice of the hits of rows start to stop."""
        return slice(*np.searchsorted(self.row, (rows.start, rows.stop)))

    def within(self, depth: int) -> "Ranks":
        """Return only the hits of rank < `depth`."""
        if depth == self.depth:
            return self
        if depth > self.depth:
            raise UserError(f"these ranks reach k = {self.depth}, not {depth}; call ranks_of_truth with depth={depth}")
        kept = self.rank < depth
        return Ranks(self.row[kept], self.label[kept], self.rank[kept], self.shape, depth)


def hits_of_block(topk: Integers, pattern: csr_array, rows: slice) -> tuple[NDArray[np.int64], ...]:
    """Return row, label and rank [H] of the true pairs that a block's predictions [n, K] contain, ordered by row."""
    bounds, row, labels = _block(pattern, rows)
    # -1 leads to one more column, which is empty: a lookup gives 1 + the number of the pair, or 0
    numbers = np.arange(1, len(labels) + 1, dtype=labels.dtype)
    pairs = csr_array((numbers, labels, bounds), shape=(len(topk), pattern.shape[1] + 1))
    found = pairs[np.repeat(np.arange(len(topk), dtype=labels.dtype), topk.shape[1]), topk.ravel()]
    # from the last prediction to the first, so that a label predicted twice keeps its better rank
    places = np.flatnonzero(found)[::-1]
    rank = np.full(len(labels), -1)
    rank[found[places] - 1] = places % topk.shape[1]
    hit = np.flatnonzero(rank >= 0)
    return row[hit] + rows.start, labels[hit].astype(np.int64), rank[hit]


@dataclass(frozen=True)
class ByWeight:
    """All labels by falling weight, ties by smaller id."""

    label: NDArray[np.int64]
    """Labels by falling weight, [L]."""
    weight: Floats
    """Weights in that order, [L]."""
    place: Integers
    """Position of each label in that order, [L]."""

    @classmethod
    def of(cls, weights: Floats) -> "ByWeight":
        """Order the labels by their weights [L]."""
        label = np.argsort(-weights, kind="stable")
        place: Integers = np.empty(len(label), np.int32 if len(label) < 2**31 else np.int64)
        place[label] = np.arange(len(label))
        return cls(label, weights[label], place)

    def best(self, pattern: csr_array, rows: slice, depth: int) -> tuple[NDArray[np.int64], ...]:
        """Return row, rank and position in this order, [pairs] each, of the first `depth` true labels of each row."""
        bounds, row, labels = _block(pattern, rows)
        # One sort orders all rows of the block at once: the row is the upper part of the key, so it stays in its place.
        before = row * len(self.place)
        key = self.place[labels] + before
        key.sort()
        place, rank = key - before, np.arange(len(row)) - bounds[row]
        if not len(rank) or rank.max() < depth:
            return row, rank, place
        kept = np.flatnonzero(rank < depth)
        return row[kept], rank[kept], place[kept]


def _block(pattern: csr_array, rows: slice) -> tuple[Integers, NDArray[np.int64], Integers]:
    """Return the bounds of consecutive rows [n + 1], the row of each pair, counted from 0, and its label."""
    bounds = pattern.indptr[rows.start : rows.stop + 1]
    labels = pattern.indices[bounds[0] : bounds[-1]]
    return bounds - bounds[0], np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)), labels


def by_blocks(rows: int, work: Callable[[slice], Result]) -> list[Result]:
    """Run `work` on consecutive blocks of rows, in several threads; return the results in order."""
    blocks = [slice(start, min(start + _BLOCK_ROWS, rows)) for start in range(0, rows, _BLOCK_ROWS)]
    threads = min(available_cores(), _MOST_THREADS, len(blocks))
    if threads == 1:
        return [work(block) for block in blocks]
    with Threads(threads) as pool:
        return list(pool.map(work, blocks))


def row_sums(hits: Integers, rank: Integers, weight: Floats, ks: Sequence[int], discount: Floats) -> Floats:
    """Sum weight and weight x discount over the hits with rank < k of each row, [2, len(ks), n].

    `hits` [n] counts the hits of each row; `rank` and `weight` [H] list them row by row; `discount` [max k] is by rank.
    One product with [max k, 2 len(ks)] sums each hit under the first k that includes it; later k follow by addition.
    """
    first = np.searchsorted(ks, np.arange(ks[-1]), side="right")[:, None] == np.arange(len(ks))
    gains = np.concatenate([first, first * discount[:, None]], axis=1)
    bounds = np.concatenate([[0], np.cumsum(hits)])
    sums: Floats = csr_array((weight, rank, bounds), shape=(len(hits), len(discount))) @ gains
    return sums.T.reshape(2, len(ks), -1).cumsum(axis=1)
