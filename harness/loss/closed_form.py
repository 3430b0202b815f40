"""Losses whose gradient is written down instead of recorded.

Autograd records every pass over the score matrix [B, P] and walks all of them back. The losses of this room know their
gradient in closed form: few passes forward, and one matrix written backward.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Evaluated:
    """A loss and what its gradient needs."""

    value: Tensor
    """Value of the loss, []."""
    gradient: Callable[..., Tensor]
    """Maps (upstream [], *matrices) to upstream * d value / d scores, [B, P], a new tensor."""
    matrices: tuple[Tensor, ...] = ()
    """Arguments of `gradient`, [B, P] each; autograd frees them when the gradient has been computed."""


Evaluate = Callable[[Tensor], Evaluated]
"""A function of scores [B, P] that does not change them."""
Pairs = tuple[Tensor, Tensor]
"""Indices of n pairs in the score matrix: row [n], label [n]."""


def differentiable(scores: Tensor, evaluate: Evaluate) -> Tensor:
    """Return the loss of `scores` [B, P] as a scalar that can be differentiated once.

    Half-precision scores are converted to float32 first, and autocast is off while the loss is computed.
    """
    scores = scores.to(precision(scores))
    if torch.is_grad_enabled() and scores.requires_grad:
        loss: Tensor = _ClosedForm.apply(scores, evaluate)  # type: ignore[no-untyped-call]
        return loss
    with torch.autocast(scores.device.type, enabled=False):
        return evaluate(scores.detach()).value


def precision(scores: Tensor) -> torch.dtype:
    """Return the type in which the loss of `scores` [B, P] is computed: float32 at least."""
    return torch.promote_types(scores.dtype, torch.float32)


def positive_pairs(scores: Tensor, positive: Tensor, ignored: Tensor | None) -> Pairs:
    """Return indices (row [n], label [n]) of the positives that are not ignored; check all three matrices [B, P]."""
    masks = {"positive": positive} if ignored is None else {"positive": positive, "ignored": ignored}
    if scores.dim() != 2 or not scores.is_floating_point():
        raise ValueError(f"scores must be a floating point matrix [B, P], not {scores.dtype} {list(scores.shape)}")
    for name, mask in masks.items():
        if mask.dtype != torch.bool or mask.shape != scores.shape:
            raise ValueError(f"{name} must be bool {list(scores.shape)}, not {mask.dtype} {list(mask.shape)}")
    row, label = _coordinates(positive)
    if ignored is not None:
        counted = ~ignored[row, label]
        row, label = row[counted], label[counted]
    return row, label


def pair_targets(scores: Tensor, pairs: Pairs, target: Tensor | None) -> Tensor | None:
    """Return the target of each of the n pairs, [n], from `target` [B, P]; None if there are no targets."""
    if target is None:
        return None
    if not target.is_floating_point() or target.shape != scores.shape:
        raise ValueError(f"target must be floating point {list(scores.shape)}, not {target.dtype} {list(target.shape)}")
    targets = target.detach()[pairs].to(precision(scores))
    if not ((targets > 0) & (targets <= 1)).all():
        raise ValueError("targets of positives must be greater than 0 and at most 1")
    return targets


def candidates(scores: Tensor, absent: Pairs | None, ignored: Tensor | None) -> Tensor:
    """Return a copy of `scores` [B, P] with -inf at the pairs in `absent` and where `ignored` [B, P] is set."""
    remaining = scores.clone()
    if absent is not None:
        remaining[absent] = -math.inf
    if ignored is not None:
        remaining[_coordinates(ignored)] = -math.inf  # few, and found faster than a mask is applied
    return remaining


def pushes_of(anchor: Tensor, pull: Tensor, total: Tensor) -> Tensor:
    """Return the factor of each anchor's terms in the gradient: (sum of its pulls) / total, [A].

    Args:
        anchor: Anchor of every pair, [n].
        pull: Pull of every pair, [n].
        total: Sum of the terms of every anchor, [A]. Where it is 0 the pulls are 0 and so is the quotient.
    """
    mass = torch.zeros_like(total).index_add_(0, anchor, pull)
    return mass / total.clamp(min=torch.finfo(total.dtype).tiny)


def pushed_and_pulled(pairs: Pairs, pull: Tensor, pushes: list[Tensor], upstream: Tensor, *terms: Tensor) -> Tensor:
    """Return the gradient [B, P] of a loss that pulls n pairs and pushes everything in proportion to its terms.

    Args:
        pairs: Indices of the pulled pairs.
        pull: Pull of every pair, [n].
        pushes: Factors of the terms, [B, 1] or [1, P], one or two.
        upstream: Gradient with respect to the loss, [].
        terms: Terms, [B, P]; one matrix for each push, or one for both.
    """
    first, *second = (upstream * push for push in pushes)
    if not second:
        gradient = terms[0] * first
    elif len(terms) == 1:
        gradient = (first + second[0]).mul_(terms[0])
    else:
        gradient = (terms[0] * first).addcmul_(terms[1], second[0])
    gradient[pairs] -= upstream * pull
    return gradient


def _coordinates(mask: Tensor) -> Pairs:
    if mask.device.type != "cpu":
        row, label = mask.nonzero(as_tuple=True)
        return row, label
    place = torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times faster than nonzero of torch
    return place // mask.shape[1], place % mask.shape[1]


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, evaluate: Evaluate) -> Tensor:
        with torch.autocast(scores.device.type, enabled=False):
            evaluated = evaluate(scores)
        ctx.gradient = evaluated.gradient
        ctx.save_for_backward(*evaluated.matrices)
        return evaluated.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        with torch.autocast(upstream.device.type, enabled=False):
            return ctx.gradient(upstream, *ctx.saved_tensors), None
