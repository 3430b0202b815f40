"""Balanced clusters of queries: time against faiss's k-means, similarity against random batches, and memory.

faiss has no balanced k-means, so its clusters are as many but not equal. Memory is measured in a fresh process,
`python -m harness.perf.batching`, because a peak cannot be reset.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.batching.cluster import balanced_clusters, cluster_count
from harness.batching.plan import random_plan
from harness.errors import UserError
from harness.perf import Row, median_seconds
from harness.perf.searching import peak_megabytes

ROWS, DIMENSION, SIZE, ITERATIONS = 100_000, 256, 96, 10
AT_MOST_TIME, AT_LEAST_SIMILARITY, AT_MOST_COPIES = 0.7, 3.0, 3.0
_SIZE = f"{ROWS:,} x {DIMENSION} into {cluster_count(ROWS, SIZE):,} clusters, {ITERATIONS} iterations"


def rows() -> Iterator[Row]:
    """Time, similarity inside batches, then memory."""
    yield from _time_and_similarity()
    copies = float(
        subprocess.run(
            [sys.executable, "-m", "harness.perf.batching"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )
    yield Row(
        what="balanced clusters, peak memory beyond the input",
        size=_SIZE,
        reference="a fixed bound, in copies of the input",
        ours=f"{copies:.1f} copies",
        theirs=f"{AT_MOST_COPIES:.0f} copies",
        ratio=copies / AT_MOST_COPIES,
        target="at most 1x",
        met=copies <= AT_MOST_COPIES,
    )


def _time_and_similarity() -> Iterator[Row]:
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "this benchmark needs faiss; install it with `pip install -c constraints.txt -e '.[cpu]'`"
        ) from error
    vectors = topic_vectors()
    found: list[NDArray[np.int64]] = []

    def ours() -> None:
        found[:] = balanced_clusters(vectors, SIZE, seed=0, iterations=ITERATIONS)

    def theirs() -> None:
        kmeans = faiss.Kmeans(DIMENSION, cluster_count(ROWS, SIZE), niter=ITERATIONS, spherical=True, seed=1)
        kmeans.train(vectors)
        kmeans.index.search(vectors, 1)

    own, other = median_seconds(ours, theirs, repeats=2)
    yield Row(
        what="balanced clusters",
        size=_SIZE,
        reference=f"faiss {faiss.__version__} Kmeans, spherical, not balanced, {faiss.omp_get_max_threads()} threads",
        ours=f"{own:.2f} s, {ROWS / own:,.0f} rows/s",
        theirs=f"{other:.2f} s, {ROWS / other:,.0f} rows/s",
        ratio=own / other,
        target=f"at most {AT_MOST_TIME}x",
        met=own <= AT_MOST_TIME * other,
    )
    similar = mean_cosine(vectors, found)
    random = mean_cosine(vectors, random_plan(ROWS, SIZE).batches(seed=0, epoch=0))
    yield Row(
        what="mean cosine of a row and the centroid of its batch",
        size=_SIZE,
        reference="random batches of the same size",
        ours=f"{similar:.3f}",
        theirs=f"{random:.3f}",
        ratio=similar / random,
        target=f"at least {AT_LEAST_SIMILARITY:.0f}x",
        met=similar >= AT_LEAST_SIMILARITY * random,
    )


def topic_vectors() -> NDArray[np.float32]:
    """Unit vectors [ROWS, DIMENSION] around 2,000 topics whose popularity follows Zipf's law."""
    draw = np.random.default_rng(0)
    topics = draw.standard_normal((2000, DIMENSION), dtype=np.float32)
    popularity = 1 / np.arange(1, len(topics) + 1)
    vectors = draw.standard_normal((ROWS, DIMENSION), dtype=np.float32)
    chosen = draw.choice(len(topics), ROWS, p=popularity / popularity.sum())
    for part, of in zip(np.array_split(vectors, 100), np.array_split(chosen, 100), strict=True):
        part += topics[of]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def mean_cosine(vectors: NDArray[np.float32], batches: list[NDArray[np.int64]]) -> float:
    """Mean cosine between unit vectors [N, D] and the centroid of their batch, sum_b |sum of its rows| / N."""
    return sum(float(np.linalg.norm(vectors[batch].sum(0))) for batch in batches) / len(vectors)


def main() -> None:
    """Prints how many copies of its input one clustering adds to the peak of this process."""
    vectors = topic_vectors()
    balanced_clusters(vectors[:4], 2, seed=0)  # libraries are loaded
    before = peak_megabytes()
    balanced_clusters(vectors, SIZE, seed=0, iterations=ITERATIONS)
    sys.stdout.write(f"{(peak_megabytes() - before) * 2**20 / vectors.nbytes:.2f}\n")


if __name__ == "__main__":
    main()
