"""`renee`: a one-vs-all classifier over all labels, trained end to end with its encoder.

Encoder and table Psi [L, D] learn together from binary cross entropy summed over every query of a batch and every
label, `harness.train.objectives.ova`; no negative is ever sampled. Scores: `clf` is <f(x), Psi_l>, `de` the encoder
alone, a cosine; `concat` and `fused` add the two. An encoder trained as in the first module of `ngame` (`warm_epochs`)
and label texts as further train rows (`augment`) are the paper's start. Where this differs from the reference code on
purpose: filter pairs are no negatives, targets may be soft, and the reported model is not chosen on the test rows. A
`bottleneck` W [D, E] makes Psi [L, D] smaller than the encoder's vectors are wide: the score is <W f(x), Psi_l>.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import (
    SPEED,
    Count,
    Dropout,
    Epochs,
    Epsilon,
    NotNegative,
    OptimSettings,
    Positive,
    Share,
    Steps,
    TableSettings,
    Undecayed,
    fused_alone,
)
from methods.ngame import EncoderParams, encoder_stage

if TYPE_CHECKING:
    from harness.model.heads import Classifier, TwoHeads
    from harness.train import Stage

SCORERS = ("clf", "de")
_SHARED = {"clip", "undecayed", "eps", "optimiser_tokens", "precision", "micro_batch_tokens", "gradient_cache"}
"""Parameters that hold for the first stage too."""


class Params(OptimSettings, TableSettings):
    """Parameters of `renee`."""

    batch_size: Count = 128
    """Random rows in a batch; 512 to 2048 in the paper, on far larger sets."""
    dropout: Dropout = 0.5
    """Dropout of the query's vector before the classifier; 0.7 to 0.85 in the paper."""
    bottleneck: Count | None = None
    """Dimensions of a linear map between encoder and Psi, at the encoder's rate; null: none; 64 in the paper."""
    init_classifier: Literal["normal", "labels"] = "normal"
    """Initial rows of Psi; normal: drawn from N(0, 0.02) (paper); labels: vectors of the label texts."""
    warmup_epochs: NotNegative = 3.0
    lr_classifier: Positive | None = None
    """Learning rate of Psi, SGD on a summed loss; null: the encoder's default, 0.05 for a transformer."""
    eps: Epsilon = 1e-6
    undecayed: Undecayed = "norms-and-biases"
    weight_decay: Annotated[NotNegative, Field(alias="weight_decay_encoder")] = 0.01
    """Decoupled weight decay of the encoder (AdamW)."""
    weight_decay_classifier: NotNegative = 1e-4
    """Weight decay of Psi, added to the gradient, as SGD does."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD for Psi; 0 saves the memory of a second table."""
    label_block: Annotated[Count | None, SPEED] = None
    """Labels scored at once, which takes batch_size x label_block x 4 bytes; null: 2048, on CUDA 65536."""
    loss_rows: Annotated[Count | None, SPEED] = 64
    """Queries of a batch whose loss is logged; null: all; training does not depend on it."""
    warm_epochs: Steps = 10
    """Epochs of a first stage that trains the encoder alone, as in ngame; 0: none; in the paper if texts are titles."""
    warm_batch_size: Count = 1024
    """Queries in a batch of the first stage."""
    warm_double_at: Epochs = (1, 3, 5, 8)
    """Epochs at which clusters of similar queries double in the first stage, from single queries on; see ngame."""
    warm_lr_encoder: Positive | None = None
    """Learning rate of the first stage; null: the encoder's default."""
    warm_warmup_steps: Steps | None = None
    """Warm-up of the first stage in steps; null: one epoch."""
    scorer: Literal["clf", "de", "concat", "fused"] = "clf"
    """Scorer whose numbers the run reports; clf and de are always measured, concat and fused only if named here."""
    fused_weight: Share | None = None
    """Weight w of the dual encoder in scorer fused, w de + (1 - w) clf; null: chosen on validation rows."""

    _fused_alone = model_validator(mode="after")(fused_alone)


def build(inputs: Inputs, params: Params) -> Parts:
    """Build an encoder with a classifier on top of it."""
    import torch
    from torch import nn

    from harness.model.heads import Classifier, PlainHead, TwoHeads, start_bottleneck
    from harness.model.scoring import TwoHeadScoring, measured
    from harness.seeds import stream_seed
    from harness.train.tables import table_options

    encoder, labels = inputs.encoder, inputs.train.shape[1]
    classifier = Classifier(
        *(encoder.dim, params.bottleneck or encoder.dim, labels, "dot", params.dropout, 0.0),
        projected=params.bottleneck is not None,
        bias=False,
        searched="dot",
        **table_options(params),
    )
    if isinstance(classifier.projection, nn.Linear):
        start_bottleneck(classifier.projection, torch.Generator().manual_seed(stream_seed(inputs.seed, "init", 1)))
    model = TwoHeads(encoder, PlainHead(normalise=True), classifier).to(inputs.device)
    scorers = measured(params.scorer, SCORERS)
    scoring = TwoHeadScoring(model, scorers, inputs.device, inputs.batch_tokens, params.fused_weight)
    return Parts(scoring, model, lambda: stages(inputs, params, model, classifier))


def stages(inputs: Inputs, params: Params, model: "TwoHeads", classifier: "Classifier") -> "tuple[Stage, ...]":
    """Return the warm-up stage of the encoder, if there is one, and the stage that trains both together."""
    warm = warm_stages(inputs, params, model)
    return (*warm, one_vs_all_stage(inputs, params, model, classifier, stage=len(warm)))


def warm_stages(inputs: Inputs, params: Params, model: "TwoHeads") -> "tuple[Stage, ...]":
    """Return `ngame`'s first stage for `warm_epochs`, on the dataset's own rows; none if that is 0."""
    if not params.warm_epochs:
        return ()
    wanted = EncoderParams(
        epochs=params.warm_epochs,
        batch_size=params.warm_batch_size,
        double_at=params.warm_double_at,
        lr_encoder=params.warm_lr_encoder,
        warmup_steps=params.warm_warmup_steps,
        **params.model_dump(include=_SHARED),
    )
    return (encoder_stage(inputs.own or inputs, wanted, model),)


def one_vs_all_stage(
    inputs: Inputs, params: Params, model: "TwoHeads", classifier: "Classifier", *, stage: int = 0
) -> "Stage":
    """Return the stage that trains encoder and classifier together; `stage` is its number."""
    from harness.batching.whole import WholeSpaceBatches
    from harness.seeds import stage_seed
    from harness.train import Stage
    from harness.train.assembly import groups_of, make_optimiser
    from harness.train.objectives.ova import OneVsAll, label_block
    from harness.train.optim.blocked import BlockedSgd
    from harness.train.tables import start_table

    seed = stage_seed(inputs.seed, stage)
    source = WholeSpaceBatches(inputs, params.batch_size, seed=seed)
    table = BlockedSgd(
        classifier.table,
        name="classifier",
        lr=params.lr_classifier or inputs.encoder.learning_rates.one_vs_all,
        weight_decay=params.weight_decay_classifier,
        momentum=params.momentum,
        seed=seed,
    )
    lr_encoder = params.lr_encoder or inputs.encoder.learning_rates.encoder
    groups = groups_of("encoder", lr_encoder, params, inputs.encoder, classifier.projection)
    optimiser = make_optimiser(inputs, params, groups, source.steps, blocked=[table], seed=seed)
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
