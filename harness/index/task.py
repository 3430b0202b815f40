"""One search as the backends see it: checked vectors in float32 blocks on one device, and the pairs to leave out.

Vectors come from arrays, memory maps and tensors of any float type. A matrix is never copied as a whole: a block of a
memory map is read when it is asked for, converted to float32 and moved to the device. A query or label with a NaN or an
infinity is set aside here, before any score is computed.
"""

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from torch import Tensor

from harness.data.ragged import Ragged
from harness.errors import UserError

_MOST_LABELS = 2**31 - 1
_MOST_WORKERS, _LEAST_QUERIES = 4, 128


_SURVEY_ELEMENTS = 1 << 20


def as_tensor(values: Any, what: str) -> Tensor:
    """Return a tensor [rows, D] that shares the memory of `values`, or a float32 copy where torch cannot read it."""
    if not isinstance(values, np.ndarray | Tensor):
        raise UserError(f"{what} must be a numpy array or a torch tensor, not {type(values).__name__}")
    if values.ndim != 2 or values.shape[1] == 0:
        raise UserError(f"{what} must have the shape [rows, dimension], not {list(values.shape)}")
    if isinstance(values, Tensor):
        if not values.is_floating_point():
            raise UserError(f"{what} must hold floating-point numbers, not {values.dtype}")
        return values.detach()
    if values.dtype.kind != "f":
        raise UserError(f"{what} must hold floating-point numbers, not {values.dtype}")
    readable = values.dtype in (np.float16, np.float32, np.float64)
    if not readable or any(stride < 0 or stride % values.itemsize for stride in values.strides):
        values = np.ascontiguousarray(values, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about read-only memory maps; nothing here writes to them
        return torch.from_numpy(values)


class Vectors:
    """A [rows, D] matrix of any float type, read as float32 on `device`."""

    def __init__(self, values: Tensor, device: torch.device) -> None:
        self.device = device
        self.count, self.dimension = values.shape
        self._values = self._resident(values)

    def _resident(self, values: Tensor) -> Tensor:
        """Move the matrix to the GPU if that takes at most a quarter of its free memory."""
        if self.device.type != "cuda" or values.device == self.device:
            return values
        free, _ = torch.cuda.mem_get_info(self.device)
        return values.to(self.device) if values.numel() * values.element_size() <= free // 4 else values

    def block(self, start: int, stop: int) -> Tensor:
        """Return the rows start to stop, [stop - start, D]; a view where no conversion is needed."""
        return self._values[start:stop].to(self.device, torch.float32)

    def take(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows with the indices `rows` [R], as [R, D]; written to `out` if it is given."""
        rows = rows.to(self._values.device)
        if out is None:
            return self._values.index_select(0, rows).to(self.device, torch.float32)
        if (self._values.dtype, self._values.device) == (out.dtype, out.device):
            return torch.index_select(self._values, 0, rows, out=out)
        return out.copy_(self._values.index_select(0, rows))

    def survey(self) -> tuple[NDArray[np.bool_], float]:
        """Return which rows are finite, [rows], and the largest Euclidean norm among those."""
        finite, largest = np.ones(self.count, np.bool_), 0.0
        step = max(1, _SURVEY_ELEMENTS // self.dimension)
        for start in range(0, self.count, step):
            # float64 holds the square of every float32, so a norm is finite exactly if its vector is
            norms = torch.linalg.vector_norm(self.block(start, start + step).double(), dim=1)
            good = torch.isfinite(norms)
            finite[start : start + step] = good.cpu().numpy()
            largest = max(largest, float(torch.where(good, norms, 0.0).amax()))
        return finite, largest


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products in full precision, in the whole process: no tf32 or bf16, whatever training uses."""
    switches = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """Switch gradients and autocast off in this thread."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


@dataclass(frozen=True)
class Task:
    """Everything a backend needs to propose candidates."""

    queries: Vectors
    """Query vectors, [M, D]."""
    labels: Vectors
    """Label vectors, [L, D]."""
    rows: NDArray[np.int64]
    """Row numbers of the finite queries; positions `at` below are indices into this array."""
    bad_labels: NDArray[np.int64]
    """Labels with a non-finite vector, ascending."""
    label_norm: float
    """Largest norm of a finite label."""
    exclude: csr_array | None
    """Pairs that are never returned, [M, L]."""
    k: int
    """Labels to return per query, at most L."""
    query_block: int | None
    label_block: int | None
    seed: int
    workers: int = 1
    """Threads that search in parallel, each its own queries."""

    @property
    def width(self) -> int:
        """Number of candidates per row: K, and a margin for those that rounding may have put out of order."""
        return min(self.k + 8 + self.k // 16, self.labels.count)

    def side_by_side(self) -> Self:
        """Return the same task for several threads, if there are enough queries to keep each of them busy."""
        most = min(torch.get_num_threads(), _MOST_WORKERS) if self.queries.device.type == "cpu" else 1
        return replace(self, workers=max(1, min(most, len(self.rows) // _LEAST_QUERIES)))

    def query_vectors(self, at: NDArray[np.int64]) -> Tensor:
        """Return the vectors of the queries at positions `at` [B], as [B, D]."""
        return self.queries.take(torch.from_numpy(self.rows[at]))

    def excluded_counts(self) -> NDArray[np.int64]:
        """Return the number of excluded labels of every finite query."""
        if self.exclude is None:
            return np.zeros(len(self.rows), np.int64)
        indptr = self.exclude.indptr.astype(np.int64)
        return indptr[self.rows + 1] - indptr[self.rows]

    def excluded_pairs(self, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the excluded pairs of the queries at `at` as (index into `at`, label), by ascending label."""
        if self.exclude is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        picked = Ragged(self.exclude.indices, self.exclude.indptr.astype(np.int64)).take(self.rows[at])
        order = np.argsort(picked.values, kind="stable")
        return np.repeat(np.arange(len(at)), picked.lengths)[order], picked.values[order].astype(np.int64)

    def masker(self, at: NDArray[np.int64]) -> Callable[[Tensor, int], None]:
        """Return a function that sets excluded entries of a score block [B, W], whose first label is given, to -inf."""
        rows, labels = self.excluded_pairs(at)
        device = self.queries.device

        def mask(scores: Tensor, first: int) -> None:
            last = first + scores.shape[1]
            a, b = np.searchsorted(labels, (first, last))
            if b > a:
                pair = torch.from_numpy(rows[a:b]).to(device), torch.from_numpy(labels[a:b] - first).to(device)
                scores[pair] = -math.inf
            a, b = np.searchsorted(self.bad_labels, (first, last))
            if b > a:
                scores.index_fill_(1, torch.from_numpy(self.bad_labels[a:b] - first).to(device), -math.inf)

        return mask


class Pending:
    """The queries that no thread has taken yet; shared by all threads."""

    def __init__(self, count: int) -> None:
        self._next, self._end = 0, count
        self._lock = threading.Lock()

    def take(self, most: int) -> NDArray[np.int64]:
        """Take and return the next positions, at most `most`; empty when all are taken."""
        with self._lock:
            start = self._next
            self._next = min(start + most, self._end)
            return np.arange(start, self._next)

    def cancel(self) -> None:
        """Drop all pending queries, so that every thread ends after its current block."""
        with self._lock:
            self._next = self._end


def make_task(
    queries: Any,
    labels: Any,
    k: int,
    exclude: Any,
    device: str | torch.device | None,
    seed: int,
    query_block: int | None,
    label_block: int | None,
) -> Task:
    """Check the input of `harness.index.search`; every vector is read once to find those that are not finite."""
    query_values, label_values = as_tensor(queries, "queries"), as_tensor(labels, "labels")
    if query_values.shape[1] != label_values.shape[1]:
        raise UserError(
            f"queries have {query_values.shape[1]:,} dimensions and labels {label_values.shape[1]:,}; "
            "both must come from the same encoder"
        )
    if label_values.shape[0] > _MOST_LABELS:
        raise UserError(f"{label_values.shape[0]:,} labels are more than label ids can count ({_MOST_LABELS:,})")
    where = _device(device, query_values, label_values)
    query_vectors, label_vectors = Vectors(query_values, where), Vectors(label_values, where)
    finite_queries, _ = query_vectors.survey()
    finite_labels, label_norm = label_vectors.survey()
    return Task(
        queries=query_vectors,
        labels=label_vectors,
        rows=np.flatnonzero(finite_queries),
        bad_labels=np.flatnonzero(~finite_labels),
        label_norm=label_norm,
        exclude=_checked_pairs(exclude, (query_vectors.count, label_vectors.count)),
        k=min(k, label_vectors.count),
        query_block=query_block,
        label_block=label_block,
        seed=seed,
    )


def _device(device: str | torch.device | None, *tensors: Tensor) -> torch.device:
    if device is None:
        return next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"{device!r} is not a device; take cpu or cuda") from error
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"search cannot run on {chosen.type!r}, which lacks float64; take cpu or cuda")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {str(chosen)!r} here; take device='cpu'")
    return chosen


def _checked_pairs(exclude: Any, shape: tuple[int, int]) -> csr_array | None:
    if exclude is None:
        return None
    is_sparse: bool = issparse(exclude)
    if not is_sparse:
        raise UserError(f"exclude must be a scipy sparse matrix, not {type(exclude).__name__}")
    if exclude.shape != shape:
        raise UserError(
            f"exclude has the shape {exclude.shape}, but there are {shape[0]:,} queries and {shape[1]:,} labels"
        )
    pairs = csr_array(exclude)
    if pairs.nnz and not (0 <= pairs.indices.min() and pairs.indices.max() < shape[1]):
        raise UserError(f"exclude names label {pairs.indices.max():,}, but there are only {shape[1]:,}")
    return pairs if pairs.nnz else None
