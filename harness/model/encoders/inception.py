"""The encoder of InceptionXML (Kharbanda et al. 2023): convolutions along the components of the token vectors.

    X [32, E]    first 32 words of x as w(t) E[t], zero rows where there are fewer; words are channels
    H = X + g1 (X X^T) A1 X        Y = H + g2 (H A2^T X^T) H        |A1| = |A2| = 1 (spectral), g = 0 at first
    C [96, E/4]  three convolutions (kernels 4, 8, 16, stride 4, circular) of a 1 x 1 convolution of sqrt(E) Y to 32
    h [480]      a convolution of C (kernel 16, stride 4) to 32 channels x 15 places, for E = 300
    f(x) = Dropout(h + GELU(U h))          GELU after every convolution too

Published: GloVe vectors, batch normalisation after every GELU. Here: vectors and weights w of the static distillation
(`harness.model.encoders.static`), sqrt(E) bringing components to the size GELU bends at, and no normalisation: across
texts it would make a vector depend on its batch, within a text it loses points on validation rows. Zero rows stay zero
in H and Y, so a batch is padded to its longest text only. Special tokens are not words.
"""

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import gelu

from harness.model.dropout import Dropout
from harness.model.encoders.astec import SpectralMatrix
from harness.model.encoders.encoder import LearningRates
from harness.model.encoders.static import TokenEncoder, Weighting, distil

VERSION = 1
"""Raised whenever the same options would give other initial weights or other vectors."""

WORDS = 32
CHANNELS = 32
KERNELS = (4, 8, 16)
STRIDE = 4
WIDEST = max(KERNELS)

INCEPTION_LEARNING_RATES = LearningRates(encoder=1e-2, heads=1e-3, classifier=1.5e-3, one_vs_all=0.3)
"""Learning rates; `encoder` is for token vectors and convolutions alike: the paper's 5e-3 learns less per step."""


class InceptionEncoder(TokenEncoder):
    """Attention over words and components, then two layers of convolutions and a residual layer."""

    learning_rates = INCEPTION_LEARNING_RATES
    micro_batched = True

    def __init__(self, table: Tensor, weighting: Weighting, dropout: float, **metadata: Any) -> None:
        """Store token vectors [V, E], E = 64, 68, 72 ...; draw the other weights from torch's generator."""
        width = table.shape[1]
        dim = CHANNELS * ((width // STRIDE - WIDEST) // STRIDE + 1)
        super().__init__(table, weighting, dim=dim, **metadata)
        self.words_attention = SpectralMatrix(nn.init.xavier_normal_(torch.empty(WORDS, WORDS)))
        self.components_attention = SpectralMatrix(nn.init.xavier_normal_(torch.empty(width, width)))
        self.attention_weights = nn.Parameter(torch.zeros(2))
        self.mix = nn.Conv1d(WORDS, CHANNELS, 1)
        shapes = [(CHANNELS, CHANNELS, kernel) for kernel in KERNELS]
        self.kernels = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(shape)) for shape in shapes)
        self.kernels_bias = nn.Parameter(torch.zeros(len(KERNELS) * CHANNELS))
        self.join = nn.Conv1d(len(KERNELS) * CHANNELS, CHANNELS, WIDEST, stride=STRIDE)
        self.residual = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)
        for layer in (self.mix, self.join, self.residual):
            nn.init.xavier_uniform_(layer.weight)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """See `Encoder.forward`; reads the first 32 words, and a row without words gives a zero vector."""
        if len(offsets) == 1:
            return self.table.weight.new_zeros(0, self.dim)
        words, filled = self.words(ids, offsets)
        attended = self.attend(words) * math.sqrt(words.shape[2])
        mixed = gelu(functional.conv1d(attended, self.mix.weight[:, : words.shape[1]], self.mix.bias))
        hidden = gelu(self.join(gelu(self.convolve(mixed)))).flatten(1)
        vectors = self.dropout(hidden + gelu(self.residual(hidden)))
        return torch.where(filled[:, None], vectors.float(), 0.0)

    def words(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return X [B, W, E] of the first words of every row, W <= 32, and which rows [B] have words."""
        count = len(offsets) - 1
        row = torch.repeat_interleave(torch.arange(count, device=ids.device), offsets.diff())
        word = self.weights[ids] > 0
        ids, row = ids[word], row[word]
        lengths = torch.bincount(row, minlength=count)
        place = torch.arange(len(ids), device=ids.device) - (lengths.cumsum(0) - lengths)[row]
        read = place < WORDS
        ids, row, place = ids[read], row[read], place[read]
        width = min(WORDS, max(1, int(lengths.max())))
        rows, source = self.rows(ids)
        vectors = rows[source] * self.weights[ids, None]
        padded = vectors.new_zeros(count * width, vectors.shape[1]).index_copy(0, row * width + place, vectors)
        return padded.view(count, width, -1), lengths > 0

    def attend(self, words: Tensor) -> Tensor:
        """Return Y [B, W, E] of X [B, W, E]; products are taken in the order that never makes an [E, E] per row."""
        first, second = self.attention_weights
        width = words.shape[1]
        mixing = self.words_attention()[:width, :width]
        hidden = words + first * (words @ words.mT @ mixing @ words)
        attended: Tensor = hidden + second * (hidden @ self.components_attention().T @ words.mT @ hidden)
        return attended

    def convolve(self, mixed: Tensor) -> Tensor:
        """Return C [B, 96, E / 4] of [B, 32, E]: the parallel convolutions as one, kernels padded with zeros."""
        margin = (WIDEST - STRIDE) // 2
        around = functional.pad(mixed, (margin, margin), mode="circular")
        weight = torch.cat([centred(kernel, WIDEST) for kernel in self.kernels])
        return functional.conv1d(around, weight, self.kernels_bias, stride=STRIDE)


def centred(weight: Tensor, width: int) -> Tensor:
    """Pad kernels [out, in, k] with zeros on both sides, [out, in, width]."""
    margin = (width - weight.shape[2]) // 2
    return functional.pad(weight, (margin, margin))


def load_inception(
    *,
    name: str,
    seed: int,
    teacher: str = "minilm",
    dim: Annotated[int, Field(ge=64, multiple_of=4)] = 300,
    weighting: Weighting = "zipf+sif",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5,
    max_len: int | None = None,
) -> InceptionEncoder:
    """Load InceptionXML's encoder on token vectors, distilled on first use (a minute on two cores) and cached.

    Args:
        name: Name of the encoder, for records.
        seed: Seed of all weights but the token vectors.
        teacher: As for `harness.model.encoders.static.load_static`.
        dim: Principal components kept, E; 300 gives vectors of 480 dimensions.
        weighting: Factors of the token weights.
        dropout: Share of the vector's components dropped in training; 0.4 or 0.5 in the paper's code.
        max_len: Tokens per text; by default room for 32 words and the special tokens around them.
    """
    distilled = distil(teacher, dim, weighting, max_len)
    metadata = distilled.metadata(encoder="inceptionxml", encoder_version=VERSION, dropout=dropout, seed=seed)
    frame = sum(map(len, metadata["tokenizer"].frame))
    metadata["max_len"] = min(metadata["max_len"], max_len or WORDS + frame)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return InceptionEncoder(distilled.table, weighting, dropout, name=name, **metadata)
