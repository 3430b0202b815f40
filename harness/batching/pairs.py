"""Known pairs (query, label) of a batch as flat arrays, and random draws from them; used by `pool` and `whole`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.ragged import Ragged

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """The n stored pairs of a batch, in order of query and label."""

    query: Integers
    """Query of each pair, as its index in the batch, [n]."""
    label: Integers
    """Label of each pair, [n]."""
    target: NDArray[np.float32]
    """Target of each pair, in (0, 1], [n]."""

    def keys(self, labels: int) -> Integers:
        """Return one number per pair, increasing, [n]."""
        return self.query * labels + self.label


@dataclass(frozen=True)
class StoredRows:
    """The pairs of every train row."""

    labels: Ragged
    """Labels of every row, increasing and distinct, [N] rows."""
    targets: NDArray[np.float32] | None
    """Target of every pair; None if all are 1."""


def pairs_of(stored: StoredRows, rows: Integers) -> Pairs:
    """Return the stored pairs of the given rows [B]."""
    labels = stored.labels.take(rows)
    if stored.targets is None:
        target = np.ones(len(labels.values), np.float32)
    else:
        target = Ragged(stored.targets, stored.labels.offsets).take(rows).values
    return Pairs(np.repeat(np.arange(len(rows)), labels.lengths), labels.values.astype(np.int64), target)


def rows_of(matrix: csr_array, *, values: bool = False) -> StoredRows:
    """Return the column indices of every row of a matrix [N, L], with `values` its values as targets, too.

    Values must be in (0, 1]: a stored 0 is a pair like any other.
    """
    matrix = csr_array(matrix)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    labels = Ragged(np.asarray(matrix.indices), np.asarray(matrix.indptr, dtype=np.int64))
    if not values:
        return StoredRows(labels, None)
    return StoredRows(labels, np.asarray(matrix.data, np.float32))


def draw(
    query: Integers,
    size: int,
    generator: np.random.Generator,
    allowed: NDArray[np.bool_] | None = None,
    weight: NDArray[np.float32] | None = None,
) -> Integers:
    """Draw up to `size` entries per query without replacement, uniformly or by weight; return their indices.

    Every entry gets a random ticket, allowed or not, and the smallest tickets of a query win. With weights w a ticket
    is exponential with rate w: the first to ring is entry p with probability w_p / sum w, and so on among the rest.

    Args:
        query: Query of each entry, increasing, [n].
        size: Most entries drawn per query.
        generator: Gives n random numbers.
        allowed: Whether each entry may be drawn, [n]; None = all.
        weight: Weight of each entry, greater than 0, [n]; None = all equal.
    """
    # Sorted as one number (query, ticket, entry): queries stay in their order, no two numbers are equal, and so every
    # sorting algorithm gives the same answer.
    entry_bits = len(query).bit_length()
    ticket_bits = 63 - entry_bits - (int(query[-1]).bit_length() if len(query) else 0)
    if weight is None:
        ticket = generator.integers(1 << ticket_bits, size=len(query))
    else:  # the bits of a positive float64, read as an integer, are in the order of the numbers
        ticket = (generator.standard_exponential(len(query)) / weight).view(np.int64) >> (63 - ticket_bits)
    key = (((query << ticket_bits) | ticket) << entry_bits) | np.arange(len(query))
    if allowed is not None:
        query, key = query[allowed], key[allowed]
    key.sort()
    count = np.bincount(query)
    rank = np.arange(len(query)) - np.repeat(np.cumsum(count) - count, count)
    return key[rank < size] & ((1 << entry_bits) - 1)


def draw_again(
    query: Integers, queries: int, size: int, generator: np.random.Generator, weight: NDArray[np.float32] | None = None
) -> Integers:
    """Draw `size` entries per query with replacement; return the indices of the distinct ones.

    Args:
        query: Query of each entry, increasing, [n].
        queries: Number of queries B; one without entries draws nothing.
        size: Draws per query.
        generator: Gives B x size random numbers.
        weight: Weight of each entry, proportional to its chance, greater than 0, [n]; None = all equal.
    """
    count = np.bincount(query, minlength=queries)
    first = np.cumsum(count) - count
    luck = generator.random((queries, size))
    if weight is None:
        place = first[:, None] + (luck * count[:, None]).astype(np.int64)
    else:
        running = np.concatenate([[0.0], np.cumsum(weight, dtype=np.float64)])
        start, end = running[first], running[first + count]
        place = np.searchsorted(running[1:], start[:, None] + luck * (end - start)[:, None], side="right")
        place = np.clip(place, first[:, None], (first + count - 1)[:, None])  # rounding may step over an edge
    drawn = np.zeros(len(query), np.bool_)
    drawn[place[count > 0]] = True
    return np.flatnonzero(drawn)
