"""Fusion against definitions written with plain dicts and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import index
from harness.index import TopK, fusion
from harness.index.fusion import Candidates, fuse, reciprocal_ranks, scaled_scores, shares


def ranking(rows: list[list[tuple[int, float]]], k: int) -> TopK:
    """A ranking from (label, score) pairs, best first, filled up to k."""
    ids, scores = np.full((len(rows), k), -1, np.int32), np.full((len(rows), k), -np.inf, np.float32)
    for place, row in enumerate(rows):
        for rank, (label, score) in enumerate(row):
            ids[place, rank], scores[place, rank] = label, score
    return TopK(ids, scores)


def by_hand(rankings: list[TopK], row: int, k: int) -> list[tuple[int, float]]:
    """Reciprocal rank fusion of one row: exact sums, rounded once, ties by the smaller id."""
    sums: dict[int, Fraction] = {}
    for one in rankings:
        for rank, label in enumerate(one.ids[row].tolist(), start=1):
            if label >= 0:
                sums[label] = sums.get(label, Fraction(0)) + Fraction(1, 60 + rank)
    rounded = {label: float(np.float32(float(score))) for label, score in sums.items()}
    return sorted(rounded.items(), key=lambda item: (-item[1], item[0]))[:k]


def answers(topk: TopK, row: int) -> list[tuple[int, float]]:
    found = zip(topk.ids[row].tolist(), topk.scores[row].tolist(), strict=True)
    return [(label, score) for label, score in found if label >= 0]


@st.composite
def rankings(draw: st.DrawFn) -> list[TopK]:
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, labels = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        k = draw(st.integers(1, 9))
        lists = []
        for _ in range(rows):
            count = int(generator.integers(0, min(k, labels) + 1))
            scores = np.sort(generator.choice([-2.5, -1, 0, 0.25, 0.25, 3], count))[::-1]
            lists.append([*zip(generator.permutation(labels)[:count].tolist(), scores.tolist(), strict=True)])
        made.append(ranking(lists, k))
    return made


@given(rankings(), st.integers(1, 12))
def test_reciprocal_ranks_are_the_sum_by_hand(given: list[TopK], k: int) -> None:
    found = fuse(given, reciprocal_ranks, [1.0] * len(given), k)
    assert (found.ids.shape, found.ids.dtype, found.scores.dtype) == ((len(given[0].ids), k), np.int32, np.float32)
    for row in range(len(found.ids)):
        assert answers(found, row) == by_hand(given, row, k)
    assert ((found.ids < 0) == (found.scores == -np.inf)).all()


@given(rankings(), st.randoms())
def test_neither_blocks_nor_the_order_of_rankings_change_a_byte(given: list[TopK], random) -> None:
    k = 7
    whole = fuse(given, reciprocal_ranks, [1.0] * len(given), k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "_BLOCK_VALUES", 1)
        assert fuse(given, reciprocal_ranks, [1.0] * len(given), k).ids.tobytes() == whole.ids.tobytes()
    shuffled = random.sample(given, len(given))
    assert fuse(shuffled, reciprocal_ranks, [1.0] * len(given), k).scores.tobytes() == whole.scores.tobytes()


@given(rankings())
def test_a_ranking_alone_keeps_its_order(given: list[TopK]) -> None:
    """With all weight on one run its labels come first, in its order but for equal scores."""
    own = given[0]
    weights = [1.0] + [0.0] * (len(given) - 1)
    found = fuse(given, scaled_scores, weights, own.ids.shape[1])
    for row in range(len(own.ids)):
        labels = [label for label, _ in sorted(answers(own, row), key=lambda item: (-item[1], item[0]))]
        assert [label for label, _ in answers(found, row)][: len(labels)] == labels


def test_scaled_scores_by_hand() -> None:
    one = ranking([[(4, 9.0), (2, 3.0), (0, 1.0)], [(1, -1.0), (3, -1.0)], [(5, 7.0)], []], 4)
    expected = [[1, (1 + 2 * 2 / 8) / 3, 1 / 3, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert np.allclose(scaled_scores(one.ids, one.scores), expected, rtol=1e-12)


def test_a_tie_goes_to_the_smaller_id() -> None:
    """Labels 7 and 3 are first and second, and second and first."""
    found = fuse([ranking([[(7, 2), (3, 1)]], 2), ranking([[(3, 9), (7, 8)]], 2)], reciprocal_ranks, [1, 1], 5)
    assert found.ids.tolist() == [[3, 7, -1, -1, -1]]
    assert found.scores[0, 0] == found.scores[0, 1] == np.float32(1 / 61 + 1 / 62)


def test_candidates_are_every_label_once() -> None:
    given = [ranking([[(5, 2), (1, 1)], []], 3), ranking([[(1, 4)], [(0, 1)]], 1)]
    found = Candidates.of(given, reciprocal_ranks, slice(0, 2))
    assert found.ids.tolist() == [[1, 5], [0, -1]]
    assert np.allclose(found.values[:, 0], [[1 / 62, 1 / 61], [1 / 61, 0]])


def test_shares_are_the_grid_over_the_simplex() -> None:
    grid = shares(3, 10)
    assert grid.shape == (66, 3)
    assert np.allclose(grid.sum(1), 1)
    assert len({tuple(row) for row in np.rint(grid * 10).astype(int).tolist()}) == 66
    assert shares(1, 10).tolist() == [[1.0]]


def test_what_search_returns_can_be_fused() -> None:
    generator = np.random.default_rng(0)
    queries, labels = (generator.normal(size=(rows, 4)).astype(np.float32) for rows in (5, 9))
    found = index.search(queries, labels, 3)
    again = fuse([found, found], scaled_scores, [0.5, 0.5], 3)
    assert again.ids.tolist() == found.ids.tolist()
