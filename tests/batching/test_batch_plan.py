"""Batch plans: every row once per epoch, as many batches in every epoch, and the same batches after a round trip."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching.mined import pattern
from harness.batching.plan import BatchPlan, clustered_plan, glued_plan, random_plan
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
    again = BatchPlan.from_arrays(stored, len(plan.rows))
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


@pytest.mark.parametrize("plan", [random_plan(7, 100), clustered_plan([np.arange(7)]), glued_plan([np.arange(7)], 100)])
def test_a_batch_larger_than_the_data_is_all_of_it(plan: BatchPlan) -> None:
    (batch,) = plan.batches(0, 0)
    assert sorted(batch.tolist()) == list(range(7))


def test_no_rows_is_an_error() -> None:
    with pytest.raises(UserError, match="no train rows left"):
        random_plan(0, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": None},
        {"rows": np.zeros((2, 3), np.int64)},
        {"rows": np.arange(1, 7)},
        {"parts": np.array([1.0])},
        {"parts": np.array(3)},
        {"parts": np.array([-1])},
        {"edges": np.array([0, 3])},
        {"edges": np.array([0, 7, 6])},
        {"edges": np.array([6])},
    ],
)
def test_damaged_arrays_are_refused(change: dict[str, Any]) -> None:
    arrays: dict[str, Any] = {**glued_plan(clusters_of(6, 3), 4).arrays(), **change}
    with pytest.raises(UserError, match="stored batch plan"):
        BatchPlan.from_arrays({name: array for name, array in arrays.items() if array is not None}, 6)


def test_a_label_of_any_relevance_is_never_mined_as_a_negative() -> None:
    train = csr_array(np.array([[0.3, 0.0, 1.0], [0.0, 0.0, 0.2]], dtype=np.float32))
    assert (pattern(train) + pattern(train)).toarray().astype(bool).tolist() == (train.toarray() > 0).tolist()
