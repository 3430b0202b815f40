"""Evaluation against a plain loop over rows, at the test sets of LF-AmazonTitles-131K and LF-AmazonTitles-1.3M.

The loop scores one row after the other with numpy, the way the formulas read, and computes every metric that `evaluate`
does. It is timed on the first rows only and scaled linearly, because its cost per row does not depend on the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.metrics import evaluate, inverse_propensity
from harness.perf import Row, Sample, bound, compare, turns
from harness.progress import progress

RETRIEVED, TIMED_ROWS, BLOCK_ROWS = 100, 2_000, 1 << 16
CUTS = ((1, 3, 5), (1, 3, 5, 10, 50, 100))
AT_LEAST, AT_MOST_SECONDS = 20.0, 8.0


@dataclass(frozen=True)
class Size:
    """How large a test set is."""

    rows: int
    labels: int
    labels_per_row: float


SIZES = (Size(134_835, 131_073, 2.1), Size(970_237, 1_305_265, 22.2))


def rows() -> Iterator[Row]:
    """The usual cut-offs, then cut-offs down to the last retrieved label, for both sizes."""
    for size in SIZES:
        yield from _of_size(size)


def _of_size(size: Size) -> Iterator[Row]:
    topk, truth = random_case(np.random.default_rng(0), size)
    weights = inverse_propensity(truth, a=0.6, b=2.6)
    few_topk, few_truth = topk[:TIMED_ROWS], truth[:TIMED_ROWS]
    described = (
        f"{size.rows:,} rows x top-{RETRIEVED}, {size.labels:,} labels, {truth.nnz / size.rows:.1f} labels a row"
    )
    for ks in CUTS:
        _require_equal(evaluate(few_topk, few_truth, weights, ks), loop(few_topk, few_truth, weights, ks))
        ours, few = turns(
            lambda ks=ks: evaluate(topk, truth, weights, ks),  # type: ignore[misc]
            lambda ks=ks: loop(few_topk, few_truth, weights, ks),  # type: ignore[misc]
            repeats=3,
        )
        what = f"evaluate at k = {', '.join(map(str, ks))}"
        yield compare(
            what,
            described,
            f"numpy loop over rows, same metrics, {TIMED_ROWS:,} rows timed and scaled to {size.rows:,}",
            ours,
            Sample(tuple(seconds * size.rows / TIMED_ROWS for seconds in few.values), "s"),
            at_least=AT_LEAST,
            at={"labels": size.labels, "cut-offs": len(ks)},
        )
        if size == SIZES[-1] and ks == CUTS[-1]:
            yield bound(f"{what}, seconds", described, ours, at_most=AT_MOST_SECONDS)


def random_case(
    generator: np.random.Generator, size: Size, retrieved: int = RETRIEVED
) -> tuple[NDArray[np.int32], csr_array]:
    """Predictions [M, K] without repeats and a truth [M, L] of label frequencies r^-0.8, about half of it retrieved."""
    topk = np.empty((size.rows, retrieved), np.int32)
    counts, labels = [], []
    with progress("random predictions", size.rows) as advance:
        for start in range(0, size.rows, BLOCK_ROWS):
            block = topk[start : start + BLOCK_ROWS]
            positives, drawn = _random_truth(generator, len(block), size)
            # a run of consecutive ids, the labels in a circle, holds no label twice
            first = generator.integers(size.labels, size=(len(block), 1))
            block[:] = (first + np.arange(retrieved)) % size.labels
            row = np.repeat(np.arange(len(block)), positives)
            nth = np.arange(len(row)) - np.repeat(np.cumsum(positives) - positives, positives)
            outside = (drawn - first[row, 0]) % size.labels >= retrieved
            planted = np.flatnonzero((generator.random(len(row)) < 0.5) & outside & (nth < retrieved))
            # steps of 37, prime to the number retrieved, put the labels of a row into different places
            place = (generator.integers(retrieved, size=len(block))[row] + 37 * nth) % retrieved
            block[row[planted], place[planted]] = drawn[planted]
            counts.append(positives)
            labels.append(drawn)
            advance(len(block))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int32)
    indices = np.concatenate(labels).astype(np.int32)
    return topk, csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(size.rows, size.labels))


def _random_truth(generator: np.random.Generator, rows: int, size: Size) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many labels each row has [n], at least one, and all of them, rising in each row."""
    row = np.repeat(np.arange(rows), 1 + generator.poisson(size.labels_per_row - 1, rows))
    label = (size.labels * generator.random(len(row)) ** 5).astype(np.int64)  # frequency of the r-th ~ r^(1/5 - 1)
    keys = np.sort(row * size.labels + label)
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    return np.bincount(keys // size.labels, minlength=rows), keys % size.labels


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
