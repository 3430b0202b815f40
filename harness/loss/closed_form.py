"""Losses whose gradient is written down instead of recorded.

Autograd records every pass over the score matrix [B, P] and walks all of them back. The losses of this room know their
gradient in closed form: they compute value and gradient together, in few passes, and autograd only scales the result.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Evaluate = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]
"""(scores [B, P], whether the gradient is wanted) -> loss [], its gradient [B, P] or None; leaves the scores alone."""


def differentiable(scores: Tensor, evaluate: Evaluate) -> Tensor:
    """The loss of `scores` [B, P] as a scalar that can be differentiated once.

    Half-precision scores are converted to float32 first, and autocast is off while the loss is computed.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if torch.is_grad_enabled() and scores.requires_grad:
        loss: Tensor = _ClosedForm.apply(scores, evaluate)  # type: ignore[no-untyped-call]
        return loss
    with torch.autocast(scores.device.type, enabled=False):
        return evaluate(scores.detach(), False)[0]


def positive_pairs(scores: Tensor, positive: Tensor, ignored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Coordinates (row [n], label [n]) of the positives that are not ignored, after a check of all three [B, P]."""
    masks = {"positive": positive} if ignored is None else {"positive": positive, "ignored": ignored}
    if scores.dim() != 2 or not scores.is_floating_point():
        raise ValueError(f"scores must be a floating point matrix [B, P], not {scores.dtype} {list(scores.shape)}")
    for name, mask in masks.items():
        if mask.dtype != torch.bool or mask.shape != scores.shape:
            raise ValueError(f"{name} must be bool {list(scores.shape)}, not {mask.dtype} {list(mask.shape)}")
    row, label = positive.nonzero(as_tuple=True)
    if ignored is not None:
        counted = ~ignored[row, label]
        row, label = row[counted], label[counted]
    return row, label


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, evaluate: Evaluate) -> Tensor:
        with torch.autocast(scores.device.type, enabled=False):
            loss, gradient = evaluate(scores, True)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None
