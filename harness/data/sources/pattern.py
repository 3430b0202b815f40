"""0/1 matrices [rows, L] collected row by row, chunk by chunk: labels of documents, pairs of a filter.

Column indices are int32. scipy gives both index arrays of a matrix one type, so `indptr` is int32 too until there are
2^31 entries; on disk it is always int64.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

MOST_LABELS = 2**31 - 1


class PatternBuilder:
    """Takes rows in order; a row's labels are sorted and kept once."""

    def __init__(self, labels: int) -> None:
        self._labels = labels
        self._lengths: list[NDArray[np.int64]] = []
        self._indices: list[NDArray[np.int32]] = []

    def extend(self, lengths: NDArray[np.int64], indices: NDArray[np.int64]) -> int:
        """Appends rows: how many labels each has [rows], and all labels [pairs]; returns how many were repeats."""
        given = len(indices)
        if not _increasing(lengths, indices):
            lengths, indices = _sorted_unique(lengths, indices, self._labels)
        self._lengths.append(lengths)
        self._indices.append(indices.astype(np.int32))
        return given - len(indices)

    def finish(self) -> csr_array:
        """All rows so far, [rows, L]."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
        indices = np.concatenate(self._indices) if self._indices else np.zeros(0, np.int32)
        return _csr(lengths, indices, self._labels)


def from_pairs(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> csr_array:
    """The pattern with a one at every (row, column), in any order and with repeats."""
    pairs = _distinct(rows * shape[1] + columns)
    lengths = np.bincount(pairs // max(shape[1], 1), minlength=shape[0])
    return _csr(lengths, (pairs % max(shape[1], 1)).astype(np.int32), shape[1])


def _csr(lengths: NDArray[np.int64], indices: NDArray[np.int32], labels: int) -> csr_array:
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    if len(indices) < 2**31:
        indptr = indptr.astype(np.int32)
    matrix: csr_array = csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(lengths), labels))
    matrix.has_canonical_format = True
    return matrix


def _increasing(lengths: NDArray[np.int64], indices: NDArray[np.int64]) -> bool:
    """True if every row is strictly increasing already, as most files are."""
    larger = indices[1:] > indices[:-1]
    row_starts = np.cumsum(lengths)[:-1]
    larger[row_starts[(row_starts > 0) & (row_starts < len(indices))] - 1] = True
    return bool(larger.all())


def _sorted_unique(
    lengths: NDArray[np.int64], indices: NDArray[np.int64], labels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts all rows at once by the key row * L + label."""
    keys = _distinct(np.repeat(np.arange(len(lengths)), lengths) * labels + indices)
    return np.bincount(keys // labels, minlength=len(lengths)), keys % labels


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted keys without repeats; ten times faster on a chunk than `np.unique`, which hashes first."""
    keys.sort()
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
