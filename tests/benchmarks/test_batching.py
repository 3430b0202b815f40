"""Pools and mining: picking labels against a loop, clusters and exact search against faiss."""

from collections import Counter
from collections.abc import Iterable
from functools import partial

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching import LabelPool
from harness.batching.cluster import MOST_ITERATIONS, balanced_clusters, cluster_count
from harness.batching.pool import LabelPicker
from harness.index import search
from harness.machine.memory import peak_memory_gib
from tests.benchmarks.race import Race, in_child, size

DIMENSION = 256
_THREADS = f"faiss {faiss.__version__}, {faiss.omp_get_max_threads()} threads"

# ---------------------------------------------------------------- the pool of a batch

ROWS, LABELS, BATCH, LABELS_PER_ROW = size(50_000, 2_000), 1_305_265, size(1098, 100), 22
BETA, ETA, LISTED = 2, 6, 30


@pytest.mark.parametrize("pool_size", [None, 3000])
def test_picking_a_pool(race: Race, pool_size: int | None) -> None:
    """Both sides use one core; queries of a batch share labels, because labels follow Zipf's law within a cluster."""
    train, filtered, hard = _random_case(np.random.default_rng(0))
    batch = np.random.default_rng(1).permutation(np.arange(2 * BATCH))[:BATCH]
    plain = partial(_loop, batch, train, filtered, hard, pool_size=pool_size)

    # when every query draws all it has, chance plays no part
    whole = _picker(train, filtered, hard, pool_size, LABELS, LISTED)
    pool, same = whole.pick(batch, *map(np.random.default_rng, (5, 6))), plain(beta=LABELS, eta=LISTED)
    for name in ("labels", "positive", "ignored"):
        assert np.array_equal(getattr(pool, name), getattr(same, name))

    picker = _picker(train, filtered, hard, pool_size, BETA, ETA)
    race(
        f"picking a label pool, {'no cap' if pool_size is None else f'at most {pool_size:,} labels'}",
        f"{BATCH:,} queries, {LABELS:,} labels, {LABELS_PER_ROW} labels a row, beta {BETA}, eta {ETA} of {LISTED}",
        "loop over queries with Generator.choice and np.isin",
        partial(picker.pick, batch, np.random.default_rng(2), np.random.default_rng(3)),
        partial(plain, beta=BETA, eta=ETA),
        at_least=20.0,
        rounds=9,
    )


