"""Soft top-k over all labels in one pass over their scores; the loss is that of `harness.loss.topk`.

The threshold t_i solves sum_l sigmoid(s_il + t_i) = K. Of every query the M = 8 K largest scores are kept, `near`. For
the others, `far`, e^(s + t) <= K / (M - K) = 1/7, because M labels are no smaller and all of them sum to K. So a few
terms of the sigmoid's series are enough. With b the smallest score in `near`, and u = e^(t + b),

    sum_far sigmoid(s + t) = S_1 u - S_2 u^2 + S_3 u^3 ...,        S_j = sum_far e^(j (s - b)),    j = 1 .. 8,

and S_j can be summed before t is known. Scores are multiplied by the steepness alpha beforehand.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.loss.streamed import StreamedLoss
from harness.loss.topk import balance

_NEAREST = 8
"""M / K."""
_SERIES = 8
"""7^-8 = 2e-7 is as exact as float32."""
_EVERYTHING = 1e30
"""Threshold of a query with at most K candidates: all of them pass, loss and gradient are 0."""
_SLOPE_FLOOR = 1e-30
"""Where all candidates are further from the threshold than 70, none of them is pushed."""


class SoftTopK(StreamedLoss):
    """Terms sigmoid'(s + t_i)."""

    def __init__(self, rows: int, query: Tensor, share: Tensor, *, k: int, labels: int) -> None:
        """Takes the drawn pairs.

        Args:
            rows: B.
            query: Place in the batch of the query of each pair, int64 [n].
            share: q / R, [n].
            k: K, less than L.
            labels: L.
        """
        super().__init__(rows, query, share)
        self._k = k
        self._near = share.new_full((rows, min(_NEAREST * k, labels)), -torch.inf)
        # not -inf: as long as fewer than M scores were met, -inf - -inf would not be a number
        self._floor = share.new_full((rows, 1), torch.finfo(share.dtype).min)
        self._far = share.new_zeros(rows, _SERIES)
        self._threshold = share.new_zeros(rows)

    def _observe(self, scores: Tensor) -> None:
        kept = self._near.shape[1]
        top = scores.topk(min(kept, scores.shape[1]), sorted=False)
        scores.scatter_(1, top.indices, -torch.inf)
        ranked = torch.cat((self._near, top.values), 1).sort(1, descending=True).values
        self._near = ranked[:, :kept]
        floor = torch.maximum(self._floor, self._near[:, -1:])
        self._far *= ((self._floor - floor) * _powers(self._far)).exp_()
        self._floor = floor
        for far in (scores, ranked[:, kept:]):
            self._add_far(far)

    def _add_far(self, scores: Tensor) -> None:
        """Adds e^(j (s - b)) of scores [B, c], none above b, to S_j; writes over them."""
        once = scores.sub_(self._floor).exp_()
        power = once.clone()
        self._far[:, 0] += power.sum(1)
        for column in self._far.T[1:]:
            column += power.mul_(once).sum(1)

    def _gaps(self, matched: Tensor) -> tuple[Tensor, Tensor]:
        crowded = self._near[:, self._k].isfinite()
        near, floor, far = (part[crowded].double() for part in (self._near, self._floor, self._far))
        counted = Counted(near, floor, far, self._k)
        found = counted.threshold()
        self._threshold.fill_(_EVERYTHING)[crowded] = found.squeeze(1).to(matched.dtype)
        slope = torch.ones_like(self._threshold)
        slope[crowded] = counted.slope(found).clamp(min=_SLOPE_FLOOR).to(matched.dtype)
        return -(matched + self._threshold[self._query]), slope

    def _to_terms(self, scores: Tensor) -> None:
        # sigmoid' is even, and below 0 the difference sigmoid - sigmoid^2 does not cancel
        scores.add_(self._threshold[:, None]).abs_().neg_().sigmoid_()
        scores.addcmul_(scores, scores, value=-1)


@dataclass(frozen=True)
class Counted:
    """How many labels of b queries, each with more than K candidates, pass a threshold; float64."""

    near: Tensor
    """Largest scores, decreasing, -inf where there are fewer, [b, M]."""
    floor: Tensor
    """Smallest score in `near`, [b, 1]."""
    far: Tensor
    """S_j, [b, J]; 0 unless `near` is full."""
    k: int

    def threshold(self) -> Tensor:
        """t, [b, 1]."""
        best, rest = self.near.tensor_split([self.k], 1)

        def rest_sums(t: Tensor) -> tuple[Tensor, Tensor]:
            passing = torch.sigmoid(rest + t)
            far, slope = self._far_sums(t)  # sigmoid^2 = sigmoid - sigmoid'
            return passing.sum(1, keepdim=True) + far, passing.square().sum(1, keepdim=True) + far - slope

        others = torch.logaddexp(rest.logsumexp(1, keepdim=True), self.far[:, :1].log() + self.floor)
        return balance(best, rest_sums, ((-best).logsumexp(1, keepdim=True) - others) / 2)

    def slope(self, threshold: Tensor) -> Tensor:
        """Sum over all candidates of sigmoid'(s + t) for t [b, 1]; [b]."""
        below = torch.sigmoid(-(self.near + threshold).abs())
        return (below - below.square()).sum(1) + self._far_sums(threshold)[1].squeeze(1)

    def _far_sums(self, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over `far` of sigmoid(s + t) and of its derivative for t [b, 1]; [b, 1] each."""
        powers = _powers(self.far)
        # K labels pass at a smaller u; on the way there the series must not be asked where it does not hold
        most = self.k / max(self.near.shape[1] - self.k, 1)
        terms = self.far * (threshold + self.floor).exp().clamp(max=most) ** powers * (2 * (powers % 2) - 1)
        return terms.sum(1, keepdim=True), (powers * terms).sum(1, keepdim=True)


def _powers(sums: Tensor) -> Tensor:
    """1 .. J for sums [b, J]."""
    return torch.arange(1, sums.shape[1] + 1, device=sums.device, dtype=sums.dtype)
