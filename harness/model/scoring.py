"""A trained two-headed model as search sees it: one pair of vectors per way of scoring.

de       Phi_D(x)              .  Phi_D(z_l)
clf      N(Phi_C(x))           .  N(Psi_l)            the papers' UniDEC is trained unnormalised and searched on the
                                                     sphere; one that is searched by `dot` (Renee, UniDEC with
                                                     `plain-dot`) is not scaled
concat   [Phi_D(x), clf(x)]    .  [Phi_D(z_l), clf(l)]        = the sum of both scores, one search; with `plain-dot`
                                                     of a cosine and a dot product, each before its temperature
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.model.encoder import NORM_FLOOR, encode
from harness.model.heads import Classifier, TwoHeads

Views = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class TwoHeadScorer:
    """Vectors of queries and labels for every way of scoring; the first view is the one a run reports."""

    model: TwoHeads
    views: tuple[str, ...]
    device: str
    batch_tokens: int
    text_view = "de"

    def query_vectors(self, tokens: Ragged, views: tuple[str, ...]) -> Views:
        """Vectors of queries, [n, D] each."""
        encoded = self._encoded(tokens, "encode queries")
        parts = {}
        if _needs(views, "de"):
            parts["de"] = projected(self.model.retrieval, encoded, self.device)
        if _needs(views, "clf"):
            parts["clf"] = self._searched(projected(self._classifier, encoded, self.device))
        return _joined(parts, views)

    def label_vectors(self, tokens: Ragged, views: tuple[str, ...]) -> Views:
        """Vectors of labels, [L, D] each."""
        parts: Views = {}
        if _needs(views, "de"):
            parts["de"] = projected(self.model.retrieval, self._encoded(tokens, "encode labels"), self.device)
        if _needs(views, "clf"):
            parts["clf"] = self._searched(self._classifier.table.vectors())
        return _joined(parts, views)

    @property
    def _classifier(self) -> Classifier:
        if self.model.classifier is None:
            raise UserError("this model has no classifier; score with its dual encoder: scorer=de")
        return self.model.classifier

    def _searched(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return normalised(vectors) if self._classifier.searched == "cosine" else vectors

    def _encoded(self, tokens: Ragged, description: str) -> NDArray[np.float32]:
        return encode(
            self.model.encoder, tokens, device=self.device, batch_tokens=self.batch_tokens, progress=description
        )


def _needs(views: tuple[str, ...], part: str) -> bool:
    return part in views or "concat" in views


def _joined(parts: Views, views: tuple[str, ...]) -> Views:
    if "concat" in views:
        parts["concat"] = np.concatenate([parts["de"], parts["clf"]], axis=1)
    return {view: parts[view] for view in views}


def projected(head: nn.Module, encoded: NDArray[np.float32], device: str, block: int = 16_384) -> NDArray[np.float32]:
    """A head without dropout on encoded texts [n, E]: [n, D], block by block into one array.

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
    """Rows [n, D] scaled to length 1, block by block into one array; a zero row stays zero."""
    scaled = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), block):
        part = vectors[start : start + block]
        lengths = np.linalg.norm(part, axis=1, keepdims=True)
        np.divide(part, np.maximum(lengths, NORM_FLOOR), out=scaled[start : start + block])
    return scaled
