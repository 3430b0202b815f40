"""Encoding a whole batch with gradients in bounded memory.

A contrastive loss needs the vectors of all texts of a batch at once, their activations do not fit at once. So texts are
encoded in micro-batches without a graph, the loss gives the gradient of every vector, and each micro-batch is encoded
again with a graph and sent backwards with the gradient that was kept (GradCache, Gao et al. 2021). The random numbers
of a micro-batch are a function of its position, so the second pass drops what the first pass dropped, and the gradients
equal those of one big pass.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.data.ragged import Ragged
from harness.model.encoder import Encoder, micro_batches, to_tensors
from harness.model.heads import TwoHeads
from harness.repro import stream_seed
from harness.train.settings import OptimSettings


class InPieces:
    """An objective whose texts go through an encoder piece by piece, so that the loop can make the pieces smaller."""

    model: TwoHeads
    settings: OptimSettings

    @property
    def pieces(self) -> int | None:
        """Tokens of a piece; None where the encoder takes a batch as a whole."""
        return self.settings.micro_batch_tokens if self.model.encoder.micro_batched else None

    def work_in_pieces(self, tokens: int) -> None:
        """Works in pieces of so many tokens from now on, one of them in memory at a time."""
        self.settings = self.settings.model_copy(update={"micro_batch_tokens": tokens, "gradient_cache": True})


def encode_batch(
    encoder: Encoder, texts: Ragged, settings: OptimSettings, device: str, seed: int, step: int
) -> "BatchEncoding":
    """Texts of a training step [n] with its own random numbers; position 0 of the step is left to what comes after."""
    return BatchEncoding(
        encoder,
        texts,
        device,
        settings.micro_batch_tokens,
        lambda chunk: stream_seed(seed, "dropout", step, chunk + 1),
        cache=settings.gradient_cache,
    )


class BatchEncoding:
    """Vectors of a batch's texts; after the loss went backwards, `backward` carries on into the encoder."""

    def __init__(
        self,
        encoder: Encoder,
        tokens: Ragged,
        device: torch.device | str,
        micro_batch_tokens: int,
        seed_of: Callable[[int], int],
        *,
        cache: bool = True,
    ) -> None:
        """Encodes `tokens` [n].

        Args:
            encoder: In train mode.
            tokens: All texts of the batch.
            device: Where the encoder is.
            micro_batch_tokens: Tokens, padding included, of one micro-batch.
            seed_of: Seed of the random numbers of micro-batch 0, 1, 2 ...
            cache: Keep only vectors and encode twice; False keeps every activation and encodes once.
        """
        self._encoder, self._tokens, self._device, self._seed_of = encoder, tokens, device, seed_of
        self._chunks = (
            micro_batches(tokens.lengths, micro_batch_tokens) if encoder.micro_batched else [np.arange(len(tokens))]
        )
        self._cached = cache and len(self._chunks) > 1
        with torch.set_grad_enabled(not self._cached):
            parts = [self._encode(index) for index in range(len(self._chunks))]
        self.vectors = parts[0] if len(parts) == 1 and not encoder.micro_batched else self._in_order(parts)
        """[n, E]."""
        if self._cached:
            self.vectors.requires_grad_()

    def backward(self) -> None:
        """Second pass of a cached encoding; nothing is left to do otherwise."""
        if not self._cached:
            return
        gradient = self.vectors.grad
        if gradient is None:
            return
        for index, rows in enumerate(self._chunks):
            torch.autograd.backward(self._encode(index), gradient[torch.from_numpy(rows).to(gradient.device)])

    def _encode(self, index: int) -> Tensor:
        torch.manual_seed(self._seed_of(index))
        vectors: Tensor = self._encoder(*to_tensors(self._tokens.take(self._chunks[index]), self._device))
        return vectors.float()

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        places: NDArray[np.int64] = np.argsort(np.concatenate(self._chunks))
        return torch.cat(parts).index_select(0, torch.from_numpy(places).to(self._device))
