"""Models as search sees them: vectors of queries and labels for each scorer.

`FrozenEncoder` scores with one encoder as it is, `TwoHeadScoring` with the heads of a trained model:

de       Phi_D(x)              .  Phi_D(z_l)
clf      N(Phi_C(x))           .  N(Psi_l)            the papers' UniDEC is trained unnormalised and searched on the
                                                     sphere; one that is searched by `dot` (Renee, UniDEC with
                                                     `plain-dot`) is not scaled
concat   [Phi_D(x), clf(x)]    .  [Phi_D(z_l), clf(l)]        = the sum of both scores, one search; with `plain-dot`
                                                     of a cosine and a dot product, each before its temperature
fused    [w Phi_D(x), (1-w) clf(x)]  .  the same      = w de + (1-w) clf; `harness.train.fusion` chooses w
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.model.encoders.encoder import NORM_FLOOR, Encoder, encode
from harness.model.heads import Classifier, TwoHeads

Vectors = dict[str, NDArray[np.float32]]
FUSED = "fused"


def measured(reported: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Return the scorers of a run: the reported one, then the method's usual ones, and `concat` beside `fused`."""
    return tuple(dict.fromkeys((reported, *usual, *(("concat",) if reported == FUSED else ()))))


@dataclass(frozen=True)
class TwoHeadScoring:
    """Vectors of queries and labels for every scorer; a run reports the first one."""

    model: TwoHeads
    scorers: tuple[str, ...]
    device: str
    batch_tokens: int
    fused_weight: float | None = None
    """Weight of `de` in scorer `fused`; None if there is no such scorer, or its weight is yet to be chosen."""
    text_scorer = "de"

    def query_vectors(self, tokens: Ragged, scorers: tuple[str, ...]) -> Vectors:
        """Return query vectors [n, D] by scorer."""
        encoded = self._encoded(tokens, "encode queries")
        parts = {}
        if _needs(scorers, "de"):
            parts["de"] = projected(self.model.retrieval, encoded, self.device)
        if _needs(scorers, "clf"):
            parts["clf"] = self._searched(projected(self._classifier, encoded, self.device))
        vectors = _joined(parts, scorers)
        if FUSED in scorers:
            vectors[FUSED] = self._weighted(vectors[FUSED], parts["de"].shape[1])
        return vectors

    def label_vectors(self, tokens: Ragged, scorers: tuple[str, ...]) -> Vectors:
        """Return label vectors [L, D] by scorer."""
        parts: Vectors = {}
        if _needs(scorers, "de"):
            parts["de"] = projected(self.model.retrieval, self._encoded(tokens, "encode labels"), self.device)
        if _needs(scorers, "clf"):
            parts["clf"] = self._searched(self._classifier.table.vectors())
        return _joined(parts, scorers)

    @property
    def _classifier(self) -> Classifier:
        if self.model.classifier is None:
            raise UserError("this model has no classifier; score with its dual encoder: scorer=de")
        return self.model.classifier

    def _weighted(self, both: NDArray[np.float32], width: int) -> NDArray[np.float32]:
        """Return query vectors [n, D] of both heads with their weights; the first `width` columns are those of `de`."""
        if self.fused_weight is None:
            raise UserError("the weight of scorer fused was not chosen; run anew, or set fused_weight")
        weights = np.full(both.shape[1], 1 - self.fused_weight, np.float32)
        weights[:width] = self.fused_weight
        return both * weights

    def _searched(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return normalised(vectors) if self._classifier.searched == "cosine" else vectors

    def _encoded(self, tokens: Ragged, description: str) -> NDArray[np.float32]:
        return encode(
            self.model.encoder, tokens, device=self.device, batch_tokens=self.batch_tokens, progress=description
        )


@dataclass(frozen=True)
class FrozenEncoder:
    """One encoder for queries and labels, without training."""

    encoder: Encoder
    normalise: bool
    device: str
    batch_tokens: int

    scorers = ("encoder",)
    text_scorer = "encoder"

    def query_vectors(self, tokens: Ragged, scorers: tuple[str, ...] = scorers) -> Vectors:
        """Return query vectors [n, D] by scorer."""
        return {"encoder": self._vectors(tokens, "encode queries")}

    def label_vectors(self, tokens: Ragged, scorers: tuple[str, ...] = scorers) -> Vectors:
        """Return label vectors [L, D] by scorer."""
        return {"encoder": self._vectors(tokens, "encode labels")}

    def _vectors(self, tokens: Ragged, description: str) -> NDArray[np.float32]:
        return encode(
            self.encoder,
            tokens,
            device=self.device,
            batch_tokens=self.batch_tokens,
            normalise=self.normalise,
            progress=description,
        )


def _needs(scorers: tuple[str, ...], part: str) -> bool:
    return part in scorers or "concat" in scorers or FUSED in scorers


def _joined(parts: Vectors, scorers: tuple[str, ...]) -> Vectors:
    """Return the vectors [n, D] of each scorer; those of `concat` and `fused` are one array, without weights."""
    if "concat" in scorers or FUSED in scorers:
        parts["concat"] = parts[FUSED] = np.concatenate([parts["de"], parts["clf"]], axis=1)
    return {scorer: parts[scorer] for scorer in scorers}


def projected(head: nn.Module, encoded: NDArray[np.float32], device: str, block: int = 16_384) -> NDArray[np.float32]:
    """Apply a head without dropout to encoded texts [n, E], block by block; return vectors [n, D].

    A list of blocks would need their memory twice, and the allocator keeps the holes that such a list leaves.
    """
    vectors = np.empty((0, 0), np.float32)
    training = head.training
    head.eval()
    try:
        with torch.no_grad():
            for start in range(0, max(1, len(encoded)), block):
                part = head(torch.from_numpy(encoded[start : start + block]).to(device)).float().cpu().numpy()
                if start == 0:
                    vectors = np.empty((len(encoded), part.shape[1]), np.float32)
                vectors[start : start + block] = part
    finally:
        head.train(training)
    return vectors


def normalised(vectors: NDArray[np.float32], block: int = 16_384) -> NDArray[np.float32]:
    """Return rows [n, D] scaled to length 1, computed block by block; a zero row stays zero."""
    scaled = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), block):
        part = vectors[start : start + block]
        lengths = np.linalg.norm(part, axis=1, keepdims=True)
        np.divide(part, np.maximum(lengths, NORM_FLOOR), out=scaled[start : start + block])
    return scaled
