"""Binary cross-entropy: every query-label pair of the pool is a decision of its own.

With y_il = 0 for negatives, and for positives 1 or their target, over all pairs that are not ignored:

    loss = (1/Z) sum_il log(1 + e^(s_il)) - y_il s_il,    d loss / d s_il = (sigmoid(s_il) - y_il) / Z
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from harness.errors import unknown_name
from harness.loss.closed_form import Evaluated, Pairs, differentiable, pair_targets, positive_pairs

REDUCTIONS = ("mean", "sum-labels")
_LINEAR_FROM = 40.0
"""From this x on, log(1 + e^x) = x in float64."""


class BinaryCrossEntropy:
    """Binary cross-entropy with logits; queries without a positive count, all their labels are negatives."""

    def __call__(
        self,
        scores: Tensor,
        positive: Tensor,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            scores: Logits, [B, P].
            positive: Positives, [B, P], bool.
            ignored: Pairs that do not count, [B, P], bool, or None.
            target: Target y of the positives, [B, P], floating point; None = 1.
            reduction: "mean" over the pairs that are not ignored, so Z is their number, as in the papers' code; or
                "sum-labels", summed over the labels and averaged over the queries, so Z = B.
        """
        if reduction not in REDUCTIONS:
            raise unknown_name("reduction of loss bce", reduction, REDUCTIONS)
        pairs = positive_pairs(scores, positive, ignored)
        targets = pair_targets(scores, pairs, target)
        counted = scores.numel() - (0 if ignored is None else int(ignored.count_nonzero()))
        divisor = max(1, counted if reduction == "mean" else len(scores))
        return differentiable(scores, partial(_evaluate, pairs, targets, ignored, divisor))

    def two_way(
        self,
        scores: Tensor,
        positive: Tensor,
        weight: float,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Return the loss, matrices [B, P]: it is the same in both directions, so `weight` has no effect."""
        return self(scores, positive, ignored=ignored, target=target, reduction=reduction)


bce = BinaryCrossEntropy()


def _evaluate(pairs: Pairs, targets: Tensor | None, ignored: Tensor | None, divisor: int, scores: Tensor) -> Evaluated:
    losses = functional.softplus(scores, threshold=_LINEAR_FROM)
    missed = functional.softplus(-scores[pairs], threshold=_LINEAR_FROM)
    # y log(1 + e^-s) + (1 - y) log(1 + e^s): no difference of two large numbers
    losses[pairs] = missed if targets is None else targets * missed + (1 - targets) * losses[pairs]
    value = _without(ignored, losses).sum() / divisor
    return Evaluated(value, partial(_gradient, pairs, targets, ignored, divisor), (scores,))


def _gradient(
    pairs: Pairs, targets: Tensor | None, ignored: Tensor | None, divisor: int, upstream: Tensor, scores: Tensor
) -> Tensor:
    gradient = torch.sigmoid(scores)
    missed = torch.sigmoid(-scores[pairs])
    gradient[pairs] = -missed if targets is None else (1 - targets) * gradient[pairs] - targets * missed
    return _without(ignored, gradient).mul_(upstream / divisor)


def _without(ignored: Tensor | None, values: Tensor) -> Tensor:
    return values if ignored is None else values.masked_fill_(ignored, 0.0)
