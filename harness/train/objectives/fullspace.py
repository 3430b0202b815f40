"""The objective of DEXML over all labels (Gupta et al. 2024), in bounded memory.

    first pass     for each block of labels: encode without a graph, score, let the loss read the scores
    second pass    for each block of labels: encode again with a graph, score, turn the scores into their gradient G,
                   dq += G z / t, send dz = G^T q / t backwards through the encoder at once, forget the block

    s = <q_i, z_l> / t, the loss is the decoupled softmax or soft top-k of `harness.loss.streamed`

At any moment the activations of one block of labels and its scores [B, C] exist, besides q and dq [B, D]: neither
[B, L] nor [L, D]. The random numbers of a block are a function of its position, so the second pass drops what the first
pass dropped. A transformer's labels are taken in order of length, and a block has at most `micro_batch_tokens` tokens;
its queries keep no graph meanwhile.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.batching import LabelSpace
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.loss.streamed import Block, DecoupledSoftmax, SoftTopK, StreamedLoss, Totals
from harness.model.dropout import seed_dropout
from harness.model.encoders.encoder import micro_batches, to_tensors
from harness.model.heads import TwoHeads
from harness.seeds import stream_seed
from harness.settings.parameters import OptimSettings
from harness.train import Batch
from harness.train.caching import TextObjective, autocast
from harness.train.timing import Timer

LossName = Literal["decoupled-softmax", "soft-topk"]


@dataclass
class FullSpace(TextObjective):
    """Encode a batch, go through all labels twice, send gradients back."""

    model: TwoHeads
    """The model whose encoder and dual-encoder head are trained."""
    queries: Ragged
    """Tokens of the train rows, [N] texts."""
    labels: Ragged
    """Tokens of the labels, [L] texts."""
    loss: LossName
    temperature: float
    """Divisor t of the inner products."""
    chunk: int
    """Most labels that are encoded and scored at once."""
    settings: OptimSettings
    device: str
    seed: int
    k: int = 5
    """Number of labels that pass the threshold of soft-topk."""
    alpha: float = 2.0
    """Steepness of soft-topk: it multiplies the scores."""
    _order: "LabelOrder" = field(init=False, repr=False)
    _scores: Tensor = field(init=False, repr=False, default_factory=lambda: torch.empty(0))
    """Buffer for the scores of one block, kept from step to step."""

    def __post_init__(self) -> None:
        if self.loss == "soft-topk" and not 1 <= self.k < len(self.labels):
            raise UserError(
                f"topk is {self.k}, and soft-topk needs more labels than that, but there are {len(self.labels):,}; "
                "lower topk or set loss=pick-one-label"
            )
        self._order = LabelOrder.of(self.labels, self.chunk, self.pieces, self.device)

    def work_in_pieces(self, tokens: int) -> None:
        """Encode queries in pieces, and labels in blocks, of at most `tokens` tokens from now on."""
        super().work_in_pieces(tokens)
        self._scores = torch.empty(0)  # made anew for the smaller blocks
        self._order = LabelOrder.of(self.labels, self.chunk, self.pieces, self.device)

    def backward(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Leave the gradients of the loss in every parameter; return the loss."""
        space = batch.pool
        assert isinstance(space, LabelSpace)
        with timer.part("gather"):
            query, share, blocks = located(space, self._order, self.device)
            loss = self._streamed(space, query, share)
        with autocast(self.settings, self.device), timer.part("encode"):
            encoding = self.encoding(batch, keep=False)
            seed_dropout(stream_seed(self.seed, "dropout", batch.step, 0))
            queries = self.model.retrieval(encoding.vectors).float()
        scaled = queries.detach() * self._scale
        totals = self._read(loss, blocks, scaled, batch.step, timer)
        gradient = self._send_back(loss, totals, blocks, scaled, batch.step, timer)
        with timer.part("backward"):
            torch.autograd.backward(queries, gradient)
        with autocast(self.settings, self.device), timer.part("encode"):
            encoding.backward()
        return {"loss": float(totals.loss)}

    @torch.no_grad()
    def _read(self, loss: StreamedLoss, blocks: list[Block], scaled: Tensor, step: int, timer: Timer) -> Totals:
        """Make the first pass, for query vectors [B, D] divided by t; return the loss and its sums."""
        for index, block in enumerate(blocks):
            vectors = self._encoded(index, step, timer)
            with timer.part("loss"):
                loss.read(block, self._scored(scaled, vectors))
        with timer.part("loss"):
            return loss.totals()

    def _send_back(
        self, loss: StreamedLoss, totals: Totals, blocks: list[Block], scaled: Tensor, step: int, timer: Timer
    ) -> Tensor:
        """Make the second pass, for query vectors [B, D] divided by t; return the gradient of the query vectors [B, D].

        Factors of a query commute with sums over labels, so they never multiply a matrix [B, C].
        """
        dense, sparse = torch.zeros_like(scaled), torch.zeros_like(scaled)
        weighted = scaled * totals.factor[:, None]
        for index, block in enumerate(blocks):
            vectors = self._encoded(index, step, timer)
            with torch.no_grad(), timer.part("loss"):
                terms = self._scored(scaled, vectors)
                loss.terms(block, terms)
                dense.addmm_(terms, vectors)
                gradient = terms.T @ weighted
                pair = totals.pair[block.drawn, None]
                sparse.index_add_(0, block.query, pair * vectors[block.label])
                gradient.index_add_(0, block.label, pair * scaled[block.query])
            with timer.part("backward"):
                torch.autograd.backward(vectors, gradient)
        return dense.mul_(totals.factor[:, None]).add_(sparse).mul_(self._scale)

    def _encoded(self, index: int, step: int, timer: Timer) -> Tensor:
        """Encode the labels of a block; return their vectors [C, D]."""
        # entered anew for every block, because autocast remembers weights that it converted without a graph
        with autocast(self.settings, self.device), timer.part("encode"):
            seed_dropout(stream_seed(self.seed, "dropout", step, 0, index))
            encoded = self.model.encoder(*to_tensors(self._order.texts(index), self.device))
            vectors: Tensor = self.model.retrieval(encoded.float()).float()
            return vectors

    def _scored(self, scaled: Tensor, vectors: Tensor) -> Tensor:
        """Write scores [B, C] of query vectors [B, D] divided by t and label vectors [C, D] into the shared buffer."""
        shape = (len(scaled), len(vectors))
        if self._scores.numel() < shape[0] * shape[1]:
            self._scores = scaled.new_empty(shape[0] * self._order.widest)
        return torch.mm(scaled, vectors.T, out=self._scores[: shape[0] * shape[1]].view(shape))

    def _streamed(self, space: LabelSpace, query: Tensor, share: Tensor) -> StreamedLoss:
        if self.loss == "soft-topk":
            return SoftTopK(space.rows, query, share, k=self.k, labels=space.size)
        return DecoupledSoftmax(space.rows, query, share)

    @property
    def _scale(self) -> float:
        """Return the factor of an inner product <q, z> in its score."""
        return (self.alpha if self.loss == "soft-topk" else 1.0) / self.temperature


