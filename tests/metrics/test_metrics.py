"""The ruler, held against definitions written one row at a time in plain Python."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.errors import UserError
from harness.metrics import (
    METRICS,
    ceiling,
    contributions,
    describe,
    evaluate,
    frequency_bins,
    inverse_propensity,
    oracle_topk,
    per_row,
    ranks_of_truth,
    short_rows,
)

KS = (1, 3, 5)
unhurried = settings(deadline=None, max_examples=80)


def matrix(sets: Sequence[set[int]], labels: int) -> csr_array:
    row = [i for i, chosen in enumerate(sets) for _ in chosen]
    column = [label for chosen in sets for label in sorted(chosen)]
    return csr_array((np.ones(len(row), np.float32), (row, column)), shape=(len(sets), labels))


def hit_ranks(predicted: Sequence[int], true: set[int], k: int) -> dict[int, int]:
    """Label -> rank from 1, walking down one row; -1 is nobody, and a second mention of a label is ignored."""
    hits: dict[int, int] = {}
    for rank, label in enumerate(list(predicted)[:k], start=1):
        if label in true and label not in hits:
            hits[label] = rank
    return hits


def brute_force(
    topk: Sequence[Sequence[int]], truth: Sequence[set[int]], weights: Sequence[float], ks: Sequence[int] = KS
) -> dict[str, float]:
    """Every metric as its definition reads, without arrays."""
    expected: dict[str, float] = {}
    n = len(truth)
    for k in ks:
        precision = ndcg = recall = gain = best_gain = discounted = best_discounted = 0.0
        covered: set[int] = set()
        for predicted, true in zip(topk, truth, strict=True):
            hits = hit_ranks(predicted, true, k)
            covered |= set(hits)
            precision += len(hits) / k
            gain += sum(weights[label] for label in hits) / k
            largest = sorted((weights[label] for label in true), reverse=True)[:k]
            best_gain += sum(largest) / k
            if true:
                recall += len(hits) / len(true)
                ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(true)) + 1))
                ndcg += sum(1 / math.log2(rank + 1) for rank in hits.values()) / ideal
                discounted += sum(weights[label] / math.log2(rank + 1) for label, rank in hits.items()) / ideal
                best_discounted += sum(w / math.log2(rank + 1) for rank, w in enumerate(largest, start=1)) / ideal
        present = set().union(*truth)
        expected |= {
            f"P@{k}": 100 * precision / n,
            f"nDCG@{k}": 100 * ndcg / n,
            f"PSP@{k}": 100 * gain / best_gain if best_gain else 0.0,
            f"PSnDCG@{k}": 100 * discounted / best_discounted if best_discounted else 0.0,
            f"R@{k}": 100 * recall / n,
            f"C@{k}": 100 * len(covered) / len(present) if present else 0.0,
        }
    return expected


Case = tuple[list[list[int]], list[set[int]], int, list[float]]


@st.composite
def cases(draw: st.DrawFn, distinct: bool = False) -> Case:
    """Predictions, truth, number of labels and weights; rows may be empty, short, padded in the middle, repetitive."""
    labels = draw(st.integers(1, 9))
    count = draw(st.integers(1, 7))
    width = draw(st.integers(1, 7))
    ids = st.integers(-1, labels - 1)
    truth = draw(st.lists(st.sets(st.integers(0, labels - 1)), min_size=count, max_size=count))
    if distinct:
        order = st.permutations(range(labels)).map(lambda ids: (list(ids) + [-1] * width)[:width])
        topk = draw(st.lists(order, min_size=count, max_size=count))
    else:
        topk = draw(st.lists(st.lists(ids, min_size=width, max_size=width), min_size=count, max_size=count))
    weights = draw(st.lists(st.floats(0.5, 30), min_size=labels, max_size=labels))
    return topk, truth, labels, weights


@unhurried
@given(cases())
def test_every_metric_equals_its_definition(case: Case) -> None:
    """fault 45, fault 55, fault 57: rows without labels, short rows, padding and repeats, to 1e-10."""
    topk, truth, labels, weights = case
    found = evaluate(np.array(topk), matrix(truth, labels), np.array(weights), KS)
    assert found == pytest.approx(brute_force(topk, truth, weights), abs=1e-10)
    assert all(type(value) is float for value in found.values())


def test_example_worked_by_hand() -> None:
    """Three rows, five labels: two hits, one hit at rank 3, and a row without labels."""
    topk = np.array([[0, 1, 2], [3, 4, 0], [1, 2, 3]])
    truth = matrix([{0, 2}, {0}, set()], 5)
    weights = np.array([1.0, 9.0, 4.0, 9.0, 9.0])
    discount_3 = 1 / math.log2(4)
    ideal_2 = 1 + 1 / math.log2(3)
    scores = evaluate(topk, truth, weights, ks=(1, 3))
    assert scores == pytest.approx(
        {
            "P@1": 100 / 3,
            "P@3": 100 * (2 / 3 + 1 / 3) / 3,
            "nDCG@1": 100 / 3,
            "nDCG@3": 100 * ((1 + discount_3) / ideal_2 + discount_3) / 3,
            "PSP@1": 100 * 1 / (4 + 1),
            "PSP@3": 100 * (1 + 4 + 1) / (4 + 1 + 1),
            "PSnDCG@1": 100 * 1 / (4 + 1),
            "PSnDCG@3": 100 * ((1 + 4 * discount_3) / ideal_2 + discount_3) / ((4 + 1 / math.log2(3)) / ideal_2 + 1),
            "R@1": 100 * (1 / 2) / 3,
            "R@3": 100 * (1 + 1) / 3,
            "C@1": 100 * 1 / 2,
            "C@3": 100.0,
        },
        abs=1e-10,
    )


@unhurried
@given(cases())
def test_oracle_reaches_the_ceiling(case: Case) -> None:
    """fault 56, fault 58: the oracle scores 100 with propensities and the closed-form ceiling without."""
    _, truth, labels, weights = case
    pattern = matrix(truth, labels)
    scores = evaluate(oracle_topk(pattern, 5, np.array(weights)), pattern, np.array(weights))
    best = 100.0 if any(truth) else 0.0
    assert {key: scores[key] for key in scores if key.startswith("PS")} == pytest.approx(
        {f"{family}@{k}": best for family in ("PSP", "PSnDCG") for k in KS}, abs=1e-10
    )
    limit = ceiling(pattern)
    assert limit == pytest.approx({key: scores[key] for key in limit}, abs=1e-10)
    assert limit["P@5"] == pytest.approx(100 * sum(min(5, len(true)) for true in truth) / (5 * len(truth)))


def test_oracle_orders_by_weight_then_id() -> None:
    """fault 54: equal weights go by the smaller id."""
    truth = matrix([{0, 1, 2, 3}, {4}, set()], 5)
    assert oracle_topk(truth, 3, np.array([1.0, 2, 3, 2, 1])).tolist() == [[2, 1, 3], [4, -1, -1], [-1, -1, -1]]
    assert oracle_topk(truth, 2).tolist() == [[0, 1], [4, -1], [-1, -1]]


def test_order_is_kept_as_given() -> None:
    """fault 54: ties are broken by search; the ruler only reads ranks."""
    truth = matrix([{1}], 3)
    assert evaluate(np.array([[1, 2]]), truth)["P@1"] == 100
    assert evaluate(np.array([[2, 1]]), truth)["P@1"] == 0


def test_repeated_prediction_counts_once_at_its_better_rank() -> None:
    scores = evaluate(np.array([[2, 1, 1, 1, 1]]), matrix([{1, 0}], 3))
    assert scores["P@5"] == pytest.approx(20)
    assert scores["nDCG@5"] == pytest.approx(100 * (1 / math.log2(3)) / (1 + 1 / math.log2(3)))


@unhurried
@given(cases())
def test_rows_average_to_the_reported_scores(case: Case) -> None:
    topk, truth, labels, weights = case
    arguments = np.array(topk), matrix(truth, labels), np.array(weights)
    by_row, total = per_row(*arguments), evaluate(*arguments)
    assert set(by_row) == {key for key in total if not key.startswith("C@")}
    for key, scores in by_row.items():
        assert scores.shape == (len(topk),)
        assert scores.mean() == pytest.approx(total[key], abs=1e-10)
    for row, (predicted, true) in enumerate(zip(topk, truth, strict=True)):
        alone = brute_force([predicted], [true], weights)
        for key in ("P@3", "nDCG@3", "R@3"):
            assert by_row[key][row] == pytest.approx(alone[key], abs=1e-10)


def test_ranks_hold_each_retrieved_pair_once() -> None:
    ranks = ranks_of_truth(np.array([[4, 1, 1, 0], [-1, -1, 2, 3]]), matrix([{0, 1, 3}, {2}], 5))
    pairs = list(zip(ranks.row.tolist(), ranks.label.tolist(), ranks.rank.tolist(), strict=True))
    assert pairs == [(0, 0, 3), (0, 1, 1), (1, 2, 2)]
    assert (ranks.shape, ranks.depth) == ((2, 5), 4)


def test_ranks_do_not_answer_beyond_their_depth_or_for_another_truth() -> None:
    truth = matrix([{0}, {1}], 3)
    ranks = ranks_of_truth(np.array([[0, 1], [1, 0]]), truth)
    with pytest.raises(UserError, match="depth=5"):
        evaluate(ranks, truth)
    with pytest.raises(UserError, match="belong to a truth of shape"):
        evaluate(ranks, matrix([{0}], 3), ks=(1,))


@pytest.mark.parametrize(
    ("train_rows", "a", "b", "frequency", "expected"),
    [
        (294_805, 0.6, 2.6, 1, 12.59),
        (294_805 + 131_073, 0.6, 2.6, 2, 11.33),
        (693_082, 0.55, 1.5, 1, 13.45),
        (693_082 + 312_330, 0.55, 1.5, 2, 11.65),
    ],
)
def test_propensity_of_the_published_sets(train_rows: int, a: float, b: float, frequency: int, expected: float) -> None:
    """LF-AmazonTitles-131K and LF-WikiSeeAlso-320K at n = 1, and the same after adding L label texts as rows."""
    train = csr_array((np.ones(frequency), (np.arange(frequency), np.zeros(frequency, int))), shape=(train_rows, 2))
    assert inverse_propensity(train, a, b)[0] == pytest.approx(expected, abs=0.005)


def test_propensity_of_a_label_without_train_rows() -> None:
    """fault 46: defined, and the largest of all."""
    weights = inverse_propensity(matrix([{0}, {0, 1}, {0}, set()], 3), 0.55, 1.5)
    constant = (math.log(4) - 1) * 2.5**0.55
    assert weights.tolist() == pytest.approx([1 + constant * (n + 1.5) ** -0.55 for n in (3, 1, 0)], abs=1e-12)
    assert weights.dtype == np.float64
    assert weights.argmax() == 2


def test_without_propensities_there_is_no_psp() -> None:
    """fault 52."""
    truth = matrix([{0}, {1}], 3)
    scores = evaluate(np.array([[0], [2]]), truth)
    assert set(scores) == {f"{family}@{k}" for family in ("P", "nDCG", "R", "C") for k in KS}
    assert not any("PSP" in key for entry in contributions(np.array([[0], [2]]), truth, truth) for key in entry)


def test_no_positive_anywhere_scores_zero() -> None:
    """fault 45: ratios with nothing below the line are 0, not NaN."""
    truth = csr_array((3, 4), dtype=np.float32)
    assert set(evaluate(np.zeros((3, 5), int), truth, np.ones(4)).values()) == {0.0}
    assert set(ceiling(truth).values()) == {0.0}


def test_short_rows_are_counted() -> None:
    """fault 55: flagged."""
    topk = np.array([[0, 1, 2], [0, -1, -1], [-1, -1, -1], [0, -1, 2]])
    assert [short_rows(topk, k) for k in (1, 2, 3, 4)] == [1, 3, 3, 4]


@unhurried
@given(cases(), st.lists(st.sets(st.integers(0, 8)), min_size=3, max_size=12), st.sampled_from([1, 2, 3, 5]))
def test_contributions_add_up(case: Case, train_sets: list[set[int]], count: int) -> None:
    """fault 59."""
    topk, truth, labels, weights = case
    pattern, inverse = matrix(truth, labels), np.array(weights)
    train = matrix([{label for label in chosen if label < labels} for chosen in train_sets], labels)
    names = [f"bin {i}" for i in range(count)]
    entries = contributions(np.array(topk), pattern, train, KS, inverse, names)
    total = evaluate(np.array(topk), pattern, inverse)
    assert [entry["bin"] for entry in entries] == names
    for key in [f"{family}@{k}" for family in ("P", "PSP") for k in KS]:
        assert sum(float(entry[key]) for entry in entries) == pytest.approx(total[key], abs=1e-10)
    for what, expected in (("labels", labels), ("train_pairs", train.nnz), ("test_pairs", pattern.nnz)):
        assert sum(int(entry[what]) for entry in entries) == expected
    bin_of_label = frequency_bins(train, names)
    for name, entry in enumerate(entries):
        members = {label for label in range(labels) if bin_of_label[label] == name}
        inside = [{label for label in true if label in members} for true in truth]
        assert entry["P@3"] == pytest.approx(brute_force(topk, inside, weights)["P@3"], abs=1e-10)


def test_bins_hold_equal_shares_of_the_train_pairs() -> None:
    """fault 46: ties go by label id, and labels never seen in train are flagged and lie in the tail."""
    frequency = [2, 6, 1, 2, 0, 1, 0]
    train = matrix([{label for label, times in enumerate(frequency) if row < times} for row in range(6)], 7)
    # 12 pairs: label 1 holds the first 6, labels 0 and 3 start at pairs 6 and 8, label 2 at 10, label 5 at 11.
    assert frequency_bins(train).tolist() == [1, 0, 2, 2, 2, 2, 2]
    assert frequency_bins(train, ["a", "b", "c", "d", "e", "f"]).tolist() == [3, 0, 5, 4, 5, 5, 5]
    entries = contributions(np.array([[1]]), matrix([{1, 4}], 7), train, ks=(1,))
    assert entries == [
        {"bin": "head", "labels": 1, "zero_shot_labels": 0, "train_pairs": 6, "test_pairs": 1, "P@1": 100.0},
        {"bin": "torso", "labels": 1, "zero_shot_labels": 0, "train_pairs": 2, "test_pairs": 0, "P@1": 0.0},
        {"bin": "tail", "labels": 5, "zero_shot_labels": 2, "train_pairs": 4, "test_pairs": 1, "P@1": 0.0},
    ]
    assert frequency_bins(csr_array((2, 3), dtype=np.float32)).tolist() == [2, 2, 2]


def test_every_key_is_described() -> None:
    scores = evaluate(np.array([[0]]), matrix([{0}], 2), np.ones(2))
    for key in scores:
        assert describe(key).unit == "percent"
        assert describe(key).higher_is_better
    assert all(metric.definition and "\n" not in metric.definition for metric in METRICS.values())
    with pytest.raises(UserError, match="did you mean 'nDCG'"):
        describe("ndCG@5")
