"""Augmented rows: their targets against brute force, which labels become rows, mixed texts, and what is refused."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.augment import AUGMENTATIONS, AugmentedRows, AugmentedTrain, augment, idle
from harness.augment.label_texts import _symmetric, conditional, strengths
from harness.augment.mixup import some_tokens
from harness.augment.walk import HEAD, NEIGHBOURS, visits
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.settings.schema import AugmentSettings

FRAME = (1, 2)
CLS, SEP, EOS = 1, 2, 3
KINDS = ("gandalf", "glas", "label-mixup", "mixup", "one-hot", "random-walk")
MATRICES = st.tuples(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 12), st.floats(0.05, 0.6))


def random_train(seed: int, rows: int, labels: int, density: float) -> csr_array:
    return csr_array((np.random.default_rng(seed).random((rows, labels)) < density).astype(np.float32))


def texts(rows: int, first: int = 100, lengths: Any = 6) -> Ragged:
    """Framed rows whose tokens name the row: 20 ids each, increasing."""
    counts = np.broadcast_to(lengths, rows)
    bodies = [first + 20 * row + np.arange(count) for row, count in enumerate(counts)]
    whole = [np.concatenate([[CLS], body, [SEP, EOS]]) for body in bodies]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in whole])]).astype(np.int64)
    return Ragged(np.concatenate([*whole, np.zeros(0)]).astype(np.int32), offsets)


def made(name: str, train: csr_array, seed: int = 0, **options: Any) -> AugmentedTrain:
    """Only the augmented rows."""
    return side(name, train, seed, **{"keep": "made", **options})


def side(
    name: str,
    train: csr_array,
    seed: int = 0,
    row_texts: Ragged | None = None,
    label_texts: Ragged | None = None,
    **options: Any,
) -> AugmentedTrain:
    """All rows, with texts as long as each other unless some are given."""
    return augment(
        name,
        train,
        csr_array(np.zeros(train.shape, np.float32)),
        row_texts or texts(train.shape[0]),
        label_texts or texts(train.shape[1], 100_000),
        AugmentSettings(**options),
        seed=seed,
        frame=FRAME,
    )


def labels_of(tokens: Ragged) -> list[int]:
    """Which label's text each row is."""
    return [int(tokens[row][1] - 100_000) // 20 for row in range(len(tokens))]


def brute_force(train: NDArray[Any], text: int, delta: float, symmetric: bool = False) -> dict[int, float]:
    """Targets of one label's text, by counting."""
    found = {}
    for label in range(train.shape[1]):
        both = sum(1 for row in train if row[text] and row[label])
        strength = both / sum(1 for row in train if row[text])
        if symmetric and both:
            strength = (strength + both / sum(1 for row in train if row[label])) / 2
        if both and strength > delta:
            found[label] = 1 / (1 + math.exp(-strength)) if symmetric else strength
    return found


def row_of(matrix: csr_array, row: int) -> dict[int, float]:
    begin, end = matrix.indptr[row : row + 2]
    return dict(zip(matrix.indices[begin:end].tolist(), matrix.data[begin:end].tolist(), strict=True))


@given(MATRICES, st.sampled_from([0.0, 0.1, 0.2, 0.5]), st.booleans())
def test_targets_are_the_shares_of_counted_rows(
    matrix: tuple[int, int, int, float], delta: float, symmetric: bool
) -> None:
    train = random_train(*matrix)
    seen = [label for label in range(train.shape[1]) if train.toarray()[:, label].any()]
    if not seen:
        with pytest.raises(UserError, match="nothing to make rows from"):
            made("gandalf", train)
        return
    result = made("glas" if symmetric else "gandalf", train, delta=delta)
    assert labels_of(result.tokens) == seen  # a label that never occurs makes no row
    for row, label in enumerate(seen):
        assert row_of(result.train, row) == pytest.approx(brute_force(train.toarray(), label, delta, symmetric))


@given(MATRICES, st.sampled_from([0.0, 0.1, 0.3]))
def test_a_text_has_its_own_label_whole_and_others_above_delta(
    matrix: tuple[int, int, int, float], delta: float
) -> None:
    train = random_train(*matrix)
    if not train.nnz:
        return
    result = made("gandalf", train, delta=delta)
    own = [row_of(result.train, row).pop(label) for row, label in enumerate(labels_of(result.tokens))]
    assert own == [1.0] * len(result.tokens)
    assert result.train.dtype == np.float32
    assert ((result.train.data >= np.float32(delta)) & (result.train.data <= 1)).all()
    assert result.train.has_canonical_format


def test_the_direction_is_that_of_the_text() -> None:
    """The text of a rare label points at the frequent one with certainty; the other way it is one row in four."""
    train = csr_array(np.array([[1, 1], [1, 0], [1, 0], [1, 0]], np.float32))
    result = made("gandalf", train, delta=0.0)
    assert row_of(result.train, 0) == {0: 1.0, 1: 0.25}
    assert row_of(result.train, 1) == {0: 1.0, 1: 1.0}
    both = made("glas", train, delta=0.0)
    assert row_of(both.train, 0)[1] == row_of(both.train, 1)[0] == pytest.approx(1 / (1 + math.exp(-0.625)))


@pytest.mark.parametrize("block", [1, 7, 60, 10**9])
@pytest.mark.parametrize("strength", [conditional, _symmetric])
def test_blocks_change_nothing(block: int, strength: Any) -> None:
    train = random_train(3, 80, 40, 0.1)
    labels = np.flatnonzero(train.toarray().any(axis=0))[::2]
    dense = train.toarray().astype(np.float64)
    counts = dense.T @ dense
    own = np.diag(counts)
    expected = strength(counts[labels], own[labels][:, None], np.maximum(own, 1)[None])
    expected[expected <= 0.15] = 0
    found = strengths(train, labels, strength, 0.15, block)
    assert found.toarray() == pytest.approx(expected.astype(np.float32), abs=1e-7)


def test_tail_first_takes_the_rarest_and_ties_by_id() -> None:
    counts = [3, 1, 2, 1, 0, 2]
    train = csr_array((np.arange(3)[:, None] < np.array(counts)).astype(np.float32))
    assert labels_of(made("gandalf", train, labels=0.6, order="tail-first").tokens) == [1, 2, 3]
    assert labels_of(made("one-hot", train, labels=0.5, order="tail-first").tokens) == [1, 3, 4]
    assert labels_of(made("random-walk", train, labels=0.2, order="tail-first").tokens) == [1]


@given(st.integers(0, 1000), st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_larger_share_holds_the_labels_of_a_smaller_one(seed: int, one: float, other: float) -> None:
    train = csr_array(np.ones((2, 40), np.float32))
    few, many = (labels_of(made("one-hot", train, seed, labels=share).tokens) for share in sorted((one, other)))
    assert len(few) == round(40 * min(one, other))
    assert set(few) <= set(many)


def test_one_hot_knows_every_label_with_a_text() -> None:
    train = csr_array(np.array([[1, 0, 0]], np.float32))
    result = side("one-hot", train, label_texts=texts(3, 100_000, [4, 0, 5]))
    assert labels_of(result.tokens)[1:] == [0, 2]
    assert result.train.toarray().tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert result.soft is False
    assert result.metadata() == {"rows": 3, "made": 2, "targets_per_made_row": 1.0, "soft": False}


# ---------------------------------------------------------------- random walks


def test_walks_without_return_trips_estimate_the_conditional_share() -> None:
    """At restart 1, v_i / v_j tends to gandalf's share with every row counted as one over its number of labels."""
    train = random_train(5, 40, 8, 0.3)
    dense = train.toarray().astype(np.float64)
    per_row = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    expected = dense.T @ per_row
    expected /= np.diag(expected)[:, None]
    hops = 40_000
    found = visits(train, train.T.tocsr(), np.arange(8), np.random.default_rng(0), hops, 1.0).toarray()
    assert (found.sum(axis=1) == hops).all()
    assert found / np.diag(found)[:, None] == pytest.approx(expected, abs=0.05)


def test_walks_reach_past_a_shared_neighbour_and_stay_in_their_part() -> None:
    chain = csr_array(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], np.float32))
    result = made("random-walk", chain, delta=0.0)
    assert set(row_of(result.train, 0)) == {0, 1, 2}  # 0 and 2 have no row in common
    assert row_of(result.train, 3) == {3: 1.0}


