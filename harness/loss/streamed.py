"""Losses over all L labels that meet their scores block by block, [B, C] at a time: no [B, L] array exists.

P_i are the positives that query i drew, with weights q_ip that sum to 1, R the number of queries with any:

    loss = (1/R) sum_i sum_{p in P_i} q_ip log(1 + e^(g_ip))        v_ip = q_ip sigmoid(g_ip) / R
    d loss / d s_il = (sum_p v_ip) e_il / sum_l e_il  -  [l in P_i] v_il

    decoupled-softmax    g_ip = c_i - s_ip       e_il = e^(s_il)               c_i = log sum_{l in C_i} e^(s_il)
    soft-topk            g_ip = -(s_ip + t_i)    e_il = sigmoid'(s_il + t_i)   k = sum_{l in C_i} sigmoid(s_il + t_i)

Candidates C_i leave out the positives that were not drawn and the ignored pairs; the softmax leaves out P_i as well.
First every block goes through `read`. Then `totals` has the loss, and `terms` writes e of any block, up to a factor.

Soft top-k (the loss of `harness.loss.topk`) needs one pass over the scores although its threshold t_i is known only at
the end. Of every query the 8 k largest scores are kept, `near`. For the others, `far`, e^(s + t) <= k / (8 k - k) =
1/7, because 8 k labels are no smaller and all sum to k. So a few terms of the sigmoid's series are enough. With b
the smallest score in `near`, and u = e^(t + b),

    sum_far sigmoid(s + t) = S_1 u - S_2 u^2 + S_3 u^3 ...,        S_j = sum_far e^(j (s - b)),    j = 1 .. 8,

and S_j can be summed before t is known. Scores are multiplied by the steepness alpha beforehand.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from harness.loss.topk import balance


@dataclass(frozen=True)
class Block:
    """C neighbouring labels, and the positions of the batch's known pairs in their scores [B, C]."""

    drawn: slice
    """Slice of its drawn pairs among the n drawn pairs of the batch, which are in the order of blocks."""
    query: Tensor
    """Query of each of its d drawn pairs, as its index in the batch, [d]."""
    label: Tensor
    """Label of each drawn pair, counted from the first of the block, [d]."""
    hits: Tensor
    """Flat index of each drawn pair in the scores, query * C + label, [d]."""
    outside: Tensor
    """Flat index in the scores of each of the o pairs that are no candidates, [o]."""


@dataclass(frozen=True)
class Totals:
    """The loss and its gradient, d loss / d s_il = factor_i terms_il + [l drawn by i] pair_il."""

    loss: Tensor
    """Value of the loss, []."""
    factor: Tensor
    """Factor of each query's terms, [B]."""
    pair: Tensor
    """Gradient of each drawn pair's score beside its term, [n]."""


