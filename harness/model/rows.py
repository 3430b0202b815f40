"""A table of which a training step reads and writes only the rows it touches.

The classifier table Psi [L, D] and the static encoder's token table [V, D] are such tables: a batch touches a few
thousand of possibly millions of rows. `gather` copies those rows into a small leaf tensor; autograd fills the gradient
of that leaf; `collect` hands rows and gradient to `harness.train.optim.RowSparseAdam`. No gradient of the size of the
table ever exists, so neither time nor activation memory depends on its number of rows.
"""

import torch
from torch import Tensor, nn


class RowTable(nn.Module):
    """A table [R, D] without a dense gradient."""

    def __init__(self, weight: Tensor) -> None:
        """Takes the initial values [R, D]."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._touched: list[tuple[Tensor, Tensor]] = []

    def gather(self, rows: Tensor) -> Tensor:
        """The given rows [U] (int64, distinct) as a tensor [U, D] whose gradient reaches this table.

        Every gather since the last `collect` counts; rows may repeat between two gathers, not within one.
        """
        leaf = self.weight.index_select(0, rows)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            self._touched.append((rows, leaf))
        return leaf

    def collect(self) -> tuple[Tensor, Tensor] | None:
        """Distinct rows [U] gathered since the last call with their gradients [U, D], or None; forgets them."""
        touched = [(rows, leaf.grad) for rows, leaf in self._touched if leaf.grad is not None]
        self._touched.clear()
        if not touched:
            return None
        if len(touched) == 1:
            return touched[0]
        rows, place = torch.unique(torch.cat([rows for rows, _ in touched]), return_inverse=True)
        gradient = self.weight.new_zeros(len(rows), self.weight.shape[1])
        return rows, gradient.index_add_(0, place, torch.cat([part for _, part in touched]))
