"""`ngame`: an encoder trained on triplets, then a classifier on the frozen encoder.

    encoder       cosine triplets, one drawn positive a query against its hardest negatives of the batch; batches are
                  many small clusters of similar queries, whose size doubles as training goes on (negative-mining-aware)
    classifier    Psi starts as the label vectors; all positives of the batch, the hardest of them against the hardest
                  negatives

Scores: `de` is the encoder (NGAME's Phi), `clf` the classifier (Psi), `concat` the sum of both cosines, `fused` a
weighted one. Where this differs from the reference code on purpose: a negative that violates no margin has no weight in
the softmax over violators (there it has e^0); queries are encoded anew before they are clustered (there vectors are
left over from training, dropout included); two HNSW graphs and a decision tree that merges them are an exact search of
the sum.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import (
    AdamTableSettings,
    Count,
    Dropout,
    Epochs,
    Epsilon,
    MiningSettings,
    NotNegative,
    OptimSettings,
    PooledSettings,
    Positive,
    Schedule,
    Share,
    Steps,
    TableOptimiser,
    fused_alone,
)

if TYPE_CHECKING:
    from harness.model.heads import Classifier, TwoHeads
    from harness.train import Stage

SCORERS = ("clf", "de", "concat")
Margin = Annotated[float, Field(gt=0, le=2)]


class EncoderParams(OptimSettings):
    """Parameters of the encoder's training, NGAME's first module."""

    batch_size: Count = 1024
    """Queries in a batch; 1600 in the published config."""
    double_at: Epochs = (1, 3, 5, 8, 11)
    """Epochs at which the clusters that a batch is made of grow to 2, 4, 8 ... similar queries; single ones before."""
    refresh_epochs: Count = 5
    """Epochs after which queries are clustered again, besides those of `double_at`."""
    margin: Margin = 0.3
    """Margin of the triplets, in cosines."""
    hardest_negatives: Count = 10
    """Negatives of the batch that a query is compared with."""
    weighting: Literal["score", "none"] = "score"
    """Weights of violating negatives, in both modules; score: softmax of their scores; none: all equal."""
    sharpness: Positive = 0.1
    """Temperature of the softmax in `weighting`."""
    weight_decay: NotNegative = 0.0
    eps: Epsilon = 1e-6
    schedule: Schedule = "linear"
    warmup_epochs: NotNegative = 1.0


class Params(EncoderParams, AdamTableSettings):
    """Parameters of `ngame`."""

    optimiser_table: TableOptimiser = "touched"
    classifier_epochs: Steps = 15
    """Epochs of the classifier; 100 in the published config; 0: not trained, Psi holds the label vectors."""
    classifier_batch_size: Count = 1024
    """Queries in a batch of the classifier; 2048 in the published config."""
    classifier_double_at: Epochs = (1, 2, 4, 6, 8)
    """Like `double_at`, for the classifier."""
    classifier_margin: Margin = 0.2
    """Margin of the classifier's triplets."""
    classifier_hardest_positives: Count = 3
    """Positives of a query that are compared with its hardest negatives."""
    classifier_hardest_negatives: Count = 5
    """Negatives of the batch that these positives are compared with."""
    classifier_sharpness: Positive = 1.0
    """Like `sharpness`, for the classifier."""
    classifier_dropout: Dropout = 0.5
    """Dropout of the query's vector."""
    classifier_lr: Positive | None = None
    """Learning rate of Psi; null: the encoder's default; 1e-3 in the published config."""
    classifier_eps: Epsilon = 1e-8
    """Like `eps`, for the classifier."""
    classifier_warmup_epochs: NotNegative = 1.0
    """Like `warmup_epochs`, for the classifier."""
    classifier_warmup_steps: Steps | None = None
    """Warm-up of the classifier in steps; null: `classifier_warmup_epochs` counts."""
    scorer: Literal["clf", "de", "concat", "fused"] = "clf"
    """Scorer whose numbers the run reports: clf (Psi), de (the encoder, Phi), concat, or fused (only if named)."""
    fused_weight: Share | None = None
    """Weight w of the dual encoder in scorer fused, w de + (1 - w) clf; null: chosen on validation rows."""

    _fused_alone = model_validator(mode="after")(fused_alone)


