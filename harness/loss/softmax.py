"""Softmax losses over the label pool of a batch: SupCon, decoupled softmax, PAL.

P_i are the positives of query i in the pool, C_i the candidates in its denominator; both leave out ignored labels:

    loss = mean_i  a_i  sum_{p in P_i} phi(c_i - s_ip),       c_i = log sum_{l in C_i} e^(s_il)

    supcon               a_i = 1/|P_i|    phi(x) = x               C_i = every label
    pal                  a_i = 1          phi(x) = x               C_i = every label
    decoupled-softmax    a_i = 1/|P_i|    phi(x) = log(1 + e^x)    C_i = the negatives

The mean runs over the R queries with a positive. With the pulls v_ip = a_i phi'(c_i - s_ip) / R,

    d loss / d s_il = [l in C_i] e^(s_il - c_i) sum_p v_ip  -  [l in P_i] v_il.

Only the exponentials are dense; everything else works on the coordinates of the n positive pairs.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.loss.closed_form import Evaluated, differentiable, positive_pairs

_WIDEST = 60.0
"""Down to e^-60 a float32 exponential is good to 2e-6, and e^-87 is the end, so that no term that matters is lost."""


@dataclass(frozen=True)
class _Direction:
    """Who chooses: queries among labels, or labels among queries. There are A anchors, A = B or P."""

    anchor: Tensor
    """The anchor of every positive pair, [n]."""
    dim: int
    """Dimension of the score matrix along which an anchor chooses."""
    weight: float


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

    def __call__(self, scores: Tensor, positive: Tensor, *, ignored: Tensor | None = None) -> Tensor:
        """The loss from queries to labels, all arguments [B, P]; see `harness.loss.Loss`."""
        return self.two_way(scores, positive, 1.0, ignored=ignored)

    def two_way(self, scores: Tensor, positive: Tensor, weight: float, *, ignored: Tensor | None = None) -> Tensor:
        """The loss in both directions, matrices [B, P]; see `harness.loss.two_way`."""
        pairs = positive_pairs(scores, positive, ignored)
        both = (_Direction(pairs[0], 1, weight), _Direction(pairs[1], 0, 1 - weight))
        directions = [direction for direction in both if direction.weight]
        return differentiable(scores, partial(self._evaluate, pairs, ignored, directions))

    def _evaluate(
        self, pairs: tuple[Tensor, Tensor], ignored: Tensor | None, directions: list[_Direction], scores: Tensor
    ) -> Evaluated:
        shape = scores.shape
        if not len(pairs[0]):
            return Evaluated(scores.new_zeros(()), lambda upstream: upstream.new_zeros(shape))
        denominators = _denominators(_candidates(scores, pairs if self.decoupled else None, ignored), directions)
        values, pulls = zip(*(self._value_and_pulls(scores[pairs], part) for part in denominators), strict=True)
        pushes = [_push(part, pull) for part, pull in zip(denominators, pulls, strict=True)]
        gradient = partial(_gradient, pairs, torch.stack(pulls).sum(0), pushes)
        matrices = {id(part.terms): part.terms for part in denominators}
        return Evaluated(torch.stack(values).sum(), gradient, tuple(matrices.values()))

    def _value_and_pulls(self, matched: Tensor, denominator: _Denominator) -> tuple[Tensor, Tensor]:
        """Value [] and pulls v [n] of one direction, from the scores of the positive pairs, `matched` [n]."""
        anchor = denominator.direction.anchor
        count = torch.bincount(anchor, minlength=len(denominator.total)).to(matched.dtype)
        share = denominator.direction.weight / count.count_nonzero().to(matched.dtype)
        shares = share / count[anchor] if self.averaged else share.expand_as(matched)
        # c - s, with large numbers subtracted from each other before a small one is added
        gap = (denominator.shift[anchor] - matched) + denominator.total.log()[anchor]
        if self.decoupled:
            return (shares * torch.logaddexp(gap, torch.zeros_like(gap))).sum(), shares * torch.sigmoid(gap)
        return (shares * gap).sum(), shares


def _candidates(scores: Tensor, pairs: tuple[Tensor, Tensor] | None, ignored: Tensor | None) -> Tensor:
    """A copy of `scores` [B, P] with -inf for what is in no denominator."""
    candidates = scores.clone()
    if pairs is not None:
        candidates[pairs] = -math.inf
    return candidates if ignored is None else candidates.masked_fill_(ignored, -math.inf)


def _denominators(candidates: Tensor, directions: list[_Direction]) -> list[_Denominator]:
    """The denominators of every direction; writes over `candidates` [B, P].

    Both directions share one matrix of exponentials where float32 is wide enough. One shift for the whole matrix lets
    anchors far below it vanish; where there are such anchors, or a score is not finite, each direction has exponentials
    of its own, shifted by the largest candidate of every anchor.
    """
    tops = [candidates.amax(direction.dim) for direction in directions]
    if len(directions) == 2:
        highest = tops[0].amax()
        lowest = torch.stack([top[way.anchor].amin() for top, way in zip(tops, directions, strict=True)]).amin()
        if highest - lowest <= _WIDEST:
            terms = candidates.sub_(highest).exp_()
            return [
                _Denominator(direction, terms, highest.expand_as(top), terms.sum(direction.dim))
                for top, direction in zip(tops, directions, strict=True)
            ]
    found = []
    for top, direction in zip(tops, directions, strict=True):
        shift = top.clamp_(min=torch.finfo(top.dtype).min)  # nothing to choose from: -inf - -inf is not a number
        buffer = candidates if direction is directions[-1] else None
        terms = torch.sub(candidates, shift.unsqueeze(direction.dim), out=buffer).exp_()
        found.append(_Denominator(direction, terms, shift, terms.sum(direction.dim)))
    return found


def _push(denominator: _Denominator, pull: Tensor) -> Tensor:
    """What the terms of each anchor are multiplied with in the gradient, (sum of its pulls) / total, [B, 1] or [1, P].

    Where nothing is left to choose from, the pulls are 0 and so is the quotient.
    """
    mass = torch.zeros_like(denominator.total).index_add_(0, denominator.direction.anchor, pull)
    return (mass / denominator.total.clamp(min=torch.finfo(pull.dtype).tiny)).unsqueeze(denominator.direction.dim)


def _gradient(
    pairs: tuple[Tensor, Tensor], pull: Tensor, pushes: list[Tensor], upstream: Tensor, *terms: Tensor
) -> Tensor:
    """The gradient, [B, P]: sum over directions of terms * push, minus the pulls [n] of the positive pairs."""
    first, *second = (upstream * push for push in pushes)
    if not second:
        gradient = terms[0] * first
    elif len(terms) == 1:
        gradient = (first + second[0]).mul_(terms[0])
    else:
        gradient = (terms[0] * first).addcmul_(terms[1], second[0])
    gradient[pairs] -= upstream * pull
    return gradient


supcon = SoftmaxLoss(decoupled=False, averaged=True)
decoupled_softmax = SoftmaxLoss(decoupled=True, averaged=True)
pal = SoftmaxLoss(decoupled=False, averaged=False)
