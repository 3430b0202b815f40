"""The best entries of sparse score rows: for models that score few of the labels, and for neighbours by shared words.

Rows can be long (every train row that shares a word with the query), so most entries are dropped before anything is
sorted. A row is cut into C > K pieces. The K-th largest of the pieces' maxima is at most the K-th largest entry,
because K entries reach it. What lies below it is out, and about K entries a row remain.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_PIECES = 4
"""Pieces into which a row is cut, per wanted entry."""


def top_entries(
    scores: csr_array, k: int, exclude: csr_array | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the best k stored entries of every row, by score descending, then column ascending.

    Args:
        scores: Scores [n, L], no column twice in a row; entries not stored, or not finite, are never returned.
        k: Entries per row.
        exclude: Pairs [n, L] that are never returned.

    Returns:
        Columns [n, k], -1 = none, and scores [n, k], -inf = none.
    """
    scores = _finite(scores)
    rows, columns, values = _contenders(scores, k if exclude is None else k + _longest_row(exclude))
    if exclude is not None and exclude.nnz:
        width = np.int64(scores.shape[1])
        banned = _row_of_entries(exclude) * width + exclude.indices
        allowed = ~np.isin(rows * width + columns, banned)
        rows, columns, values = rows[allowed], columns[allowed], values[allowed]
    order = np.lexsort((columns, -values, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, np.arange(scores.shape[0]))[rows]
    first = rank < k
    at = rows[first], rank[first]
    ids, best = np.full((scores.shape[0], k), -1, np.int32), np.full((scores.shape[0], k), -math.inf, np.float32)
    ids[at], best[at] = columns[first], values[first]
    return ids, best


def _finite(scores: csr_array) -> csr_array:
    """Return the finite entries alone: a NaN would spoil the floor of its row."""
    finite = np.isfinite(scores.data)
    if finite.all():
        return scores
    kept = np.concatenate([[0], np.cumsum(finite)])[scores.indptr]
    return csr_array((scores.data[finite], scores.indices[finite], kept), shape=scores.shape)


def _contenders(scores: csr_array, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return rows, columns and values of the entries, [E] each, that may be among the best k of their row."""
    lengths = np.diff(scores.indptr).astype(np.int64)
    pieces = _PIECES * k
    long = np.flatnonzero(lengths >= pieces)
    if not len(long):
        return _row_of_entries(scores), scores.indices.astype(np.int64), scores.data
    # piece j of a row of E entries begins at j E / pieces, so every piece has an entry
    starts = scores.indptr[long, None] + np.arange(pieces + 1) * lengths[long, None] // pieces
    # two rows of `starts` meet in one place if their rows do; the pieces between other rows are not looked at
    maxima = np.maximum.reduceat(np.append(scores.data, scores.data.dtype.type(-np.inf)), starts.ravel()).reshape(
        starts.shape
    )[:, :-1]
    floor = np.full(len(lengths), -np.inf, scores.data.dtype)
    floor[long] = np.partition(maxima, pieces - k, axis=1)[:, pieces - k]
    kept = np.flatnonzero(scores.data >= np.repeat(floor, lengths))
    rows = np.searchsorted(scores.indptr, kept, side="right") - 1
    return rows.astype(np.int64), scores.indices[kept].astype(np.int64), scores.data[kept]


def _row_of_entries(matrix: csr_array) -> NDArray[np.int64]:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _longest_row(matrix: csr_array) -> int:
    return int(np.diff(matrix.indptr).max(initial=0))
