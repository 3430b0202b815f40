"""`depsl`: a dual encoder trained with pick-some-labels (DePSL; SupConDE in the preprint).

The objective is `harness.train.psl`, batches and hard negatives are `harness.train.mining`. `unidec` adds a classifier.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field

from harness.method import Inputs, Method, Parts
from harness.model.heads import HeadStart, RetrievalHead, TwoHeads, start_projection
from harness.model.scoring import TwoHeadScorer
from harness.repro import stream_seed
from harness.train import Stage
from harness.train.assembly import (
    MiningSettings,
    encoder_groups,
    groups_of,
    make_optimiser,
    mined_batches,
    retrieval_vectors,
)
from harness.train.optim import Group
from harness.train.psl import ClassifierLossSettings, LossSettings, PickSomeLabels
from harness.train.settings import Dropout, OptimSettings, Positive


class DualEncoderParams(MiningSettings, LossSettings, OptimSettings):
    """Knobs of the dual-encoder half of DePSL and UniDEC."""

    dim: Annotated[int, Field(ge=1)] | None = None
    init_heads: HeadStart = "orthogonal"
    dropout: Dropout = 0.1
    lr_heads: Positive | None = None


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
    source = mined_batches(inputs, params, *retrieval_vectors(inputs, model), extra=extra)
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
    heads = [model.retrieval] if model.classifier is None else [model.retrieval, model.classifier.projection]
    groups = [
        *encoder_groups(inputs.encoder, params.lr_encoder, params.weight_decay),
        *groups_of("heads", params.lr_heads or inputs.encoder.learning_rates.heads, params.weight_decay, *heads),
        *classifier,
    ]
    optimiser = make_optimiser(inputs, params, groups, source.steps)
    return Stage(name, params.epochs, source, objective, optimiser, begin)


def retrieval_head(inputs: Inputs, params: DualEncoderParams, dim: int) -> RetrievalHead:
    """Phi_D with its first values."""
    head = RetrievalHead(inputs.encoder.dim, dim, params.dropout)
    generator = torch.Generator().manual_seed(stream_seed(inputs.seed, "init", 0))
    start_projection(head.projection, params.init_heads, generator)
    return head


METHOD = Method(DualEncoderParams, build)
