"""What mining costs: balanced clusters of 700,000 queries, and a whole refresh of hard negatives and batches.

Clustering is held against the products it cannot do without: the same shapes, as many iterations as the splits took,
the same threads. A refresh is held against faiss's exact search and its k-means, which is not balanced, and an
approximate refresh against the exact one.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.batching import cluster
from harness.batching.cluster import balanced_clusters, cluster_count
from harness.index import TopK, search
from harness.index.vectors import as_tensor, full_precision, plain_arithmetic
from harness.perf import Row, compare, turns
from harness.perf.batching import topic_vectors
from harness.perf.searching import faiss_library

ROWS, CLUSTER = 700_000, 256
QUERIES, LABELS, NEGATIVES, BATCH = 50_000, 131_073, 30, 256
AT_MOST_OF_PRODUCTS, AT_MOST_OF_FAISS = 2.0, 1.2
_CPU = torch.device("cpu")


def rows() -> Iterator[Row]:
    """Clustering against its products, then a refresh, exact and approximate."""
    yield _clustering()
    yield from _refreshes()


@dataclass
class Splits:
    """The shapes [G, W] of the nodes that were split together, level by level, and the iterations each took."""

    levels: list[list[tuple[int, int, int]]] = field(default_factory=list)
    _of_thread: threading.local = field(default_factory=threading.local)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes every split of the clusterings inside the block."""
        split, two_means, largest = cluster._Tree.split, cluster._two_means, cluster._largest

        def noted_split(tree: Any, *arguments: Any, **options: Any) -> None:
            self.levels.append([])
            split(tree, *arguments, **options)

        def noted_means(nodes: Tensor, *arguments: Any) -> Tensor:
            self._of_thread.iterations = 0
            first = two_means(nodes, *arguments)
            self.levels[-1].append((*nodes.shape[:2], self._of_thread.iterations))
            return first

        def counted(scores: Tensor, count: int) -> Tensor:
            self._of_thread.iterations += 1
            return largest(scores, count)

        noted = {"_two_means": noted_means, "_largest": counted}
        with ExitStack() as patches:
            patches.enter_context(patch.object(cluster._Tree, "split", noted_split))
            for name, function in noted.items():
                patches.enter_context(patch.object(cluster, name, function))
            yield

    def products(self, vectors: Tensor) -> None:
        """All scores x . (c_0 - c_1) and all sums of halves of the noted splits, on `vectors` [N, D], and no more."""
        with full_precision(), plain_arithmetic(_CPU), cluster._workers(_CPU) as side_by_side:
            for level in self.levels:
                starts = np.cumsum([0, *(nodes * width for nodes, width, _ in level)])

                def work(block: slice, level: Any = level, starts: NDArray[np.int64] = starts) -> None:
                    nodes, width, iterations = level[block.start]
                    # padded nodes are together a little longer than the rows: the last block begins earlier
                    start = min(int(starts[block.start]), len(vectors) - nodes * width)
                    rows = vectors[start : start + nodes * width].view(nodes, width, -1)
                    direction, half = torch.ones(nodes, 1, rows.shape[2]), torch.ones(nodes, 1, width)
                    for _ in range(iterations):
                        torch.bmm(direction, rows.mT)
                        torch.bmm(half, rows)

                side_by_side(work, [slice(place, place + 1) for place in range(len(level))])

    @property
    def passes(self) -> float:
        """How often every row was scored and summed, on average."""
        work = [nodes * width * iterations for level in self.levels for nodes, width, iterations in level]
        return sum(work) / sum(nodes * width for nodes, width, _ in self.levels[0])


def _clustering() -> Row:
    vectors, splits = topic_vectors(ROWS), Splits()
    with splits.noted():
        balanced_clusters(vectors, CLUSTER, seed=0, progress="clustering")
    rows = as_tensor(vectors, "vectors")
    ours, products = turns(
        lambda: balanced_clusters(vectors, CLUSTER, seed=0, progress="clustering"),
        lambda: splits.products(rows),
        repeats=3,
        warm=0,
    )
    count = cluster_count(ROWS, CLUSTER)
    return compare(
        "balanced clusters",
        f"{ROWS:,} x {vectors.shape[1]} into {count:,} clusters of {ROWS // count} to {-(-ROWS // count)}",
        f"the matrix products alone: {splits.passes:.0f} scores and {splits.passes:.0f} sums of every row, "
        f"{torch.get_num_threads()} threads",
        ours,
        products,
        at_most=AT_MOST_OF_PRODUCTS,
        detail="the rest: unit vectors, ranks, halves, and moving the rows once a level",
    )


def _refreshes() -> Iterator[Row]:
    faiss = faiss_library()
    queries, labels = topic_vectors(QUERIES, seed=1), topic_vectors(LABELS, seed=2)
    size = f"{QUERIES:,} queries x {LABELS:,} labels x {queries.shape[1]}, top-{NEGATIVES}, batches of {BATCH}"
    found: dict[str, TopK] = {}

    def refresh(backend: str) -> Callable[[], None]:
        def call() -> None:
            found[backend] = search(
                queries, labels, NEGATIVES, backend=backend, recall_sample=0, progress=f"{backend} search"
            )
            balanced_clusters(queries, BATCH, seed=0)

        return call

    def reference() -> None:
        index = faiss.IndexFlatIP(queries.shape[1])
        index.add(labels)
        index.search(queries, NEGATIVES)
        count = cluster_count(QUERIES, BATCH)
        kmeans = faiss.Kmeans(queries.shape[1], count, niter=10, spherical=True, seed=1)
        kmeans.train(queries)
        kmeans.index.search(queries, 1)

    exact, theirs, inverted = turns(refresh("exact"), reference, refresh("faiss-ivf"), repeats=2, warm=0)
    library = f"faiss {faiss.__version__} IndexFlatIP and Kmeans, {faiss.omp_get_max_threads()} threads"
    yield compare("mining refresh, exact search and clusters", size, library, exact, theirs, at_most=AT_MOST_OF_FAISS)
    share = recall(found["faiss-ivf"].ids, found["exact"].ids)
    yield compare(
        "mining refresh, faiss-ivf search and clusters",
        size,
        "the same with exact search; building the index counts",
        inverted,
        exact,
        detail=f"recall@{NEGATIVES} {100 * share:.1f} %",
        at={"backend": "faiss-ivf", "recall": share},
    )


def recall(found: NDArray[np.int32], exact: NDArray[np.int32]) -> float:
    """Share of the exact labels [M, K] that were found [M, K]."""
    offset = np.arange(len(exact), dtype=np.int64)[:, None] * (int(exact.max()) + 2)  # -1, for none, meets no id
    return float(np.isin(exact + offset, found + offset).mean())
