"""Batch plans: every row once per epoch, as many batches in every epoch, and the same batches after a round trip."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.batching.cluster import bounds
from harness.batching.plan import BatchPlan, clustered_plan, glued_plan, glued_steps, random_plan
from harness.errors import UserError


def clusters_of(rows: int, count: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """A random partition into nearly equal clusters."""
    return np.array_split(np.random.default_rng(seed).permutation(rows), count)


def any_plan(kind: str, rows: int, size: int, count: int) -> BatchPlan:
    if kind == "random":
        return random_plan(rows, size)
    clusters = clusters_of(rows, min(count, rows))
    return clustered_plan(clusters) if kind == "clustered" else glued_plan(clusters, size)


plans = st.builds(
    any_plan,
    kind=st.sampled_from(["random", "clustered", "glued"]),
    rows=st.integers(1, 300),
    size=st.integers(1, 80),
    count=st.integers(1, 60),
)


@given(plan=plans, seed=st.integers(0, 2**32), epoch=st.integers(0, 500))
@settings(max_examples=150)
def test_an_epoch_has_every_row_once_and_steps_batches(plan: BatchPlan, seed: int, epoch: int) -> None:
    batches = plan.batches(seed, epoch)
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)), np.arange(len(plan.rows)))
    assert len(batches) == plan.steps
    assert {batch.dtype for batch in batches} == {np.dtype(np.int64)}
    sizes = [len(batch) for batch in batches]
    assert max(sizes) - min(sizes) <= 1


@given(plan=plans, seed=st.integers(0, 2**32), epoch=st.integers(0, 500))
def test_batches_survive_a_checkpoint(plan: BatchPlan, seed: int, epoch: int) -> None:
    """fault 9: batches depend on nothing but the stored plan, the seed and the epoch"""
    stored = {name: array.copy() for name, array in plan.arrays().items()}
    assert {array.dtype for array in stored.values()} == {np.dtype(np.int64)}
    again = BatchPlan.from_arrays(stored)
    assert again.steps == plan.steps
    expected = plan.batches(seed, epoch)
    plan.batches(seed, epoch + 1)
    for one, two in zip(again.batches(seed, epoch), expected, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", ["random", "clustered", "glued"])
def test_epochs_and_seeds_differ(kind: str) -> None:
    plan = any_plan(kind, 200, 20, 25)
    orders = [np.concatenate(plan.batches(seed, epoch)).tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(order) for order in orders}) == 3


def test_random_batches_mix_all_rows() -> None:
    plan = random_plan(1000, 90)
    assert plan.steps == 8
    batch = plan.batches(0, 0)[0]
    assert len({row // 125 for row in batch.tolist()}) == 8


@pytest.mark.parametrize(("rows", "size", "steps"), [(294_805, 575, 512), (100, 30, 2), (64, 64, 1), (64, 1, 64)])
def test_random_and_clustered_epochs_are_equally_long(rows: int, size: int, steps: int) -> None:
    plan = random_plan(rows, size)
    assert plan.steps == steps == clustered_plan(clusters_of(rows, steps)).steps
    assert len(plan.batches(0, 0)) == steps


def test_a_batch_is_a_cluster_in_new_order() -> None:
    clusters = clusters_of(500, 16)
    plan = clustered_plan(clusters)
    first, second = plan.batches(0, 0), plan.batches(0, 1)
    known = sorted(sorted(found.tolist()) for found in clusters)
    for batches in (first, second):
        assert sorted(sorted(batch.tolist()) for batch in batches) == known
    assert [min(batch) for batch in first] != [min(batch) for batch in second]
    inside = {min(batch): batch.tolist() for batch in first}
    assert any(inside[min(batch)] != batch.tolist() for batch in second)


def test_orders_inside_a_cluster_are_equally_likely() -> None:
    plan = clustered_plan([np.arange(3), np.arange(3, 6)])
    seen = [tuple(batch) for epoch in range(3000) for batch in plan.batches(0, epoch) if 0 in batch]
    counts = np.array([seen.count(order) for order in set(seen)])
    assert len(counts) == 6
    # 500 expected of each; five standard deviations
    assert abs(counts - 500).max() < 5 * np.sqrt(3000 * 5 / 36)


def test_glued_batches_hold_whole_clusters_but_at_their_ends() -> None:
    clusters = clusters_of(1000, 125)
    plan = glued_plan(clusters, 160)
    assert plan.steps == 7
    owner = np.empty(1000, np.int64)
    for number, rows in enumerate(clusters):
        owner[rows] = number
    for batch in plan.batches(3, 4):
        assert len(batch) <= 160
        met, counts = np.unique(owner[batch], return_counts=True)
        assert (counts < 8).sum() <= 2
        assert np.count_nonzero(np.diff(owner[batch])) == len(met) - 1  # the rows of a cluster are neighbours


def test_which_clusters_share_a_batch_changes() -> None:
    plan = glued_plan(clusters_of(64, 16), 16)
    together = [{frozenset(batch.tolist()) for batch in plan.batches(0, epoch)} for epoch in (0, 1)]
    assert together[0] != together[1]


@given(rows=st.integers(1, 200), size=st.integers(1, 50), counts=st.lists(st.integers(1, 40), min_size=2, max_size=4))
def test_glued_epochs_are_equally_long_whatever_the_clusters(rows: int, size: int, counts: list[int]) -> None:
    """Clusters grow during NGAME's training; its number of steps must not"""
    steps = {glued_plan(clusters_of(rows, min(count, rows)), size).steps for count in counts}
    assert steps == {glued_steps(rows, size)} == {-(-rows // size)}
    assert random_plan(rows, size, steps=glued_steps(rows, size)).steps in steps


def test_glued_batches_keep_their_size_where_clusters_are_unequal() -> None:
    plan = glued_plan([np.arange(10), np.arange(10, 90), np.arange(90, 100)], 34)
    assert plan.steps == 3
    assert sorted(len(batch) for batch in plan.batches(0, 0)) == [33, 33, 34]


@pytest.mark.parametrize("plan", [random_plan(7, 100), clustered_plan([np.arange(7)]), glued_plan([np.arange(7)], 100)])
def test_a_batch_larger_than_the_data_is_all_of_it(plan: BatchPlan) -> None:
    (batch,) = plan.batches(0, 0)
    assert sorted(batch.tolist()) == list(range(7))


@pytest.mark.parametrize(
    "make",
    [
        lambda: random_plan(0, 5),
        lambda: clustered_plan([]),
        lambda: glued_plan([], 5),
        lambda: clustered_plan([np.zeros(0, np.int64)]),
        lambda: random_plan(0, 5, steps=1),
    ],
)
def test_no_rows_is_an_error(make: Any) -> None:
    with pytest.raises(UserError, match="no train rows left"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: random_plan(5, 0), "at least 1, not 0"),
        (lambda: glued_plan([np.arange(5)], -1), "at least 1, not -1"),
        (lambda: glued_plan([np.arange(5)], 1.5), "whole number"),
        (lambda: random_plan(5, 2, steps=0), "at least 1, not 0"),
        (lambda: random_plan(5, 2, steps=6), "5 rows cannot be cut into 6 batches"),
        (lambda: clustered_plan([np.arange(3), np.arange(2, 5)]), "exactly one cluster"),
        (lambda: clustered_plan([np.array([0, 2])]), "exactly one cluster"),
        (lambda: clustered_plan([np.array([-1, 0])]), "exactly one cluster"),
    ],
)
def test_a_plan_that_loses_or_repeats_rows_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "lacks rows"),
        ({"parts": np.array([1.0])}, "int64 lists"),
        ({"parts": np.array(3)}, "int64 lists"),
        ({"rows": np.zeros((2, 3), np.int64)}, "int64 lists"),
        ({"parts": np.array([-1])}, "cannot be cut"),
        ({"edges": np.array([0, 3])}, "exactly one cluster"),
        ({"edges": np.array([0, 7, 6])}, "exactly one cluster"),
        ({"edges": np.array([6])}, "exactly one cluster"),
    ],
)
def test_damaged_arrays_are_refused(change: dict[str, Any], message: str) -> None:
    arrays: dict[str, Any] = {**glued_plan(clusters_of(6, 3), 4).arrays(), **change}
    with pytest.raises(UserError, match=message):
        BatchPlan.from_arrays({name: array for name, array in arrays.items() if array is not None})


def test_nearly_equal_cuts_use_the_bounds_of_clusters() -> None:
    sizes = [len(batch) for batch in random_plan(11, 2).batches(0, 0)]
    assert sizes == np.diff(bounds(11, 4)).tolist()
