"""The label pool of a batch against a slow oracle, against chance, and against bad input."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import chisquare

from harness.batching import LabelPool
from harness.batching.pool import LabelPicker, pick_some_labels
from harness.errors import UserError

ALL = 1000
"""More than any row here holds."""
SURELY_UNIFORM = 1e-4


def matrix(rows: list[list[int]], labels: int) -> csr_array:
    column = np.array([label for row in rows for label in row], dtype=np.int32)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return csr_array((np.ones(len(column), np.float32), column, offsets), shape=(len(rows), labels))


def streams(seed: int) -> dict[str, np.random.Generator]:
    return {"positives": np.random.default_rng([seed, 0]), "negatives": np.random.default_rng([seed, 1])}


def same(a: LabelPool, b: LabelPool) -> bool:
    arrays = ((a.labels, b.labels), (a.positive, b.positive), (a.ignored, b.ignored))
    return a.encoded == b.encoded and all(np.array_equal(x, y) for x, y in arrays)


@dataclass(frozen=True)
class Case:
    """A small problem as plain lists."""

    labels: int
    known: list[list[int]]
    masked: list[list[int]]
    listed: list[list[int]]
    batch: list[int]

    def pick(self, seed: int, *, hard: bool = True, **sizes: Any) -> LabelPool:
        return pick_some_labels(
            np.array(self.batch, dtype=np.int64),
            matrix(self.known, self.labels),
            filter_pairs=matrix(self.masked, self.labels),
            hard=self.hard() if hard else None,
            **streams(seed),
            **sizes,
        )

    def hard(self) -> np.ndarray:
        width = max(map(len, self.listed))
        return np.array([row + [-1] * (width - len(row)) for row in self.listed], dtype=np.int32)

    def allowed(self, row: int) -> set[int]:
        """What row may draw from its hard list."""
        return set(self.listed[row]) - set(self.known[row]) - set(self.masked[row]) - {-1}

    def require_masks(self, pool: LabelPool) -> None:
        """Cell by cell: positive, or a filter pair that is not, or neither."""
        shape = (len(self.batch), len(pool.labels))
        for kind, mask in (("positive", pool.positive), ("ignored", pool.ignored)):
            cells = [self.kind(row, label) == kind for row in self.batch for label in pool.labels]
            assert np.array_equal(np.reshape(cells, shape), np.zeros(shape, bool) if mask is None else mask)
        assert pool.ignored is None or pool.ignored.any()

    def kind(self, row: int, label: int) -> str:
        return "positive" if label in self.known[row] else "ignored" if label in self.masked[row] else "negative"


def by_frequency(labels: Iterable[int]) -> list[int]:
    count = Counter(labels)
    return sorted(count, key=lambda label: (-count[label], label))


def random_case(labels: int, rows: int, size: int, seed: int) -> Case:
    """Lists of 0 to 6 labels, of which some are the same in several rows, and hard lists that hold forbidden pairs."""
    generator = np.random.default_rng(seed)

    def some(most: int) -> list[int]:
        return generator.permutation(labels)[: generator.integers(most + 1)].tolist()

    known = [sorted(some(6)) for _ in range(rows)]
    masked = [sorted(some(2)) for _ in range(rows)]
    listed = [some(6) for _ in range(rows)]
    listed[0] = [-1, *listed[0], -1] if generator.random() < 0.5 else listed[0]
    return Case(labels, known, masked, listed, generator.integers(rows, size=size).tolist())


def cases() -> st.SearchStrategy[Case]:
    return st.builds(random_case, st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32))


draws = {"beta": st.integers(1, 4), "eta": st.integers(0, 4), "extra": st.integers(0, 3)}
limits = {"pool_size": st.none() | st.integers(1, 12), "replacement": st.booleans(), "fill": st.booleans()}
sizes = st.fixed_dictionaries(draws | limits)


@given(cases(), st.none() | st.integers(1, 12), st.booleans())
def test_the_cap_keeps_drawn_positives_then_drawn_negatives_by_frequency(
    case: Case, cap: int | None, fill: bool
) -> None:
    """When every query draws all it has, chance plays no part."""
    pool = case.pick(0, beta=ALL, eta=ALL, pool_size=cap, fill=fill)
    drawn = by_frequency(label for row in case.batch for label in case.known[row])
    against = by_frequency(label for row in case.batch for label in case.allowed(row))
    expected = sorted(list(dict.fromkeys(drawn + against))[:cap])
    assert pool.labels.tolist() == expected
    case.require_masks(pool)
    assert pool.encoded is None
    assert pool.shared == len(expected)


@given(cases(), sizes, st.integers(0, 99))
def test_a_gap_is_filled_with_the_commonest_positives_nobody_drew(case: Case, sizes: dict[str, Any], seed: int) -> None:
    free = sizes | {"pool_size": None, "extra": 0}
    drawn = set(case.pick(seed, **free | {"eta": 0}).labels.tolist())
    with_negatives = set(case.pick(seed, **free).labels.tolist())
    cap = len(with_negatives) + 2
    common = by_frequency(label for row in case.batch for label in case.known[row])
    further = [label for label in common if label not in with_negatives]
    filled = case.pick(seed, **free | {"pool_size": cap, "fill": True})
    assert filled.labels.tolist() == sorted(with_negatives | set(further[:2]))
    assert drawn <= with_negatives  # drawing negatives too does not move the draw of positives
    assert case.pick(seed, **free | {"pool_size": cap, "fill": False}).labels.tolist() == sorted(with_negatives)


@given(cases(), sizes, st.integers(0, 99))
def test_invariants(case: Case, sizes: dict[str, Any], seed: int) -> None:
    pool = case.pick(seed, **sizes)
    labels, shared = pool.labels.tolist(), pool.labels[: pool.shared].tolist()
    assert pool.labels.dtype == np.int64
    assert len(set(labels)) == len(labels)
    assert shared == sorted(shared)
    assert labels[pool.shared :] == sorted(labels[pool.shared :])
    assert sizes["pool_size"] is None or len(shared) <= sizes["pool_size"]
    case.require_masks(pool)
    if sizes["pool_size"] is None:
        assert all(pool.positive[i, : pool.shared].any() for i, row in enumerate(case.batch) if case.known[row])
    could = {label for row in case.batch for label in {*case.known[row], *case.allowed(row)}}
    assert set(labels) <= could
    assert (pool.encoded is None) == (sizes["extra"] == 0)


@given(cases(), sizes, st.integers(0, 99))
def test_what_a_single_query_draws(case: Case, sizes: dict[str, Any], seed: int) -> None:
    for row in range(len(case.known)):
        alone = replace(case, batch=[row])
        known, allowed = set(case.known[row]), case.allowed(row)
        pool = alone.pick(seed, **sizes | {"pool_size": None})
        shared, extra = set(pool.labels[: pool.shared].tolist()), set(pool.labels[pool.shared :].tolist())
        if sizes["replacement"]:
            assert min(1, len(known)) <= len(shared & known) <= min(sizes["beta"], len(known))
        else:
            assert len(shared & known) == min(sizes["beta"], len(known))
        assert len(shared - known) == min(sizes["eta"], len(allowed))
        assert shared - known <= allowed
        assert extra <= known - shared
        assert len(extra) == min(sizes["extra"], len(known - shared))


@given(cases(), sizes, st.integers(0, 99))
def test_extra_positives_come_behind_an_unchanged_shared_pool(case: Case, sizes: dict[str, Any], seed: int) -> None:
    plain = case.pick(seed, **sizes | {"extra": 0})
    pool = case.pick(seed, **sizes | {"extra": 2})
    assert pool.encoded == len(plain.labels)
    assert np.array_equal(pool.labels[: pool.encoded], plain.labels)
    outside = {row: set(case.known[row]) - set(plain.labels.tolist()) for row in case.batch}
    extra = set(pool.labels[pool.encoded :].tolist())
    assert extra <= set().union(*outside.values())
    for row in case.batch:
        assert len(extra & outside[row]) >= min(2, len(outside[row]))
    every = case.pick(seed, **sizes | {"extra": ALL})
    assert set(every.labels[every.encoded :].tolist()) == set().union(*outside.values())


def test_a_pick_that_fails_leaves_no_trace() -> None:
    class FailsAtExtra(np.random.Generator):
        calls = 0

        def integers(self, *args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise MemoryError
            return super().integers(*args, **options)

    train, rows = matrix([[0, 1, 2], [2, 3, 4]], 6), np.array([0, 1])
    picker = LabelPicker(train, None, beta=1, eta=0, extra=1)
    for seed in range(5):
        with pytest.raises(MemoryError):
            picker.pick(rows, FailsAtExtra(np.random.PCG64(seed + 5)), np.random.default_rng(0))
        fresh = LabelPicker(train, None, beta=1, eta=0, extra=1)
        assert same(picker.pick(rows, **streams(seed)), fresh.pick(rows, **streams(seed)))


@given(cases(), sizes)
def test_the_number_of_draws_does_not_depend_on_chance(case: Case, sizes: dict[str, Any]) -> None:
    """Philox counts what it has produced, whatever its key."""

    def produced(generator: np.random.Generator) -> tuple[Any, ...]:
        state: Any = generator.bit_generator.state
        return (*state["state"]["counter"].tolist(), state["buffer_pos"], state["has_uint32"])

    picker = LabelPicker(matrix(case.known, case.labels), matrix(case.masked, case.labels), **sizes)
    picker.hard = case.hard()
    seen = set()
    for key in range(6):
        positives, negatives = (np.random.Generator(np.random.Philox(key=2 * key + i)) for i in range(2))
        picker.pick(np.array(case.batch), positives, negatives)
        seen.add((produced(positives), produced(negatives)))
    assert len(seen) == 1


QUERIES = 4000


def disjoint(width: int) -> csr_array:
    """Every query has `width` labels of its own, so that one pick is QUERIES independent draws."""
    return matrix([list(range(width * i, width * i + width)) for i in range(QUERIES)], 2 * width * QUERIES)


def subsets(labels: np.ndarray, width: int) -> Counter[tuple[int, ...]]:
    """How often each subset of the places 0 to width - 1 was drawn."""
    drawn: list[list[int]] = [[] for _ in range(QUERIES)]
    for label in labels.tolist():
        drawn[label // width].append(label % width)
    return Counter(tuple(sorted(places)) for places in drawn)


def test_positives_are_drawn_uniformly_without_replacement() -> None:
    pool = pick_some_labels(np.arange(QUERIES), disjoint(6), beta=3, **streams(1))
    counts = subsets(pool.labels, 6)
    assert len(counts) == 20
    assert {len(places) for places in counts} == {3}
    assert chisquare(list(counts.values())).pvalue > SURELY_UNIFORM


def test_positives_are_drawn_uniformly_with_replacement() -> None:
    pool = pick_some_labels(np.arange(QUERIES), disjoint(4), beta=2, replacement=True, **streams(2))
    counts = subsets(pool.labels, 4)
    assert len(counts) == 10
    assert chisquare(list(counts.values()), [QUERIES * len(places) / 16 for places in counts]).pvalue > SURELY_UNIFORM


def test_hard_negatives_are_drawn_uniformly_from_what_is_allowed() -> None:
    """Each list has 9 entries: a positive, a filter pair, a missing one, and 6 that may be drawn."""
    width = 9
    base = width * np.arange(QUERIES)
    hard = (base[:, None] + np.arange(width)).astype(np.int32)
    hard[:, 4] = -1
    one = np.ones(QUERIES, np.float32)
    shape = (QUERIES, width * QUERIES)
    train = csr_array((one, (np.arange(QUERIES), base)), shape=shape)
    masked = csr_array((one, (np.arange(QUERIES), base + 8)), shape=shape)
    pool = pick_some_labels(np.arange(QUERIES), train, beta=1, eta=2, hard=hard, filter_pairs=masked, **streams(4))
    counts = subsets(pool.labels[pool.labels % width != 0], width)
    assert set(counts) == {(a, b) for a in (1, 2, 3, 5, 6, 7) for b in (1, 2, 3, 5, 6, 7) if a < b}
    assert chisquare(list(counts.values())).pvalue > SURELY_UNIFORM


def test_a_query_without_labels_has_no_positive() -> None:
    """Fault 45."""
    train = matrix([[], [1, 2], []], 4)
    pool = pick_some_labels(np.array([0, 1, 2]), train, beta=2, **streams(0))
    assert pool.labels.tolist() == [1, 2]
    assert pool.positive.tolist() == [[False, False], [True, True], [False, False]]
    for options in ({}, {"replacement": True}, {"pool_size": 3, "extra": 2}):
        nothing = pick_some_labels(np.array([0, 2]), train, beta=2, **options, **streams(0))
        assert nothing.positive.shape == (2, 0)
        assert nothing.ignored is None
    assert pick_some_labels(np.array([], dtype=np.int64), train, beta=1, **streams(0)).positive.shape == (0, 0)


def test_unsorted_and_repeated_labels_of_a_row_count_once() -> None:
    """Fault 43: a matrix that is not in canonical form is put in order, and the caller's is left alone."""
    data, indices, offsets = np.zeros(6), np.array([3, 1, 3, 1, 1, 2]), np.array([0, 4, 6])
    messy = csr_array((data, indices, offsets), shape=(2, 5))
    pool = pick_some_labels(np.array([0, 1]), messy, beta=ALL, pool_size=2, **streams(0))
    assert pool.labels.tolist() == [1, 2]
    assert pool.positive.tolist() == [[True, False], [True, True]]
    assert messy.indices.tolist() == [3, 1, 3, 1, 1, 2]


