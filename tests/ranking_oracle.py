"""P, nDCG, PSP and PSnDCG of rankings, one row at a time in plain Python.

As the Extreme Classification Repository's evaluation defines them: every row counts, one without labels scores 0, and
PSP is held against the best ranking there is.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from scipy.sparse import csr_array


def label_weights(train: Sequence[set[int]], labels: int, a: float, b: float) -> list[float]:
    """Inverse propensities 1 + C (n + B)^-A with C = (ln N - 1)(B + 1)^A, n counted one label at a time."""
    constant = (math.log(len(train)) - 1) * (b + 1) ** a
    return [1 + constant * (sum(label in row for row in train) + b) ** -a for label in range(labels)]


def figures(
    ranked: Sequence[Sequence[int]], truth: Sequence[set[int]], weights: Sequence[float], ks: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Percentages by metric and depth."""
    found: dict[str, float] = {}
    for k in ks:
        precision = ndcg = gain = best_gain = discounted = best_discounted = 0.0
        for row, true in zip(ranked, truth, strict=True):
            hits = {rank: label for rank, label in enumerate(row[:k], 1) if label in true}
            largest = sorted((weights[label] for label in true), reverse=True)[:k]
            precision += len(hits) / k
            gain += sum(weights[label] for label in hits.values())
            best_gain += sum(largest)
            if true:
                ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(true)) + 1))
                ndcg += sum(1 / math.log2(rank + 1) for rank in hits) / ideal
                discounted += sum(weights[label] / math.log2(rank + 1) for rank, label in hits.items()) / ideal
                best_discounted += sum(weight / math.log2(rank + 1) for rank, weight in enumerate(largest, 1)) / ideal
        found |= {f"P@{k}": 100 * precision / len(truth), f"nDCG@{k}": 100 * ndcg / len(truth)}
        found |= {f"PSP@{k}": 100 * gain / best_gain, f"PSnDCG@{k}": 100 * discounted / best_discounted}
    return found


def row_sets(matrix: csr_array) -> list[set[int]]:
    """The labels of each row."""
    return [set(matrix.indices[start:end].tolist()) for start, end in pairwise(matrix.indptr)]
