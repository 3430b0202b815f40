"""What an encoder is, and how a column of tokens goes through one.

    ids [T] + offsets [B + 1]  ->  float32 vectors [B, D]

Rows are ragged: how (and whether) they are padded is the encoder's own business. `encode` sorts rows by length and cuts
them into micro-batches of a bounded number of tokens, so that rows of a micro-batch are almost equally long and next to
nothing is spent on padding; the result comes back in the order of the rows.
"""

from abc import ABC, abstractmethod
from collections import deque
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness import progress as display
from harness.data.ragged import Ragged
from harness.data.tokens import Tokenizer
from harness.errors import UserError, out_of_memory
from harness.model import ENCODERS, load_encoder

__all__ = ["ENCODERS", "Encoder", "encode", "load_encoder", "micro_batches", "to_tensors", "unit"]

NORM_FLOOR = 1e-12
"""Vectors shorter than this have no direction: scaled to unit length they are zero."""


class LearningRates(NamedTuple):
    """Learning rates of an encoder, of the heads on top of it and of a classifier table."""

    encoder: float
    heads: float
    classifier: float
    one_vs_all: float = 0.05
    """Of a table under SGD on the summed loss of all labels. One step moves a query's own score by rate x |x|^2, so
    short vectors want a larger rate than a transformer's, whose squared length is in the tens or hundreds."""


class Encoder(nn.Module, ABC):
    """Tokens in, one vector per row out; trainable unless `encode` runs it."""

    learning_rates: LearningRates = LearningRates(encoder=1e-4, heads=2e-4, classifier=1e-3)
    """What training takes unless the config says otherwise: the papers' values for transformers."""
    micro_batched: bool = True
    """Whether its activations grow with the tokens, so that a training batch must be cut into micro-batches."""

    def __init__(
        self, *, name: str, dim: int, tokenizer: Tokenizer, max_len: int, longest: int | None, identity: str
    ) -> None:
        super().__init__()
        self.name = name
        self.dim = dim
        """D."""
        self.tokenizer = tokenizer
        self.max_len = max_len
        """Tokens per text the encoder was made for, special tokens included."""
        self.longest = longest
        """Tokens per text it can read at all; None for no limit."""
        self.identity = identity
        """sha256 of the initial weights and settings, for records."""

    @abstractmethod
    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Vectors [B, D] in float32 of rows `ids[offsets[i]:offsets[i + 1]]`, differentiable.

        Args:
            ids: int64 [T], all rows one after the other.
            offsets: int64 [B + 1], on the same device. A row without tokens gives a zero vector.
        """

    def adapt(self, counts: NDArray[np.int64]) -> None:
        """Takes in how often each id occurs in the train and label texts, [V]; most encoders have no use for it."""


def unit(vectors: Tensor) -> Tensor:
    """Rows [n, D] scaled to length 1 in float32; a row shorter than `NORM_FLOOR` becomes zero and gets no gradient.

    The slope of x / |x| is 1 / |x|: the zero vector of a text without tokens would send back a gradient without bounds.
    """
    vectors = vectors.float()
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    short = length < NORM_FLOOR
    return torch.where(short, 0.0, vectors / torch.where(short, 1.0, length))


def micro_batches(lengths: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Row indices grouped by length, longest first: rows x longest row <= `batch_tokens` wherever one row fits.

    Args:
        lengths: Tokens of every row, [n].
        batch_tokens: Budget of one group.
    """
    if batch_tokens < 1:
        raise UserError(f"batch_tokens must be at least 1 (got {batch_tokens})")
    order = np.argsort(-lengths, kind="stable")
    groups, start = [], 0
    while start < len(order):
        rows = max(1, batch_tokens // max(1, int(lengths[order[start]])))
        groups.append(order[start : start + rows])
        start += rows
    return groups


def to_tensors(tokens: Ragged, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """A column as the (ids [T], offsets [B + 1]) that `Encoder.forward` takes."""
    ids = torch.from_numpy(tokens.values.astype(np.int64)).to(device)
    return ids, torch.from_numpy(tokens.offsets.astype(np.int64)).to(device)


def encode(
    encoder: Encoder,
    tokens: Ragged,
    *,
    device: torch.device | str = "cpu",
    batch_tokens: int = 16_384,
    normalise: bool = False,
    progress: str | None = None,
) -> NDArray[np.float32]:
    """Vectors of every row, [n, D], without gradients and without dropout.

    The size of the micro-batches changes speed and memory; results differ by rounding at most. Where the device runs
    out of memory the micro-batch at hand is halved.

    Args:
        encoder: Moved to `device` and left there, in the mode (train or eval) it had.
        tokens: Rows of ids, [n].
        device: Where to compute.
        batch_tokens: Tokens per micro-batch.
        normalise: Scale vectors to length 1; a zero vector stays zero.
        progress: What to call the work in a progress bar; None shows none.
    """
    lengths = tokens.lengths
    if encoder.longest is not None and lengths.max(initial=0) > encoder.longest:
        raise UserError(
            f"texts have up to {lengths.max():,} tokens but encoder {encoder.name!r} reads at most {encoder.longest}; "
            "lower max_len"
        )
    vectors = np.empty((len(tokens), encoder.dim), dtype=np.float32)
    waiting = deque(micro_batches(lengths, batch_tokens))
    training = encoder.training
    encoder.to(device).eval()
    bar = nullcontext(lambda _: None) if progress is None else display.progress(progress, total=len(tokens))
    try:
        with torch.no_grad(), bar as advance:  # inference tensors could not be cached for a later backward pass
            while waiting:
                rows = waiting.popleft()
                try:
                    vectors[rows] = _vectors(encoder, tokens.take(rows), device, normalise)
                except (RuntimeError, MemoryError) as error:
                    if len(rows) == 1 or not out_of_memory(error):
                        raise
                    waiting.extendleft(np.array_split(rows, 2))
                    continue
                advance(len(rows))
    finally:
        encoder.train(training)
    return vectors


def _vectors(encoder: Encoder, tokens: Ragged, device: torch.device | str, normalise: bool) -> NDArray[np.float32]:
    vectors = encoder(*to_tensors(tokens, device)).float()
    if normalise:
        vectors = unit(vectors)
    array: NDArray[np.float32] = vectors.cpu().numpy()
    return array
