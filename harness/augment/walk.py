"""Label texts as rows, with targets estimated by random walks over the graph of rows and labels (thesis table 1.7).

A walker of label j hops `HOPS` times: with probability `RESTART` it first returns to j; then it goes to a row of the
label it is at, uniformly, and on to a label of that row, uniformly. With v_i the number of visits to label i,

    y_ij = v_i / max_l v_l  if above delta, for the `NEIGHBOURS` most visited i != j (ties by smaller id);  y_jj = 1

At restart 1, v_i / v_j tends to gandalf's G_ij / G_jj with every row s counted as 1 / |Y_s|, so j is met most, up to
noise; the maximum instead of v_j keeps targets at most 1, and defined if j was never met. Restarts below 1 also reach
labels that share a neighbour with j and never a row. Labels with more than `HEAD` rows are taken out of the graph, as
nearly every walk would pass through them; their only target is themselves. The settings are those published with
InceptionXML for the graph of ECLARE (Mittal et al., 2021).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from harness.augment import AugmentedRows, Given
from harness.augment.label_texts import labels_to_make, rows_per_label
from harness.io.progress import progress

HOPS = 400
RESTART = 0.8
NEIGHBOURS = 10
HEAD = 500
_WALKERS = 1 << 14
"""Walkers that hop together; each stores the labels it has met, 4 bytes per hop."""

Integers = NDArray[np.int64]


def random_walk(given: Given) -> AugmentedRows:
    """Make a row for every label with a text and a train row; targets come from walks that start at the label."""
    labels, train = labels_to_make(given), given.train
    counts = rows_per_label(train)
    graph = _without(train, counts > HEAD)
    rows_of = graph.T.tocsr()
    walking = np.flatnonzero(counts[labels] <= HEAD)
    parts = []
    with progress("random walks", total=len(walking), unit="labels") as advance:
        for start in range(0, len(walking), _WALKERS):
            rows = walking[start : start + _WALKERS]
            seen = visits(graph, rows_of, labels[rows], given.generator)
            parts.append(_neighbours(seen, rows, labels[rows], given.options.delta))
            advance(len(rows))
    own = (np.arange(len(labels)), labels, np.ones(len(labels)))
    row, label, target = (np.concatenate(column) for column in zip(own, *parts, strict=True))
    targets = coo_array((target.astype(np.float32), (row, label)), shape=(len(labels), train.shape[1])).tocsr()
    targets.sort_indices()
    return AugmentedRows(given.label_tokens.take(labels), targets)


def _without(train: csr_array, left_out: NDArray[np.bool_]) -> csr_array:
    """Return the positives [N, L] without the labels that are marked in `left_out` [L]."""
    kept = (~left_out[train.indices]).astype(np.float32)
    graph = csr_array((kept, train.indices, train.indptr), shape=train.shape, copy=True)
    graph.eliminate_zeros()
    return graph


def visits(
    graph: csr_array,
    rows_of: csr_array,
    starts: Integers,
    generator: np.random.Generator,
    hops: int = HOPS,
    restart: float = RESTART,
) -> csr_array:
    """Count how often the walker of each start met every label, int32 [n, L]; all walkers hop together.

    Args:
        graph: Labels of every row, [N, L].
        rows_of: Rows of every label, [L, N].
        starts: Labels to start from, each with a row in the graph, [n].
        generator: Gives three random numbers per hop and walker.
        hops: Number of labels that each walker meets.
        restart: Probability of returning to the start before a hop.
    """
    seen = np.empty((hops, len(starts)), np.int32)
    place = starts
    for hop in range(hops):
        back, which_row, which_label = generator.random((3, len(starts)))
        place = np.where(back < restart, starts, place)
        place = _hop(graph, _hop(rows_of, place, which_row), which_label)
        seen[hop] = place
    trail = np.ascontiguousarray(seen.T).reshape(-1)
    bounds = np.arange(len(starts) + 1) * hops
    met = csr_array((np.ones(len(trail), np.int32), trail, bounds), shape=(len(starts), graph.shape[1]))
    met.sum_duplicates()
    return met


def _hop(edges: csr_array, places: Integers, uniform: NDArray[np.float64]) -> Integers:
    """Return a stored column of each given row [n], picked by a uniform number in [0, 1)."""
    first = edges.indptr[places].astype(np.int64)
    degree = edges.indptr[places + 1] - first
    return edges.indices[first + (uniform * degree).astype(np.int64)].astype(np.int64)


def _neighbours(
    seen: csr_array, rows: Integers, starts: Integers, delta: float
) -> tuple[Integers, Integers, NDArray[np.float64]]:
    """Return the most visited labels of every walker besides its start: augmented row, label, target, [pairs] each.

    Args:
        seen: Visits [n, L], labels sorted.
        rows: Augmented row of every walker, [n].
        starts: Start label of every walker, [n].
        delta: Targets at or below it are left out.
    """
    walker = np.repeat(np.arange(len(rows)), np.diff(seen.indptr))
    target = seen.data / np.maximum.reduceat(seen.data, seen.indptr[:-1])[walker]
    other = seen.indices != starts[walker]
    walker, label, target = walker[other], seen.indices[other].astype(np.int64), target[other]
    order = np.lexsort((label, -target, walker))
    walker, label, target = walker[order], label[order], target[order]
    count = np.bincount(walker, minlength=len(rows))
    rank = np.arange(len(walker)) - np.repeat(np.cumsum(count) - count, count)
    kept = (rank < NEIGHBOURS) & (target > delta)
    return rows[walker[kept]], label[kept], target[kept]
