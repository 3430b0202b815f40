"""What an encoder is, and how a column of tokens goes through one.

    ids [T] + offsets [B + 1]  ->  float32 vectors [B, D]

Rows are ragged: how (and whether) they are padded is up to the encoder. `micro_batches` sorts rows by length
and cuts them where that costs least, so that rows of a group are almost equally long and next to nothing is spent on
padding; results come back in the order of the rows.
"""

from abc import ABC, abstractmethod
from collections import deque
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.data.ragged import Ragged
from harness.data.tokens import Tokenizer
from harness.errors import UserError, out_of_memory
from harness.io import progress as display
from harness.model import ENCODERS, load_encoder

__all__ = ["ENCODERS", "GROUPING", "Encoder", "encode", "load_encoder", "micro_batches", "to_tensors", "unit"]

NORM_FLOOR = 1e-12
"""Vectors shorter than this become zero when they are scaled to unit length."""


class LearningRates(NamedTuple):
    """Learning rates of an encoder, of the heads on top of it and of a classifier table."""

    encoder: float
    heads: float
    classifier: float
    one_vs_all: float = 0.05
    """Rate of a table for SGD on the summed loss of all labels. One step moves a query's own score by rate x |x|^2, so
    short vectors want a larger rate than a transformer's, whose squared length is in the tens or hundreds."""


class Encoder(nn.Module, ABC):
    """Tokens in, one vector per row out; trainable unless `encode` runs it."""

    learning_rates: LearningRates = LearningRates(encoder=1e-4, heads=2e-4, classifier=1e-3)
    """Default learning rates; here the papers' values for transformers."""
    micro_batched: bool = True
    """Whether its activations grow with the tokens, so that a training batch must be cut into micro-batches."""

    def __init__(
        self, *, name: str, dim: int, tokenizer: Tokenizer, max_len: int, longest: int | None, identity: str
    ) -> None:
        super().__init__()
        self.name = name
        self.dim = dim
        """Dimension D of the vectors."""
        self.tokenizer = tokenizer
        self.max_len = max_len
        """Tokens per text that the encoder was made for, special tokens included."""
        self.longest = longest
        """Most tokens per text that it can read; None for no limit."""
        self.identity = identity
        """sha256 of the initial weights and settings, for records."""

    @abstractmethod
    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return vectors [B, D] in float32 of rows `ids[offsets[i]:offsets[i + 1]]`, differentiable.

        Args:
            ids: Token ids of all rows, one after the other, int64 [T].
            offsets: Bounds of the rows, int64 [B + 1], on the same device. A row without tokens gives a zero vector.
        """

    def adapt(self, counts: NDArray[np.int64]) -> None:
        """Adapt to the count of each token id in the train and label texts, [V]; by default do nothing."""


def unit(vectors: Tensor) -> Tensor:
    """Scale rows [n, D] to length 1 in float32; a row shorter than `NORM_FLOOR` becomes zero and gets no gradient.

    The slope of x / |x| is 1 / |x|: the zero vector of a text without tokens would send back a gradient without bounds.
    """
    scaled: Tensor = _Unit.apply(vectors.float())  # type: ignore[no-untyped-call]
    return scaled


class _Unit(torch.autograd.Function):
    """y = x / |x|, dx = (dy - y <y, dy>) / |x|: a quarter of the time of autograd's record of y."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        length.masked_fill_(length < NORM_FLOOR, torch.inf)
        scaled: Tensor = vectors / length
        ctx.save_for_backward(scaled, length)
        return scaled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        scaled, length = ctx.saved_tensors
        along = torch.linalg.vecdot(scaled, gradient).unsqueeze(-1)
        towards: Tensor = torch.addcmul(gradient, scaled, along, value=-1).div_(length)
        return towards


class Grouping(NamedTuple):
    """Cost of groups of rows on a kind of device, in tokens."""

    call: int
    """Cost of one more group besides its tokens: short products are slow, and every call costs time."""
    most: int
    """Tokens of the largest group; beyond this products get no faster."""


GROUPING = {"cpu": Grouping(call=100, most=4096), "cuda": Grouping(call=1024, most=16_384)}
"""CPU: measured with MiniLM on two cores, where 2,048 tokens at a time are as fast as 8,192, and 1,024 a tenth slower.
CUDA: some 500 launches of a few microseconds for a group there and back, an estimate."""