def test_walks_keep_the_nearest_and_leave_the_head_alone() -> None:
    rows, labels = HEAD + 20, 40
    train = np.zeros((rows, labels), np.float32)
    train[:, 0] = 1  # more rows than HEAD
    train[:30, 1:] = random_train(1, 30, labels - 1, 0.7).toarray()
    result = made("random-walk", csr_array(train), delta=0.0)
    dense = result.train.toarray()
    assert row_of(result.train, 0) == {0: 1.0}
    assert dense[1:, 0].max() == 0
    assert (np.diff(result.train.indptr)[1:] == 1 + NEIGHBOURS).all()
    assert (np.diag(dense) == 1).all()
    strict = made("random-walk", csr_array(train), delta=0.9).train
    assert strict.data.min() > 0.9
    assert strict.nnz < result.train.nnz


# ---------------------------------------------------------------- mixed texts


def decoded(tokens: NDArray[Any]) -> Iterator[tuple[str, int, list[int]]]:
    """The runs of tokens that come from one text: kind, number of the text, places in it."""
    assert (tokens[0], *tokens[-2:]) == (CLS, SEP, EOS)
    body = [int(token) for token in tokens[1:-2]]
    sources = [("label", (t - 100_000) // 20) if t >= 100_000 else ("row", (t - 100) // 20) for t in body]
    for source in dict.fromkeys(sources):
        places = [token % 20 for token, its in zip(body, sources, strict=True) if its == source]
        assert places == sorted(set(places))  # old order, none twice
        yield *source, places


def test_mixed_rows_hold_words_and_labels_in_the_same_shares() -> None:
    rows, length = 300, 13
    train = csr_array(np.eye(rows, dtype=np.float32))
    lengths = np.random.default_rng(0).integers(1, length, rows)
    result = made("mixup", train, row_texts=texts(rows, lengths=lengths))
    assert len(result.tokens) == rows
    assert result.soft
    mixed = 0
    for row in range(rows):
        target, parts = row_of(result.train, row), list(decoded(result.tokens[row]))
        assert set(target) == {text for _, text, _ in parts}  # row r has label r
        assert sum(target.values()) == pytest.approx(1)
        assert sum(len(places) for *_, places in parts) <= max(lengths[text] for _, text, _ in parts) or len(parts) == 1
        if len(parts) == 2:
            (_, first, kept), (_, second, rest) = parts
            assert abs(len(kept) - target[first] * lengths[first]) <= 0.5 + 1e-6
            assert abs(len(rest) - target[second] * lengths[second]) <= 1 + 1e-6
            mixed += 1
    assert mixed > rows / 4


def test_a_row_is_mixed_with_one_of_its_own_labels() -> None:
    train = random_train(2, 200, 30, 0.1)
    train = train[np.flatnonzero(np.diff(train.indptr))]
    result = made("label-mixup", train)
    assert len(result.tokens) == train.shape[0]
    with_label = 0
    for row in range(len(result.tokens)):
        own, target = set(row_of(train, row)), row_of(result.train, row)
        found = {kind: text for kind, text, _ in decoded(result.tokens[row])}
        assert set(target) <= own
        assert found.get("row", row) == row
        if "label" in found:
            with_label += 1
            assert target.pop(found["label"]) == 1
            assert len(set(target.values())) <= 1
            assert all(0 < value < 1 for value in target.values())
        else:
            assert target == dict.fromkeys(own, 1.0)
    assert with_label > len(result.tokens) / 3


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=12), st.integers(0, 99))
def test_a_draw_of_tokens_has_the_size_and_order_asked_for(rows: list[tuple[int, float]], seed: int) -> None:
    lengths = np.array([length for length, _ in rows])
    count = np.array([round(length * share) for length, share in rows])
    column = texts(len(rows), lengths=lengths)
    drawn = some_tokens(column, count, FRAME, np.random.default_rng(seed))
    assert drawn.lengths.tolist() == count.tolist()
    for row in range(len(rows)):
        whole = column[row][1:-2].tolist()
        assert drawn[row].tolist() == sorted(set(drawn[row].tolist()) & set(whole))


