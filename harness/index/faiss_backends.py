"""Candidates from faiss: the flat index (exact), the HNSW graph and the inverted file (approximate), all inner product.

faiss knows nothing of excluded pairs. So a query that excludes e labels is asked for e more, and those it excludes are
dropped afterwards. Queries are grouped by e, rounded up to a power of two: one query that excludes thousands of labels
does not deepen the search of the others.
"""

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import UserError
from harness.index.ranking import Candidates
from harness.index.task import Pending, Task

_ADD_ELEMENTS = 1 << 24
_RESULT_ELEMENTS = 1 << 21
_QUERY_BLOCK = 4096
_POINTS_PER_CLUSTER = 64
_MOST_NEIGHBOURS = 1024


def flat(task: Task, pending: Pending) -> Iterator[Candidates]:
    """Score every label; `ranking` then proves the order, so that the result equals that of "exact"."""
    faiss = _faiss()
    index = faiss.IndexFlatIP(task.labels.dimension)
    known = _fill(index, task)
    return _search(index, task, pending, known, proven=True)


# The names of the options are those of faiss.
def hnsw(
    task: Task,
    pending: Pending,
    *,
    M: int = 32,
    efConstruction: int = 200,
    efSearch: int = 256,
    build_threads: int = 1,
) -> Iterator[Candidates]:
    """Propose labels by a walk over a neighbourhood graph.

    Args:
        task: the search.
        pending: the queries not taken yet.
        M: neighbours per label in the graph.
        efConstruction: breadth of the search while the graph is built.
        efSearch: breadth of the search for a query; raised to the number of labels that are needed.
        build_threads: threads that build the graph; only with 1 is it the same graph every time.
    """
    faiss = _faiss()
    if not 2 <= M <= _MOST_NEIGHBOURS:  # faiss crashes outside
        raise UserError(f"M must be between 2 and {_MOST_NEIGHBOURS}, not {M}")
    index = faiss.IndexHNSWFlat(task.labels.dimension, M, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = efConstruction
    threads = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(min(build_threads, os.cpu_count() or 1))
        known = _fill(index, task)
    finally:
        faiss.omp_set_num_threads(threads)
    return _search(index, task, pending, known, lambda depth: faiss.SearchParametersHNSW(efSearch=max(efSearch, depth)))


def ivf(task: Task, pending: Pending, *, nlist: int | None = None, nprobe: int | None = None) -> Iterator[Candidates]:
    """Propose labels of the nearest of `nlist` clusters of labels.

    Args:
        task: the search.
        pending: the queries not taken yet.
        nlist: number of clusters; by default 4 sqrt(L).
        nprobe: clusters searched per query; by default a sixteenth of them, at least 8.
    """
    faiss = _faiss()
    usable = task.labels.count - len(task.bad_labels)
    nlist = min(nlist or max(1, round(4 * math.sqrt(usable))), usable)
    nprobe = min(nprobe or max(8, nlist // 16), nlist)
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(task.labels.dimension), task.labels.dimension, nlist, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = task.seed
    index.cp.min_points_per_centroid = 1  # the default warns on standard error about small label sets
    index.train(_training_sample(task, nlist * _POINTS_PER_CLUSTER))
    known = _fill(index, task)
    return _search(index, task, pending, known, lambda _: faiss.SearchParametersIVF(nprobe=nprobe))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "this search backend needs faiss; install it with `pip install -c constraints.txt -e '.[cpu]'` (or [gpu]), "
            "or take the backend 'exact'"
        ) from error
    return faiss


def _good_blocks(task: Task) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield (ids, vectors) of the finite labels, block by block."""
    step = max(1, _ADD_ELEMENTS // task.labels.dimension)
    for first in range(0, task.labels.count, step):
        last = min(first + step, task.labels.count)
        bad = task.bad_labels[slice(*np.searchsorted(task.bad_labels, (first, last)))] - first
        vectors = task.labels.block(first, last).cpu().numpy()
        ids = np.delete(np.arange(first, last), bad)
        yield ids, np.ascontiguousarray(np.delete(vectors, bad, axis=0) if len(bad) else vectors)


def _fill(index: Any, task: Task) -> NDArray[np.int64]:
    """Add every finite label to the index; return the label id of each of its entries."""
    known = []
    for ids, vectors in _good_blocks(task):
        index.add(vectors)
        known.append(ids)
    return np.concatenate(known)


def _training_sample(task: Task, most: int) -> NDArray[np.float32]:
    good = np.setdiff1d(np.arange(task.labels.count), task.bad_labels)
    if most < len(good):
        good = np.sort(np.random.default_rng(task.seed).choice(good, most, replace=False))
    return np.ascontiguousarray(task.labels.take(torch.from_numpy(good)).cpu().numpy())


def _search(
    index: Any,
    task: Task,
    pending: Pending,
    known: NDArray[np.int64],
    parameters: Callable[[int], Any] = lambda _: None,
    proven: bool = False,
) -> Iterator[Candidates]:
    """Yield candidates of every query; `known` [entries] holds label ids, `parameters` maps a depth to faiss's own."""
    excluded = task.excluded_counts()
    extra = np.where(excluded > 0, 2 ** np.ceil(np.log2(np.maximum(excluded, 1))), 0).astype(np.int64)
    while len(block := pending.take(task.query_block or _QUERY_BLOCK)):
        for more in np.unique(extra[block]):
            depth = min(task.width + int(more), len(known))
            group = block[extra[block] == more]
            for at in np.array_split(group, -(-len(group) * depth // _RESULT_ELEMENTS)):
                queries = np.ascontiguousarray(task.query_vectors(at).cpu().numpy())
                scores, entries = index.search(queries, depth, params=parameters(depth))
                ids = np.where(entries < 0, -1, known[entries])
                scores[(entries < 0) | _is_excluded(task, at, ids)] = -math.inf
                yield _best_of(task, at, scores, ids, proven, len(known))


def _is_excluded(task: Task, at: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which entries of ids [B, depth] are excluded for their query."""
    rows, labels = task.excluded_pairs(at)
    if not len(rows):
        return np.zeros(ids.shape, np.bool_)
    width = np.int64(task.labels.count)
    return np.isin(np.arange(len(at))[:, None] * width + ids, rows * width + labels)


def _best_of(
    task: Task, at: NDArray[np.int64], scores: NDArray[np.float32], ids: NDArray[np.int64], proven: bool, entries: int
) -> Candidates:
    device = task.queries.device
    best, kept = torch.from_numpy(scores).to(device).topk(min(task.width, scores.shape[1]), 1, sorted=False)
    chosen = torch.from_numpy(ids).to(device).gather(1, kept)
    return Candidates.of(at, best, chosen, left_out=task.width < entries, proven=proven)