class StreamedLoss(ABC):
    """A loss of the form above; lives for one batch."""

    def __init__(self, rows: int, query: Tensor, share: Tensor) -> None:
        """Store the drawn pairs.

        Args:
            rows: Number of queries B.
            query: Query of each drawn pair, as its index in the batch, int64 [n].
            share: Share q / R of each drawn pair, [n].
        """
        self._rows, self._query, self._share = rows, query, share
        self._matched = torch.zeros_like(share)

    def read(self, block: Block, scores: Tensor) -> None:
        """Make the first pass over the scores [B, C] of a block, which are overwritten."""
        self._matched[block.drawn] = scores.view(-1)[block.hits]
        self._mask(block, scores)
        self._observe(scores)

    def totals(self) -> Totals:
        """Return loss and sums over all blocks."""
        gap, total = self._gaps(self._matched)
        pull = self._share * torch.sigmoid(gap)
        mass = self._share.new_zeros(self._rows).index_add_(0, self._query, pull)
        return Totals((self._share * softplus(gap)).sum(), mass / total, -pull)

    def terms(self, block: Block, scores: Tensor) -> None:
        """Make the second pass: turn the scores [B, C] of a block into terms, in place."""
        self._mask(block, scores)
        self._to_terms(scores)

    def _mask(self, block: Block, scores: Tensor) -> None:
        """Set the scores of pairs that are no candidates to -inf, in place."""
        scores.view(-1).index_fill_(0, block.outside, -torch.inf)

    @abstractmethod
    def _observe(self, scores: Tensor) -> None:
        """Add masked scores [B, C] to the sums; they may be overwritten."""

    @abstractmethod
    def _gaps(self, matched: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gaps g [n] of the drawn pairs, from their scores [n], and each query's sum of terms, above 0."""

    @abstractmethod
    def _to_terms(self, scores: Tensor) -> None:
        """Turn masked scores [B, C] into terms, in place."""


class DecoupledSoftmax(StreamedLoss):
    """Decoupled softmax: terms e^(s - shift_i), with shift_i the largest score of a candidate."""

    def __init__(self, rows: int, query: Tensor, share: Tensor) -> None:
        super().__init__(rows, query, share)
        # not -inf: where no candidate was met yet, -inf - -inf would not be a number
        self._shift = share.new_full((rows,), torch.finfo(share.dtype).min)
        self._total = share.new_zeros(rows)

    def _mask(self, block: Block, scores: Tensor) -> None:
        super()._mask(block, scores)
        scores.view(-1).index_fill_(0, block.hits, -torch.inf)

    def _observe(self, scores: Tensor) -> None:
        shift = torch.maximum(self._shift, scores.amax(1))
        self._total.mul_((self._shift - shift).exp_())
        self._shift = shift
        self._to_terms(scores)
        self._total += scores.sum(1)

    def _gaps(self, matched: Tensor) -> tuple[Tensor, Tensor]:
        # c - s, with large numbers subtracted from each other before a small one is added
        gap = (self._shift[self._query] - matched) + self._total.log()[self._query]
        return gap, self._total.clamp(min=torch.finfo(matched.dtype).tiny)

    def _to_terms(self, scores: Tensor) -> None:
        scores.sub_(self._shift[:, None]).exp_()


_NEAREST = 8
"""Largest scores kept per query, as a multiple of k."""
_SERIES = 8
"""Terms of the sigmoid's series: the error, 7^-8 = 2e-7, is that of float32."""
_EVERYTHING = 1e30
"""Threshold of a query with at most k candidates: all of them pass, loss and gradient are 0."""
_SLOPE_FLOOR = 1e-30
"""Least sum of slopes; it is reached if all candidates are about 70 from the threshold, and none is pushed."""


class SoftTopK(StreamedLoss):
    """Soft top-k: terms sigmoid'(s + t_i)."""

    def __init__(self, rows: int, query: Tensor, share: Tensor, *, k: int, labels: int) -> None:
        """Store the drawn pairs.

        Args:
            rows: Number of queries B.
            query: Query of each drawn pair, as its index in the batch, int64 [n].
            share: Share q / R of each drawn pair, [n].
            k: Number of labels that pass, less than L.
            labels: Number of labels L.
        """
        super().__init__(rows, query, share)
        self._k = k
        self._near = share.new_full((rows, min(_NEAREST * k, labels)), -torch.inf)
        # not -inf: as long as fewer than 8 k scores were met, -inf - -inf would not be a number
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
        """Add e^(j (s - b)) of scores [B, c], none above b, to S_j; the scores are overwritten."""
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
    """Kept scores and sums of b queries with more than k candidates each, to solve for their thresholds; float64."""

    near: Tensor
    """The 8 k largest scores, decreasing, -inf where there are fewer, [b, 8 k]."""
    floor: Tensor
    """Smallest score in `near`, [b, 1]."""
    far: Tensor
    """Sums S_j over the other scores, [b, J]; 0 unless `near` is full."""
    k: int

    def threshold(self) -> Tensor:
        """Solve for the thresholds t, [b, 1]."""
        best, rest = self.near.tensor_split([self.k], 1)

        def rest_sums(t: Tensor) -> tuple[Tensor, Tensor]:
            passing = torch.sigmoid(rest + t)
            far, slope = self._far_sums(t)  # sigmoid^2 = sigmoid - sigmoid'
            return passing.sum(1, keepdim=True) + far, passing.square().sum(1, keepdim=True) + far - slope

        others = torch.logaddexp(rest.logsumexp(1, keepdim=True), self.far[:, :1].log() + self.floor)
        return balance(best, rest_sums, ((-best).logsumexp(1, keepdim=True) - others) / 2)

    def slope(self, threshold: Tensor) -> Tensor:
        """Return the sum over all candidates of sigmoid'(s + t) for t [b, 1]; [b]."""
        below = torch.sigmoid(-(self.near + threshold).abs())
        return (below - below.square()).sum(1) + self._far_sums(threshold)[1].squeeze(1)

    def _far_sums(self, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums over `far` of sigmoid(s + t) and of its derivative for t [b, 1]; [b, 1] each."""
        powers = _powers(self.far)
        # k labels pass at a smaller u; on the way there the series must not be used where it does not hold
        most = self.k / max(self.near.shape[1] - self.k, 1)
        terms = self.far * (threshold + self.floor).exp().clamp(max=most) ** powers * (2 * (powers % 2) - 1)
        return terms.sum(1, keepdim=True), (powers * terms).sum(1, keepdim=True)


def _powers(sums: Tensor) -> Tensor:
    """Return the exponents 1 .. J for sums [b, J]."""
    return torch.arange(1, sums.shape[1] + 1, device=sums.device, dtype=sums.dtype)
