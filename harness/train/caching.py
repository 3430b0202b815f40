"""Encoding a whole batch with gradients in bounded memory.

A contrastive loss needs the vectors of all texts of a batch at once, and their activations may not fit at once. Texts
are encoded in groups. As many groups as fit keep their graph; the others are encoded without one, the loss gives the
gradient of every vector, and each of them is encoded again and sent backwards with the gradient that was kept
(GradCache, Gao et al. 2021), when the graphs of the first are gone. The random numbers of a group are a function of its
position, so the second pass drops what the first dropped, and the gradients equal those of one big pass.

Groups follow from the lengths of the texts and the kind of device alone, unless `micro_batch_tokens` is less than the
largest group there (`harness.model.encoders.encoder.GROUPING`): above that it changes speed and memory, not what is
dropped.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.batching import LabelPool, LabelSpace
from harness.data.ragged import Ragged
from harness.model.dropout import seed_dropout
from harness.model.encoders.encoder import Encoder, micro_batches, to_tensors
from harness.model.heads import TwoHeads
from harness.seeds import stream_seed
from harness.settings.parameters import OptimSettings
from harness.train import Batch


def product_type(settings: OptimSettings, device: str) -> torch.dtype:
    """Return the type of the factors of large products: bfloat16 if the settings ask for it; "auto" means on CUDA."""
    wanted = settings.precision
    half = wanted == "bfloat16" or (wanted == "auto" and device.startswith("cuda"))
    return torch.bfloat16 if half else torch.float32


def autocast(settings: OptimSettings, device: str) -> torch.autocast:
    """Return a context in which encoder and heads compute with `product_type`."""
    half = product_type(settings, device) == torch.bfloat16
    return torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=half)


class TextObjective:
    """An objective whose texts go through an encoder piece by piece, so that the loop can make the pieces smaller."""

    model: TwoHeads
    queries: Ragged
    """Tokens of the train rows, [N] texts."""
    settings: OptimSettings
    device: str
    seed: int

    @property
    def pieces(self) -> int | None:
        """Tokens whose activations may be in memory at once; None where the encoder takes a batch as a whole."""
        return self.settings.micro_batch_tokens if self.model.encoder.micro_batched else None

    def work_in_pieces(self, tokens: int) -> None:
        """Keep the activations of at most `tokens` tokens in memory from now on."""
        self.settings = self.settings.model_copy(update={"micro_batch_tokens": tokens, "gradient_cache": True})

    def texts(self, rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> Ragged:
        """Return the tokens of the queries, [B] texts."""
        return self.queries.take(rows)

    def encoding(self, batch: Batch, *, keep: bool = True) -> "BatchEncoding":
        """Encode the texts of a step, each group with random numbers of its own; number 0 is left to the heads.

        `keep` False leaves the memory to others until `backward`: with a gradient cache no graph is kept till then.
        """
        return BatchEncoding(
            self.model.encoder,
            self.texts(batch.rows, batch.pool) if batch.texts is None else batch.texts,
            self.device,
            self.settings.micro_batch_tokens,
            lambda group: stream_seed(self.seed, "dropout", batch.step, group + 1),
            cache=self.settings.gradient_cache,
            keep=keep,
        )


class BatchEncoding:
    """Vectors of a batch's texts; after the loss went backwards, `backward` carries on into the encoder.

    A text that occurs several times is encoded once, under one dropout mask, and its gradients are summed.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokens: Ragged,
        device: torch.device | str,
        micro_batch_tokens: int,
        seed_of: Callable[[int], int],
        *,
        cache: bool = True,
        keep: bool = True,
    ) -> None:
        """Encode `tokens` [n].

        Args:
            encoder: The encoder, in train mode.
            tokens: Tokens of all texts of the batch.
            device: The encoder's device.
            micro_batch_tokens: Tokens, padding included, whose activations may be in memory at once.
            seed_of: Maps the number of a group (0, 1, 2 ...) to the seed of its random numbers.
            cache: Whether groups beyond `micro_batch_tokens` are encoded twice; False keeps all activations.
            keep: Whether graphs are kept from the first pass on; False leaves their memory free until `backward`.
        """
        self._encoder, self._device, self._seed_of = encoder, device, seed_of
        if encoder.micro_batched:
            first, place = distinct_rows(tokens)
            self._tokens = tokens if len(first) == len(tokens) else tokens.take(first)
            self._groups = micro_batches(self._tokens.lengths, micro_batch_tokens, device)
            order = np.argsort(np.concatenate([np.zeros(0, np.int64), *self._groups]))[place]
            room = (micro_batch_tokens if keep else 0) if cache else None
            kept = _fitting(self._groups, self._tokens.lengths, room)
        else:
            self._tokens, self._groups, order, kept = tokens, [np.arange(len(tokens))], None, [0]
        # kept ones first: autocast remembers weights that it converted, and without a graph it converts them without
        parts = {group: self._encode(group) for group in kept}
        with torch.no_grad():
            self._leaves = {group: self._encode(group) for group in range(len(self._groups)) if group not in parts}
        for leaf in self._leaves.values():
            leaf.requires_grad_()
        parts |= self._leaves
        joined = torch.cat([parts[group] for group in range(len(parts))]) if len(parts) > 1 else parts[0]
        self.vectors = joined if order is None else joined.index_select(0, torch.from_numpy(order).to(device))
        """Vectors of the texts, [n, E]."""

    def backward(self) -> None:
        """Encode the groups that kept no graph again and send their gradients backwards."""
        for group, leaf in self._leaves.items():
            if leaf.grad is not None:
                vectors = self._encode(group)
                # as the first pass went backwards: autocast would narrow products of float32 on the way back
                with torch.autocast(torch.device(self._device).type, enabled=False):
                    torch.autograd.backward(vectors, leaf.grad)
                leaf.grad = None

    def _encode(self, group: int) -> Tensor:
        seed_dropout(self._seed_of(group))
        vectors: Tensor = self._encoder(*to_tensors(self._tokens.take(self._groups[group]), self._device))
        return vectors.float()


def _fitting(groups: list[NDArray[np.int64]], lengths: NDArray[np.int64], tokens: int | None) -> list[int]:
    """Return the numbers of groups with at most `tokens` tokens together, with padding; all if `tokens` is None."""
    if tokens is None:
        return list(range(len(groups)))
    kept = []
    for position, rows in enumerate(groups):
        padded = len(rows) * int(lengths[rows[0]])
        if padded <= tokens:
            kept.append(position)
            tokens -= padded
    return kept


_FACTORS = np.random.default_rng(0).integers(1, 2**63, 4096, dtype=np.uint64) | np.uint64(1)
"""Weights of the places in a text, odd, so that a product modulo 2^64 loses nothing."""


def distinct_rows(tokens: Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each distinct text [u], and for every row the number of its distinct text [n].

    Rows of equal keys are compared, so that two texts are never taken for one.
    """
    lengths = tokens.lengths
    position = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], lengths)
    terms = (tokens.values.astype(np.uint64) + np.uint64(1)) * _FACTORS[position % len(_FACTORS)]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    keys = sums[tokens.offsets[1:]] - sums[tokens.offsets[:-1]]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    every = np.arange(len(tokens))
    again = np.flatnonzero(first[place] != every)
    if not len(again) or not _equal(tokens.take(again), tokens.take(first[place[again]])):
        return every, every
    return np.sort(first), np.argsort(np.argsort(first))[place]


def _equal(left: Ragged, right: Ragged) -> bool:
    return np.array_equal(left.offsets, right.offsets) and np.array_equal(left.values, right.values)
