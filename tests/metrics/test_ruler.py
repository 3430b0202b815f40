"""The ruler on whole random matrices: against dense definitions, closed forms, and through search.

The oracle is ours, written from the formulas in the papers on dense arrays; the ruler itself never makes one. Neither
pyxclib nor napkinXC is a dependency.
"""

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.index import search
from harness.metrics import contributions, evaluate, inverse_propensity, oracle_topk, short_rows
from tests.faults.accounts import Account

pytestmark = pytest.mark.usefixtures("one_thread")
KS = (1, 3, 5)
TOLERANCE = 1e-10


def random_csr(rows: int, labels: int, share: float, generator: np.random.Generator) -> csr_array:
    return csr_array(generator.random((rows, labels)) < share * generator.random(labels) * 2)


def random_case(seed: int, rows: int = 60, labels: int = 80, depth: int = 8, share: float = 0.06) -> tuple[Any, ...]:
    """Predictions [M, K] with -1 in places, truth [M, L] with empty rows, and weights [L] of train labels."""
    generator = np.random.default_rng(seed)
    truth = random_csr(rows, labels, share, generator)
    liked = generator.random((rows, labels)) + 0.8 * truth.toarray()
    topk = np.argsort(-liked, axis=1)[:, :depth]
    topk[generator.random(topk.shape) < 0.1] = -1
    train = random_csr(200, labels, 0.03, generator)
    return topk, truth, train, inverse_propensity(train, 0.55, 1.5)


def dense_definitions(topk: NDArray[Any], truth: csr_array, weights: NDArray[Any]) -> dict[str, float]:
    """P, nDCG and PSP at k from a dense matrix of relevance, a row and a rank at a time."""
    relevant = np.hstack([truth.toarray().astype(float), np.zeros((truth.shape[0], 1))])  # the last column is "none"
    weighted = relevant * np.append(weights, 0.0)
    hit, gain = (np.take_along_axis(values, topk, axis=1) for values in (relevant, weighted))
    best = -np.sort(-weighted, axis=1)
    found: dict[str, float] = {}
    for k in KS:
        discount = np.array([1 / math.log2(2 + rank) for rank in range(k)])
        possible = [sum(discount[: int(count)]) for count in np.minimum(relevant.sum(1), k)]
        gains = hit[:, :k] @ discount[: hit.shape[1]]
        found[f"P@{k}"] = 100 * float(np.mean(hit[:, :k].sum(1) / k))
        found[f"nDCG@{k}"] = 100 * float(np.mean(gains / np.where(np.equal(possible, 0), np.inf, possible)))
        most = float(np.sum(best[:, :k]))
        found[f"PSP@{k}"] = 100 * float(np.sum(gain[:, :k])) / most if most else 0.0
    return found


def deviation(topk: NDArray[Any], truth: csr_array, weights: NDArray[Any]) -> float:
    expected, scores = dense_definitions(topk, truth, weights), evaluate(topk, truth, weights)
    return max(abs(scores[name] - value) for name, value in expected.items())


def test_the_definitions_on_a_hundred_random_matrices(account: Account) -> None:
    """faults 45, 55 and 57: to 1e-10"""
    cases = [random_case(seed, share=0.04) for seed in range(100)]
    empty = sum(int((np.diff(truth.indptr) == 0).sum()) for _, truth, _, _ in cases)
    padded = sum(int((topk == -1).sum()) for topk, *_ in cases)
    assert min(empty, padded) > 100
    worst = max(deviation(topk, truth, weights) for topk, truth, _, weights in cases)
    assert worst < TOLERANCE
    levels = {round(evaluate(topk, truth, weights)["PSP@3"]) for topk, truth, _, weights in cases}
    assert len(levels) > 3
    account.did(f"P, nDCG and PSP of {len(cases)} random CSR matrices; oracle: our own dense code, no pyxclib here")
    account.saw(f"largest difference {worst:.0e} percent points; {empty} rows had no label, {padded} places were empty")


def test_the_oracle_has_a_psp_of_100(account: Account) -> None:
    """fault 58"""
    found = []
    for seed in range(50):
        _, truth, _, weights = random_case(seed)
        scores = evaluate(oracle_topk(truth, 5, weights), truth, weights)
        found += [scores[f"PSP@{k}"] for k in KS]
        assert scores["PSP@1"] > evaluate(oracle_topk(truth, 5, -weights + weights.max() + 1), truth, weights)["PSP@1"]
    worst = max(abs(value - 100) for value in found)
    assert worst < TOLERANCE
    account.did("the true labels, largest inverse propensity first, as predictions for 50 random matrices")
    account.saw(f"PSP@1, 3 and 5 are 100 to {worst:.0e}; the same labels the other way round stay below")


