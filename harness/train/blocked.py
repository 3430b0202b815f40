"""SGD with momentum over a table, one block of rows at a time, for gradients that are products of two thin matrices.

In one-vs-all training every row of Psi [L, D] has a gradient at every step, dPsi = G^T x with G [B, L] and x [B, D].
Neither G nor dPsi may exist as a whole, so each block of rows is updated as soon as its part of G is known:

    m <- mu m + G^T x + decay w          w <- w - lr m

The product is added straight into m, which costs no memory for the gradient. These are the equations of
`torch.optim.SGD`, the first step included.
"""

import torch
from torch import Tensor

from harness.model.rows import RowTable
from harness.train.optim import Group, lazy_zeros


class BlockedSgd:
    """SGD over the rows of one table [R, D]; `harness.train.optim.Optimiser` schedules it and saves its momentum."""

    def __init__(self, table: RowTable, *, name: str, lr: float, weight_decay: float, momentum: float) -> None:
        """Makes a momentum of zeros on the device of the table, which must not move afterwards.

        Args:
            table: What is trained.
            name: Of its group of learning rates.
            lr: Peak learning rate.
            weight_decay: Added to the gradient as decay x w.
            momentum: mu in [0, 1); 0 needs no memory.
        """
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1) (got {momentum})")
        self.table = table
        self.group = Group(name, lr, weight_decay)
        self.factor = momentum
        """mu."""
        self.momentum = lazy_zeros(table.weight) if momentum else None
        """m, [R, D]; None without momentum."""

    @torch.no_grad()
    def update(self, start: int, stop: int, left: Tensor, right: Tensor, lr: float) -> None:
        """Updates the rows start <= r < stop, whose gradient is left @ right.

        Args:
            start: First row.
            stop: The row after the last.
            left: [stop - start, B].
            right: [B, D]. Both factors may be bfloat16.
            lr: Learning rate of this step.
        """
        weight, decay = self.table.weight[start:stop], self.group.weight_decay
        if self.momentum is None:
            add_product(weight, left, right, keep=1 - lr * decay, scale=-lr)
            return
        momentum = self.momentum[start:stop]
        add_product(momentum, left, right, keep=self.factor)
        if decay:
            momentum.add_(weight, alpha=decay)
        weight.add_(momentum, alpha=-lr)


def add_product(total: Tensor, left: Tensor, right: Tensor, *, keep: float = 1.0, scale: float = 1.0) -> None:
    """Sets total [n, D] to keep x total + scale x left @ right, in place.

    Factors [n, B] and [B, D] of a narrower type are multiplied in that type; the sum is made in the type of `total`.
    """
    if left.dtype == total.dtype:
        total.addmm_(left, right, beta=keep, alpha=scale)
    else:
        total.mul_(keep).add_(left @ right, alpha=scale)
