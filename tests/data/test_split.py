"""Validation rows that are like test rows: their labels all keep a train row, and their texts are not trained on."""

from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data import Dataset, load
from harness.data.ragged import Ragged
from harness.data.split import any_draw, covered_draw, groups_in_order
from harness.errors import UserError
from harness.train.inputs import validation_split
from tests.support.repository_files import good, write_json_layout
from tests.support.training_runs import DATASET, config


def matrix(rows: list[set[int]], labels: int) -> csr_array:
    """Rows of labels, [N, L]."""
    dense = np.zeros((len(rows), labels), np.float32)
    for place, row in enumerate(rows):
        dense[place, list(row)] = 1
    return csr_array(dense)


def alone(order: NDArray[np.int64]) -> Ragged:
    """Rows of which no two are equal."""
    return groups_in_order(order, np.arange(len(order)))


def left_alone(train: csr_array, drawn: NDArray[np.int64]) -> int:
    """How many labels of the drawn rows no other row has."""
    kept = np.setdiff1d(np.arange(train.shape[0]), drawn)
    return int(((train[drawn].sum(axis=0) > 0) & (train[kept].sum(axis=0) == 0)).sum())


@given(st.lists(st.sets(st.integers(0, 7), max_size=4), min_size=2, max_size=30), st.data())
def test_as_many_as_can_be_are_covered(rows: list[set[int]], data: st.DataObject) -> None:
    train = matrix(rows, 8)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    count = data.draw(st.integers(1, len(rows) - 1))
    drawn = covered_draw(train, alone(order), count)
    assert len(drawn) == len(set(drawn.tolist())) == count
    covered = max(size for size in range(count + 1) if left_alone(train, drawn[:size]) == 0)
    if covered < count:  # then no row at all could have been added without leaving a label alone
        others = np.setdiff1d(order, drawn[:covered])
        assert all(left_alone(train, np.append(drawn[:covered], other)) > 0 for other in others)


def test_the_only_row_of_a_label_is_drawn_last() -> None:
    train = matrix([{0}, {1}, {2}, {3}, {3}, {3}], 4)
    order = np.arange(6)
    assert set(covered_draw(train, alone(order), 2)) <= {3, 4, 5}
    assert left_alone(train, covered_draw(train, alone(order), 2)) == 0
    assert len(covered_draw(train, alone(order), 5)) == 5


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


rows_of_texts = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sets(st.integers(0, 5), max_size=3)), min_size=2, max_size=30
)


@given(rows_of_texts, st.data(), st.booleans())
def test_equal_texts_are_on_one_side_and_the_count_is_met_as_nearly_as_they_allow(
    rows: list[tuple[str, set[int]]], data: st.DataObject, covered: bool
) -> None:
    texts = [text for text, _ in rows]
    train = matrix([labels for _, labels in rows], 6)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    count = data.draw(st.integers(1, len(rows) - 1))
    groups = groups_in_order(order, np.array([texts.index(text) for text in texts]))
    if len(set(texts)) == 1:
        with pytest.raises(UserError, match=f"all {len(rows)} train rows have the same text"):
            any_draw(groups, count)
        return
    drawn = (covered_draw(train, groups, count) if covered else any_draw(groups, count)).tolist()
    assert len(drawn) == len(set(drawn)) > 0
    held = {texts[row] for row in drawn}
    left = Counter(text for text in texts if text not in held)
    assert left
    assert len(drawn) == sum(text in held for text in texts)
    off = len(drawn) - count
    # no further text would bring it nearer, except the only one that is left to train on
    assert len(left) == 1 or all(abs(off + size) >= abs(off) for size in left.values())
    assert off <= 0 or len(held) == 1 or any(texts.count(text) > 2 * off for text in held)


@given(st.permutations(range(12)), st.integers(1, 11))
def test_where_no_text_repeats_a_plain_draw_is_the_beginning_of_the_order(order: list[int], count: int) -> None:
    assert any_draw(alone(np.array(order)), count).tolist() == order[:count]


def test_where_no_text_repeats_rows_are_the_ones_that_were_always_drawn() -> None:
    """Hashes of the rows as they were before texts were looked at; committed searches rest on them."""
    known = {
        (0, "covered"): "3bc122dab9717681",
        (1, "covered"): "0c2b52e23a796162",
        (0, "any"): "3f88ae94b31702ed",
    }
    dataset = load(DATASET)
    for (seed, draw), digest in known.items():
        for texts in ("together", "any"):
            validation = {"size": 0.6, "draw": draw, "equal_texts": texts}
            held = validation_split(dataset, config(seed=seed, validation=validation))[1]
            assert sha256(held.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_a_row_is_as_likely_to_be_drawn_among_equals_as_alone() -> None:
    """Half of the rows have four equals. In the order of the earliest row of a group they would be four fifths."""
    first = np.concatenate([np.arange(300) // 5 * 5, np.arange(300, 600)])
    rng = np.random.default_rng(0)
    draws = [any_draw(groups_in_order(rng.permutation(600), first), 60) for _ in range(200)]
    assert {len(drawn) for drawn in draws} == {60}
    assert 0.45 < np.mean(np.concatenate(draws) < 300) < 0.55


def test_a_group_larger_than_what_is_asked_for_stays_with_the_train_rows() -> None:
    order = np.array([0, 5, 1, 6, 2, 7, 3, 4])
    groups = groups_in_order(order, np.array([0, 0, 0, 0, 0, 5, 6, 7]))
    assert sorted(any_draw(groups, 2).tolist()) == [5, 6]
    assert sorted(any_draw(groups, 7).tolist()) == [0, 1, 2, 3, 4, 5, 6]
    halves = groups_in_order(order, np.array([0, 0, 0, 0, 0, 5, 5, 5]))
    assert sorted(any_draw(halves, 1).tolist()) == [5, 6, 7]  # too many, but there must be some


def repeating(folder: Path, texts: list[str]) -> Dataset:
    return load(write_json_layout(folder, trn=[{**good(row), "title": text} for row, text in enumerate(texts)]))


@pytest.mark.parametrize("draw", ["covered", "any"])
def test_a_run_holds_out_no_text_that_it_trains_on(tmp_path: Path, draw: str) -> None:
    """An uncased tokeniser sees neither case nor blanks."""
    texts = [f"{'  Word' if row % 3 else 'word'} {row // 4}" for row in range(80)]
    dataset = repeating(tmp_path / "mine", texts)
    validation = {"size": 0.2, "draw": draw}
    kept, held = validation_split(dataset, config(validation=validation))
    assert len(held) == 16
    seen = {" ".join(texts[row].lower().split()) for row in kept}
    assert not [row for row in held if " ".join(texts[row].lower().split()) in seen]
    plain, _ = validation_split(dataset, config(validation={**validation, "equal_texts": "any"}))
    trained = {" ".join(texts[row].lower().split()) for row in plain}
    assert len(trained) == 20  # every text is trained on
    same = repeating(tmp_path / "same", ["word"] * 9)
    with pytest.raises(UserError, match=r"all 9 train rows have the same text.*validation\.size=0"):
        validation_split(same, config(validation=validation))
