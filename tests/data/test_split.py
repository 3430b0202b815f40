"""Validation rows that are like test rows: their labels all keep a train row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data import load
from harness.data.split import covered_draw
from harness.train.inputs import validation_split
from tests.support.training_runs import DATASET, config


def matrix(rows: list[set[int]], labels: int) -> csr_array:
    """Rows of labels, [N, L]."""
    dense = np.zeros((len(rows), labels), np.float32)
    for place, row in enumerate(rows):
        dense[place, list(row)] = 1
    return csr_array(dense)


def left_alone(train: csr_array, drawn: NDArray[np.int64]) -> int:
    """How many labels of the drawn rows no other row has."""
    kept = np.setdiff1d(np.arange(train.shape[0]), drawn)
    return int(((train[drawn].sum(axis=0) > 0) & (train[kept].sum(axis=0) == 0)).sum())


@given(st.lists(st.sets(st.integers(0, 7), max_size=4), min_size=2, max_size=30), st.data())
def test_as_many_as_can_be_are_covered(rows: list[set[int]], data: st.DataObject) -> None:
    train = matrix(rows, 8)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    count = data.draw(st.integers(1, len(rows) - 1))
    drawn = covered_draw(train, order, count)
    assert len(drawn) == len(set(drawn.tolist())) == count
    covered = max(size for size in range(count + 1) if left_alone(train, drawn[:size]) == 0)
    if covered < count:  # then no row at all could have been added without leaving a label alone
        others = np.setdiff1d(order, drawn[:covered])
        assert all(left_alone(train, np.append(drawn[:covered], other)) > 0 for other in others)


def test_the_only_row_of_a_label_is_drawn_last() -> None:
    train = matrix([{0}, {1}, {2}, {3}, {3}, {3}], 4)
    order = np.arange(6)
    assert set(covered_draw(train, order, 2)) <= {3, 4, 5}
    assert left_alone(train, covered_draw(train, order, 2)) == 0
    assert len(covered_draw(train, order, 5)) == 5


def test_a_run_draws_them_by_its_seed() -> None:
    dataset = load(DATASET)

    def drawn(seed: int, draw: str) -> NDArray[np.int64]:
        kept, validation_rows = validation_split(dataset, config(seed=seed, validation={"size": 0.2, "draw": draw}))
        assert np.array_equal(np.sort(np.concatenate([kept, validation_rows])), np.arange(dataset.train.shape[0]))
        assert len(validation_rows) == 48
        return validation_rows

    assert left_alone(dataset.train, drawn(0, "covered")) == left_alone(dataset.train, drawn(1, "covered")) == 0
    assert np.array_equal(drawn(0, "any"), drawn(0, "any"))
    assert not np.array_equal(drawn(0, "covered"), drawn(1, "covered"))
