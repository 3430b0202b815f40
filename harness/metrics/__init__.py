"""Exact ranking metrics: the labels that search returned in, percentages out.

`topk` [M, K] holds label ids, best first, -1 for "none"; `truth` [M, L] holds the positives y_i. One pass finds the
rank r (from 0) of every true pair that was retrieved; all metrics are sums over those hits, w_l an inverse propensity:

    P@k      = mean_i hits_i / k                   R@k = mean_i hits_i / max(|y_i|, 1)
    nDCG@k   = mean_i DCG_i / I_i                  DCG_i = sum 1 / log2(r + 2); I_i = its value for min(k, |y_i|) hits
    PSP@k    = mean_i sum w / mean_i (sum of the k largest w in y_i)          a ratio of averages
    PSnDCG@k = mean_i (sum w / log2(r + 2)) / I_i, over the same for y_i in order of w; I_i is unweighted in both
    C@k      = labels hit in some row / labels with a positive

These are pyxclib's definitions (C@k: napkinXC's). Rows without labels count and score 0. A label predicted twice in
a row counts once, at its better rank. Missing predictions are misses. Order, ties included, is what search gave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from harness.errors import UserError, unknown_name
from harness.metrics.hits import ByWeight, Floats, Integers, Ranks, by_blocks, hits_of_block, row_sums

METRIC_VERSION = 1
"""Raised whenever the same predictions would score differently; tables refuse to mix versions."""

DEFAULT_KS = (1, 3, 5)
FREQUENCY_BINS = ("head", "torso", "tail")


@dataclass(frozen=True)
class Metric:
    """Description of one family of metrics, such as P@k for all k."""

    definition: str
    unit: str = "percent"
    higher_is_better: bool = True


METRICS = {
    "P": Metric("share of the first k predictions that are true labels, averaged over all rows"),
    "nDCG": Metric("discounted gain of the first k predictions over the best possible one, averaged over all rows"),
    "PSP": Metric("precision with hits weighted by inverse propensity, over its largest possible value"),
    "PSnDCG": Metric("discounted gain weighted by inverse propensity, over its value for the ideal order"),
    "R": Metric("share of a row's true labels among its first k predictions, averaged over all rows"),
    "C": Metric("share of the labels with a test positive that are predicted correctly in at least one row"),
}
"""Every reported figure by family, the part of its key before "@"; the order is that of the columns in a table."""


def names(ks: Sequence[int], weighted: bool) -> list[str]:
    """Return every key of the result of `evaluate`; `weighted` says whether there are inverse propensities."""
    families = [family for family in METRICS if weighted or not family.startswith("PS")]
    return [f"{family}@{k}" for family in families for k in ks]


def describe(key: str) -> Metric:
    """Return the description of a metric by its key, for example `PSP@5`."""
    family = key.partition("@")[0]
    if family not in METRICS:
        raise unknown_name("metric", family, METRICS)
    return METRICS[family]


def inverse_propensity(train_labels: csr_array, a: float, b: float) -> Floats:
    """Compute the inverse propensities w_l = 1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A, [L].

    Args:
        train_labels: Positives [N, L] of the original train rows, without label texts added as rows.
        a: The dataset's constant A.
        b: The dataset's constant B.
    """
    pattern = _pattern(train_labels, "train labels")
    rows, labels = pattern.shape
    if not (np.isfinite(a) and np.isfinite(b) and a > 0 and b > 0):
        raise UserError(f"propensity constants must be positive numbers, not A = {a}, B = {b}; take the dataset card's")
    if rows < 3:
        raise UserError(f"propensities need at least 3 train rows (ln N > 1), not {rows}; leave them out for such data")
    constant = (np.log(rows) - 1) * (b + 1) ** a
    weights: Floats = 1 + constant * (np.bincount(pattern.indices, minlength=labels) + b) ** -a
    return weights


def evaluate(
    topk: Integers | Ranks, truth: csr_array, inverse_propensity: Floats | None = None, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, float]:
    """Compute all metrics in percent; `PSP@k` and `PSnDCG@k` are absent if there are no propensities.

    A ratio whose denominator is empty because no row has a label is 0.

    Args:
        topk: Predicted label ids [M, K], best first, -1 for none; or their `Ranks`.
        truth: Positives [M, L].
        inverse_propensity: Weight of each label [L], from `inverse_propensity`.
        ks: Cut-offs, increasing.
    """
    ks = _checked_ks(ks)
    pattern, ranks = _ranks(topk, truth, ks[-1])
    rows = _keyed(_row_scores(ranks, pattern, _checked_weights(inverse_propensity, pattern), ks), ks)
    return {key: float(scores.mean()) for key, scores in rows.items()} | _coverage(ranks, pattern, ks)


def per_row(
    topk: Integers | Ranks, truth: csr_array, inverse_propensity: Floats | None = None, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, Floats]:
    """Compute the scores of every row [M], for paired tests; the mean over rows is the value that `evaluate` reports.

    `PSP@k` and `PSnDCG@k` are ratios of averages, so a row's share is its numerator over the *average* denominator. It
    may exceed 100. `C@k` belongs to the whole set and has no rows. Arguments as in `evaluate`.
    """
    ks = _checked_ks(ks)
    pattern, ranks = _ranks(topk, truth, ks[-1])
    return _keyed(_row_scores(ranks, pattern, _checked_weights(inverse_propensity, pattern), ks), ks)


def frequency_bins(train_labels: csr_array, bins: Sequence[str] = FREQUENCY_BINS) -> NDArray[np.int64]:
    """Return the bin of every label [L], 0 for the most frequent ones; the bins hold equal shares of the train pairs.

    Labels are ordered by train frequency, ties by smaller id. A label belongs to the bin in which its first pair falls,
    so labels without a train pair (zero-shot) are in the last. Five bins are those of the thesis' quantile analysis.
    """
    if not bins or len(set(bins)) != len(bins):
        raise UserError(f"bins need distinct names, at least one, not {list(bins)}")
    pattern = _pattern(train_labels, "train labels")
    frequency = np.bincount(pattern.indices, minlength=pattern.shape[1])
    order = np.argsort(-frequency, kind="stable")
    pairs_before = np.cumsum(frequency[order]) - frequency[order]
    bin_of_label = np.empty(len(order), np.int64)
    bin_of_label[order] = pairs_before * len(bins) // max(pattern.nnz, 1)
    bin_of_label[frequency == 0] = len(bins) - 1
    return bin_of_label


def contributions(
    topk: Integers | Ranks,
    truth: csr_array,
    train_labels: csr_array,
    ks: Sequence[int] = DEFAULT_KS,
    inverse_propensity: Floats | None = None,
    bins: Sequence[str] = FREQUENCY_BINS,
) -> list[dict[str, str | int | float]]:
    """Split P@k and PSP@k by the frequency of labels: one entry per bin, whose values sum to the totals.

    Each entry holds `bin`, the counts `labels`, `zero_shot_labels`, `train_pairs`, `test_pairs`, then `P@k` and, with
    propensities, `PSP@k`. `train_labels` [N, L] and `bins` are those of `frequency_bins`, the rest as in `evaluate`.
    """
    ks = _checked_ks(ks)
    pattern, ranks = _ranks(topk, truth, ks[-1])
    weights = _checked_weights(inverse_propensity, pattern)
    trained = _pattern(train_labels, "train labels")
    if trained.shape[1] != pattern.shape[1]:
        raise UserError(f"{trained.shape[1]:,} labels in train but {pattern.shape[1]:,} in the truth; use one dataset")
    bin_of_label = frequency_bins(trained, bins)
    unseen = np.bincount(trained.indices, minlength=trained.shape[1]) == 0
    counts = {
        "labels": np.bincount(bin_of_label, minlength=len(bins)),
        "zero_shot_labels": np.bincount(bin_of_label[unseen], minlength=len(bins)),
        "train_pairs": np.bincount(bin_of_label[trained.indices], minlength=len(bins)),
        "test_pairs": np.bincount(bin_of_label[pattern.indices], minlength=len(bins)),
    }
    group = bin_of_label[ranks.label]
    shares = {"P": 100 * _sums(ranks.rank, ks, group, len(bins)) / (np.array(ks)[:, None] * pattern.shape[0])}
    if weights is not None:
        order = ByWeight.of(weights)

        def largest_of_block(block: slice) -> Floats:
            _, rank, place = order.best(pattern, block, ks[-1])
            return _sums(rank, ks, np.zeros_like(rank), 1, order.weight[place])

        shares["PSP"] = _percent_of(
            _sums(ranks.rank, ks, group, len(bins), weights[ranks.label]),
            np.sum(by_blocks(pattern.shape[0], largest_of_block), axis=0),
        )
    return [
        {"bin": name}
        | {what: int(count[place]) for what, count in counts.items()}
        | {f"{family}@{k}": float(share[i, place]) for family, share in shares.items() for i, k in enumerate(ks)}
        for place, name in enumerate(bins)
    ]


def ceiling(truth: csr_array, ks: Sequence[int] = DEFAULT_KS) -> dict[str, float]:
    """Return the best P@k, nDCG@k and R@k that any predictor can reach on this truth, in percent."""
    ks = _checked_ks(ks)
    positives, cut = np.diff(_pattern(truth, "truth").indptr), np.array(ks)[:, None]
    hits = np.minimum(positives, cut)
    best = {"P": hits / cut, "nDCG": hits > 0, "R": hits / np.maximum(positives, 1)}
    return {key: 100 * float(scores.mean()) for key, scores in _keyed(best, ks).items()}


def oracle_topk(truth: csr_array, k: int, inverse_propensity: Floats | None = None) -> NDArray[np.int64]:
    """Return the k best predictions [M, k]: true labels by falling weight, ties by smaller id, padded with -1."""
    (k,) = _checked_ks((k,))
    pattern = _pattern(truth, "truth")
    weights = _checked_weights(inverse_propensity, pattern)
    order = ByWeight.of(np.ones(pattern.shape[1]) if weights is None else weights)
    best = np.full((pattern.shape[0], k), -1, np.int64)

    def fill(block: slice) -> None:
        row, rank, place = order.best(pattern, block, k)
        best[block.start + row, rank] = order.label[place]

    by_blocks(pattern.shape[0], fill)
    return best


def short_rows(topk: Integers, k: int) -> int:
    """Count the rows of `topk` [M, K] with fewer than k predictions, so that some of their misses had no candidate."""
    (k,) = _checked_ks((k,))
    return int(np.count_nonzero(np.count_nonzero(topk[:, :k] >= 0, axis=1) < k))


def ranks_of_truth(topk: Integers, truth: csr_array, depth: int | None = None) -> Ranks:
    """Find the rank at which each true pair was predicted: each prediction is looked up among the labels of its row.

    Args:
        topk: Predicted label ids [M, K], best first, -1 for none.
        truth: Positives [M, L].
        depth: Largest k that will be asked for; all K columns if left out.
    """
    pattern = _pattern(truth, "truth")
    topk = _checked_topk(topk, pattern)
    (depth,) = _checked_ks((max(topk.shape[1], 1) if depth is None else depth,))
    columns = topk[:, :depth] if topk.shape[1] else np.full((len(topk), 1), -1)
    blocks = by_blocks(len(topk), lambda block: hits_of_block(columns[block], pattern, block))
    row, label, rank = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Ranks(row, label, rank, pattern.shape, depth)


def _sums(rank: Integers, ks: Sequence[int], group: Integers, groups: int, gain: Floats | None = None) -> Floats:
    """Sum the gains [H] (1 each if left out) of the hits with rank < k, for every k and group, [len(ks), groups]."""
    first_k = np.searchsorted(ks, np.arange(ks[-1]), side="right")
    slots = first_k[rank] * groups + group
    sums = np.bincount(slots, gain, len(ks) * groups).astype(np.float64, copy=False).reshape(len(ks), groups)
    for following in range(1, len(ks)):
        sums[following] += sums[following - 1]
    return sums


def _row_scores(ranks: Ranks, pattern: csr_array, weights: Floats | None, ks: Sequence[int]) -> dict[str, Floats]:
    """Return the percentage of every k and row, [len(ks), M], by family; the mean over rows is the metric."""
    cut, rows = np.array(ks)[:, None], pattern.shape[0]
    discount = 1 / np.log2(np.arange(ks[-1]) + 2)
    # A row without labels has no ideal gain; 1 in its place gives it the score 0.
    ideal = np.concatenate([[1.0], np.cumsum(discount)])
    families = {name.partition("@")[0]: None for name in names((1,), weights is not None) if name != "C@1"}
    scores = {family: np.empty((len(ks), rows)) for family in families}
    largest = {family: np.empty((len(ks), rows)) for family in families if family.startswith("PS")}
    order = None if weights is None else ByWeight.of(weights)

    def score(block: slice) -> None:
        hit = ranks.of_rows(block)
        hits, rank = np.bincount(ranks.row[hit] - block.start, minlength=block.stop - block.start), ranks.rank[hit]
        positives = np.diff(pattern.indptr[block.start : block.stop + 1])
        normaliser = ideal[np.minimum(cut, positives)]
        found, gained = row_sums(hits, rank, np.ones(len(rank)), ks, discount)
        scores["P"][:, block] = 100 * found / cut
        scores["nDCG"][:, block] = 100 * gained / normaliser
        scores["R"][:, block] = 100 * found / np.maximum(positives, 1)
        if order is not None and weights is not None:
            ours = row_sums(hits, rank, weights[ranks.label[hit]], ks, discount)
            _, rank, place = order.best(pattern, block, ks[-1])
            best = row_sums(np.minimum(positives, ks[-1]), rank, order.weight[place], ks, discount)
            for family, part, whole, norm in zip(largest, ours, best, (cut, normaliser), strict=True):
                scores[family][:, block], largest[family][:, block] = part / norm, whole / norm

    by_blocks(rows, score)
    for family, whole in largest.items():
        scores[family] = _percent_of(scores[family], whole.mean(axis=1, keepdims=True))
    return scores


def _percent_of(part: Floats, whole: Floats) -> Floats:
    """Return 100 part / whole, where `whole` is [len(ks), 1]; 0 where it is 0."""
    return 100 * part / np.where(whole > 0, whole, np.inf)


def _coverage(ranks: Ranks, pattern: csr_array, ks: Sequence[int]) -> dict[str, float]:
    """Return, for every k, the percentage of the labels with a positive that some row has among its first k."""
    covered = np.zeros((len(ks) + 1, pattern.shape[1]), np.bool_)
    covered[-1, pattern.indices] = True
    first_k = np.searchsorted(ks, np.arange(ks[-1]), side="right")

    def mark(block: slice) -> None:
        hit = ranks.of_rows(block)
        covered[first_k[ranks.rank[hit]], ranks.label[hit]] = True

    by_blocks(pattern.shape[0], mark)
    *hits, present = np.count_nonzero(np.logical_or.accumulate(covered, axis=0), axis=1)
    return {f"C@{k}": 100 * int(hit) / max(int(present), 1) for k, hit in zip(ks, hits, strict=True)}


def _keyed(families: Mapping[str, NDArray[Any]], ks: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Split arrays [len(ks), ...] by family into arrays [...] by key `family@k`."""
    return {f"{family}@{k}": row for family, rows in families.items() for k, row in zip(ks, rows, strict=True)}


