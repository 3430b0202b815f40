"""The triplet loss of NGAME: a hinge between the hardest positives and the hardest negatives of a query.

Slots are (i, p, n): p one of the m positives of query i with the lowest scores, n one of its k negatives with the
highest. Scores are cosines, t is the sharpness, y the targets, or 1. The loss is a mean over the slots:

    h = max(0, s_n - s_p + margin)      w = [h > 0] e^(h / t) / sum_n [h > 0] e^(h / t)      loss = sum y w h / sum y

    d loss / d s_n = sum_p g (1 + (h - sum_n w h) / t)      d loss / d s_p = -sum_n g        g = y w / sum y

For one (i, p) h is s_n plus a constant: softmax over scores (stage 1 of NGAME, t = 0.1) and softmax over violations
(stage 2, t = 1) are the same w. NGAME's code differs in two ways: in stage 1 negatives without a violation have the
logit 0 and take weight from the others, here their weight is 0; and its mean counts slots that do not exist, such as
those of a second positive of a query that has one.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.errors import UserError, unknown_name
from harness.loss.closed_form import Evaluated, Pairs, candidates, differentiable, pair_targets, positive_pairs

WEIGHTINGS = ("score", "none")


@dataclass(frozen=True)
class _Options:
    margin: float
    hardest_negatives: int
    hardest_positives: int | None
    weighting: str
    sharpness: float

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS:
            raise unknown_name("weighting of loss triplet", self.weighting, WEIGHTINGS)
        if not self.sharpness > 0:
            raise UserError(f"sharpness of loss triplet is a temperature above 0, not {self.sharpness}")
        for name in ("hardest_negatives", "hardest_positives"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UserError(f"{name} of loss triplet must be at least 1, not {count}")


@dataclass(frozen=True)
class _Hardest:
    """The H hardest positives or negatives of every query."""

    scores: Tensor
    """Scores, [B, H]; infinite where a query has fewer."""
    labels: Tensor
    """Labels, as columns of the score matrix, [B, H]; 0 where a query has fewer."""


def triplet(
    scores: Tensor,
    positive: Tensor,
    *,
    ignored: Tensor | None = None,
    target: Tensor | None = None,
    margin: float = 0.3,
    hardest_negatives: int = 10,
    hardest_positives: int | None = 1,
    weighting: str = "score",
    sharpness: float = 0.1,
) -> Tensor:
    """Return the loss of a batch; queries without a positive or without a negative have no slots.

    The gradient runs through w, as in NGAME's code; such a step may draw a negative closer whose violation is more than
    t below the mean.

    Args:
        scores: Cosines, [B, P]: not multiplied by a scale, or the margin and the sharpness must be as well.
        positive: Positives, [B, P], bool.
        ignored: Pairs that do not count, [B, P], bool, or None.
        target: Weights of the positives' slots in the mean, [B, P], floating point; None = 1.
        margin: How much higher than a negative a positive must score.
        hardest_negatives: Number k of negatives per query.
        hardest_positives: Number m of positives per query; None = all of them.
        weighting: "score" for w above; "none" for w = 1, the plain mean of the hinges.
        sharpness: Temperature t of the weights.
    """
    options = _Options(margin, hardest_negatives, hardest_positives, weighting, sharpness)
    pairs = positive_pairs(scores, positive, ignored)
    targets = pair_targets(scores, pairs, target)
    return differentiable(scores, partial(_evaluate, pairs, targets, ignored, options))


def _evaluate(
    pairs: Pairs, targets: Tensor | None, ignored: Tensor | None, options: _Options, scores: Tensor
) -> Evaluated:
    shape = scores.shape
    if not len(pairs[0]):
        return Evaluated(scores.new_zeros(()), lambda upstream: upstream.new_zeros(shape))
    negatives = _Hardest(*candidates(scores, pairs, ignored).topk(min(options.hardest_negatives, shape[1]), 1))
    positives, counts = _hardest_positives(scores, pairs, targets, options.hardest_positives)
    exist = negatives.scores.isfinite()
    each = (counts / (counts.sum(1) * exist.sum(1)).sum().clamp(min=torch.finfo(scores.dtype).tiny)).unsqueeze(2)
    hinge = (negatives.scores.unsqueeze(1) - positives.scores.unsqueeze(2) + options.margin).clamp(min=0)
    # what the softmax needs of h: how far each negative is below the hardest
    behind = (negatives.scores - negatives.scores[:, :1]).masked_fill(~exist, 0.0).div(options.sharpness).unsqueeze(1)
    weights = _weights(hinge > 0, behind, options)
    pull = each * weights
    push = pull
    if options.weighting != "none":
        push = pull * (1 + behind - (weights * behind).sum(2, keepdim=True))

    def gradient(upstream: Tensor) -> Tensor:
        pushed = upstream.new_zeros(shape).scatter_add_(1, negatives.labels, upstream * push.sum(1))
        return pushed.scatter_add_(1, positives.labels, -upstream * pull.sum(2))

    return Evaluated((pull * hinge).sum(), gradient)


def _hardest_positives(
    scores: Tensor, pairs: Pairs, targets: Tensor | None, wanted: int | None
) -> tuple[_Hardest, Tensor]:
    """Return the positives with the lowest scores, and their weights [B, H]: targets, or 0 where a query has fewer."""
    row, label = pairs
    count = torch.bincount(row, minlength=len(scores))
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]  # pairs are in order of row
    table = scores.new_full((len(scores), int(count.max())), torch.inf)
    table[row, place] = scores[pairs]
    labels, counts = torch.zeros_like(table, dtype=torch.int64), torch.zeros_like(table)
    labels[row, place] = label
    counts[row, place] = 1.0 if targets is None else targets
    if wanted is not None and wanted < table.shape[1]:
        table, kept = table.topk(wanted, 1, largest=False)
        labels, counts = labels.gather(1, kept), counts.gather(1, kept)
    return _Hardest(table, labels), counts


def _weights(violates: Tensor, behind: Tensor, options: _Options) -> Tensor:
    """Return the weights w of the slots, [B, m, k], from the violations [B, m, k] and the logits [B, 1, k]."""
    if options.weighting == "none":
        return violates.to(behind.dtype)
    terms = behind.exp() * violates
    return terms / terms.sum(2, keepdim=True).clamp(min=torch.finfo(terms.dtype).tiny)