def _random_case(generator: np.random.Generator) -> tuple[csr_array, csr_array, NDArray[np.int32]]:
    """Train labels [N, L], one filter pair a row [N, L] and hard lists [N, H] of distinct labels."""
    row = np.repeat(np.arange(ROWS), generator.poisson(1.33 * LABELS_PER_ROW, ROWS))  # a quarter are repeats
    near = (generator.zipf(1.2, len(row)) - 1) % 20_000
    label = (row // BATCH * 20_000 + near) % LABELS
    train = csr_array((np.ones(len(row), np.float32), (row, label)), shape=(ROWS, LABELS))
    own = np.arange(ROWS)
    self_pair = (own // BATCH * 20_000 + generator.integers(20_000, size=ROWS)) % LABELS
    filtered = csr_array((np.ones(ROWS, np.float32), (own, self_pair)), shape=(ROWS, LABELS))
    # a run of consecutive ids holds no label twice
    start = own[:, None] // BATCH * 20_000 + generator.integers(20_000, size=(ROWS, 1))
    return train, filtered, ((start + np.arange(LISTED)) % LABELS).astype(np.int32)


def _picker(
    train: csr_array, filtered: csr_array, hard: NDArray[np.int32], pool_size: int | None, beta: int, eta: int
) -> LabelPicker:
    picker = LabelPicker(train, filtered, beta=beta, eta=eta, pool_size=pool_size)
    picker.hard = hard
    return picker


def _loop(
    batch: NDArray[np.int64],
    train: csr_array,
    filtered: csr_array,
    hard: NDArray[np.int32],
    *,
    beta: int,
    eta: int,
    pool_size: int | None,
) -> LabelPool:
    """The same pool as `LabelPicker` would pick, one query at a time, drawing other random numbers."""
    generator = np.random.default_rng(4)
    drawn: list[int] = []
    against: list[int] = []
    known = [train.indices[train.indptr[row] : train.indptr[row + 1]] for row in batch]
    masked = [filtered.indices[filtered.indptr[row] : filtered.indptr[row + 1]] for row in batch]
    for row, positives, hidden in zip(batch, known, masked, strict=True):
        drawn += generator.choice(positives, min(beta, len(positives)), replace=False).tolist()
        listed = hard[row][~np.isin(hard[row], positives) & ~np.isin(hard[row], hidden) & (hard[row] >= 0)]
        against += generator.choice(listed, min(eta, len(listed)), replace=False).tolist()
    further = [] if pool_size is None else np.concatenate(known).tolist()
    labels = np.array(sorted(_first(pool_size, (drawn, against, further))), dtype=np.int64)
    positive, ignored = np.zeros((2, len(batch), len(labels)), np.bool_)
    for place, (positives, hidden) in enumerate(zip(known, masked, strict=True)):
        positive[place] = np.isin(labels, positives)
        ignored[place] = np.isin(labels, hidden) & ~positive[place]
    return LabelPool(labels, positive, ignored if ignored.any() else None)


def _first(count: int | None, kinds: Iterable[list[int]]) -> set[int]:
    """Up to so many distinct labels, one kind after the other, the most frequent of a kind first."""
    chosen: dict[int, None] = {}
    for labels in kinds:
        counted = Counter(labels)
        chosen |= dict.fromkeys(sorted(counted, key=lambda label: (-counted[label], label)))
    return set(list(chosen)[:count])


# ---------------------------------------------------------------- clusters

POINTS, SIZE = size(100_000, 2_000), 96
_POINTS = f"{POINTS:,} x {DIMENSION} into {cluster_count(POINTS, SIZE):,} clusters, {MOST_ITERATIONS} iterations"


def topic_vectors(rows: int = POINTS, seed: int = 0) -> NDArray[np.float32]:
    """Unit vectors [rows, DIMENSION] around 2,000 topics whose popularity follows Zipf's law; topics have one seed."""
    topics = np.random.default_rng(0).standard_normal((2000, DIMENSION), dtype=np.float32)
    draw = np.random.default_rng(seed + 1)
    popularity = 1 / np.arange(1, len(topics) + 1)
    vectors = draw.standard_normal((rows, DIMENSION), dtype=np.float32)
    chosen = draw.choice(len(topics), rows, p=popularity / popularity.sum())
    # in parts: temporaries of the whole size would hide a later peak of memory
    for part, of in zip(np.array_split(vectors, 100), np.array_split(chosen, 100), strict=True):
        part += topics[of]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def test_balanced_clusters(race: Race) -> None:
    vectors = topic_vectors()

    def theirs() -> None:
        kmeans = faiss.Kmeans(DIMENSION, cluster_count(POINTS, SIZE), niter=MOST_ITERATIONS, spherical=True, seed=1)
        kmeans.train(vectors)
        kmeans.index.search(vectors, 1)

    race(
        "balanced clusters",
        _POINTS,
        f"Kmeans, spherical, not balanced, {_THREADS}",
        lambda: balanced_clusters(vectors, SIZE, seed=0),
        theirs,
        at_most=0.7,
        rounds=2,
    )


# ---------------------------------------------------------------- exact search

FOUND = 100
QUERIES, SEARCHED = size(20_000, 500), size(50_000, 1_000)
_SEARCH = f"{QUERIES:,} queries x {SEARCHED:,} labels x {DIMENSION}, top-{FOUND}"


def test_exact_search(race: Race) -> None:
    queries, labels = topic_vectors(QUERIES, 1), topic_vectors(SEARCHED, 2)
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(labels)
    some = queries[:500]
    # neighbours whose scores differ in the last bit may be swapped by faiss
    assert (search(some, labels, FOUND).ids == index.search(some, FOUND)[1]).mean() > 0.999
    race(
        "exact search",
        _SEARCH,
        f"IndexFlatIP, ready built, {_THREADS}",
        lambda: search(queries, labels, FOUND),
        lambda: index.search(queries, FOUND),
        at_most=1.2,
        rounds=3,
    )


def test_memory_of_search(race: Race) -> None:
    what, reference = "exact search, peak memory beyond its input", "all scores at once"
    race.values(what, _SEARCH, reference, lambda: in_child(search_memory), "B", at_most=0.11)


def search_memory() -> tuple[float, float]:
    """Bytes that one search adds to the peak of this process, and those of all scores."""
    queries, labels = topic_vectors(QUERIES, 1), topic_vectors(SEARCHED, 2)
    search(queries[:1], labels[:1], 1)  # libraries are loaded and their threads started
    before = peak_memory_gib()
    search(queries, labels, FOUND)
    return (peak_memory_gib() - before) * 2**30, 4.0 * QUERIES * SEARCHED
