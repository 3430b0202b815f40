"""Independent definitions in plain Python: losses, losses over all labels, and ranking metrics."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.sparse import csr_array
from torch import Tensor, nn

from harness.batching import LabelSpace
from harness.data.ragged import Ragged
from harness.loss import Loss, get

Rows = list[list[float]]
Marks = list[list[bool]]
Oracle = Callable[[Rows, Marks, Marks, Rows], float]
"""(scores, positive, ignored, targets) -> loss, all [B, P]."""
SEED = 5
"""Seed of torch before every call of a loss that draws."""


def log_sum_exp(values: list[float]) -> float:
    top = max(values, default=-math.inf)
    return top if math.isinf(top) else top + math.log(sum(math.exp(value - top) for value in values))


def log_sigmoid(value: float) -> float:
    return -log_sum_exp([0.0, -value])


def softmax_oracle(
    scores: Rows, positive: Marks, ignored: Marks, targets: Rows, *, decoupled: bool, averaged: bool
) -> float:
    rows = []
    for row, mine, skipped, target in zip(scores, positive, ignored, targets, strict=True):
        counted = [label for label in range(len(row)) if not skipped[label]]
        positives = [label for label in counted if mine[label]]
        total = 0.0
        for p in positives:
            rest = [label for label in counted if label == p or not (decoupled and mine[label])]
            total += target[p] * (log_sum_exp([row[label] for label in rest]) - row[p])
        if positives:
            rows.append(total / sum(target[p] for p in positives) if averaged else total)
    return mean(rows)


def bce_oracle(scores: Rows, positive: Marks, ignored: Marks, targets: Rows, *, reduction: str) -> float:
    total, pairs = 0.0, 0
    for row, mine, skipped, target in zip(scores, positive, ignored, targets, strict=True):
        for score, is_positive, is_ignored, y in zip(row, mine, skipped, target, strict=True):
            if not is_ignored:
                total -= (
                    (y * log_sigmoid(score) + (1 - y) * log_sigmoid(-score)) if is_positive else log_sigmoid(-score)
                )
                pairs += 1
    return total / max(1, pairs if reduction == "mean" else len(scores))


def pick_one_oracle(scores: Rows, positive: Marks, ignored: Marks, targets: Rows) -> float:
    luck = torch.rand(len(scores), dtype=torch.float64, generator=torch.Generator().manual_seed(SEED)).tolist()
    rows = []
    for row, mine, skipped, target, draw in zip(scores, positive, ignored, targets, luck, strict=True):
        positives = [label for label in range(len(row)) if mine[label] and not skipped[label]]
        negatives = [row[label] for label in range(len(row)) if not mine[label] and not skipped[label]]
        left = draw * sum(target[p] for p in positives)
        for p in positives:
            left -= target[p]
            if left < 0:
                rows.append(log_sum_exp([row[p], *negatives]) - row[p])
                break
    return mean(rows)


def triplet_oracle(
    scores: Rows,
    positive: Marks,
    ignored: Marks,
    targets: Rows,
    *,
    margin: float = 0.3,
    hardest_negatives: int = 10,
    hardest_positives: int | None = 1,
    weighting: str = "score",
    sharpness: float = 0.1,
) -> float:
    total, slots = 0.0, 0.0
    for row, mine, skipped, target in zip(scores, positive, ignored, targets, strict=True):
        counted = [label for label in range(len(row)) if not skipped[label]]
        positives = sorted((label for label in counted if mine[label]), key=lambda label: row[label])
        negatives = sorted((row[label] for label in counted if not mine[label]), reverse=True)[:hardest_negatives]
        for p in positives[:hardest_positives]:
            violators = [(negative, negative - row[p] + margin) for negative in negatives]
            violators = [(negative, hinge) for negative, hinge in violators if hinge > 0]
            # by violation: for one positive that is the score plus a constant, so the weights are the same
            logits = [{"score": h, "none": 0.0}[weighting] / sharpness for _, h in violators]
            terms = [math.exp(logit - max(logits)) for logit in logits]
            norm = 1.0 if weighting == "none" else sum(terms)
            total += target[p] * sum(term / norm * hinge for term, (_, hinge) in zip(terms, violators, strict=True))
            slots += target[p] * len(negatives)
    return total / slots if slots else 0.0


def soft_topk_oracle(
    scores: Rows, positive: Marks, ignored: Marks, targets: Rows, *, k: int = 5, alpha: float = 2.0
) -> float:
    luck = torch.rand(len(scores), k, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED)).tolist()
    rows = []
    for row, mine, skipped, target, draws in zip(scores, positive, ignored, targets, luck, strict=True):
        positives = [label for label in range(len(row)) if mine[label] and not skipped[label]]
        drawn = set(range(len(positives)))
        if len(positives) > k:
            drawn = set()
            for last, draw in enumerate(draws, len(positives) - k):
                pick = int(draw * (last + 1))
                drawn.add(last if pick in drawn else pick)
        chosen = [positives[place] for place in sorted(drawn)]
        negatives = [label for label in range(len(row)) if not mine[label] and not skipped[label]]
        order = sorted((row[label] for label in chosen + negatives), reverse=True)
        if chosen:
            paid = (target[p] * -log_sigmoid(passing_logit(order, row[p], k, alpha)) for p in chosen)
            rows.append(sum(paid) / sum(target[p] for p in chosen) if len(order) > k else 0.0)
    return mean(rows)


def passing_logit(order: list[float], score: float, k: int, alpha: float) -> float:
    """Return alpha (score + t) for the threshold t at which k labels pass, found by bisection."""
    middle = order[k - 1]
    logits = [alpha * (value - middle) for value in order]
    low, high = -math.log(len(order)) - 1, -logits[k] + math.log(k) + 1
    while (shift := (low + high) / 2) not in (low, high):
        passing = log_sum_exp([log_sigmoid(value + shift) for value in logits[k:]])
        lacking = log_sum_exp([log_sigmoid(-value - shift) for value in logits[:k]])
        low, high = (shift, high) if passing < lacking else (low, shift)
    return alpha * (score - middle) + low


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("supcon", ""): {},
    ("decoupled-softmax", ""): {},
    ("pal", ""): {},
    ("bce", ""): {},
    ("bce", "sum-labels"): {"reduction": "sum-labels"},
    ("pick-one-label", ""): {},
    ("triplet", ""): {},
    ("triplet", "stage 2"): {
        **{"margin": 0.2, "hardest_positives": 3, "hardest_negatives": 2},
        **{"sharpness": 1.0},
    },
    ("triplet", "plain"): {"weighting": "none", "hardest_positives": None},
    ("soft-topk", ""): {},
    ("soft-topk", "k = 2"): {"k": 2, "alpha": 0.7},
}
ORACLES: dict[tuple[str, str], Oracle] = {
    ("supcon", ""): partial(softmax_oracle, decoupled=False, averaged=True),
    ("decoupled-softmax", ""): partial(softmax_oracle, decoupled=True, averaged=True),
    ("pal", ""): partial(softmax_oracle, decoupled=False, averaged=False),
    ("bce", ""): partial(bce_oracle, reduction="mean"),
    ("bce", "sum-labels"): partial(bce_oracle, reduction="sum-labels"),
    ("pick-one-label", ""): pick_one_oracle,
    **{key: partial(triplet_oracle, **options) for key, options in OPTIONS.items() if key[0] == "triplet"},
    **{key: partial(soft_topk_oracle, **options) for key, options in OPTIONS.items() if key[0] == "soft-topk"},
}
DRAWN = {("pick-one-label", ""): 1, ("soft-topk", ""): 5, ("soft-topk", "k = 2"): 2}
"""How many positives of an anchor these losses draw."""
SOFTMAX = ("supcon", "decoupled-softmax", "pal")


class Seeded:
    """A loss with random draws that are the same at every call."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        shared = getattr(loss, "two_way", None)
        if shared is not None:
            self.two_way = partial(self._seeded, shared)

    def __call__(self, *arguments: Any, **options: Any) -> Tensor:
        return self._seeded(self.loss, *arguments, **options)

    @staticmethod
    def _seeded(loss: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
        torch.manual_seed(SEED)
        return loss(*arguments, **options)


def made(name: str, variant: str = "") -> Loss:
    """Return a loss with its options bound; only without options it keeps its own method `two_way`."""
    options = OPTIONS[name, variant]
    loss: Loss = partial(get(name), **options) if options else get(name)
    return Seeded(loss) if (name, variant) in DRAWN else loss


def definition(
    name: str,
    variant: str,
    scores: Tensor,
    positive: Tensor,
    ignored: Tensor | None = None,
    target: Tensor | None = None,
) -> float:
    ignored = torch.zeros_like(positive) if ignored is None else ignored
    target = torch.ones_like(scores) if target is None else target
    return ORACLES[name, variant](
        scores.double().tolist(), positive.tolist(), ignored.tolist(), target.double().tolist()
    )


def settled(name: str, variant: str, positive: Tensor) -> Tensor:
    """Return so few of the positives in every row and column that a loss which draws has no choice."""
    limit = DRAWN.get((name, variant))
    if limit is None:
        return positive
    kept = torch.zeros_like(positive)
    for row, label in positive.nonzero().tolist():
        kept[row, label] = kept[row].sum() < limit and kept[:, label].sum() < limit
    return kept


def random_case(
    seed: int, rows: int = 7, labels: int = 9, scale: float = 3.0, density: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random scores (float64), positives and ignored pairs, [rows, labels]."""
    draw = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(rows, labels, generator=draw, dtype=torch.float64)
    positive = torch.rand(rows, labels, generator=draw) < density
    return scores, positive, torch.rand(rows, labels, generator=draw) < 0.15


def spread(scores: Tensor) -> Tensor:
    """Return the scores with rows and columns so far apart that no single shift serves all of them."""
    down = torch.linspace(-150, 150, len(scores), dtype=scores.dtype)
    across = torch.linspace(90, -90, scores.shape[1], dtype=scores.dtype)
    return scores + down[:, None] + across


def value_and_gradient(loss: Callable[[Tensor], Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def texts(count: int, seed: int, shortest: int = 0, longest: int = 8) -> Ragged:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(shortest, longest + 1, count)
    return Ragged(generator.integers(4, 256, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)]))


def random_space(
    rows: int, labels: int, seed: int, *, soft: bool = False, share: float = 0.1, drawn: float = 0.6
) -> LabelSpace:
    """Return a random label space with positives, some of them drawn, and filter pairs."""
    generator = np.random.default_rng(seed)
    chance = generator.random((labels, rows))
    label, query = np.nonzero(chance < share)
    ignored_label, ignored_query = np.nonzero(chance > 1 - share)
    target = generator.uniform(0.1, 1, len(label)).astype(np.float32) if soft else np.ones(len(label), np.float32)
    return LabelSpace(
        rows, labels, query, label, target, generator.random(len(label)) < drawn, ignored_query, ignored_label
    )


def masks(space: LabelSpace) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets of drawn positives, all positives, and ignored pairs, [B, L]."""
    target, positive, ignored = (torch.zeros(space.rows, space.size, dtype=torch.float64) for _ in range(3))
    target[space.query[space.drawn], space.label[space.drawn]] = torch.from_numpy(space.target[space.drawn]).double()
    positive[space.query, space.label] = 1
    ignored[space.ignored_query, space.ignored_label] = 1
    return target, positive.bool(), ignored.bool()


def softmax_by_definition(scores: Tensor, space: LabelSpace) -> Tensor:
    """Compute the decoupled softmax loss one query and one pair at a time."""
    losses = []
    for s, target, positive, ignored in zip(scores, *masks(space), strict=True):
        if target.any():
            against = s[~positive & ~ignored]
            pairs = [
                weight * (torch.logsumexp(torch.cat([x[None], against]), 0) - x)
                for x, weight in zip(s[target > 0], target[target > 0] / target.sum(), strict=True)
            ]
            losses.append(torch.stack(pairs).sum())
    return torch.stack(losses).mean() if losses else scores.sum() * 0


def topk_by_definition(scores: Tensor, space: LabelSpace, k: int) -> Tensor:
    """Compute soft top-k with thresholds by Brent's method; one Newton step from each carries its derivative."""
    losses = []
    for s, target, positive, ignored in zip(scores, *masks(space), strict=True):
        if not target.any():
            continue
        passing = s[~ignored & (~positive | (target > 0))]
        if len(passing) <= k:
            losses.append(s.sum() * 0)
            continue
        values = passing.detach().double().sort(descending=True).values
        width = float(values.max() - values.min()) + 50

        def excess(t: float, values: Tensor = values) -> float:
            # sum - k, without the cancellation: in a wide gap both sides are far below float64's 1e-16
            return float(torch.sigmoid(values[k:] + t).sum() - torch.sigmoid(-(values[:k] + t)).sum())

        middle = -float(values.median())
        root = torch.tensor(brentq(excess, middle - width, middle + width, xtol=1e-13), dtype=s.dtype)
        z = torch.sigmoid(passing + root)
        threshold = root - (z.sum() - k - (z.sum() - k).detach()) / (z * (1 - z)).sum().detach()
        weight = target[target > 0].to(s.dtype) / target.sum().to(s.dtype)
        losses.append((weight * nn.functional.softplus(-(s[target > 0] + threshold))).sum())
    return torch.stack(losses).mean() if losses else scores.sum() * 0


def label_weights(train: Sequence[set[int]], labels: int, a: float, b: float) -> list[float]:
    """Compute inverse propensities 1 + C (n + B)^-A, C = (ln N - 1)(B + 1)^A, with n counted one label at a time."""
    constant = (math.log(len(train)) - 1) * (b + 1) ** a
    return [1 + constant * (sum(label in row for row in train) + b) ** -a for label in range(labels)]


def figures(
    ranked: Sequence[Sequence[int]], truth: Sequence[set[int]], weights: Sequence[float], ks: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Compute the metrics in percent, by key such as `P@1`."""
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
    """Return the labels of each row as a set."""
    return [set(matrix.indices[start:end].tolist()) for start, end in pairwise(matrix.indptr)]