def test_every_order_of_the_labels_at_once_has_the_expectation(account: Account) -> None:
    """fault 56: predictors that know nothing, all of them; perfect; and always wrong"""
    labels, generator = 6, np.random.default_rng(3)
    truth = np.array([[1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 1]])
    weights = generator.uniform(1, 10, labels)
    orders = np.array(list(permutations(range(labels))))
    everything = csr_array(np.repeat(truth, len(orders), axis=0))
    scores = evaluate(np.tile(orders, (len(truth), 1)), everything, weights)
    positives = truth.sum(1)
    for k in KS:
        discounts = np.cumsum([1 / math.log2(rank + 2) for rank in range(k)])
        ideal = [discounts[min(k, count) - 1] if count else math.inf for count in positives]
        largest = -np.sort(-(truth * weights), axis=1)[:, :k]
        assert scores[f"P@{k}"] == pytest.approx(100 * positives.mean() / labels, abs=1e-9)
        assert scores[f"R@{k}"] == pytest.approx(100 * (positives > 0).mean() * k / labels, abs=1e-9)
        assert scores[f"nDCG@{k}"] == pytest.approx(100 * np.mean(positives / labels * discounts[-1] / ideal), abs=1e-9)
        expected = 100 * k / labels * (truth * weights).sum() / largest.sum()
        assert scores[f"PSP@{k}"] == pytest.approx(expected, abs=1e-9)
    full = csr_array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    perfect = evaluate(oracle_topk(full, 3, weights), full, weights, ks=(3,))
    assert perfect == pytest.approx(dict.fromkeys(perfect, 100), abs=TOLERANCE)
    wrong = evaluate(oracle_topk(csr_array(1 - truth), 2, weights), csr_array(truth), weights)
    assert set(wrong.values()) == {0.0}
    account.did(f"all {len(orders)} orders of {labels} labels as predictions; then perfect and only wrong ones")
    account.saw(f"P@5 {scores['P@5']:.4f} and PSP@5 {scores['PSP@5']:.4f}, the expectations; 100 and 0 for the others")


def test_head_torso_and_tail_of_random_matrices(account: Account) -> None:
    """fault 59"""
    gaps, shares = [], []
    for seed in range(30):
        topk, truth, train, weights = random_case(seed)
        total, parts = evaluate(topk, truth, weights), contributions(topk, truth, train, KS, weights)
        assert [part["bin"] for part in parts] == ["head", "torso", "tail"]
        for name in [f"{family}@{k}" for family in ("P", "PSP") for k in KS]:
            gaps.append(abs(sum(float(part[name]) for part in parts) - total[name]))
        shares.append([float(part["P@5"]) for part in parts])
    assert max(gaps) < TOLERANCE
    assert (np.array(shares) > 0).all()
    head, torso, tail = np.mean(shares, axis=0)
    account.did("shares of head, torso and tail in P@k and PSP@k of 30 random matrices, added up")
    account.saw(f"P@5 of {head:.1f} + {torso:.1f} + {tail:.1f} on average; the sums miss the totals by {max(gaps):.0e}")


def test_permuted_rows_and_labels_through_search_and_metrics(account: Account) -> None:
    """fault 60: vectors, filter, truth and propensities in another order"""
    generator = np.random.default_rng(8)
    rows, labels = 120, 300
    queries, vectors = (generator.standard_normal((count, 16)).astype(np.float32) for count in (rows, labels))
    truth, banned = random_csr(rows, labels, 0.05, generator), random_csr(rows, labels, 0.02, generator)
    weights = generator.uniform(1, 20, labels)
    found = search(queries, vectors, 5, banned)
    before = evaluate(found.ids, truth, weights)
    row, label = generator.permutation(rows), generator.permutation(labels)
    again = search(queries[row], vectors[label], 5, csr_array(banned[row][:, label]))
    assert (label[again.ids] == found.ids[row]).all()
    after = evaluate(again.ids, csr_array(truth[row][:, label]), weights[label])
    worst = max(abs(after[name] - value) for name, value in before.items())
    assert worst < TOLERANCE
    assert before["PSP@5"] > 0
    account.did(f"{rows} rows and {labels} labels shuffled: vectors, filter, truth, propensities; searched anew")
    account.saw(f"the same labels in the same ranks; {len(before)} metrics differ by at most {worst:.0e}")


def test_short_padded_and_not_finite_rows_are_misses(account: Account) -> None:
    """fault 55: through search, where a NaN arises, to the ruler"""
    generator = np.random.default_rng(5)
    queries, vectors = (generator.standard_normal((count, 8)).astype(np.float32) for count in (40, 30))
    truth = csr_array(np.ones((40, 30)))
    banned = np.zeros((40, 30))
    queries[:4, 2], vectors[7, 0], banned[10:16, 2:] = np.nan, np.inf, 1
    found = search(queries, vectors, 5, csr_array(banned))
    assert found.flagged == 5
    assert ((found.ids >= 0).sum(1) == [0] * 4 + [5] * 6 + [2] * 6 + [5] * 24).all()
    scores = evaluate(found.ids, truth)
    assert scores["P@1"] == pytest.approx(100 * 36 / 40)
    assert scores["P@5"] == pytest.approx(100 * (30 * 5 + 6 * 2) / (40 * 5))
    assert short_rows(found.ids, 5) == 10
    account.did("4 queries with NaN, a label with infinity, 6 rows with two allowed labels, all pairs true, k = 5")
    account.saw(f"{found.flagged} vectors and {short_rows(found.ids, 5)} short rows flagged; P@5 {scores['P@5']:.0f}")
