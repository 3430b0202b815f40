"""Evaluation against a plain loop over rows.

The loop scores one row after the other with numpy, the way the formulas read, and computes every metric that `evaluate`
does. It is timed on the first rows only and scaled linearly, because its cost per row does not depend on the rest.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.metrics import evaluate, inverse_propensity
from harness.perf import Row, median_seconds

ROWS, LABELS, RETRIEVED, LABELS_PER_ROW = 100_000, 131_073, 100, 2.1
TIMED_ROWS = 5_000
AT_LEAST = 20.0


def rows() -> Iterator[Row]:
    """The usual cut-offs, then cut-offs down to the last retrieved label."""
    topk, truth = random_case(np.random.default_rng(0))
    weights = inverse_propensity(truth, a=0.6, b=2.6)
    few_topk, few_truth = topk[:TIMED_ROWS], truth[:TIMED_ROWS]
    for ks in ((1, 3, 5), (1, 3, 5, 10, 50, 100)):
        _require_equal(evaluate(few_topk, few_truth, weights, ks), loop(few_topk, few_truth, weights, ks))
        ours, few = median_seconds(
            lambda ks=ks: evaluate(topk, truth, weights, ks),  # type: ignore[misc]
            lambda ks=ks: loop(few_topk, few_truth, weights, ks),  # type: ignore[misc]
        )
        theirs = few * ROWS / TIMED_ROWS
        yield Row(
            what=f"evaluate at k = {', '.join(map(str, ks))}",
            size=f"{ROWS:,} rows x top-{RETRIEVED}, {LABELS:,} labels, {truth.nnz / ROWS:.1f} labels a row",
            reference=f"numpy loop over rows, same metrics, {TIMED_ROWS:,} rows timed and scaled to {ROWS:,}",
            ours=f"{1000 * ours:.0f} ms",
            theirs=f"{1000 * theirs:,.0f} ms",
            ratio=theirs / ours,
            target=f"at least {AT_LEAST:.0f}x",
            met=theirs / ours >= AT_LEAST,
        )


def random_case(
    generator: np.random.Generator,
    rows: int = ROWS,
    labels: int = LABELS,
    retrieved: int = RETRIEVED,
    labels_per_row: float = LABELS_PER_ROW,
) -> tuple[NDArray[np.int32], csr_array]:
    """Predictions [M, K] without repeats and a truth [M, L] with Zipf label frequencies, about half of it retrieved."""
    chance = 1 / np.arange(1, labels + 1)
    row = np.repeat(np.arange(rows), 1 + generator.poisson(labels_per_row - 1, rows))
    label = np.searchsorted(np.cumsum(chance / chance.sum()), generator.random(len(row))).clip(0, labels - 1)
    truth = csr_array((np.ones(len(row), np.float32), (row, label)), shape=(rows, labels))
    # A run of consecutive ids, the labels in a circle, holds no label twice.
    start = generator.integers(labels, size=(rows, 1), dtype=np.int32)
    topk = ((start + np.arange(retrieved)) % labels).astype(np.int32)
    sizes = np.diff(truth.indptr)
    for nth in range(sizes.max()):
        chosen = np.flatnonzero((sizes > nth) & (generator.random(rows) < 0.5))
        planted = truth.indices[truth.indptr[chosen] + nth]
        absent = ~(topk[chosen] == planted[:, None]).any(axis=1)
        topk[chosen[absent], generator.integers(retrieved, size=absent.sum())] = planted[absent]
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


def _require_equal(ours: dict[str, float], theirs: dict[str, float]) -> None:
    wrong = {key: (ours[key], theirs[key]) for key in ours if not abs(ours[key] - theirs[key]) < 1e-9}
    if wrong or ours.keys() != theirs.keys():
        raise AssertionError(f"the two sides compute different things, so their times mean nothing: {wrong}")
