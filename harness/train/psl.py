"""The pick-some-labels objective of DePSL and UniDEC (Algorithm 1 of the thesis, section 2.3).

    L   = lambda L_D + (1 - lambda) L_C
    L_D = lambda_D l(S_D) + (1 - lambda_D) l(S_D^T)          S_D [B, P] = <Phi_D(x_i), Phi_D(z_l)> / t_D
    L_C = lambda_C l(S_C) + (1 - lambda_C) l(S_C^T) + w BCE  S_C [B, P] = <Phi_C(x_i), Psi_l> / t_C

with l any loss of `harness.loss` over the pool. Without a classifier L = L_D. Filter pairs take no part.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness import loss as losses
from harness.batching import LabelPool
from harness.config import Settings
from harness.data.ragged import Ragged
from harness.model.heads import TwoHeads
from harness.repro import stream_seed
from harness.train import Batch
from harness.train.caching import BatchEncoding
from harness.train.settings import OptimSettings, Positive, Share
from harness.train.timing import Timer


class LossSettings(Settings):
    """Losses of the dual-encoder head and their temperature."""

    loss: str = "decoupled-softmax"
    temperature: Positive = 1 / 27
    lambda_d: Share = 1.0


class ClassifierLossSettings(Settings):
    """Losses of the classifier head, and the balance of the two heads."""

    loss_classifier: str = "decoupled-softmax"
    temperature_classifier: Positive = 1 / 27
    lambda_c: Share = 1.0
    bce_weight: Annotated[float, Field(ge=0)] = 0.0
    bce_reduction: Literal["mean", "sum-labels"] = "mean"
    balance: Annotated[float, Field(alias="lambda", ge=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _bce_once(self) -> Self:
        if self.loss_classifier == "bce" and self.bce_weight:
            raise ValueError("bce_weight adds the loss that loss_classifier already is; set bce_weight to 0")
        return self


@dataclass
class PickSomeLabels:
    """Encode once, score with every head, send gradients back."""

    model: TwoHeads
    queries: Ragged
    """Tokens of the train rows, [N]."""
    labels: Ragged
    """Tokens of the labels, [L]."""
    losses: LossSettings
    classifier_losses: ClassifierLossSettings | None
    settings: OptimSettings
    device: str
    seed: int

    def backward(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Leaves the gradients of L in every parameter; returns L and its parts."""
        pool = batch.pool
        with timer.part("gather"):
            texts = self.queries.take(batch.rows).joined(self.labels.take(pool.labels[: pool.shared]))
            positive, ignored = to_device(pool, self.device)
            rows = self._classifier_rows(pool)
        with self._precision(), timer.part("encode"):
            encoding = BatchEncoding(
                self.model.encoder,
                texts,
                self.device,
                self.settings.micro_batch_tokens,
                lambda chunk: stream_seed(self.seed, "dropout", batch.step, chunk + 1),
                cache=self.settings.gradient_cache,
            )
        with self._precision(), timer.part("loss"):
            torch.manual_seed(stream_seed(self.seed, "dropout", batch.step, 0))
            encoded = encoding.vectors
            parts = self._parts(encoded[: len(batch.rows)], encoded[len(batch.rows) :], rows, pool, positive, ignored)
        with timer.part("backward"):
            torch.autograd.backward(parts["loss"])
        with self._precision(), timer.part("encode"):
            encoding.backward()
        return {name: float(part.detach()) for name, part in parts.items()}

    def _classifier_rows(self, pool: LabelPool) -> Tensor | None:
        """The pool's rows of Psi, [P, D]."""
        if self.model.classifier is None:
            return None
        return self.model.classifier.table.gather(torch.from_numpy(pool.labels).to(self.device))

    def _parts(
        self,
        queries: Tensor,
        labels: Tensor,
        rows: Tensor | None,
        pool: LabelPool,
        positive: Tensor,
        ignored: Tensor | None,
    ) -> dict[str, Tensor]:
        """L and its parts from encoded queries [B, E], encoded shared labels [shared, E] and rows of Psi [P, D]."""
        retrieval, classifier = self.model.retrieval, self.model.classifier
        scores = logits(retrieval(queries), retrieval(labels), self.losses.temperature)
        shared = slice(0, pool.shared)
        dual = losses.two_way(
            losses.get(self.losses.loss),
            scores,
            positive[:, shared],
            self.losses.lambda_d,
            None if ignored is None else ignored[:, shared],
        )
        if classifier is None or rows is None or self.classifier_losses is None:
            return {"loss": dual}
        settings = self.classifier_losses
        scores = logits(classifier(queries), classifier.rows(rows), settings.temperature_classifier)
        contrast = losses.two_way(losses.get(settings.loss_classifier), scores, positive, settings.lambda_c, ignored)
        parts = {"loss_d": dual, "loss_c": contrast}
        if settings.bce_weight:
            parts["loss_bce"] = losses.get("bce")(scores, positive, ignored=ignored, reduction=settings.bce_reduction)
            contrast = contrast + settings.bce_weight * parts["loss_bce"]
        return {"loss": settings.balance * dual + (1 - settings.balance) * contrast, **parts}

    def _precision(self) -> AbstractContextManager[Any]:
        """bfloat16 in encoder and heads where the device has it; scores, losses and weights stay float32."""
        wanted = self.settings.precision
        if wanted == "bfloat16" or (wanted == "auto" and self.device.startswith("cuda")):
            return torch.autocast(self.device.partition(":")[0], dtype=torch.bfloat16)
        return nullcontext()


def logits(queries: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Scores [B, P] of queries [B, D] and labels [P, D], in float32: bfloat16 has three digits, too few for a softmax.

    The smaller factor is scaled, not the product.
    """
    with torch.autocast(queries.device.type, enabled=False):
        return (queries.float() / temperature) @ labels.float().T


def to_device(pool: LabelPool, device: str) -> tuple[Tensor, Tensor | None]:
    """The masks [B, P] of a pool as tensors."""
    ignored = None if pool.ignored is None else torch.from_numpy(pool.ignored).to(device)
    return torch.from_numpy(pool.positive).to(device), ignored
