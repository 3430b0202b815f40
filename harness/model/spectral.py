"""Matrices of spectral norm 1, for the frugal encoders.

    A -> A / s(A)          s(A) = the largest singular value (Miyato et al. 2018)

The usual implementation estimates s by one power iteration per forward pass and keeps the iterate. The weights would
then change from pass to pass: the second pass of gradient caching would see others than the first, and a resumed run
others than an uninterrupted one. Here a pass depends on A alone: s = |A v| with v the first eigenvector of A^T A, which
is computed anew (about 10 ms for 300 x 300). With v held fixed the gradient of |A v| is u v^T, that of s.
"""

import torch
from torch import Tensor, nn


class SpectralMatrix(nn.Module):
    """A trainable matrix [m, n] that is used divided by its largest singular value."""

    def __init__(self, weight: Tensor) -> None:
        """Takes the first values [m, n], not all zero."""
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self) -> Tensor:
        """The matrix [m, n] with largest singular value 1, differentiable, in float32 under autocast too."""
        with torch.autocast(self.weight.device.type, enabled=False):
            with torch.no_grad():
                direction = torch.linalg.eigh(self.weight.T @ self.weight).eigenvectors[:, -1]
            normalised: Tensor = self.weight / torch.linalg.vector_norm(self.weight @ direction)
            return normalised
