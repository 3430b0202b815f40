"""A table of which a training step reads and writes only the rows it touches.

The classifier table Psi [L, D] and the static encoder's token table [V, D] are such tables: a batch touches a few
thousand of possibly millions of rows. `gather` copies those rows into a small leaf tensor; autograd fills the gradient
of that leaf; `collect` hands rows and gradient to `harness.train.optim.RowSparseAdam`. No gradient of the size of the
table exists, so neither time nor activation memory depends on its number of rows. The exception: once a step has
gathered more rows than the table has (a label space encoded in blocks), gradients are summed in a tensor of the table's
size as they arrive, and a block's leaf is freed with its graph.
"""

from functools import partial

import torch
from torch import Tensor, nn


class RowTable(nn.Module):
    """A table [R, D] without a dense gradient."""

    def __init__(self, weight: Tensor) -> None:
        """Takes the initial values [R, D]."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._touched: list[tuple[Tensor, Tensor]] = []
        self._gathered = 0
        self._sum: _Sum | None = None

    def gather(self, rows: Tensor) -> Tensor:
        """The given rows [U] (int64, distinct) as a tensor [U, D] whose gradient reaches this table.

        Every gather since the last `collect` counts; rows may repeat between two gathers, not within one.
        """
        leaf = self.weight.index_select(0, rows)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            self._gathered += len(rows)
            if self._gathered <= len(self.weight):
                self._touched.append((rows, leaf))
            else:
                self._sum = self._sum or _Sum(self.weight)
                leaf.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._sum.take, rows)
                )
        return leaf

    def collect(self) -> tuple[Tensor, Tensor] | None:
        """Distinct rows [U] gathered since the last call with their gradients [U, D], or None; forgets them."""
        touched = [(rows, leaf.grad) for rows, leaf in self._touched if leaf.grad is not None]
        total = self._sum
        self._touched.clear()
        self._gathered, self._sum = 0, None
        if total is not None:
            for rows, gradient in touched:
                total.add(rows, gradient)
            return total.collected()
        if not touched:
            return None
        if len(touched) == 1:
            return touched[0]
        rows, place = torch.unique(torch.cat([rows for rows, _ in touched]), return_inverse=True)
        gradient = self.weight.new_zeros(len(rows), self.weight.shape[1])
        return rows, gradient.index_add_(0, place, torch.cat([part for _, part in touched]))


class _Sum:
    """The sum of the gradients of many gathers, [R, D]."""

    def __init__(self, weight: Tensor) -> None:
        self._gradient = torch.zeros_like(weight)
        self._touched = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)

    def add(self, rows: Tensor, gradient: Tensor) -> None:
        """Adds the gradient [U, D] of distinct rows [U]."""
        self._gradient.index_add_(0, rows, gradient)
        self._touched[rows] = True

    def take(self, rows: Tensor, leaf: Tensor) -> None:
        """Adds the gradient that has just arrived at a leaf [U, D] and removes it there."""
        if leaf.grad is not None:
            self.add(rows, leaf.grad)
            leaf.grad = None

    def collected(self) -> tuple[Tensor, Tensor] | None:
        """The rows [U] that got a gradient, and it, [U, D]; None without any."""
        rows = self._touched.nonzero().squeeze(1)
        return (rows, self._gradient.index_select(0, rows)) if len(rows) else None
