"""Softmax losses over the label pool of a batch: SupCon, decoupled softmax, PAL.

P_i are the positives of query i in the pool, C_i the candidates in its denominator; both leave out ignored labels:

    loss = mean_i  sum_{p in P_i} q_ip phi(c_i - s_ip),       c_i = log sum_{l in C_i} e^(s_il)

    supcon               q_ip = y_ip / sum_p y_ip    phi(x) = x               C_i = every label
    pal                  q_ip = y_ip                 phi(x) = x               C_i = every label
    decoupled-softmax    q_ip = y_ip / sum_p y_ip    phi(x) = log(1 + e^x)    C_i = the negatives

y_ip is the target, 1 unless given; the mean runs over the R queries with a positive.

    d loss / d s_il = [l in C_i] e^(s_il - c_i) sum_p v_ip  -  [l in P_i] v_il,      v_ip = q_ip phi'(c_i - s_ip) / R

Only the exponentials are dense. From the labels, the same with queries and labels exchanged, in q_ip too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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

_WIDEST = 60.0
"""Down to e^-60 a float32 exponential is good to 2e-6, and e^-87 is the end, so that no term that matters is lost."""
Shares = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(anchor of every pair [n], number of positives of every anchor [A], w []) -> w q of every pair, [n]."""


@dataclass(frozen=True)
class _Direction:
    """Who chooses: queries among labels, or labels among queries. There are A anchors, A = B or P."""

    anchor: Tensor
    """The anchor of every positive pair, [n]."""
    dim: int
    """Dimension of the score matrix along which an anchor chooses."""
    shares: Tensor
    """q / R times the weight of the direction, [n]."""


@dataclass(frozen=True)
class _Denominator:
    """What the anchors of a direction choose from: c = shift + log(total)."""

    direction: _Direction
    terms: Tensor
    """e^(s - shift), [B, P]; 0 where an entry is no candidate."""
    shift: Tensor
    """[A]."""
    total: Tensor
    """Sum of the terms, [A]; 0 where nothing is left to choose from."""


@dataclass(frozen=True)
class SoftmaxLoss:
    """One of the losses above; needs every positive of the batch that is in the pool to be marked."""

    decoupled: bool
    """The positives of a query are no candidates; each is compared with the negatives alone."""
    averaged: bool
    """Divided by the number of positives of the query."""

    def __call__(
        self, scores: Tensor, positive: Tensor, *, ignored: Tensor | None = None, target: Tensor | None = None
    ) -> Tensor:
        """The loss from queries to labels, all arguments [B, P]; see `harness.loss.Loss`."""
        return self.two_way(scores, positive, 1.0, ignored=ignored, target=target)

    def two_way(
        self,
        scores: Tensor,
        positive: Tensor,
        weight: float,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
    ) -> Tensor:
        """The loss in both directions, matrices [B, P]; see `harness.loss.two_way`."""
        pairs = positive_pairs(scores, positive, ignored)
        shares = partial(self._shares, pair_targets(scores, pairs, target))
        return softmax_loss(scores, pairs, ignored, weight, shares, decoupled=self.decoupled)

    def _shares(self, targets: Tensor | None, anchor: Tensor, count: Tensor, each: Tensor) -> Tensor:
        if self.averaged:
            return averaged(targets, anchor, count, each)
        return each.expand(len(anchor)) if targets is None else each * targets


def averaged(targets: Tensor | None, anchor: Tensor, count: Tensor, each: Tensor) -> Tensor:
    """The `Shares` of a mean over the positives of every anchor, weighted by their targets [n] where there are any."""
    if targets is None:
        return each / count[anchor]
    return each * targets / torch.zeros_like(count).index_add_(0, anchor, targets)[anchor]


def softmax_loss(
    scores: Tensor, pairs: Pairs, ignored: Tensor | None, weight: float, shares: Shares, *, decoupled: bool
) -> Tensor:
    """The formula above in both directions, for any q.

    Args:
        scores: [B, P].
        pairs: All positives that are not ignored, n of them.
        ignored: [B, P], bool, or None.
        weight: Of the direction from queries to labels; the other one has what is left to 1.
        shares: What a pair counts; asked once for every direction whose weight is not zero.
        decoupled: As in `SoftmaxLoss`.
    """
    directions = []
    for dim, part in ((1, weight), (0, 1 - weight)):
        if part:
            anchor = pairs[1 - dim]
            count = torch.bincount(anchor, minlength=scores.shape[1 - dim]).to(precision(scores))
            each = part / count.count_nonzero().to(count.dtype)
            directions.append(_Direction(anchor, dim, shares(anchor, count, each)))
    return differentiable(scores, partial(_evaluate, pairs, ignored, directions, decoupled))


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
    """Value [] and pulls v [n] of one direction, from the scores of the positive pairs, `matched` [n]."""
    anchor, shares = denominator.direction.anchor, denominator.direction.shares
    # c - s, with large numbers subtracted from each other before a small one is added
    gap = (denominator.shift[anchor] - matched) + denominator.total.log()[anchor]
    if decoupled:
        return (shares * torch.logaddexp(gap, torch.zeros_like(gap))).sum(), shares * torch.sigmoid(gap)
    return (shares * gap).sum(), shares


def _denominators(chosen_from: Tensor, directions: list[_Direction]) -> list[_Denominator]:
    """The denominators of every direction; writes over `chosen_from` [B, P].

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


supcon = SoftmaxLoss(decoupled=False, averaged=True)
decoupled_softmax = SoftmaxLoss(decoupled=True, averaged=True)
pal = SoftmaxLoss(decoupled=False, averaged=False)
