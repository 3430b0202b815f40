"""Nearest-label search against a brute-force oracle: order, ties, exclusions, bad vectors, block sizes, backends."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix

from harness.index import BACKENDS, TopK, search
from tests.faults.accounts import Account

EXACT = ("exact", "faiss-flat")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On a busy machine small searches spend their time waiting for a second thread."""
    faiss = pytest.importorskip("faiss")
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    faiss.omp_set_num_threads(before[1])


def oracle(queries: Any, labels: Any, k: int, exclude: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every score in float64, rounded to float32, sorted by (score descending, id ascending)."""
    scores = (np.asarray(queries, np.float64) @ np.asarray(labels, np.float64).T).astype(np.float32) + np.float32(0)
    forbidden = np.zeros(scores.shape, bool) if exclude is None else exclude.toarray() != 0
    scores[forbidden] = -np.inf
    ids = np.full((len(scores), k), -1, np.int64)
    best = np.full((len(scores), k), -np.inf, np.float32)
    for row in range(len(scores)):
        order = sorted(np.flatnonzero(~forbidden[row]), key=lambda label: (-scores[row, label], label))[:k]
        ids[row, : len(order)] = order
        best[row, : len(order)] = scores[row, order]
    return ids, best


def assert_same(found: TopK, expected: tuple[NDArray[Any], NDArray[Any]]) -> None:
    np.testing.assert_array_equal(found.ids, expected[0])
    np.testing.assert_array_equal(found.scores, expected[1])
    assert not np.signbit(found.scores[found.scores == 0]).any()


def random_vectors(rows: int, dimension: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, dimension)).astype(np.float32)


def small_integers(rows: int, dimension: int, seed: int) -> NDArray[np.float32]:
    """Vectors whose inner products are exact in any arithmetic, with many ties."""
    return np.random.default_rng(seed).integers(-2, 3, (rows, dimension)).astype(np.float32)


def random_pairs(rows: int, labels: int, density: float, seed: int) -> csr_array:
    return csr_array((np.random.default_rng(seed).random((rows, labels)) < density).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 90), st.integers(1, 5)),
    k=st.integers(1, 100),
    blocks=st.fixed_dictionaries(
        {name: st.integers(1, 40) for name in ("query_block", "label_block", "tile", "chunk")}
    ),
    make=st.sampled_from([random_vectors, small_integers]),
    density=st.sampled_from([None, 0.0, 0.1, 0.9, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_equals_brute_force_for_any_sizes(
    shape: tuple[int, int, int], k: int, blocks: dict[str, int], make: Any, density: float | None, seed: int
) -> None:
    """fault 54: the order is score descending, label id ascending, for every block size"""
    rows, count, dimension = shape
    queries, labels = make(rows, dimension, seed), make(count, dimension, seed + 1)
    exclude = None if density is None else random_pairs(rows, count, density, seed)
    assert_same(search(queries, labels, k, exclude, **blocks), oracle(queries, labels, k, exclude))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("make", [random_vectors, small_integers])
def test_exact_backends_agree_with_brute_force(backend: str, make: Any) -> None:
    """parity 4: ids and scores, ties and exclusions included"""
    queries, labels = make(150, 12, 1), make(3000, 12, 2)
    exclude = random_pairs(150, 3000, 0.01, 3)
    found = search(queries, labels, 25, exclude, backend)
    assert_same(found, oracle(queries, labels, 25, exclude))
    assert (found.backend, found.recall, found.flagged) == (backend, 1.0, 0)
    assert (found.ids.dtype, found.scores.dtype) == (np.int32, np.float32)


def test_our_search_is_that_of_the_bare_flat_index(account: Account) -> None:
    """parity 4: faiss itself, without our ranking behind it; whole numbers, so that both add exactly"""
    import faiss

    queries, labels = small_integers(200, 24, 1), small_integers(5000, 24, 2)
    index = faiss.IndexFlatIP(24)
    index.add(labels)
    theirs, chosen = index.search(queries, 50)
    ours = search(queries, labels, 50)
    np.testing.assert_array_equal(ours.scores, theirs)
    above = theirs > theirs[:, -1:]  # of the labels that tie for the last places faiss takes any
    assert 0.3 < above.mean() < 1
    assert [set(row[kept]) for row, kept in zip(ours.ids, above, strict=True)] == [
        set(row[kept]) for row, kept in zip(chosen, above, strict=True)
    ]
    account.did("the best 50 of 5,000 labels for 200 queries by our search and by a bare faiss IndexFlatIP")
    account.saw(f"{theirs.size:,} scores equal bit for bit; {int(above.sum()):,} labels equal, the others tie for last")


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("make", [random_vectors, small_integers])
def test_queries_in_any_company_find_the_same(backend: str, make: Any, account: Account) -> None:
    """parity 5: one by one, in batches of 7 and of 64, and all at once"""
    queries, labels = make(150, 48, 1), make(2500, 48, 2)
    exclude = random_pairs(150, 2500, 0.01, 3)
    whole = search(queries, labels, 20, exclude, backend)
    for size, last in ((1, 20), (7, 150), (64, 150)):
        for start in range(0, last, size):
            rows = slice(start, start + size)
            part = search(queries[rows], labels, 20, csr_array(exclude[rows]), backend)
            np.testing.assert_array_equal(part.ids, whole.ids[rows])
            np.testing.assert_array_equal(part.scores.view(np.int32), whole.scores[rows].view(np.int32))
    if make is random_vectors:
        account.did(f"150 queries with {backend!r}: one by one, in batches of 7 and of 64, and all at once")
        account.saw(f"{whole.ids.size:,} ids and scores equal bit for bit in every batch size")


def test_blocks_and_threads_change_no_bit() -> None:
    """parity 5: nor do the blocks of one search"""
    queries, labels = random_vectors(300, 64, 1), random_vectors(4000, 64, 2)
    whole = search(queries, labels, 50)
    others = [search(queries, labels, 50, query_block=7, label_block=1000, tile=333, chunk=5)]
    others += [search(queries[:1], labels, 50), search(torch.from_numpy(queries), labels, 50, tile=64)]
    torch.set_num_threads(2)
    try:
        others.append(search(queries, labels, 50))
    finally:
        torch.set_num_threads(1)
    for other in others:
        np.testing.assert_array_equal(other.ids, whole.ids[: len(other.ids)])
        np.testing.assert_array_equal(other.scores.view(np.int32), whole.scores[: len(other.ids)].view(np.int32))


def test_identical_labels_come_by_id_wherever_they_lie(account: Account) -> None:
    """fault 54: more copies of one vector than the margin of candidates holds"""
    queries, labels = random_vectors(20, 48, 1), random_vectors(2000, 48, 2)
    copies = np.random.default_rng(3).choice(2000, 300, replace=False)
    labels[copies] = 5 * queries[0]
    for backend in EXACT:
        found = search(queries, labels, 40, backend=backend)
        np.testing.assert_array_equal(found.ids[0], np.sort(copies)[:40])
        assert_same(found, oracle(queries, labels, 40))
    account.did(f"{len(copies)} of 2,000 labels got one vector, the best for a query; {' and '.join(EXACT)}, k = 40")
    account.saw(f"the 40 smallest ids in order, {found.ids[0, 0]} to {found.ids[0, -1]}")


def test_rounding_of_the_kernel_cannot_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix product as inaccurate as float32 allows leaves ids and scores as they are."""
    queries, labels = random_vectors(40, 128, 1), random_vectors(3000, 128, 2)
    labels[1500:] = labels[:1500] + 1e-6 * random_vectors(1500, 128, 3)  # neighbours closer than rounding
    multiply, noise = torch.mm, torch.Generator().manual_seed(0)
    worst = 128 * 2.0**-24 * np.linalg.norm(queries, axis=1).min() * np.linalg.norm(labels, axis=1).min()

    def sloppy(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        multiply(left, right, out=out)
        return out.add_((torch.rand(out.shape, generator=noise) - 0.5) * worst)

    expected = oracle(queries, labels, 30)
    monkeypatch.setattr(torch, "mm", sloppy)
    assert_same(search(queries, labels, 30), expected)


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_vectors_that_are_not_finite_are_flagged_and_never_found(backend: str) -> None:
    """fault 55: a NaN or infinite query gets -1 everywhere, a NaN or infinite label appears nowhere"""
    queries, labels = random_vectors(30, 8, 1), random_vectors(400, 8, 2)
    broken_queries, broken_labels = [0, 7, 29], [0, 5, 6, 399]
    queries[broken_queries, [1, 2, 3]] = [np.nan, np.inf, -np.inf]
    labels[broken_labels, 4] = [np.inf, np.nan, -np.inf, np.nan]
    found = search(queries, labels, 10, backend=backend)
    assert found.flagged == 7
    assert (found.ids[broken_queries] == -1).all()
    assert np.isneginf(found.scores[broken_queries]).all()
    assert not np.isin(found.ids, broken_labels).any()
    if backend in EXACT:
        fine = np.setdiff1d(np.arange(30), broken_queries)
        good = np.setdiff1d(np.arange(400), broken_labels)
        ids, scores = oracle(queries[fine], labels[good], 10)
        np.testing.assert_array_equal(found.ids[fine], good[ids])
        np.testing.assert_array_equal(found.scores[fine], scores)


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_nothing_to_find_is_an_empty_result(backend: str) -> None:
    """fault 55: no queries, no labels, only broken labels, everything excluded"""
    queries, labels = random_vectors(4, 3, 1), random_vectors(6, 3, 2)
    assert search(queries[:0], labels, 5, backend=backend).ids.shape == (0, 5)
    for other, exclude in (
        (labels[:0], None),
        (np.full_like(labels, np.nan), None),
        (labels, csr_array(np.ones((4, 6)))),
    ):
        found = search(queries, other, 5, exclude, backend)
        assert (found.ids == -1).all()
        assert np.isneginf(found.scores).all()
        assert found.ids.shape == (4, 5)
        assert found.recall == 1.0


@pytest.mark.parametrize("backend", EXACT)
def test_one_row_with_thousands_of_exclusions(backend: str) -> None:
    """fault 49: exclusions are masked before the top-k, so K labels remain where K are allowed"""
    queries, labels = random_vectors(30, 6, 1), random_vectors(5000, 6, 2)
    pattern = np.zeros((30, 5000), np.float32)
    pattern[3, np.argsort(-(labels @ queries[3]))[:4000]] = 1
    pattern[np.arange(30), np.argmax(queries @ labels.T, axis=1)] = 1
    exclude = csr_array(pattern)
    assert_same(search(queries, labels, 20, exclude, backend), oracle(queries, labels, 20, exclude))


def test_flat_search_is_deep_only_where_exclusions_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    depths: list[tuple[int, int]] = []
    real = faiss.IndexFlatIP.search

    def recorded(self: Any, vectors: Any, depth: int, **options: Any) -> Any:
        depths.append((len(vectors), depth))
        return real(self, vectors, depth, **options)

    monkeypatch.setattr(faiss.IndexFlatIP, "search", recorded)
    pattern = np.zeros((30, 3000), np.float32)
    pattern[3, :2000], pattern[4, 0] = 1, 1
    search(random_vectors(30, 6, 1), random_vectors(3000, 6, 2), 20, csr_array(pattern), "faiss-flat")
    assert sorted(rows for rows, _ in depths) == [1, 1, 28]
    assert max(depth for rows, depth in depths if rows == 28) < 50


def test_every_stored_entry_excludes_whatever_its_value_or_format() -> None:
    queries, labels = np.ones((1, 1), np.float32), np.array([[3.0], [2.0], [1.0]], np.float32)
    stored_zero_twice = csr_matrix((np.zeros(2), np.array([0, 0]), np.array([0, 2])), shape=(1, 3))
    for backend in EXACT:
        assert search(queries, labels, 3, stored_zero_twice, backend).ids.tolist() == [[1, 2, -1]]


@pytest.mark.parametrize(
    ("backend", "options"), [("faiss-hnsw", {"M": 4, "efSearch": 10}), ("faiss-ivf", {"nprobe": 2})]
)
def test_recall_is_reported_as_measured(backend: str, options: dict[str, int]) -> None:
    queries, labels = random_vectors(80, 16, 1), random_vectors(3000, 16, 2)
    exclude = random_pairs(80, 3000, 0.01, 3)
    found = search(queries, labels, 10, exclude, backend, **options)  # type: ignore[arg-type]
    truth, _ = oracle(queries, labels, 10, exclude)
    hits = sum(len(set(row) & set(best)) for row, best in zip(found.ids.tolist(), truth.tolist(), strict=True))
    assert found.recall == pytest.approx(hits / truth.size)
    assert 0.05 < hits / truth.size < 1
    again = search(queries, labels, 10, exclude, backend, **options)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.ids, again.ids)
    rows = np.repeat(np.arange(80), 10).reshape(80, 10)
    assert not exclude.toarray()[rows, found.ids][found.ids >= 0].any()


def test_approximate_scores_are_the_exact_ones() -> None:
    queries, labels = random_vectors(20, 16, 1), random_vectors(500, 16, 2)
    reference = (queries.astype(np.float64) @ labels.T.astype(np.float64)).astype(np.float32)
    found = search(queries, labels, 10, backend="faiss-hnsw")
    np.testing.assert_array_equal(found.scores, np.take_along_axis(reference, found.ids.astype(np.int64), 1))
