"""Building 0/1 matrices [rows, L] chunk by chunk: positives or filter pairs of rows.

Column indices are int32. scipy gives both index arrays of a matrix one type, so `indptr` is int32 too until there are
2^31 entries; on disk it is always int64.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

MOST_LABELS = 2**31 - 1


class PatternBuilder:
    """Builds a [rows, L] matrix from rows in order; each row's labels are sorted and repeats dropped."""

    def __init__(self, labels: int) -> None:
        self._labels = labels
        self._lengths = [np.zeros(0, np.int64)]
        self._indices = [np.zeros(0, np.int32)]

    def extend(self, lengths: NDArray[np.int64], indices: NDArray[np.int64]) -> int:
        """Append rows, given as labels per row [rows] and all labels [pairs]; return the number of repeated labels."""
        chunk = _csr(lengths, indices.astype(np.int32), self._labels)
        chunk.sum_duplicates()  # only checks where all rows are increasing already, as in most files
        self._lengths.append(np.diff(chunk.indptr))
        self._indices.append(chunk.indices)
        return len(indices) - chunk.nnz

    def finish(self) -> csr_array:
        """Return the matrix of all rows so far, [rows, L]."""
        matrix = _csr(np.concatenate(self._lengths), np.concatenate(self._indices), self._labels)
        matrix.has_canonical_format = True
        return matrix


def from_pairs(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> csr_array:
    """Return the matrix with a one at every (row, column); pairs may be in any order and repeated."""
    ones = np.ones(len(rows), np.float32)
    matrix = coo_array((ones, (rows.astype(np.int32), columns.astype(np.int32))), shape=shape).tocsr()
    matrix.sort_indices()
    matrix.data[:] = 1
    return csr_array(matrix)


def _csr(lengths: NDArray[np.int64], indices: NDArray[np.int32], labels: int) -> csr_array:
    """Return a CSR matrix of ones from the labels per row [rows] and all labels [pairs]."""
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    if len(indices) < 2**31:
        indptr = indptr.astype(np.int32)
    return csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(lengths), labels))
