"""Evaluation against a plain loop over rows, at the test sets of LF-AmazonTitles-131K and LF-AmazonTitles-1.3M.

The loop scores one row after the other with numpy, as the formulas read. It is timed on the first rows only and scaled,
because its cost per row does not depend on the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.metrics import evaluate, inverse_propensity
from tests.benchmarks.race import Race, size

RETRIEVED, TIMED = 100, size(2_000, 200)


@dataclass(frozen=True)
class TestSet:
    """How large a test set is."""

    __test__ = False
    rows: int
    labels: int
    labels_per_row: float


SETS = (TestSet(size(134_835, 1_000), size(131_073, 5_000), 2.1), TestSet(size(970_237, 2_000), 1_305_265, 22.2))


@pytest.mark.parametrize("ks", [(1, 3, 5), (1, 3, 5, 10, 50, 100)], ids=str)
@pytest.mark.parametrize("of", SETS, ids=lambda of: f"{of.labels} labels")
def test_evaluate(race: Race, of: TestSet, ks: tuple[int, ...]) -> None:
    topk, truth = random_case(np.random.default_rng(0), of)
    weights = inverse_propensity(truth, a=0.6, b=2.6)
    few_topk, few_truth = topk[:TIMED], truth[:TIMED]
    assert evaluate(few_topk, few_truth, weights, ks) == pytest.approx(loop(few_topk, few_truth, weights, ks), abs=1e-9)
    race(
        f"evaluate at k = {', '.join(map(str, ks))}",
        f"{of.rows:,} rows x top-{RETRIEVED}, {of.labels:,} labels, {truth.nnz / of.rows:.1f} labels a row",
        f"numpy loop over rows, same metrics, {TIMED:,} rows timed and scaled",
        lambda: evaluate(topk, truth, weights, ks),
        lambda: loop(few_topk, few_truth, weights, ks),
        times=of.rows / TIMED,
        at_least=20.0,
        rounds=3,
    )


def random_case(draw: np.random.Generator, of: TestSet) -> tuple[NDArray[np.int32], csr_array]:
    """Predictions [M, K] without repeats and a truth [M, L], about half of it retrieved."""
    first = draw.integers(of.labels, size=(of.rows, 1))
    topk = ((first + 37 * np.arange(RETRIEVED)) % of.labels).astype(np.int32)
    row = np.repeat(np.arange(of.rows), 1 + draw.poisson(of.labels_per_row - 1, of.rows))
    other = (of.labels * draw.random(len(row)) ** 5).astype(np.int32)  # frequency of the r-th label ~ r^(1/5 - 1)
    label = np.where(draw.random(len(row)) < 0.5, topk[row, draw.integers(RETRIEVED, size=len(row))], other)
    truth = csr_array((np.ones(len(row), np.float32), (row, label)), shape=(of.rows, of.labels))
    truth.data[:] = 1  # a label that was drawn twice
    return topk, truth


def loop(
    topk: NDArray[np.int32], truth: csr_array, weights: NDArray[np.float64], ks: Sequence[int]
) -> dict[str, float]:
    """The same metrics as `evaluate`, one row at a time; `topk` [M, K] must not repeat a label within a row."""
    deepest, count = max(ks), len(topk)
    discount = 1 / np.log2(np.arange(deepest) + 2)
    last = np.array(ks) - 1
    totals = {family: np.zeros(len(ks)) for family in ("P", "nDCG", "PSP", "PSP best", "PSnDCG", "PSnDCG best", "R")}
    covered: list[set[int]] = [set() for _ in ks]
    for row in range(count):
        true = truth.indices[truth.indptr[row] : truth.indptr[row + 1]]
        top = topk[row, :deepest]
        hit = np.isin(top, true)
        gain = hit * weights[top]
        best = np.zeros(deepest)
        largest = np.sort(weights[true])[::-1][:deepest]
        best[: len(largest)] = largest
        hits = np.cumsum(hit)[last]
        ideal = np.cumsum(discount)[np.minimum(last, max(len(true), 1) - 1)]
        totals["P"] += hits / ks
        totals["R"] += hits / max(len(true), 1)
        totals["nDCG"] += np.cumsum(hit * discount)[last] / ideal
        totals["PSP"] += np.cumsum(gain)[last]
        totals["PSP best"] += np.cumsum(best)[last]
        totals["PSnDCG"] += np.cumsum(gain * discount)[last] / ideal
        totals["PSnDCG best"] += np.cumsum(best * discount)[last] / ideal
        for labels, k in zip(covered, ks, strict=True):
            labels.update(top[:k][hit[:k]].tolist())
    scores = {family: totals[family] / count for family in ("P", "nDCG", "R")}
    scores |= {family: totals[family] / totals[f"{family} best"] for family in ("PSP", "PSnDCG")}
    scores["C"] = np.array([len(labels) for labels in covered]) / len(np.unique(truth.indices))
    return {f"{family}@{k}": 100 * float(score[i]) for family, score in scores.items() for i, k in enumerate(ks)}
