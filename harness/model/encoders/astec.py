"""The encoder of Astec (Dahiya et al. 2021): a bag of token vectors and a residual layer, at first the identity.

    v    = Dropout(ReLU(sum_t w(t) E[t] / |w|))          over the tokens t of x, |w|^2 = sum_t w(t)^2
    f(x) = v + ReLU(A v)                                 A / its spectral norm, A = identity at the start

Published: E from FastText, w tf-idf with rows of unit length. Here: E from the static distillation and w its token
weights (`harness.model.encoders.static`), scaled to unit length per text as well. The layer has no bias, so that a text
without tokens stays the zero vector. Dropout is 0.2; the paper's 0.5, made for classifiers, loses 4 to 7 points of P@1
on validation rows of lf-pydocstitles and lf-debiantitles, where label texts lose half of their components too.
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from harness.model.dropout import Dropout
from harness.model.encoders.static import STATIC_LEARNING_RATES, TokenEncoder, Weighting, distil


class SpectralMatrix(nn.Module):
    """A trainable matrix A [m, n] used as A / s(A), s(A) = the largest singular value (Miyato et al. 2018).

    The usual implementation estimates s by one power iteration per forward pass and keeps the iterate. The weights
    would then change from pass to pass: the second pass of gradient caching would see others than the first, and a
    resumed run others than an uninterrupted one. Here a pass depends on A alone: s = |A v| with v the first eigenvector
    of A^T A, computed anew (about 10 ms for 300 x 300). With v held fixed the gradient of |A v| is u v^T, that of s.
    """

    def __init__(self, weight: Tensor) -> None:
        """Store the initial values [m, n], not all zero."""
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self) -> Tensor:
        """Return the matrix [m, n] with largest singular value 1, differentiable, in float32 under autocast too."""
        with torch.autocast(self.weight.device.type, enabled=False):
            with torch.no_grad():
                direction = torch.linalg.eigh(self.weight.T @ self.weight).eigenvectors[:, -1]
            normalised: Tensor = self.weight / torch.linalg.vector_norm(self.weight @ direction)
            return normalised


VERSION = 1
"""Raised whenever the same options would give other vectors."""


class AstecEncoder(TokenEncoder):
    """Weighted bag, ReLU, residual layer; vectors have no negative component and are not of unit length."""

    learning_rates = STATIC_LEARNING_RATES._replace(one_vs_all=0.5)  # the mean of |x|^2 is about 4

    def __init__(self, table: Tensor, weighting: Weighting, dropout: float, **metadata: Any) -> None:
        """Store the token vectors [V, D]."""
        super().__init__(table, weighting, **metadata)
        self.dropout = Dropout(dropout)
        self.residual = SpectralMatrix(torch.eye(self.dim))

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """See `Encoder.forward`; a row whose tokens all have weight 0 gives a zero vector."""
        features = self.dropout(self.unit_bag(ids, offsets).relu())
        vectors: Tensor = features + (features @ self.residual().T).relu()
        return vectors.float()

    def unit_bag(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return sums [B, D] of token vectors; the weights of a row are scaled to unit length."""
        bag = self.bag(ids, offsets)
        if not len(bag):
            return bag
        squares = self.weights.square()[:, None]
        square = nn.functional.embedding_bag(ids, squares, offsets, mode="sum", include_last_offset=True)
        return bag / torch.where(square > 0, square, 1.0).sqrt()


def load_astec(
    *,
    name: str,
    seed: int,
    teacher: str = "minilm",
    dim: Annotated[int, Field(ge=1)] = 256,
    weighting: Weighting = "zipf+sif",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    max_len: int | None = None,
) -> AstecEncoder:
    """Load Astec's encoder on token vectors, which are distilled on first use (a minute on two cores) and cached.

    Args:
        name: Name of the encoder, for records.
        seed: Not used; nothing is drawn.
        teacher: As for `harness.model.encoders.static.load_static`.
        dim: Principal components kept, D.
        weighting: Factors of the token weights, in place of tf-idf.
        dropout: Share of the bag's components dropped in training; 0.5 in the paper.
        max_len: Tokens per text; by default the teacher's.
    """
    distilled = distil(teacher, dim, weighting, max_len)
    metadata = distilled.metadata(encoder="astec", encoder_version=VERSION, dropout=dropout)
    return AstecEncoder(distilled.table, weighting, dropout, name=name, **metadata)
