"""`ngame`: an encoder trained on triplets, then a classifier on the frozen encoder.

    encoder       cosine triplets, one drawn positive a query against its hardest negatives of the batch; batches are
                  many small clusters of similar queries, whose size doubles as training goes on (negative-mining-aware)
    classifier    Psi starts as the label vectors; all positives of the batch, the hardest of them against the hardest
                  negatives

Scores: `de` is the encoder (NGAME's Phi), `clf` the classifier (Psi), `concat` the sum of both cosines. Where this
differs from the reference code on purpose: a negative that violates no margin has no weight in the softmax over
violators (there it has e^0); queries are encoded anew before they are clustered (there vectors are left over from
training, dropout included); two HNSW graphs and a decision tree that merges them are an exact search of the sum.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.method import Inputs, Method, Parts
from harness.model.heads import Classifier, PlainHead, TwoHeads
from harness.model.scoring import TwoHeadScorer
from harness.repro import stage_seed
from harness.train import Stage
from harness.train.assembly import MiningSettings, encoder_groups, make_optimiser, mined_batches, retrieval_vectors
from harness.train.frozen import ClassifierOnly, FrozenQueries
from harness.train.optim import Group
from harness.train.psl import LossSettings, PickSomeLabels
from harness.train.settings import Dropout, OptimSettings, Positive, TableSettings
from harness.train.tables import start_table, table_options

VIEWS = ("clf", "de", "concat")
Epochs = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False)]
Count = Annotated[int, Field(ge=1)]
Margin = Annotated[float, Field(gt=0, le=2)]


class EncoderParams(OptimSettings):
    """Knobs of the first module."""

    batch_size: Count = 1024
    double_at: Epochs = (1, 3, 5, 8, 11)
    refresh_epochs: Count = 5
    margin: Margin = 0.3
    hardest_negatives: Count = 10
    weighting: Literal["score", "none"] = "score"
    sharpness: Positive = 0.1


class Params(EncoderParams, TableSettings):
    """Knobs of `ngame`."""

    classifier_epochs: Annotated[int, Field(ge=0)] = 15
    classifier_batch_size: Count = 1024
    classifier_double_at: Epochs = (1, 2, 4, 6, 8)
    classifier_margin: Margin = 0.2
    classifier_hardest_positives: Count = 3
    classifier_hardest_negatives: Count = 5
    classifier_sharpness: Positive = 1.0
    classifier_dropout: Dropout = 0.5
    classifier_lr: Positive | None = None
    classifier_warmup_epochs: Annotated[float, Field(ge=0)] = 1.0
    classifier_warmup_steps: Annotated[int, Field(ge=0)] | None = None
    scorer: Literal["clf", "de", "concat"] = "clf"


def build(inputs: Inputs, params: Params) -> Parts:
    """Encoder and classifier, the one after the other."""
    encoder, labels = inputs.encoder, inputs.train.shape[1]
    classifier = Classifier(
        *(encoder.dim, encoder.dim, labels, "cosine", params.classifier_dropout, 0.0),
        projected=False,
        **table_options(params),
    )
    model = TwoHeads(encoder, PlainHead(normalise=True), classifier).to(inputs.device)
    scorer = TwoHeadScorer(
        model,
        (params.scorer, *(view for view in VIEWS if view != params.scorer)),
        inputs.device,
        inputs.batch_tokens,
    )
    return Parts(
        scorer,
        model,
        lambda: (encoder_stage(inputs, params, model), classifier_stage(inputs, params, model, classifier)),
    )


def encoder_stage(inputs: Inputs, params: EncoderParams, model: TwoHeads, *, stage: int = 0) -> Stage:
    """The first module; also Renee's warm start. `stage` is its place in the training."""
    source = mined_batches(
        inputs,
        _glued(params.batch_size, params.double_at, params.refresh_epochs, beta=1),
        *retrieval_vectors(inputs, model),
        mark_drawn=True,
        seed=stage_seed(inputs.seed, stage),
    )
    objective = PickSomeLabels(
        model=TwoHeads(model.encoder, model.retrieval, None),  # the classifier takes no part
        queries=inputs.train_tokens,
        labels=inputs.label_tokens,
        losses=LossSettings(loss="triplet", temperature=1.0),
        classifier_losses=None,
        settings=params,
        device=inputs.device,
        seed=stage_seed(inputs.seed, stage),
        drawn_only=True,
        options={
            "margin": params.margin,
            "hardest_negatives": params.hardest_negatives,
            "weighting": params.weighting,
            "sharpness": params.sharpness,
        },
    )
    groups = encoder_groups(inputs.encoder, params.lr_encoder, params.weight_decay)
    optimiser = make_optimiser(inputs, params, groups, source.steps)
    return Stage("ngame encoder", params.epochs, source, objective, optimiser, view="de")


def classifier_stage(inputs: Inputs, params: Params, model: TwoHeads, classifier: Classifier) -> Stage:
    """The second module."""
    seed = stage_seed(inputs.seed, 1)
    encode_queries, encode_labels = retrieval_vectors(inputs, model)
    queries = FrozenQueries(encode_queries)
    source = mined_batches(
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
            "warmup_epochs": params.classifier_warmup_epochs,
            "warmup_steps": params.classifier_warmup_steps,
        }
    )
    groups = [Group("classifier", lr, 0.0, [], [classifier.table])]
    optimiser = make_optimiser(inputs, settings, groups, source.steps, seed)
    return Stage(
        "ngame classifier",
        params.classifier_epochs,
        source,
        objective,
        optimiser,
        begin=lambda: start_table(inputs, classifier, "labels"),
        view=params.scorer,
    )


def _glued(batch_size: int, double_at: tuple[int, ...], refresh_epochs: int, beta: int | None) -> MiningSettings:
    """Batches of small clusters that begin with single queries, without mined negatives."""
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