def micro_batches(
    lengths: NDArray[np.int64], batch_tokens: int, device: torch.device | str = "cpu"
) -> list[NDArray[np.int64]]:
    """Group row indices by length, longest first: rows x longest row <= `batch_tokens` wherever one row fits.

    Rows sorted by length are cut where that is cheapest by

        sum over groups of  rows x longest row + call

    so a group ends where padding the next rows would cost more than a group of their own. Groups depend on
    `batch_tokens` only where it is less than the `most` of `GROUPING`.

    Args:
        lengths: Number of tokens of every row, [n].
        batch_tokens: Most tokens of a group, padding included.
        device: Device on which the groups are computed; its kind decides their cost.
    """
    if batch_tokens < 1:
        raise UserError(f"batch_tokens must be at least 1 (got {batch_tokens})")
    cost = GROUPING.get(torch.device(device).type, GROUPING["cuda"])
    order = np.argsort(-lengths, kind="stable")
    tokens = min(batch_tokens, cost.most)
    groups: list[NDArray[np.int64]] = []
    for start, stop in pairwise(_cheapest_cuts(lengths[order], tokens, cost.call)):
        rows = max(1, tokens // max(1, int(lengths[order[start]])))
        groups.extend(np.array_split(order[start:stop], -(-(stop - start) // rows)))
    return groups


def _cheapest_cuts(lengths: NDArray[np.int64], tokens: int, call: int) -> list[int]:
    """Return the cheapest cuts of falling lengths [n], 0 and n included; a part beyond `tokens` costs several groups.

    The cheapest way to group the first j different lengths ends with one group, from some length i on, behind the
    cheapest way to group the first i.
    """
    starts = np.flatnonzero(np.diff(lengths, prepend=-1))
    edges = np.append(starts, len(lengths))
    longest = np.maximum(lengths[starts], 1)
    rows = np.maximum(tokens // longest, 1)
    cheapest, last = np.zeros(len(edges)), np.zeros(len(edges), np.int64)
    for end in range(1, len(edges)):
        count = edges[end] - edges[:end]
        cost = cheapest[:end] + count * longest[:end] + call * -(-count // rows[:end])
        last[end] = cost.argmin()
        cheapest[end] = cost[last[end]]
    cuts = [len(starts)]
    while cuts[-1]:
        cuts.append(int(last[cuts[-1]]))
    return [int(edges[cut]) for cut in reversed(cuts)]


def to_tensors(tokens: Ragged, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return a column of tokens as the tensors (ids [T], offsets [B + 1]) that `Encoder.forward` takes.

    A copy to a CUDA device starts from pinned memory, so that the caller need not wait for it.
    """
    # a memory map is read-only, which a tensor cannot be
    columns = (torch.from_numpy(np.require(part, np.int64, "W")) for part in (tokens.values, tokens.offsets))
    if torch.device(device).type == "cuda":
        ids, offsets = (column.pin_memory().to(device, non_blocking=True) for column in columns)
    else:
        ids, offsets = (column.to(device) for column in columns)
    return ids, offsets


def encode(
    encoder: Encoder,
    tokens: Ragged,
    *,
    device: torch.device | str = "cpu",
    batch_tokens: int = 16_384,
    normalise: bool = False,
    progress: str | None = None,
) -> NDArray[np.float32]:
    """Encode every row without gradients and without dropout; return vectors [n, D].

    The size of the micro-batches changes speed and memory; results differ by rounding at most. Where the device runs
    out of memory the micro-batch at hand is halved.

    Args:
        encoder: Encoder, which is moved to `device` and left there, in the mode (train or eval) it had.
        tokens: Tokens of the rows, [n] texts.
        device: Device to compute on.
        batch_tokens: Most tokens of a micro-batch; `GROUPING` may end it earlier.
        normalise: Scale vectors to length 1; a zero vector stays zero.
        progress: Name of a progress bar; None shows none.
    """
    lengths = tokens.lengths
    if encoder.longest is not None and lengths.max(initial=0) > encoder.longest:
        raise UserError(
            f"texts have up to {lengths.max():,} tokens but encoder {encoder.name!r} reads at most {encoder.longest}; "
            "lower max_len"
        )
    vectors = np.empty((len(tokens), encoder.dim), dtype=np.float32)
    waiting = deque(
        micro_batches(lengths, batch_tokens, device) if encoder.micro_batched else _in_turn(lengths, batch_tokens)
    )
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


def _in_turn(lengths: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Group row indices in their order, about `batch_tokens` to a group, for encoders that pad nothing."""
    groups = np.cumsum(np.maximum(lengths, 1)) // batch_tokens
    return np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(groups)) + 1)


def _vectors(encoder: Encoder, tokens: Ragged, device: torch.device | str, normalise: bool) -> NDArray[np.float32]:
    vectors = encoder(*to_tensors(tokens, device)).float()
    if normalise:
        vectors = unit(vectors)
    array: NDArray[np.float32] = vectors.cpu().numpy()
    return array
