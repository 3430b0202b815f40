"""Losses whose gradient is written down instead of recorded.

Autograd records every pass over the score matrix [B, P] and walks all of them back. The losses of this room know their
gradient in closed form: few passes forward, and one matrix written backward.
"""

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
    """[]."""
    gradient: Callable[..., Tensor]
    """(upstream [], *matrices) -> upstream * d value / d scores, [B, P], a new tensor."""
    matrices: tuple[Tensor, ...] = ()
    """[B, P] each; kept for the gradient, and freed by autograd as soon as it has been computed."""


Evaluate = Callable[[Tensor], Evaluated]
"""A function of scores [B, P] that leaves them alone."""


def differentiable(scores: Tensor, evaluate: Evaluate) -> Tensor:
    """The loss of `scores` [B, P] as a scalar that can be differentiated once.

    Half-precision scores are converted to float32 first, and autocast is off while the loss is computed.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if torch.is_grad_enabled() and scores.requires_grad:
        loss: Tensor = _ClosedForm.apply(scores, evaluate)  # type: ignore[no-untyped-call]
        return loss
    with torch.autocast(scores.device.type, enabled=False):
        return evaluate(scores.detach()).value


def positive_pairs(scores: Tensor, positive: Tensor, ignored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Coordinates (row [n], label [n]) of the positives that are not ignored, after a check of all three [B, P]."""
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


def _coordinates(mask: Tensor) -> tuple[Tensor, Tensor]:
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
