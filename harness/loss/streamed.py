"""Losses over all L labels that meet their scores block by block, [B, C] at a time: no [B, L] array exists.

P_i are the positives that query i drew, with weights q_ip that sum to 1, R the number of queries with any:

    loss = (1/R) sum_i sum_{p in P_i} q_ip log(1 + e^(g_ip))        v_ip = q_ip sigmoid(g_ip) / R
    d loss / d s_il = (sum_p v_ip) e_il / sum_l e_il  -  [l in P_i] v_il

    decoupled-softmax    g_ip = c_i - s_ip       e_il = e^(s_il)               c_i = log sum_{l in C_i} e^(s_il)
    soft-topk            g_ip = -(s_ip + t_i)    e_il = sigmoid'(s_il + t_i)   K = sum_{l in C_i} sigmoid(s_il + t_i)

Candidates C_i leave out the positives that were not drawn and the ignored pairs; the softmax leaves out P_i as well.
First every block goes through `read`. Then `totals` has the loss, and `terms` writes e of any block, up to a factor.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus


@dataclass(frozen=True)
class Block:
    """C neighbouring labels, and where the known pairs of the batch are in their scores [B, C]."""

    drawn: slice
    """Its drawn pairs among the n of the batch, which are in the order of blocks."""
    query: Tensor
    """Place in the batch of the query of each of its d drawn pairs, [d]."""
    label: Tensor
    """Its label, counted from the first of the block, [d]."""
    hits: Tensor
    """query * C + label, [d]."""
    outside: Tensor
    """Likewise query * C + label of the pairs that take no part, [o]."""


@dataclass(frozen=True)
class Totals:
    """The loss and its gradient, d loss / d s_il = factor_i terms_il + [l drawn by i] pair_il."""

    loss: Tensor
    """[]."""
    factor: Tensor
    """[B]."""
    pair: Tensor
    """[n]."""


class StreamedLoss(ABC):
    """A loss of the form above; lives for one batch."""

    def __init__(self, rows: int, query: Tensor, share: Tensor) -> None:
        """Takes the drawn pairs.

        Args:
            rows: B.
            query: Place in the batch of the query of each pair, int64 [n].
            share: q / R, [n].
        """
        self._rows, self._query, self._share = rows, query, share
        self._matched = torch.zeros_like(share)

    def read(self, block: Block, scores: Tensor) -> None:
        """First pass: takes in the scores [B, C] of a block, and writes over them."""
        self._matched[block.drawn] = scores.view(-1)[block.hits]
        self._mask(block, scores)
        self._observe(scores)

    def totals(self) -> Totals:
        """What all blocks together say."""
        gap, total = self._gaps(self._matched)
        pull = self._share * torch.sigmoid(gap)
        mass = self._share.new_zeros(self._rows).index_add_(0, self._query, pull)
        return Totals((self._share * softplus(gap)).sum(), mass / total, -pull)

    def terms(self, block: Block, scores: Tensor) -> None:
        """Second pass: turns the scores [B, C] of a block into terms, in place."""
        self._mask(block, scores)
        self._to_terms(scores)

    def _mask(self, block: Block, scores: Tensor) -> None:
        """Writes -inf where a pair is no candidate."""
        scores.view(-1).index_fill_(0, block.outside, -torch.inf)

    @abstractmethod
    def _observe(self, scores: Tensor) -> None:
        """Takes in masked scores [B, C]; may write over them."""

    @abstractmethod
    def _gaps(self, matched: Tensor) -> tuple[Tensor, Tensor]:
        """The gaps g [n], from the scores of the drawn pairs [n], and the sum of all terms, greater than 0, [B]."""

    @abstractmethod
    def _to_terms(self, scores: Tensor) -> None:
        """Turns masked scores [B, C] into terms, in place."""


class DecoupledSoftmax(StreamedLoss):
    """Terms e^(s - shift_i), with shift_i the largest score of a candidate."""

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