# ---------------------------------------------------------------- all kinds


@pytest.mark.parametrize("name", KINDS)
def test_augmented_rows_come_behind_whole_ones_and_keep_the_filter_pairs_of_their_texts(name: str) -> None:
    train = random_train(4, 50, 20, 0.2)
    stored = train.copy()
    stored.data = np.linspace(0.1, 7, train.nnz, dtype=np.float32)  # a relevance is no target
    pairs = csr_array(np.eye(50, 20, dtype=np.float32))
    rows, labels = texts(50), texts(20, 100_000)
    result = augment(name, stored, pairs, rows, labels, AugmentSettings(), seed=0, frame=FRAME)
    assert (result.train[:50] != train).nnz == 0
    assert result.train.dtype == np.float32
    assert ((result.train.data > 0) & (result.train.data <= 1)).all()
    assert result.soft == bool((result.train.data < 1).any())
    assert (result.filter[:50] != pairs).nnz == 0
    assert result.filter.shape == result.train.shape == (len(result.tokens), 20)
    # 20 of the 50 rows have a filter pair: a mixed row has those of its rows, a label's text has none
    inherited = {"mixup": 40, "label-mixup": 20}.get(name, 0)
    assert result.filter.nnz == pairs.nnz + inherited
    assert result.tokens.values[: len(rows.values)].tolist() == rows.values.tolist()
    assert result.made == len(result.tokens) - 50 > 0
    for row in range(len(result.tokens)):
        assert (result.tokens[row][0], *result.tokens[row][-2:]) == (CLS, SEP, EOS)