def test_keys_of_a_large_label_space_do_not_overflow() -> None:
    """B x L exceeds 32 bits."""
    labels, queries = 3_000_000, 1000
    train = matrix([[labels - 1 - i] for i in range(queries)], labels)
    hard = (labels - 1 - np.arange(queries)[:, None] + np.array([[0, -1000]])).astype(np.int32)
    pool = pick_some_labels(np.arange(queries), train, beta=1, eta=2, hard=hard, **streams(0))
    assert pool.labels.tolist() == list(range(labels - 2 * queries, labels))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0}, "beta = 0"),
        ({"eta": -1}, "eta = -1"),
        ({"extra": -2}, "extra = -2"),
        ({"pool_size": 0}, "pool_size = 0"),
        ({"hard": np.zeros((2, 4), np.int32)}, "2 rows of hard negatives for 3 train rows"),
        ({"hard": np.zeros(3, np.int32)}, r"label ids \[N, H\], not int32 of shape \(3,\)"),
        ({"hard": np.zeros((3, 4), np.float32)}, "not float32"),
        ({"hard": np.full((3, 1), 5, np.int32)}, "from 0 to 4"),
        ({"hard": np.full((3, 1), -2, np.int32)}, "from 0 to 4"),
        ({"filter_pairs": matrix([[0]], 5)}, r"filter pairs of shape \(1, 5\)"),
        ({"filter_pairs": np.zeros((3, 5))}, "filter pairs must be .*not ndarray"),
        ({"train": np.zeros((3, 5))}, "train labels must be .*not ndarray"),
        ({"rows": np.array([0, 3])}, "row 3 is outside"),
        ({"rows": np.array([-1])}, "row -1 is outside"),
        ({"rows": np.array([0.5])}, "not float64"),
        ({"rows": np.array([True, False])}, "not bool"),
        ({"rows": np.array([[0]])}, r"shape \(1, 1\)"),
    ],
)
def test_bad_input_is_one_clear_line(options: dict[str, Any], message: str) -> None:
    usual = {"rows": np.array([0, 1]), "train": matrix([[0], [1], [2]], 5), "beta": 1, "eta": 1}
    with pytest.raises(UserError, match=message) as caught:
        pick_some_labels(**usual | options, **streams(0))
    assert "\n" not in str(caught.value)


def test_the_hard_list_may_be_missing_short_or_replaced() -> None:
    picker = LabelPicker(matrix([[0], [1]], 9), None, beta=1, eta=3)
    rows = np.array([0, 1])
    assert picker.hard is None
    assert picker.pick(rows, **streams(0)).labels.tolist() == [0, 1]
    picker.hard = np.array([[7], [-1]], np.int32)
    assert picker.pick(rows, **streams(0)).labels.tolist() == [0, 1, 7]
    picker.hard = np.zeros((2, 0), np.int32)
    assert picker.pick(rows, **streams(0)).labels.tolist() == [0, 1]
    picker.hard = np.array([[0, 1, 0], [1, -1, 8]], np.int32)
    assert picker.pick(rows, **streams(0)).labels.tolist() == [0, 1, 8]
    picker.hard = None
    assert picker.pick(rows, **streams(0)).labels.tolist() == [0, 1]
