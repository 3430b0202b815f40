"""What methods assemble their stages from: batches, optimiser groups, schedules."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from harness.batching.mined import MinedBatches, Vectors
from harness.model.encoders.encoder import Encoder
from harness.model.heads import PlainHead, RetrievalHead, TwoHeads, start_projection
from harness.model.scoring import TwoHeadScoring
from harness.model.tables import RowTable
from harness.seeds import stream_seed
from harness.settings.method import Inputs
from harness.settings.parameters import ClassifierLossSettings, HeadStart, OptimSettings, PooledSettings
from harness.train import Stage
from harness.train.objectives.psl import PickSomeLabels
from harness.train.optim import Group, Optimiser, Schedule, decayed
from harness.train.optim.blocked import BlockedSgd


def pooled_stage(
    name: str,
    inputs: Inputs,
    params: PooledSettings,
    model: TwoHeads,
    groups: Sequence[Group] = (),
    *,
    drawn_only: bool = False,
    options: dict[str, Any] | None = None,
    classifier_losses: ClassifierLossSettings | None = None,
    extra: int = 0,
    begin: Callable[[], None] = lambda: None,
    scorer: str | None = None,
) -> Stage:
    """Return a stage that trains against the label pool of each batch; see `harness.train.objectives.psl`.

    Args:
        name: Name of the stage.
        inputs: Train rows and labels.
        params: Batches, pool, loss and optimiser.
        model: Its encoder, its dual-encoder head and, with `classifier_losses`, its classifier are trained.
        groups: Parameter groups of the optimiser, besides the encoder's.
        drawn_only: Whether only the positives that a query drew count and its others are masked.
        options: Options of the dual encoder's loss.
        classifier_losses: Losses of the classifier; None if it is not trained.
        extra: Positives per query that the classifier alone scores.
        begin: Called when the stage begins.
        scorer: Name of the scorer for validation rows; by default the one that the run reports.
    """
    source = MinedBatches(inputs, params, *retrieval_vectors(inputs, model), extra=extra, mark_drawn=drawn_only)
    objective = PickSomeLabels(
        model=model,
        queries=inputs.train_tokens,
        labels=inputs.label_tokens,
        losses=params,
        classifier_losses=classifier_losses,
        settings=params,
        device=inputs.device,
        seed=inputs.seed,
        drawn_only=drawn_only,
        options=options or {},
    )
    groups = [*encoder_groups(inputs.encoder, params), *groups]
    optimiser = make_optimiser(inputs, params, groups, source.steps)
    return Stage(name, params.epochs, source, objective, optimiser, begin, scorer)


def plain_model(inputs: Inputs, *, normalise: bool) -> TwoHeads:
    """Return a dual encoder without a trainable head: its vectors are the encoder's, normalised or not."""
    return TwoHeads(inputs.encoder, PlainHead(normalise), None).to(inputs.device)


def retrieval_head(inputs: Inputs, dim: int, dropout: float, start: HeadStart) -> RetrievalHead:
    """Return the dual encoder's head (Phi_D), initialised."""
    head = RetrievalHead(inputs.encoder.dim, dim, dropout)
    start_projection(head.projection, start, torch.Generator().manual_seed(stream_seed(inputs.seed, "init", 0)))
    return head


def retrieval_vectors(inputs: Inputs, model: TwoHeads) -> tuple[Vectors, Vectors]:
    """Return two functions that encode the train rows [N, D] and the labels [L, D] with the model as it is then."""
    scoring = TwoHeadScoring(model, ("de",), inputs.device, inputs.batch_tokens)
    return (
        lambda: scoring.query_vectors(inputs.train_tokens, ("de",))["de"],
        lambda: scoring.label_vectors(inputs.label_tokens, ("de",))["de"],
    )


def make_optimiser(
    inputs: Inputs,
    params: OptimSettings,
    groups: Sequence[Group],
    steps: int,
    *,
    blocked: Sequence[BlockedSgd] = (),
    seed: int | None = None,
) -> Optimiser:
    """Return an optimiser with the schedule of the settings: AdamW over `groups`, SGD over the tables in `blocked`.

    `steps` counts those of one epoch. A warm-up of more than half the training is cut, with a warning. `seed` is by
    default the run's.
    """
    wanted = round(params.warmup_epochs * steps) if params.warmup_steps is None else params.warmup_steps
    most = round(params.epochs / 2 * steps)
    if params.epochs and wanted > most:
        inputs.warn(
            f"warmup_epochs is cut from {params.warmup_epochs:g} to {params.epochs / 2:g}, half of the epochs"
            if params.warmup_steps is None
            else f"warmup_steps is cut from {wanted:,} to {most:,}, half of the steps"
        )
    schedule, seed = Schedule(params.schedule, min(wanted, most)), inputs.seed if seed is None else seed
    total = params.epochs * steps
    return Optimiser(groups, schedule, total, eps=params.eps, clip=params.clip, blocked=blocked, seed=seed)


def encoder_groups(encoder: Encoder, params: OptimSettings) -> list[Group]:
    """Return groups of the encoder's parameters and tables, by default at the encoder's own learning rate."""
    return groups_of("encoder", params.lr_encoder or encoder.learning_rates.encoder, params, encoder)


def groups_of(name: str, lr: float, params: OptimSettings, *modules: nn.Module) -> list[Group]:
    """Return groups of all trainable parameters and tables, those that weight decay spares in one of their own."""
    together = nn.ModuleList(modules)
    with_decay, without = decayed(together, params.undecayed)
    tables = [part for part in together.modules() if isinstance(part, RowTable)]
    groups = [Group(name, lr, params.weight_decay, with_decay, tables, params.optimiser_tokens == "exact")]
    return groups + ([Group(f"{name}-norms", lr, 0.0, without)] if without else [])
