"""Dropout whose random numbers cost less than the layer it follows.

    y = x m / (1 - q),      m = 1 with probability 1 - q, else 0,      q = p rounded to 1/65,536

On a CPU torch draws one number after the other on one core, some ten nanoseconds each, so that three dropouts of a
training step took half as long as its matrix products. Here 64 random bits decide about four elements; the stream is a
function of torch's seed, as torch's own dropout is. Elsewhere torch's own is used.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_LEVELS = 1 << 16


def seed_dropout(seed: int) -> None:
    """Seed the generator that every dropout draws its masks from.

    Where there is only a CPU `torch.manual_seed` notes the call stack for devices yet to come: half a millisecond.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class Dropout(nn.Dropout):
    """`nn.Dropout` with masks that are drawn faster; in evaluation the identity."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero random elements of a tensor of any shape and scale up the others."""
        return dropout(input, self.p, self.training)


def dropout(values: Tensor, p: float, training: bool = True) -> Tensor:
    """Return `values` (any shape) with a share p of the elements zeroed and the others divided by 1 - p.

    It is a new tensor, or `values` itself where nothing is to be dropped.
    """
    if not training or p == 0:
        return values
    if values.device.type != "cpu" or round(p * _LEVELS) in (0, _LEVELS):
        return nn.functional.dropout(values, p)
    dropped: Tensor = _Dropout.apply(values, keep_mask(values.shape, p), kept_scale(p))  # type: ignore[no-untyped-call]
    return dropped


def without_memory() -> bool:
    """Return whether new tensors have a shape but no values, as torch's fake tensors, which `harness.plan` counts."""
    return type(torch.empty(0)) is not Tensor


def kept_scale(p: float) -> float:
    """Return the factor of the elements that are kept: 1 / (1 - q)."""
    return _LEVELS / (_LEVELS - round(p * _LEVELS))


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """Draw a uint8 mask on the CPU, 1 where an element is kept and 0 elsewhere; torch's generator gives the seed."""
    return drawn_mask(shape, p, np.random.SFC64(int(torch.randint(torch.iinfo(torch.int64).max, ()))))


def drawn_mask(shape: torch.Size, p: float, bits: np.random.SFC64) -> Tensor:
    """Draw a mask as `keep_mask` does, from the given random bits."""
    if without_memory():
        return torch.empty(shape, dtype=torch.uint8)
    count = shape.numel()
    words = np.asarray(bits.random_raw(-(-count // 4)))
    keep = words.view(np.int16)[:count] >= round(p * _LEVELS) - _LEVELS // 2
    return torch.from_numpy(keep.view(np.uint8)).view(shape)


def masked(values: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Return `values` times `keep` (uint8, the same shape) times `scale`, a new tensor."""
    # torch multiplies by a narrower type many times slower than it widens it
    return keep.to(values.dtype).mul_(values).mul_(scale)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(keep)
        return masked(values, keep, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return masked(gradient, keep, ctx.scale), None, None
