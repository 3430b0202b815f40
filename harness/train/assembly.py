"""What methods assemble their stages from: batches, optimiser groups, schedules."""

from collections.abc import Sequence

from torch import nn

from harness.batching.pool import LabelPicker
from harness.method import Inputs
from harness.model.encoder import Encoder
from harness.model.heads import TwoHeads
from harness.model.rows import RowTable
from harness.model.scoring import TwoHeadScorer
from harness.train.mining import MinedBatches, Vectors
from harness.train.optim import Group, Optimiser, Schedule, decayed
from harness.train.settings import BatchSettings, OptimSettings, PoolSettings


class MiningSettings(BatchSettings, PoolSettings):
    """Which queries go together, and which labels they are scored against."""


def mined_batches(
    inputs: Inputs,
    params: MiningSettings,
    queries: Vectors,
    labels: Vectors,
    *,
    extra: int = 0,
    mark_drawn: bool = False,
    seed: int | None = None,
) -> MinedBatches:
    """Batches and label pools of a training.

    Args:
        inputs: The train side.
        params: Sizes and periods.
        queries: Vectors [N, D] of the train rows as the model sees them now.
        labels: Likewise of the labels, [L, D].
        extra: Positives a query for a classifier alone.
        mark_drawn: Say in the pool which positives each query drew.
        seed: Of every draw; by default the run's.
    """
    picker = LabelPicker(
        inputs.train,
        inputs.train_filter,
        beta=params.beta,
        eta=params.eta,
        extra=extra,
        pool_size=params.pool_size,
        replacement=params.replacement,
        fill=params.fill,
        soft=inputs.soft,
        mark_drawn=mark_drawn,
    )
    return MinedBatches(
        inputs.train,
        inputs.train_filter,
        picker,
        queries,
        labels,
        params,
        eta=params.eta,
        shortlist=params.shortlist,
        seed=inputs.seed if seed is None else seed,
        device=inputs.device,
        warn=inputs.warn,
    )


def retrieval_vectors(inputs: Inputs, model: TwoHeads) -> tuple[Vectors, Vectors]:
    """Vectors of train rows [N, D] and labels [L, D] as the dual-encoder head sees them when asked."""
    scorer = TwoHeadScorer(model, ("de",), inputs.device, inputs.batch_tokens)
    return (
        lambda: scorer.query_vectors(inputs.train_tokens, ("de",))["de"],
        lambda: scorer.label_vectors(inputs.label_tokens, ("de",))["de"],
    )


def make_optimiser(
    inputs: Inputs, params: OptimSettings, groups: Sequence[Group], steps: int, seed: int | None = None
) -> Optimiser:
    """AdamW over the groups with the schedule of the settings; `steps` is per epoch, `seed` by default the run's."""
    schedule = make_schedule(inputs, params, steps)
    seed = inputs.seed if seed is None else seed
    return Optimiser(groups, schedule, params.epochs * steps, clip=params.clip, seed=seed)


def make_schedule(inputs: Inputs, params: OptimSettings, steps: int) -> Schedule:
    """Warm-up and fall of the learning rate; a warm-up of more than half the training is cut, and that is said."""
    wanted = round(params.warmup_epochs * steps) if params.warmup_steps is None else params.warmup_steps
    most = round(params.epochs / 2 * steps)
    if params.epochs and wanted > most:
        inputs.warn(
            f"warmup_epochs is cut from {params.warmup_epochs:g} to {params.epochs / 2:g}, half of the epochs"
            if params.warmup_steps is None
            else f"warmup_steps is cut from {wanted:,} to {most:,}, half of the steps"
        )
    return Schedule(params.schedule, min(wanted, most))


def encoder_groups(encoder: Encoder, lr: float | None, weight_decay: float) -> list[Group]:
    """The encoder's parameters and tables; without a learning rate they take the encoder's own."""
    return groups_of("encoder", lr or encoder.learning_rates.encoder, weight_decay, encoder)


def groups_of(name: str, lr: float, weight_decay: float, *modules: nn.Module) -> list[Group]:
    """Everything trainable in modules; normalisation weights are not decayed, biases are, as in the reference code."""
    together = nn.ModuleList(modules)
    with_decay, without = decayed(together)
    tables = [part for part in together.modules() if isinstance(part, RowTable)]
    groups = [Group(name, lr, weight_decay, with_decay, tables)]
    return groups + ([Group(f"{name}-norms", lr, 0.0, without)] if without else [])
