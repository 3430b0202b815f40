"""`renee`: a one-vs-all classifier over all labels, trained end to end with its encoder.

Encoder and table Psi [L, D] learn together from binary cross entropy summed over every query of a batch and every
label, `harness.train.ova`; no negative is ever sampled. Scores: `clf` is <f(x), Psi_l>, `de` the encoder alone. An
encoder trained as in the first module of `ngame` (`warm_epochs`) and label texts as further train rows (`augment`) are
the paper's start. Where this differs from the reference code on purpose: filter pairs are no negatives, targets may be
soft, and the reported model is not chosen on the test rows.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.method import Inputs, Method, Parts
from harness.model.heads import Classifier, PlainHead, TwoHeads
from harness.model.scoring import TwoHeadScorer
from harness.repro import stage_seed
from harness.train import Stage
from harness.train.assembly import encoder_groups, make_schedule
from harness.train.blocked import BlockedSgd
from harness.train.optim import Optimiser
from harness.train.ova import OneVsAll, label_block
from harness.train.settings import Dropout, OptimSettings, Positive, TableSettings
from harness.train.tables import start_table, table_options
from harness.train.wholespace import WholeSpaceBatches
from methods.ngame import EncoderParams, Epochs, encoder_stage

VIEWS = ("clf", "de")
Count = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0)]


class Params(OptimSettings, TableSettings):
    """Knobs of `renee`."""

    batch_size: Count = 128
    dropout: Dropout = 0.5
    init_classifier: Literal["normal", "labels"] = "normal"
    warmup_epochs: Annotated[float, Field(ge=0)] = 3.0
    lr_classifier: Positive | None = None
    weight_decay: Annotated[float, Field(alias="weight_decay_encoder", ge=0)] = 0.01
    weight_decay_classifier: Decay = 1e-4
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    label_block: Count | None = None
    loss_rows: Count | None = 64
    warm_epochs: Annotated[int, Field(ge=0)] = 10
    warm_batch_size: Count = 1024
    warm_double_at: Epochs = (1, 3, 5, 8)
    warm_lr_encoder: Positive | None = None
    warm_warmup_steps: Annotated[int, Field(ge=0)] | None = None


def build(inputs: Inputs, params: Params) -> Parts:
    """Encoder and classifier, the second on top of the first."""
    encoder, labels = inputs.encoder, inputs.train.shape[1]
    classifier = Classifier(
        *(encoder.dim, encoder.dim, labels, "dot", params.dropout, 0.0),
        projected=False,
        searched="dot",
        **table_options(params),
    )
    model = TwoHeads(encoder, PlainHead(normalise=True), classifier).to(inputs.device)
    scorer = TwoHeadScorer(model, VIEWS, inputs.device, inputs.batch_tokens)
    return Parts(scorer, model, lambda: stages(inputs, params, model, classifier))


def stages(inputs: Inputs, params: Params, model: TwoHeads, classifier: Classifier) -> tuple[Stage, ...]:
    """The encoder's start, if one is wanted, then encoder and classifier together."""
    warm = warm_stages(inputs, params, model)
    return (*warm, one_vs_all_stage(inputs, params, model, classifier, stage=len(warm)))


def warm_stages(inputs: Inputs, params: Params, model: TwoHeads) -> tuple[Stage, ...]:
    """`ngame`'s first module for `warm_epochs`, on the dataset's own rows; nothing if that is 0."""
    if not params.warm_epochs:
        return ()
    wanted = EncoderParams(
        epochs=params.warm_epochs,
        batch_size=params.warm_batch_size,
        double_at=params.warm_double_at,
        lr_encoder=params.warm_lr_encoder,
        weight_decay=0.0,
        schedule="linear",
        warmup_epochs=1.0,
        warmup_steps=params.warm_warmup_steps,
        clip=params.clip,
        precision=params.precision,
        micro_batch_tokens=params.micro_batch_tokens,
        gradient_cache=params.gradient_cache,
    )
    return (encoder_stage(inputs.own or inputs, wanted, model),)


def one_vs_all_stage(
    inputs: Inputs, params: Params, model: TwoHeads, classifier: Classifier, *, stage: int = 0
) -> Stage:
    """Encoder and classifier together; `stage` is the place in the training."""
    seed = stage_seed(inputs.seed, stage)
    source = WholeSpaceBatches(
        inputs.train, inputs.train_filter, params.batch_size, beta=None, soft=inputs.soft, seed=seed, warn=inputs.warn
    )
    table = BlockedSgd(
        classifier.table,
        name="classifier",
        lr=params.lr_classifier or inputs.encoder.learning_rates.one_vs_all,
        weight_decay=params.weight_decay_classifier,
        momentum=params.momentum,
        seed=seed,
    )
    optimiser = Optimiser(
        encoder_groups(inputs.encoder, params.lr_encoder, params.weight_decay),
        make_schedule(inputs, params, source.steps),
        params.epochs * source.steps,
        clip=params.clip,
        blocked=[table],
        seed=seed,
    )
    objective = OneVsAll(
        model,
        inputs.train_tokens,
        table,
        optimiser,
        params,
        inputs.device,
        seed,
        label_block=params.label_block or label_block(inputs.device),
        loss_rows=params.loss_rows,
    )
    return Stage(
        "renee",
        params.epochs,
        source,
        objective,
        optimiser,
        begin=lambda: start_table(inputs, classifier, params.init_classifier),
    )


METHOD = Method(Params, build)
