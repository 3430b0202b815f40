"""The pick-some-labels objective of DePSL and UniDEC (Algorithm 1 of the thesis, section 2.3).

    L   = lambda L_D + (1 - lambda) L_C
    L_D = lambda_D l(S_D) + (1 - lambda_D) l(S_D^T)          S_D [B, P] = <Phi_D(x_i), Phi_D(z_l)> / t_D
    L_C = lambda_C l(S_C) + (1 - lambda_C) l(S_C^T) + w BCE  S_C [B, P] = <Phi_C(x_i), Psi_l> / t_C

with l any loss of `harness.loss` over the pool. Without a classifier L = L_D. Filter pairs take no part. Methods of one
positive a query (DPR, DEXML, NGAME) are the same with `drawn_only`: what a query drew counts, its other positives take
no part.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness import loss as losses
from harness.batching import LabelPool, LabelSpace
from harness.data.ragged import Ragged
from harness.model.dropout import seed_dropout
from harness.model.heads import TwoHeads
from harness.seeds import stream_seed
from harness.settings.parameters import ClassifierLossSettings, LossSettings, OptimSettings
from harness.train import Batch
from harness.train.caching import TextObjective, autocast
from harness.train.timing import Timer


@dataclass
class PickSomeLabels(TextObjective):
    """Encode once, score with every head, send gradients back."""

    model: TwoHeads
    queries: Ragged
    """Tokens of the train rows, [N] texts."""
    labels: Ragged
    """Tokens of the labels, [L] texts."""
    losses: LossSettings
    classifier_losses: ClassifierLossSettings | None
    settings: OptimSettings
    device: str
    seed: int
    drawn_only: bool = False
    """Whether only the positives that a query drew count and its others are masked; the pool must mark them."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the dual encoder's loss."""

    def texts(self, rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> Ragged:
        """Return the tokens of the queries [B], then those of the labels that every head scores."""
        assert isinstance(pool, LabelPool)
        return self.queries.take(rows).joined(self.labels.take(pool.labels[: pool.shared]))

    def backward(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Leave the gradients of L in every parameter; return L and its parts."""
        pool = batch.pool
        assert isinstance(pool, LabelPool)
        with timer.part("gather"):
            masks = masks_of(pool, self.device, self.drawn_only)
            head = self.model.classifier
            rows = None if head is None else head.table.gather(torch.from_numpy(pool.labels), self.device)
        with autocast(self.settings, self.device), timer.part("encode"):
            encoding = self.encoding(batch)
        with autocast(self.settings, self.device), timer.part("loss"):
            seed_dropout(stream_seed(self.seed, "dropout", batch.step, 0))
            parts = self._parts(encoding.vectors, rows, masks)
        with timer.part("backward"):
            torch.autograd.backward(parts["loss"])
        with autocast(self.settings, self.device), timer.part("encode"):
            encoding.backward()
        return {name: float(part.detach()) for name, part in parts.items()}

    def _parts(self, encoded: Tensor, rows: Tensor | None, masks: "Masks") -> dict[str, Tensor]:
        """Compute L and its parts from encoded queries and shared labels [B + shared, E] and rows of Psi [P, D]."""
        retrieval, classifier, count = self.model.retrieval, self.model.classifier, len(masks.positive)
        # one split, whose gradient is one copy; that of every slice would be a tensor of the whole
        dual_queries, dual_labels = retrieval(encoded).split((count, len(encoded) - count))
        scores = logits(dual_queries, dual_labels, self.losses.temperature)
        shared = masks.of_first(scores.shape[1])
        dual = losses.two_way(
            losses.get(self.losses.loss),
            scores,
            shared.positive,
            self.losses.lambda_d,
            shared.ignored,
            **shared.soft(),
            **self.options,
        )
        if classifier is None or rows is None or self.classifier_losses is None:
            return {"loss": dual}
        settings = self.classifier_losses
        scores = logits(classifier(encoded[:count]), classifier.rows(rows), settings.temperature_classifier)
        contrast = losses.two_way(
            losses.get(settings.loss_classifier),
            scores,
            masks.positive,
            settings.lambda_c,
            masks.ignored,
            **masks.soft(),
        )
        parts = {"loss_d": dual, "loss_c": contrast}
        if settings.bce_weight:
            parts["loss_bce"] = losses.get("bce")(
                scores, masks.positive, ignored=masks.ignored, reduction=settings.bce_reduction, **masks.soft()
            )
            contrast = contrast + settings.bce_weight * parts["loss_bce"]
        return {"loss": settings.balance * dual + (1 - settings.balance) * contrast, **parts}


def logits(queries: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Score queries [B, D] and labels [P, D] in float32, [B, P]: bfloat16 has three digits, too few for a softmax.

    The smaller factor is scaled, not the product.
    """
    with torch.autocast(queries.device.type, enabled=False):
        return (queries.float() / temperature) @ labels.float().T


@dataclass(frozen=True)
class Masks:
    """Positives, ignored pairs and targets of a pool, as tensors [B, P]."""

    positive: Tensor
    ignored: Tensor | None
    target: Tensor | None
    """Target of each positive, in (0, 1]; None if all are 1."""

    def of_first(self, labels: int) -> "Masks":
        """Return the masks of the first `labels` labels of the pool."""
        if labels == self.positive.shape[1]:
            return self
        cut = (None if mask is None else mask[:, :labels] for mask in (self.ignored, self.target))
        return Masks(self.positive[:, :labels], *cut)

    def soft(self) -> dict[str, Tensor]:
        """Return the targets as the keyword argument of a loss; empty if there are none."""
        return {} if self.target is None else {"target": self.target}


def masks_of(pool: LabelPool, device: str, drawn_only: bool = False) -> Masks:
    """Return the masks of a pool on a device; `drawn_only` ignores positives that their query did not draw."""
    positive, ignored, target = pool.positive, pool.ignored, pool.target
    if drawn_only:
        assert pool.drawn is not None, "the picker must mark what is drawn"
        others = positive & ~pool.drawn
        # drawn in proportion to their targets, so each counts in full
        positive, ignored, target = pool.drawn, others if ignored is None else others | ignored, None
    tensors = (None if mask is None else torch.from_numpy(mask).to(device) for mask in (ignored, target))
    return Masks(torch.from_numpy(positive).to(device), *tensors)