def _ranks(topk: Integers | Ranks, truth: csr_array, depth: int) -> tuple[csr_array, Ranks]:
    """Return the truth with each pair once, and the hits of rank < depth."""
    pattern = _pattern(truth, "truth")
    if not isinstance(topk, Ranks):
        return pattern, ranks_of_truth(topk, pattern, depth)
    if topk.shape != pattern.shape:
        raise UserError(f"these ranks belong to a truth of shape {topk.shape}, not {pattern.shape}")
    return pattern, topk.within(depth)


def _pattern(matrix: csr_array, what: str) -> csr_array:
    """Return the matrix with each nonzero pair once; the caller's matrix is not changed."""
    if not issparse(matrix) or matrix.ndim != 2:
        raise UserError(f"{what} must be a two-dimensional scipy sparse array, not {type(matrix).__name__}")
    if not matrix.shape[0]:
        raise UserError(f"{what} has no rows; there is nothing to measure")
    pattern = csr_array(matrix)
    if not pattern.has_canonical_format or np.count_nonzero(pattern.data) != pattern.nnz:
        pattern = pattern.copy()
        pattern.sum_duplicates()
        pattern.eliminate_zeros()
    return pattern


def _checked_topk(topk: Integers, pattern: csr_array) -> Integers:
    topk = np.asarray(topk)
    rows, labels = pattern.shape
    if topk.ndim != 2 or topk.dtype.kind not in "iu":
        raise UserError(f"predictions must be integer label ids [M, K], not {topk.dtype} of shape {topk.shape}")
    if len(topk) != rows:
        raise UserError(f"{len(topk):,} rows of predictions but {rows:,} rows of truth; evaluate one split at a time")
    if topk.size and not (topk.min() >= -1 and topk.max() < labels):
        row, column = np.argwhere((topk < -1) | (topk >= labels))[0]
        raise UserError(
            f"label id {topk[row, column]} at row {row}, rank {column} of the predictions is outside 0 to {labels - 1} "
            "(-1 = none); was the index built for another dataset?"
        )
    return topk


def _checked_ks(ks: Sequence[int]) -> tuple[int, ...]:
    whole = np.ndim(ks) == 1 and all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in ks)
    if not whole or not len(ks) or ks[0] < 1 or any(k >= following for k, following in pairwise(ks)):
        raise UserError(f"cut-offs must be whole numbers from 1 in increasing order, such as 1, 3, 5, not {ks}")
    return tuple(int(k) for k in ks)


def _checked_weights(weights: Floats | None, pattern: csr_array) -> Floats | None:
    if weights is None:
        return None
    weights = np.asarray(weights, np.float64)
    if weights.shape != (pattern.shape[1],):
        raise UserError(f"inverse propensities of shape {weights.shape} for {pattern.shape[1]:,} labels; give one each")
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise UserError("inverse propensities must be positive numbers; compute them with inverse_propensity")
    return weights
