"""Balanced clusters: sizes by closed form, quality against a slow obvious version, ties, zeros, bad input."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.batching import cluster
from harness.batching.cluster import balanced_clusters, bounds, cluster_count
from harness.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a level has many blocks, as it has with many vectors."""
    monkeypatch.setitem(cluster._BLOCK_ELEMENTS, "cpu", 200)


def topics(rows: int, dimension: int, count: int, noise: float, seed: int = 0) -> NDArray[np.float32]:
    """Vectors around `count` random centres that are not equally popular."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count, dimension))
    popular = 1 / np.arange(1, count + 1)
    chosen = draw.choice(count, rows, p=popular / popular.sum())
    return (centres[chosen] + noise * draw.standard_normal((rows, dimension))).astype(np.float32)


def mean_similarity(vectors: NDArray[Any], clusters: list[NDArray[np.int64]]) -> float:
    """Mean cosine between a vector and the centroid of its cluster."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return sum(float((unit[rows] @ centroid(unit[rows])).sum()) for rows in clusters) / len(vectors)


def centroid(unit: NDArray[Any]) -> NDArray[Any]:
    total = unit.sum(0)
    return total / max(float(np.linalg.norm(total)), 1e-30)


def plain_clusters(unit: NDArray[Any], rows: NDArray[np.int64], size: int, draw: Any) -> list[NDArray[np.int64]]:
    """The textbook recursion: both centroids, both scores, a full sort, until nothing improves."""
    if len(rows) < 2 * size:
        return [rows]
    mine, half, last = unit[rows], len(rows) // 2, -math.inf
    centroids = mine[draw.choice(len(rows), 2, replace=False)]
    for _ in range(100):
        scores = mine @ centroids.T
        order = np.argsort(scores[:, 1] - scores[:, 0], kind="stable")
        similarity = (scores[order[:half], 0].sum() + scores[order[half:], 1].sum()) / len(rows)
        if similarity - last < 1e-4:
            break
        last = similarity
        centroids = np.stack([centroid(mine[order[:half]]), centroid(mine[order[half:]])])
    parts = (rows[order[:half]], rows[order[half:]])
    return [found for part in parts for found in plain_clusters(unit, part, size, draw)]


def assert_partition(clusters: list[NDArray[np.int64]], rows: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(clusters)), np.arange(rows))
    assert all((np.diff(found) > 0).all() for found in clusters)
    assert {found.dtype for found in clusters} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("rows", "size", "count", "small", "large"),
    [
        (2_248_619, 1024, 2048, 1097, 1098),
        (294_805, 575, 512, 575, 576),
        (693_082, 676, 1024, 676, 677),
        (2_248_619, 2195, 1024, 2195, 2196),
        (1_813_391, 221, 8192, 221, 222),
        (10, 11, 1, 10, 10),
        (10, 10, 1, 10, 10),
        (1, 1, 1, 1, 1),
    ],
)
def test_published_batch_sizes(rows: int, size: int, count: int, small: int, large: int) -> None:
    """The batch sizes of the UniDEC papers follow from the number of train rows"""
    assert cluster_count(rows, size) == count
    sizes = np.diff(bounds(rows, count))
    assert (sizes.min(), sizes.max(), sizes.sum()) == (small, large, rows)


