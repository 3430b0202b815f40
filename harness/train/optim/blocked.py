"""SGD with momentum over a table, one block of rows at a time, for gradients that are products of two thin matrices.

In one-vs-all training every row of Psi [L, D] has a gradient at every step, dPsi = G^T x with G [B, L] and x [B, D].
Neither G nor dPsi may exist as a whole, so each block of rows is updated as soon as its part of G is known:

    m <- mu m + G^T x + decay w          w <- w - lr m

The product is added straight into m, which costs no memory for the gradient. These are the equations of
`torch.optim.SGD`, the first step included. Where table and momentum are kept in CPU memory, or in bfloat16, a block of
both is copied to where the products are, as float32, updated, rounded stochastically and copied back.
"""

import torch
from torch import Tensor

from harness.model.tables import RandomBits, RowTable, lazy_zeros, round_stochastically
from harness.seeds import stream_seed
from harness.train.optim import Group


class BlockedSgd:
    """SGD over the rows of one table [R, D]; `harness.train.optim.Optimiser` schedules it and saves its momentum."""

    def __init__(
        self, table: RowTable, *, name: str, lr: float, weight_decay: float, momentum: float, seed: int = 0
    ) -> None:
        """Make a momentum of zeros on the device of the table, which must not move afterwards.

        Args:
            table: The table to train.
            name: Name of its parameter group.
            lr: Peak learning rate.
            weight_decay: Added to the gradient as decay x w.
            momentum: Factor mu in [0, 1); 0 needs no memory.
            seed: Seed of the stochastic rounding of a bfloat16 table.
        """
        self.table = table
        self.group = Group(name, lr, weight_decay)
        self.factor = momentum
        """The momentum's factor mu."""
        self.seed = seed
        shape, dtype, device = tuple(table.weight.shape), table.weight.dtype, table.weight.device
        self.momentum = lazy_zeros(shape, dtype, device) if momentum else None
        """The momentum m, [R, D]; None if mu is 0."""

    def rows(self, start: int, stop: int, like: Tensor) -> Tensor:
        """Return rows start <= r < stop [stop - start, D] with the device and type of `like`; do not write to them."""
        return self.table.weight[start:stop].to(like.device, like.dtype)

    @torch.no_grad()
    def update(self, start: int, stop: int, left: Tensor, right: Tensor, lr: float, step: int = 0) -> None:
        """Update the rows start <= r < stop, whose gradient is left @ right.

        Args:
            start: First row.
            stop: The row after the last.
            left: Left factor, [stop - start, B].
            right: Right factor, [B, D]. Both factors may be bfloat16.
            lr: Learning rate of this step.
            step: Number of the step; with `start` and the seed it decides how a bfloat16 table is rounded.
        """
        stored = [self.table.weight[start:stop]] + ([] if self.momentum is None else [self.momentum[start:stop]])
        # the rows themselves where they can be computed with as they are; copies elsewhere, widened where they arrive
        work = [rows.to(left.device).to(self.table.arithmetic) for rows in stored]
        self._descend(work[0], work[1] if len(work) > 1 else None, left, right, lr)
        rounds = work[0].dtype != stored[0].dtype
        bits = RandomBits(stream_seed(self.seed, "rounding", step), start, left.device) if rounds else None
        for rows, updated in zip(stored, work, strict=True):
            if updated is not rows:
                _write(rows, updated, bits)

    def _descend(self, weight: Tensor, momentum: Tensor | None, left: Tensor, right: Tensor, lr: float) -> None:
        """Apply the equations in place to weight and momentum [n, D]; the gradient is left [n, B] @ right [B, D]."""
        decay = self.group.weight_decay
        if momentum is None:
            add_product(weight, left, right, keep=1 - lr * decay, scale=-lr)
            return
        add_product(momentum, left, right, keep=self.factor)
        if decay:
            momentum.add_(weight, alpha=decay)
        weight.add_(momentum, alpha=-lr)


def _write(rows: Tensor, updated: Tensor, bits: RandomBits | None) -> None:
    """Copy updated rows [n, D] to where they are stored; with `bits` they are rounded first."""
    if bits is not None:
        rounded = torch.empty_like(updated, dtype=rows.dtype)  # on this device: half as much to copy
        round_stochastically(updated, bits, rounded)
        updated = rounded
    rows.copy_(updated)


def add_product(total: Tensor, left: Tensor, right: Tensor, *, keep: float = 1.0, scale: float = 1.0) -> None:
    """Set total [n, D] to keep x total + scale x left @ right, in place.

    Factors [n, B] and [B, D] of a narrower type are multiplied in that type; the sum is made in the type of `total`.
    """
    if left.dtype == total.dtype:
        total.addmm_(left, right, beta=keep, alpha=scale)
    else:
        total.mul_(keep).add_(left @ right, alpha=scale)
