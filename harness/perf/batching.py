"""Balanced clusters of queries: time against faiss's k-means, similarity against random batches, and memory.

faiss has no balanced k-means, so its clusters are as many but not equal. Memory is measured in a process of its own,
because a peak cannot be reset.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.batching.cluster import balanced_clusters, cluster_count
from harness.batching.plan import random_plan
from harness.perf import Row, Sample, bound, compare, turns
from harness.perf.child import in_child
from harness.perf.searching import faiss_library
from harness.repro import peak_memory_gib

ROWS, DIMENSION, SIZE, ITERATIONS = 100_000, 256, 96, 10
AT_MOST_TIME, AT_LEAST_SIMILARITY, AT_MOST_COPIES = 0.7, 3.0, 3.0
_SIZE = f"{ROWS:,} x {DIMENSION} into {cluster_count(ROWS, SIZE):,} clusters, {ITERATIONS} iterations"


def rows() -> Iterator[Row]:
    """Time, similarity inside batches, then memory."""
    yield from _time_and_similarity()
    yield bound(
        "balanced clusters, peak memory beyond the input",
        _SIZE,
        Sample((in_child(copies),)),
        at_most=AT_MOST_COPIES,
        reference="fixed bound, in copies of the input",
    )


def _time_and_similarity() -> Iterator[Row]:
    faiss = faiss_library()
    vectors = topic_vectors()
    found: list[NDArray[np.int64]] = []

    def ours() -> None:
        found[:] = balanced_clusters(vectors, SIZE, seed=0, iterations=ITERATIONS)

    def theirs() -> None:
        kmeans = faiss.Kmeans(DIMENSION, cluster_count(ROWS, SIZE), niter=ITERATIONS, spherical=True, seed=1)
        kmeans.train(vectors)
        kmeans.index.search(vectors, 1)

    yield compare(
        "balanced clusters",
        _SIZE,
        f"faiss {faiss.__version__} Kmeans, spherical, not balanced, {faiss.omp_get_max_threads()} threads",
        *turns(ours, theirs, repeats=2),
        at_most=AT_MOST_TIME,
    )
    yield compare(
        "mean cosine of a row and the centroid of its batch",
        _SIZE,
        "random batches of the same size",
        Sample((mean_cosine(vectors, found),)),
        Sample((mean_cosine(vectors, random_plan(ROWS, SIZE).batches(seed=0, epoch=0)),)),
        at_least=AT_LEAST_SIMILARITY,
    )


def topic_vectors(rows: int = ROWS, seed: int = 0) -> NDArray[np.float32]:
    """Unit vectors [rows, DIMENSION] around 2,000 topics whose popularity follows Zipf's law; topics have one seed."""
    draw = np.random.default_rng(0)
    topics = draw.standard_normal((2000, DIMENSION), dtype=np.float32)
    draw = np.random.default_rng(seed) if seed else draw
    popularity = 1 / np.arange(1, len(topics) + 1)
    vectors = draw.standard_normal((rows, DIMENSION), dtype=np.float32)
    chosen = draw.choice(len(topics), rows, p=popularity / popularity.sum())
    for part, of in zip(np.array_split(vectors, 100), np.array_split(chosen, 100), strict=True):
        part += topics[of]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def mean_cosine(vectors: NDArray[np.float32], batches: list[NDArray[np.int64]]) -> float:
    """Mean cosine between unit vectors [N, D] and the centroid of their batch, sum_b |sum of its rows| / N."""
    return sum(float(np.linalg.norm(vectors[batch].sum(0))) for batch in batches) / len(vectors)


def copies() -> float:
    """How many copies of its input one clustering adds to the peak of this process."""
    vectors = topic_vectors()
    balanced_clusters(vectors[:4], 2, seed=0)  # libraries are loaded
    before = peak_memory_gib()
    balanced_clusters(vectors, SIZE, seed=0, iterations=ITERATIONS)
    return (peak_memory_gib() - before) * 2**30 / vectors.nbytes
