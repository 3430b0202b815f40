"""Softmax losses over the label pool of a batch: SupCon, decoupled softmax, PAL, pick-one-label.

P_i are the positives of query i in the pool, C_i the candidates in its denominator; both leave out ignored labels:

    loss = mean_i  sum_{p in P_i} q_ip phi(c_i - s_ip),       c_i = log sum_{l in C_i} e^(s_il)

    supcon               q_ip = y_ip / sum_p y_ip    phi(x) = x               C_i = every label
    pal                  q_ip = y_ip                 phi(x) = x               C_i = every label
    decoupled-softmax    q_ip = y_ip / sum_p y_ip    phi(x) = log(1 + e^x)    C_i = the negatives
    pick-one-label       q_ip = [p = d_i]            phi(x) = log(1 + e^x)    C_i = the negatives

y_ip is the target, 1 unless given; the mean runs over the R queries with a positive.

    d loss / d s_il = [l in C_i] e^(s_il - c_i) sum_p v_ip  -  [l in P_i] v_il,      v_ip = q_ip phi'(c_i - s_ip) / R

Only the exponentials are dense. From the labels, the same with queries and labels exchanged, in q_ip too.

In pick-one-label, the sampled decoupled softmax of DEXML, query i draws d_i from its positives in the pool, label p
with probability y_ip / sum_p y_ip, at every step; its expectation is decoupled-softmax.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from harness.loss.closed_form import (
    Evaluated,
    Pairs,
    candidates,
    differentiable,
    pair_targets,
    positive_pairs,
    precision,
    pushed_and_pulled,
    pushes_of,
)
from harness.loss.draws import draw_one

_WIDEST = 60.0
"""Down to e^-60 a float32 exponential is good to 2e-6, and e^-87 is the end, so that no term that matters is lost."""


@dataclass(frozen=True)
class _Direction:
    """A direction of the loss: queries choose among labels (A = B anchors), or labels among queries (A = P)."""

    anchor: Tensor
    """The anchor of every positive pair, [n]."""
    dim: int
    """Dimension of the score matrix along which an anchor chooses."""
    shares: Tensor
    """Share of each positive pair: q / R times the weight of the direction, [n]."""


@dataclass(frozen=True)
class _Denominator:
    """The denominators of the softmax in one direction: c = shift + log(total)."""

    direction: _Direction
    terms: Tensor
    """Terms e^(s - shift), [B, P]; 0 where an entry is no candidate."""
    shift: Tensor
    """Number subtracted from the scores of each anchor, [A]."""
    total: Tensor
    """Sum of the terms of each anchor, [A]; 0 if it has no candidates."""


@dataclass(frozen=True)
class SoftmaxLoss:
    """One of the losses above; needs every positive of the batch that is in the pool to be marked."""

    decoupled: bool
    """Whether the positives of a query are no candidates, so that each is compared with the negatives alone."""
    share: Literal["mean", "sum", "drawn"]
    """Kind of weight q of the positives of a query."""

    def __call__(
        self,
        scores: Tensor,
        positive: Tensor,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss from queries to labels, all [B, P]; see `harness.loss.Loss`, for `generator` `two_way`."""
        return self.two_way(scores, positive, 1.0, ignored=ignored, target=target, generator=generator)

    def two_way(
        self,
        scores: Tensor,
        positive: Tensor,
        weight: float,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss in both directions, matrices [B, P]; see `harness.loss.two_way`.

        A loss that draws takes B values of `generator` (on the CPU; None = torch's global one) for the queries, then P
        for the labels.
        """
        pairs = positive_pairs(scores, positive, ignored)
        targets = pair_targets(scores, pairs, target)
        directions = []
        for dim, part in ((1, weight), (0, 1 - weight)):
            if part:
                anchor = pairs[1 - dim]
                count = torch.bincount(anchor, minlength=scores.shape[1 - dim]).to(precision(scores))
                each = part / count.count_nonzero().to(count.dtype)
                shares = self._shares(targets, anchor, count, each, generator)
                directions.append(_Direction(anchor, dim, shares))
        return differentiable(scores, partial(_evaluate, pairs, ignored, directions, self.decoupled))

    def _shares(
        self, targets: Tensor | None, anchor: Tensor, count: Tensor, each: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Return `each` [] times q of every pair, [n], from `anchor` [n] and the positives per anchor, `count` [A]."""
        if self.share == "drawn":
            return each * draw_one(anchor, len(count), targets, generator)
        if self.share == "mean":
            return averaged(targets, anchor, count, each)
        return each.expand(len(anchor)) if targets is None else each * targets


def averaged(targets: Tensor | None, anchor: Tensor, count: Tensor, each: Tensor) -> Tensor:
    """Return each positive's share in the mean over its anchor's positives, weighted by targets [n] if given."""
    if targets is None:
        return each / count[anchor]
    return each * targets / torch.zeros_like(count).index_add_(0, anchor, targets)[anchor]


def _evaluate(
    pairs: Pairs, ignored: Tensor | None, directions: list[_Direction], decoupled: bool, scores: Tensor
) -> Evaluated:
    shape = scores.shape
    if not len(pairs[0]):
        return Evaluated(scores.new_zeros(()), lambda upstream: upstream.new_zeros(shape))
    denominators = _denominators(candidates(scores, pairs if decoupled else None, ignored), directions)
    values, pulls = zip(*(_value_and_pulls(scores[pairs], part, decoupled) for part in denominators), strict=True)
    pushes = [
        pushes_of(part.direction.anchor, pull, part.total).unsqueeze(part.direction.dim)
        for part, pull in zip(denominators, pulls, strict=True)
    ]
    gradient = partial(pushed_and_pulled, pairs, torch.stack(pulls).sum(0), pushes)
    matrices = {id(part.terms): part.terms for part in denominators}
    return Evaluated(torch.stack(values).sum(), gradient, tuple(matrices.values()))


def _value_and_pulls(matched: Tensor, denominator: _Denominator, decoupled: bool) -> tuple[Tensor, Tensor]:
    """Return value [] and pulls v [n] of one direction, from the scores of the positive pairs, `matched` [n]."""
    anchor, shares = denominator.direction.anchor, denominator.direction.shares
    # c - s, with large numbers subtracted from each other before a small one is added
    gap = (denominator.shift[anchor] - matched) + denominator.total.log()[anchor]
    if decoupled:
        return (shares * torch.logaddexp(gap, torch.zeros_like(gap))).sum(), shares * torch.sigmoid(gap)
    return (shares * gap).sum(), shares


def _denominators(chosen_from: Tensor, directions: list[_Direction]) -> list[_Denominator]:
    """Compute the denominators of every direction; `chosen_from` [B, P] is overwritten.

    Both directions share one matrix of exponentials where float32 is wide enough. One shift for the whole matrix lets
    anchors far below it vanish; where there are such anchors, or a score is not finite, each direction has exponentials
    of its own, shifted by the largest candidate of every anchor.
    """
    tops = [chosen_from.amax(direction.dim) for direction in directions]
    if len(directions) == 2:
        highest = tops[0].amax()
        lowest = torch.stack([top[way.anchor].amin() for top, way in zip(tops, directions, strict=True)]).amin()
        if highest - lowest <= _WIDEST:
            terms = chosen_from.sub_(highest).exp_()
            return [
                _Denominator(direction, terms, highest.expand_as(top), terms.sum(direction.dim))
                for top, direction in zip(tops, directions, strict=True)
            ]
    found = []
    for top, direction in zip(tops, directions, strict=True):
        shift = top.clamp_(min=torch.finfo(top.dtype).min)  # nothing to choose from: -inf - -inf is not a number
        buffer = chosen_from if direction is directions[-1] else None
        terms = torch.sub(chosen_from, shift.unsqueeze(direction.dim), out=buffer).exp_()
        found.append(_Denominator(direction, terms, shift, terms.sum(direction.dim)))
    return found


supcon = SoftmaxLoss(decoupled=False, share="mean")
decoupled_softmax = SoftmaxLoss(decoupled=True, share="mean")
pal = SoftmaxLoss(decoupled=False, share="sum")
pick_one_label = SoftmaxLoss(decoupled=True, share="drawn")