@pytest.mark.parametrize("name", KINDS)
def test_the_same_seed_makes_the_same_rows_and_another_one_others(name: str) -> None:
    train = random_train(4, 50, 20, 0.2)
    first, again, other = (side(name, train, seed, rows=40) for seed in (7, 7, 8))
    for one, two in ((first.train.data, again.train.data), (first.train.indices, again.train.indices)):
        assert one.tobytes() == two.tobytes()
    assert first.tokens.values.tobytes() == again.tokens.values.tobytes()
    assert first.tokens.values.tobytes() != other.tokens.values.tobytes()


def test_a_draw_of_rows_is_uniform_without_repeats() -> None:
    train = random_train(4, 50, 20, 0.2)
    whole, some = side("one-hot", train), side("one-hot", train, rows=30)
    drawn = [some.tokens[row].tolist() for row in range(30)]
    everything = [whole.tokens[row].tolist() for row in range(70)]
    places = [everything.index(row) for row in drawn]
    assert places == sorted(set(places))
    assert some.made == sum(place >= 50 for place in places)
    assert 0 < some.made < 20
    assert (some.train != whole.train[places]).nnz == 0
    assert len(side("one-hot", train, rows=70).tokens) == 70
    as_many = side("one-hot", train, rows="train")
    assert (len(as_many.tokens), len(whole.tokens)) == (50, 70)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [("mixup", 1, "at least two train rows"), ("gandalf", 0, "nothing to make rows from")],
)
def test_too_little_to_make_rows_from(name: str, rows: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        side(name, csr_array(np.ones((rows, 3), np.float32)))


@pytest.mark.parametrize(("value", "rows"), [(1.5, 2), (-0.5, 2), (0.5, 1)])
def test_an_unsound_kind_from_elsewhere_is_refused(value: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = csr_array(np.full((rows, 3), value, np.float32))
    monkeypatch.setattr(AUGMENTATIONS, "get", lambda name: lambda *arguments: AugmentedRows(texts(2), targets))
    with pytest.raises(UserError, match="must make a row of targets"):
        side("gandalf", csr_array(np.ones((2, 3), np.float32)))


def test_options_without_effect_are_named() -> None:
    changed = AugmentSettings(delta=0.2, labels=0.5, order="tail-first", keep="made", rows=3)
    assert idle("gandalf", changed) == []
    assert idle("none", AugmentSettings()) == []
    assert len(idle("none", changed)) == 5
    assert idle("one-hot", changed) == ["augment_options.delta has no effect with augment=one-hot"]
    assert len(idle("mixup", changed)) == 3
    assert "augment_options.labels" in idle("gandalf", AugmentSettings(order="tail-first"))[0]