def build(inputs: Inputs, params: Params) -> Parts:
    """Build encoder and classifier, which are trained one after the other."""
    from harness.model.heads import Classifier, PlainHead, TwoHeads
    from harness.model.scoring import TwoHeadScoring, measured
    from harness.train.tables import table_options

    encoder, labels = inputs.encoder, inputs.train.shape[1]
    classifier = Classifier(
        *(encoder.dim, encoder.dim, labels, "cosine", params.classifier_dropout, 0.0),
        projected=False,
        **table_options(params),
    )
    model = TwoHeads(encoder, PlainHead(normalise=True), classifier).to(inputs.device)
    scorers = measured(params.scorer, SCORERS)
    return Parts(
        TwoHeadScoring(model, scorers, inputs.device, inputs.batch_tokens, params.fused_weight),
        model,
        lambda: (encoder_stage(inputs, params, model), classifier_stage(inputs, params, model, classifier)),
    )


def encoder_stage(inputs: Inputs, params: EncoderParams, model: "TwoHeads") -> "Stage":
    """Return the stage that trains the encoder; also Renee's warm start."""
    from harness.model.heads import TwoHeads
    from harness.train.assembly import pooled_stage

    pooled = PooledSettings(
        **params.model_dump(include=set(OptimSettings.model_fields)),
        **_glued(params.batch_size, params.double_at, params.refresh_epochs, beta=1).model_dump(),
        loss="triplet",
        temperature=1.0,
    )
    options = {
        "margin": params.margin,
        "hardest_negatives": params.hardest_negatives,
        "weighting": params.weighting,
        "sharpness": params.sharpness,
    }
    alone = TwoHeads(model.encoder, model.retrieval, None)  # the classifier takes no part
    return pooled_stage("ngame encoder", inputs, pooled, alone, drawn_only=True, options=options, scorer="de")


def classifier_stage(inputs: Inputs, params: Params, model: "TwoHeads", classifier: "Classifier") -> "Stage":
    """Return the stage that trains the classifier."""
    from harness.batching.mined import MinedBatches
    from harness.seeds import stage_seed
    from harness.train import Stage
    from harness.train.assembly import make_optimiser, retrieval_vectors
    from harness.train.objectives.frozen import ClassifierOnly, FrozenQueries
    from harness.train.optim import Group
    from harness.train.tables import start_table

    seed = stage_seed(inputs.seed, 1)
    encode_queries, encode_labels = retrieval_vectors(inputs, model)
    queries = FrozenQueries(encode_queries)
    source = MinedBatches(
        inputs,
        _glued(params.classifier_batch_size, params.classifier_double_at, params.refresh_epochs, beta=None),
        lambda: queries.vectors,
        encode_labels,
        seed=seed,
    )
    objective = ClassifierOnly(
        classifier,
        queries,
        "triplet",
        inputs.device,
        seed,
        options={
            "margin": params.classifier_margin,
            "hardest_positives": params.classifier_hardest_positives,
            "hardest_negatives": params.classifier_hardest_negatives,
            "weighting": params.weighting,
            "sharpness": params.classifier_sharpness,
        },
    )
    lr = params.classifier_lr or inputs.encoder.learning_rates.classifier
    settings = params.model_copy(
        update={
            "epochs": params.classifier_epochs,
            "eps": params.classifier_eps,
            "warmup_epochs": params.classifier_warmup_epochs,
            "warmup_steps": params.classifier_warmup_steps,
        }
    )
    groups = [Group("classifier", lr, 0.0, [], [classifier.table], params.optimiser_table == "exact")]
    optimiser = make_optimiser(inputs, settings, groups, source.steps, seed=seed)
    return Stage(
        "ngame classifier",
        params.classifier_epochs,
        source,
        objective,
        optimiser,
        begin=lambda: start_table(inputs, classifier, "labels"),
        scorer=params.scorer,
    )


def _glued(batch_size: int, double_at: tuple[int, ...], refresh_epochs: int, beta: int | None) -> MiningSettings:
    """Return settings for batches of small clusters that begin with single queries, without mined negatives."""
    return MiningSettings(
        batch_size=batch_size,
        batching="glued",
        cluster_size=1,
        double_at=double_at,
        random_epochs=0,
        refresh_epochs=refresh_epochs,
        beta=beta,
        eta=0,
    )


METHOD = Method(Params, build)