@dataclass(frozen=True)
class LabelOrder:
    """All labels in the order in which they are encoded, cut into blocks."""

    tokens: Ragged
    """Tokens of the labels in the order of blocks, [L] texts."""
    place: NDArray[np.int64] | None
    """Position of each label in that order, [L]; None if they are in order of id."""
    edges: NDArray[np.int64]
    """Block c holds the labels edges[c] <= place < edges[c + 1]."""

    @classmethod
    def of(cls, labels: Ragged, chunk: int, micro_batch_tokens: int | None, device: str = "cpu") -> "LabelOrder":
        """Cut labels into blocks of at most `chunk` labels and so many tokens (None: no limit), longest texts first."""
        if micro_batch_tokens is None:
            return cls(labels, None, np.append(np.arange(0, len(labels), chunk), len(labels)))
        groups = micro_batches(labels.lengths, micro_batch_tokens, device)
        sizes = [len(part) for group in groups for part in np.split(group, range(chunk, len(group), chunk))]
        order = np.concatenate([np.zeros(0, np.int64), *groups])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(labels.take(order), place, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def widest(self) -> int:
        """Number of labels in the largest block."""
        return int(np.diff(self.edges).max(initial=0))

    def texts(self, index: int) -> Ragged:
        """Return the tokens of the labels of a block, [C] texts."""
        offsets = self.tokens.offsets[self.edges[index] : self.edges[index + 1] + 1]
        return Ragged(self.tokens.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def located(space: LabelSpace, order: LabelOrder, device: str) -> tuple[Tensor, Tensor, list[Block]]:
    """Sort the known pairs of a batch by blocks of labels.

    Returns:
        The query of every drawn pair [n] and its share q_ip / R [n], in the order of blocks, and the blocks.
    """
    drawn = space.drawn
    sums = np.bincount(space.query[drawn], weights=space.target[drawn], minlength=space.rows)
    share = space.target[drawn] / (sums[space.query[drawn]] * np.count_nonzero(sums))
    known = _in_blocks(space.query[drawn], space.label[drawn], order)
    outside = _in_blocks(
        np.concatenate([space.query[~drawn], space.ignored_query]),
        np.concatenate([space.label[~drawn], space.ignored_label]),
        order,
    )
    query, label, hits, masked = (
        torch.from_numpy(array).to(device) for array in (known.query, known.label, known.place, outside.place)
    )
    blocks = [
        Block(part, query[part], label[part], hits[part], masked[other])
        for part, other in zip(known.parts(), outside.parts(), strict=True)
    ]
    return query, torch.from_numpy(share[known.order].astype(np.float32)).to(device), blocks


@dataclass(frozen=True)
class _Located:
    """Pairs in the order of blocks, [n] each."""

    order: NDArray[np.int64]
    query: NDArray[np.int64]
    label: NDArray[np.int64]
    """Label of each pair, counted from the first label of its block."""
    place: NDArray[np.int64]
    """Index of each pair in the scores [B, C] of its block: query * C + label."""
    cuts: NDArray[np.int64]
    """The pairs of block c are cuts[c] to cuts[c + 1]."""

    def parts(self) -> list[slice]:
        return [slice(int(start), int(stop)) for start, stop in pairwise(self.cuts)]


def _in_blocks(query: NDArray[np.int64], label: NDArray[np.int64], order: LabelOrder) -> _Located:
    label = label if order.place is None else order.place[label]
    sorting = np.argsort(label, kind="stable")
    query, label, edges = query[sorting], label[sorting], order.edges
    block = np.searchsorted(edges, label, side="right") - 1
    local = label - edges[block]
    return _Located(sorting, query, local, query * np.diff(edges)[block] + local, np.searchsorted(label, edges))
