"""Nearest-label search: query vectors and label vectors in, the best K labels of every query out.

A backend proposes candidates; `ranking` scores them again and orders them by (score descending, label id ascending).
The score is the inner product, summed in float64 and rounded once to float32. "exact" and "faiss-flat" return the same
ids and scores, and so do all block sizes, thread counts and devices. Only the order of the float64 sum is left open: it
shows if the sum lies within its own rounding, about 1e-16, of the midpoint of two float32 numbers.

Pairs in `exclude` are masked before the ranking, so K labels remain wherever K are allowed. A vector with a NaN or an
infinity finds nothing, is never found, and is counted in `TopK.flagged`.
"""

import inspect
import math
import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.errors import UserError, unknown_name
from harness.io.progress import progress as show_progress
from harness.registry import Registry

if TYPE_CHECKING:
    import torch

    from harness.index.ranking import Proposer
    from harness.index.task import Task

__all__ = ["BACKENDS", "TopK", "check_backend", "search", "whole_number"]

_PROPOSERS: Registry[Any] = Registry("search backend")
_PROPOSERS.register("exact", "harness.index.exact:candidates", "every label scored, torch on CPU or GPU; the reference")
_PROPOSERS.register(
    "faiss-flat", "harness.index.faiss_backends:flat", "every label scored by faiss; same result as exact"
)
_PROPOSERS.register(
    "faiss-hnsw", "harness.index.faiss_backends:hnsw", "faiss graph index; approximate, recall is measured"
)
_PROPOSERS.register(
    "faiss-ivf", "harness.index.faiss_backends:ivf", "faiss inverted lists; approximate, recall is measured"
)

BACKENDS: dict[str, str] = {name: _PROPOSERS.summary(name) for name in _PROPOSERS}
"""One line about each backend, by name."""

_EXACT = ("exact", "faiss-flat")
_MOST = 2**31 - 1


@dataclass(frozen=True)
class TopK:
    """The best K labels of M queries, by score descending, then label id ascending."""

    ids: NDArray[np.int32]
    """Label ids, [M, K]; -1 = none."""
    scores: NDArray[np.float32]
    """Inner products, [M, K]; -inf where there is none."""
    flagged: int = 0
    """Queries and labels with a non-finite vector; the former have no result, the latter are in none."""
    backend: str = "exact"
    recall: float | None = 1.0
    """Share of the exact result that was found: 1 for exact backends, None if it was not measured."""


def search(
    queries: "NDArray[Any] | torch.Tensor",
    labels: "NDArray[Any] | torch.Tensor",
    k: int,
    exclude: csr_array | None = None,
    backend: str = "exact",
    *,
    device: "str | torch.device | None" = None,
    query_block: int | None = None,
    label_block: int | None = None,
    recall_sample: int = 1000,
    seed: int = 0,
    progress: str | None = None,
    **options: int,
) -> TopK:
    """Find the K labels with the largest inner product for every query.

    Args:
        queries: Query vectors [M, D], numpy (a memory map is read block by block) or torch, any float type; computed in
            float32.
        labels: Label vectors [L, D], likewise.
        k: how many labels per query; where fewer than k are allowed, -1 fills the row.
        exclude: pairs [M, L] that are never returned: every stored entry counts, whatever its value.
        backend: one of `BACKENDS`.
        device: where to compute; by default where the tensors are, and the CPU for arrays.
        query_block: queries that one thread scores at once; changes memory and speed, never the result.
        label_block: labels scored at once; likewise.
        recall_sample: queries on which the recall of an approximate backend is measured; 0 = do not measure.
        seed: seed of that sample, and of the clustering of "faiss-ivf".
        progress: name of a progress bar; no bar by default.
        options: options of the backend: tile and chunk for "exact"; M, efConstruction, efSearch and build_threads for
            "faiss-hnsw"; nlist and nprobe for "faiss-ivf".
    """
    propose = _proposer(backend, options)
    k, seed = whole_number("k", k, 1), whole_number("seed", seed, 0)
    blocks = {"query_block": query_block, "label_block": label_block}
    blocks = {name: size if size is None else whole_number(name, size, 1) for name, size in blocks.items()}
    from harness.index.task import full_precision, make_task

    task = make_task(queries, labels, k, exclude, device, seed, **blocks)
    flagged = task.queries.count - len(task.rows) + len(task.bad_labels)
    with full_precision():
        ids, scores = _ranked(task.side_by_side() if backend == "exact" else task, propose, progress)
        recall: float | None = 1.0
        if backend not in _EXACT:
            recall = _recall(task, ids, whole_number("recall_sample", recall_sample, 0))
    return TopK(_spread(task, ids, k, -1), _spread(task, scores, k, -math.inf), flagged, backend, recall)


def check_backend(backend: str, options: dict[str, int]) -> None:
    """Raise if the backend is unknown or does not have these options."""
    _proposer(backend, options)


def _proposer(backend: str, options: dict[str, int]) -> "Proposer":
    function = _PROPOSERS.get(backend)
    known = [name for name, part in inspect.signature(function).parameters.items() if part.kind is part.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name(f"option of search backend {backend!r}:", name, known)
    return partial(function, **{name: whole_number(name, value, 1) for name, value in options.items()})


def whole_number(name: str, value: int, least: int) -> int:
    """Return `value` as an int; raise if it is no whole number of at least `least`. `name` is for the error message."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be a whole number, not {value!r}") from None
    if not least <= number <= _MOST:
        raise UserError(f"{name} must be between {least} and {_MOST:,}, not {number:,}")
    return number


def _ranked(
    task: "Task", propose: "Proposer", description: str | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    from harness.index.ranking import rank

    if not len(task.rows) or len(task.bad_labels) == task.labels.count:
        shape = (len(task.rows), task.k)
        return np.full(shape, -1, np.int32), np.full(shape, -math.inf, np.float32)
    if description is None:
        return rank(task, propose, lambda _: None)
    with show_progress(description, len(task.rows), "queries") as advance:
        return rank(task, propose, advance)


def _recall(task: "Task", ids: NDArray[np.int32], sample: int) -> float | None:
    """Return the share of the exact result that `ids` [rows, K] contains, measured on a random sample of queries."""
    if sample == 0:
        return None
    count = len(ids)
    at = np.arange(count)
    if sample < count:
        at = np.sort(np.random.default_rng(task.seed).choice(count, sample, replace=False))
    truth, _ = _ranked(replace(task, rows=task.rows[at]).side_by_side(), _proposer("exact", {}))
    row = np.arange(len(at))[:, None] * np.int64(task.labels.count)
    found = np.isin((truth + row)[truth >= 0], (ids[at] + row)[ids[at] >= 0])
    return float(found.mean()) if found.size else 1.0


def _spread(task: "Task", values: NDArray[Any], k: int, fill: float) -> NDArray[Any]:
    """Spread the results [rows, <= k] of the finite queries over all queries, [M, k]; `fill` elsewhere."""
    if values.shape == (task.queries.count, k):
        return values
    try:
        spread = np.full((task.queries.count, k), fill, values.dtype)
    except MemoryError as error:
        raise UserError(f"the best {k:,} of {task.queries.count:,} queries do not fit into memory; lower k") from error
    if len(values):
        spread[task.rows, : values.shape[1]] = values
    return spread
