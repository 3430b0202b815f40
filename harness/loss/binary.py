"""Binary cross-entropy: every query-label pair of the pool is a decision of its own.

With y_il = 1 for positives and 0 for negatives, over all pairs that are not ignored:

    loss = (1/Z) sum_il log(1 + e^((1 - 2 y_il) s_il)),    d loss / d s_il = (sigmoid(s_il) - y_il) / Z
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from harness.errors import unknown_name
from harness.loss.closed_form import differentiable, positive_pairs

REDUCTIONS = ("mean", "sum-labels")
_LINEAR_FROM = 40.0
"""log(1 + e^x) = x in float64 from here on."""


def bce(scores: Tensor, positive: Tensor, *, ignored: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy with logits; queries without a positive count, all their labels are negatives.

    Args:
        scores: [B, P], logits.
        positive: [B, P], bool.
        ignored: [B, P], bool, or None.
        reduction: "mean" over the pairs that are not ignored, so Z is their number, as in the papers' code; or
            "sum-labels", summed over the labels and averaged over the queries, so Z = B.
    """
    if reduction not in REDUCTIONS:
        raise unknown_name("reduction of loss bce", reduction, REDUCTIONS)
    row, label = positive_pairs(scores, positive, ignored)
    pairs = scores.numel() - (0 if ignored is None else int(ignored.count_nonzero()))
    divisor = max(1, pairs if reduction == "mean" else len(scores))
    return differentiable(scores, partial(_evaluate, row, label, ignored, divisor))


def _evaluate(
    row: Tensor, label: Tensor, ignored: Tensor | None, divisor: int, scores: Tensor, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    matched = scores[row, label]
    losses = functional.softplus(scores, threshold=_LINEAR_FROM)
    losses[row, label] = functional.softplus(-matched, threshold=_LINEAR_FROM)
    loss = _without(ignored, losses).sum() / divisor
    if not with_gradient:
        return loss, None
    gradient = torch.sigmoid(scores)
    gradient[row, label] = -torch.sigmoid(-matched)
    return loss, _without(ignored, gradient).div_(divisor)


def _without(ignored: Tensor | None, values: Tensor) -> Tensor:
    return values if ignored is None else values.masked_fill_(ignored, 0.0)
