"""`depsl`: a dual encoder trained with pick-some-labels (DePSL; SupConDE in the preprint).

The objective is `harness.train.psl`, batches and hard negatives are `harness.train.mining`. `unidec` adds a classifier.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import nn

from harness.batching.pool import LabelPicker
from harness.loss import LOSSES
from harness.method import Inputs, Method, Parts
from harness.model.heads import HeadStart, RetrievalHead, TwoHeads, start_projection
from harness.model.rows import RowTable
from harness.model.scoring import TwoHeadScorer
from harness.repro import stream_seed
from harness.train import Stage
from harness.train.mining import MinedBatches
from harness.train.optim import Group, Optimiser, Schedule, decayed
from harness.train.psl import ClassifierLossSettings, LossSettings, PickSomeLabels
from harness.train.settings import BatchSettings, Dropout, OptimSettings, PoolSettings


class DualEncoderParams(BatchSettings, PoolSettings, LossSettings, OptimSettings):
    """Knobs of the dual-encoder half of DePSL and UniDEC."""

    dim: Annotated[int, Field(ge=1)] | None = None
    init_heads: HeadStart = "orthogonal"
    dropout: Dropout = 0.1

    @field_validator("loss", "loss_classifier", check_fields=False)
    @classmethod
    def _known_loss(cls, name: str) -> str:
        if name not in LOSSES:
            raise ValueError(f"no such loss; known: {', '.join(LOSSES)}")
        return name


def build(inputs: Inputs, params: DualEncoderParams) -> Parts:
    """A dual encoder alone."""
    model = TwoHeads(inputs.encoder, retrieval_head(inputs, params, params.dim or inputs.encoder.dim), None)
    model.to(inputs.device)
    scorer = TwoHeadScorer(model, ("de",), inputs.device, inputs.batch_tokens)
    return Parts(scorer, model, lambda: (make_stage("depsl", inputs, params, model),))


def make_stage(
    name: str,
    inputs: Inputs,
    params: DualEncoderParams,
    model: TwoHeads,
    *,
    classifier: Sequence[Group] = (),
    classifier_losses: ClassifierLossSettings | None = None,
    extra: int = 0,
    begin: Callable[[], None] = lambda: None,
) -> Stage:
    """Training of both heads or of the dual encoder alone; `extra` positives a query for the classifier."""
    source = mined_batches(inputs, params, model, extra)
    objective = PickSomeLabels(
        model=model,
        queries=inputs.train_tokens,
        labels=inputs.label_tokens,
        losses=params,
        classifier_losses=classifier_losses,
        settings=params,
        device=inputs.device,
        seed=inputs.seed,
    )
    optimiser = make_optimiser(inputs, params, model, source.steps, classifier)
    return Stage(name, params.epochs, source, objective, optimiser, begin)


def retrieval_head(inputs: Inputs, params: DualEncoderParams, dim: int) -> RetrievalHead:
    """Phi_D with its first values."""
    head = RetrievalHead(inputs.encoder.dim, dim, params.dropout)
    generator = torch.Generator().manual_seed(stream_seed(inputs.seed, "init", 0))
    start_projection(head.projection, params.init_heads, generator)
    return head


def mined_batches(inputs: Inputs, params: DualEncoderParams, model: TwoHeads, extra: int) -> MinedBatches:
    """Clustered batches and hard negatives as the dual-encoder head sees them; `extra` positives for a classifier."""
    picker = LabelPicker(
        inputs.train,
        inputs.train_filter,
        beta=params.beta,
        eta=params.eta,
        extra=extra,
        pool_size=params.pool_size,
        replacement=params.replacement,
        fill=params.fill,
    )
    scorer = TwoHeadScorer(model, ("de",), inputs.device, inputs.batch_tokens)
    return MinedBatches(
        inputs.train,
        inputs.train_filter,
        picker,
        lambda: scorer.query_vectors(inputs.train_tokens, ("de",))["de"],
        lambda: scorer.label_vectors(inputs.label_tokens, ("de",))["de"],
        params,
        eta=params.eta,
        seed=inputs.seed,
        device=inputs.device,
        warn=inputs.warn,
    )


def make_optimiser(
    inputs: Inputs, params: DualEncoderParams, model: TwoHeads, steps: int, classifier: Sequence[Group]
) -> Optimiser:
    """Learning rates of encoder, heads and, where there is one, the classifier table; `steps` is per epoch."""
    rates = inputs.encoder.learning_rates
    heads = [model.retrieval] if model.classifier is None else [model.retrieval, model.classifier.projection]
    groups = [
        *groups_of("encoder", params.lr_encoder or rates.encoder, params.weight_decay, nn.ModuleList([model.encoder])),
        *groups_of("heads", params.lr_heads or rates.heads, params.weight_decay, nn.ModuleList(heads)),
        *classifier,
    ]
    warmup = min(params.warmup_epochs, params.epochs / 2)
    if warmup < params.warmup_epochs:
        inputs.warn(
            f"warmup_epochs is cut from {params.warmup_epochs:g} to {warmup:g}, half of the {params.epochs} epochs"
        )
    schedule = Schedule(params.schedule, round(warmup * steps))
    return Optimiser(groups, schedule, params.epochs * steps, clip=params.clip)


def groups_of(name: str, lr: float, weight_decay: float, module: nn.Module) -> list[Group]:
    """Everything trainable in a module; normalisation weights are not decayed, biases are, as in the reference code."""
    with_decay, without = decayed(module)
    tables = [part for part in module.modules() if isinstance(part, RowTable)]
    groups = [Group(name, lr, weight_decay, with_decay, tables)]
    return groups + ([Group(f"{name}-norms", lr, 0.0, without)] if without else [])


METHOD = Method(DualEncoderParams, build)