@given(rows=st.integers(1, 150), size=st.integers(1, 40), dimension=st.integers(1, 5), seed=st.integers(0, 2**40))
@example(rows=127, size=1, dimension=2, seed=0)
@example(rows=3, size=1, dimension=1, seed=0)
@settings(max_examples=60)
def test_every_row_once_and_sizes_within_one(rows: int, size: int, dimension: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.integers(-1, 2, (rows, dimension)).astype(np.float32)  # many ties, duplicates and zero vectors
    clusters = balanced_clusters(vectors, size, seed)
    sizes = {len(found) for found in clusters}
    assert len(clusters) == 2 ** max(0, math.floor(math.log2(rows / size)))
    assert max(sizes) - min(sizes) <= 1
    assert_partition(clusters, rows)


def threads_of_an_operation() -> int:
    torch.ones(10).sum()  # a thread takes over the setting with its first operation
    return torch.get_num_threads()


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_clusters(threads: int, tiny_blocks: None) -> None:
    vectors = topics(301, 6, 20, 0.5)
    torch.set_num_threads(threads)
    try:
        one, two, other = (balanced_clusters(vectors, 5, seed) for seed in (3, 3, 4))
        with ThreadPoolExecutor(1) as later:
            assert later.submit(threads_of_an_operation).result() == threads == threads_of_an_operation()
    finally:
        torch.set_num_threads(1)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_and_threads_leave_the_clusters_alone(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding to a common width and sharing blocks among threads do not show; whole numbers make every sum exact"""
    corners = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]], np.float32)
    vectors = corners[np.random.default_rng(0).integers(4, size=203)]
    monkeypatch.setattr(cluster, "MOST_ITERATIONS", 1)  # so that the scores are 0, 1 or 2
    expected = balanced_clusters(vectors, 3, 7)
    monkeypatch.setitem(cluster._BLOCK_ELEMENTS, "cpu", 30)
    torch.set_num_threads(threads)
    try:
        found = balanced_clusters(vectors, 3, 7)
    finally:
        torch.set_num_threads(1)
    assert [rows.tolist() for rows in found] == [rows.tolist() for rows in expected]


@pytest.mark.parametrize("iterations", [1, 2, 3, 6])
@pytest.mark.parametrize("rows", [40, 41])
def test_a_split_is_what_its_definition_says(rows: int, iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same two first rows, then centroids, scores and a full sort in float64, for so many iterations"""
    monkeypatch.setattr(cluster, "MOST_ITERATIONS", iterations)
    monkeypatch.setattr(cluster, "TOLERANCE", -1.0)
    draw = np.random.default_rng(rows)
    vectors = draw.standard_normal((rows, 3)) * 10.0 ** draw.integers(-2, 3, (rows, 1)) + [0.0, 0.0, 0.5]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for seed in range(5):
        centroids = unit[cluster._two_rows(np.array([rows]), seed, 0)[0]]
        for _ in range(iterations):
            order = np.argsort(unit @ (centroids[1] - centroids[0]), kind="stable")
            halves = [order[: rows // 2], order[rows // 2 :]]
            centroids = np.stack([centroid(unit[half]) for half in halves])
        found = balanced_clusters(vectors, rows // 2, seed)
        assert [half.tolist() for half in found] == [sorted(half.tolist()) for half in halves]


@pytest.mark.parametrize("blobs", [2, 8, 16])
def test_finds_well_separated_groups(blobs: int) -> None:
    """Equal, far groups are found whole: a pair is together in the clusters exactly if it is in the groups"""
    each, draw = 12, np.random.default_rng(blobs)
    centres = np.eye(blobs)
    if blobs > 2:  # groups in pairs of pairs, so that the best cut of every node is between groups
        bits = (np.arange(blobs)[:, None] >> np.arange(int(math.log2(blobs)))) & 1
        centres = np.concatenate([(1 - 2 * bits) * 3.0 ** np.arange(bits.shape[1]), 0.1 * centres], axis=1)
    group = draw.permutation(np.repeat(np.arange(blobs), each))
    vectors = centres[group] + 0.01 * draw.standard_normal((len(group), centres.shape[1]))
    clusters = balanced_clusters(vectors, each, seed=1)
    assert sorted(sorted(set(group[rows])) for rows in clusters) == [[number] for number in range(blobs)]


@pytest.mark.parametrize(("rows", "size", "noise"), [(1500, 20, 0.5), (1300, 9, 1.0)])
def test_as_good_as_the_slow_obvious_version(rows: int, size: int, noise: float, monkeypatch: Any) -> None:
    """Mean similarity over three seeds, because a single start may be lucky"""
    monkeypatch.setitem(cluster._BLOCK_ELEMENTS, "cpu", 5000)
    vectors = topics(rows, 16, 60, noise)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    seeds, everything = range(3), np.arange(rows)
    ours = np.mean([mean_similarity(vectors, balanced_clusters(vectors, size, seed)) for seed in seeds])
    plain = np.mean(
        [
            mean_similarity(vectors, plain_clusters(unit, everything, size, np.random.default_rng(seed)))
            for seed in seeds
        ]
    )
    shuffled = np.random.default_rng(0).permutation(rows)
    random = mean_similarity(vectors, np.array_split(shuffled, cluster_count(rows, size)))
    assert ours > 0.97 * plain
    assert ours > random + 0.5 * (plain - random)


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_equal_vectors_are_cut_by_row_number(value: float) -> None:
    clusters = balanced_clusters(np.full((11, 3), value, np.float32), 2, seed=0)
    assert [rows.tolist() for rows in clusters] == [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("kind", [np.float16, np.float64, torch.float32, torch.bfloat16])
def test_any_float_type_and_the_input_is_left_alone(kind: Any) -> None:
    values = np.random.default_rng(0).integers(-3, 4, (50, 3))
    vectors = values.astype(kind) if isinstance(kind, type) else torch.tensor(values, dtype=kind)
    expected = balanced_clusters(values.astype(np.float32), 5, 2)
    found = balanced_clusters(vectors, 5, 2)
    assert [rows.tolist() for rows in found] == [rows.tolist() for rows in expected]
    assert np.array_equal(np.asarray(torch.as_tensor(vectors).to(torch.int64)), values)


def test_vectors_that_are_not_finite_are_counted() -> None:
    vectors = np.ones((20, 3), np.float32)
    vectors[3, 1], vectors[4], vectors[7, 2] = np.nan, np.inf, -np.inf
    with pytest.raises(UserError, match=r"3 of 20 vectors .* lower the learning rate"):
        balanced_clusters(vectors, 4, 0)


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.ones((4, 2), np.float32), {"size": 0}, "size .* between 1 and .*, not 0"),
        (np.ones((4, 2), np.float32), {"size": 2.5}, "whole number, not 2.5"),
        (np.ones((0, 2), np.float32), {}, "no train rows left"),
        (np.ones(4, np.float32), {}, r"shape \[rows, dimension\]"),
        (np.ones((4, 2), np.int64), {}, "floating-point"),
    ],
)
def test_what_cannot_be_clustered_is_refused(vectors: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        balanced_clusters(vectors, **{"size": 2, "seed": 0, **options})


@pytest.mark.gpu
def test_gpu_clusters_are_as_good() -> None:
    vectors = topics(3000, 16, 60, 0.5)
    on_cpu, on_gpu = (balanced_clusters(vectors, 20, 0, device=device) for device in ("cpu", "cuda"))
    assert_partition(on_gpu, 3000)
    assert mean_similarity(vectors, on_gpu) > 0.98 * mean_similarity(vectors, on_cpu)
