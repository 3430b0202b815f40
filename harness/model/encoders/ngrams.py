"""Vectors of n-grams, so that a bag of words sees phrases: hashed rows that start at zero, as in fastText.

    g(x) = c sum_{n = 2..N} sum_i (w(t_i) .. w(t_{i+n-1}))^{1/n} G[h(t_i, .., t_{i+n-1}) mod R]

over the runs t_i .. t_{i+n-1} of tokens of a text x, with the token weights w, so that a run with a special token
counts for nothing. G [R, E] is trainable; a step reads and writes only the rows of the n-grams in its batch, and rows
that no n-gram has met take no memory on a CPU. Different n-grams may share a row.

The hash is h_1 = mix(t_i), h_{k+1} = mix(h_k + t_{i+k}), where mix multiplies and shifts modulo 2^64 (the finaliser of
MurmurHash3): the same on every device and in every process.
"""

import torch
from torch import Tensor, nn

from harness.model.tables import RowTable, lazy_zeros

_MULTIPLIER = 0xFF51AFD7ED558CCD - (1 << 64)
_SHIFT = 33
_UPPER = (1 << 63) - 1


class NGrams(nn.Module):
    """A trainable table [R, E] of hashed n-grams, all zero at the start."""

    def __init__(self, longest: int, rows: int, dim: int, weight: float) -> None:
        """Make the table.

        Args:
            longest: Tokens of the longest n-gram, N >= 2.
            rows: Rows of the table, R.
            dim: Dimension of its vectors, E.
            weight: Factor c.
        """
        super().__init__()
        self.longest = longest
        self.weight = weight
        self.table = RowTable(lazy_zeros((rows, dim), torch.float32))

    def found(self, ids: Tensor, offsets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the n-grams of all texts: their rows of the table [G], bounds by text [B + 1], and factors [G].

        Args:
            ids: Token ids, all texts one after the other, int64 [T].
            offsets: Bounds of the texts, int64 [B + 1].
            weights: Weight of each token, [T]; an n-gram with a token of weight 0 is left out.
        """
        text = torch.arange(len(offsets) - 1, device=ids.device).repeat_interleave(offsets.diff())
        hashes, product = _mixed(ids), weights
        rows, factors, texts = [], [], []
        for length in range(2, self.longest + 1):
            hashes = _mixed(hashes[:-1] + ids[length - 1 :])
            product = product[:-1] * weights[length - 1 :]
            kept = (text[: len(product)] == text[length - 1 :]) & (product > 0)
            rows.append(hashes[kept].bitwise_and(_UPPER) % len(self.table.weight))
            factors.append(self.weight * product[kept].pow(1 / length))
            texts.append(text[: len(product)][kept])
        owner = torch.cat(texts)
        order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=len(offsets) - 1).cumsum(0)
        return torch.cat(rows)[order], nn.functional.pad(counts, (1, 0)), torch.cat(factors)[order]

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors [U, E], and the index [G] of the vector of each n-gram; gradients reach these vectors."""
        if not (self.training and torch.is_grad_enabled()):
            return self.table.whole(), ids
        used, place = torch.unique(ids, return_inverse=True)
        return self.table.gather(used), place


def _mixed(values: Tensor) -> Tensor:
    """Return a hash of 64 bits of each number, int64 [T]."""
    values = values ^ (values >> _SHIFT)
    values = values * _MULTIPLIER
    return values ^ (values >> _SHIFT)
