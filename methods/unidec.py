"""`unidec`: dual encoder and classifier trained together on one pool of picked labels.

`unidec-thesis` and `unidec-v1` are the papers' own settings. See `methods.depsl` for the dual-encoder half and
`harness.train.objectives.psl` for the objective.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import (
    AdamTableSettings,
    ClassifierLossSettings,
    Count,
    Dropout,
    Positive,
    Share,
    Steps,
    fused_alone,
)
from methods.depsl import Params as DualEncoderParams

if TYPE_CHECKING:
    from harness.train import Stage

SCORERS = ("concat", "de", "clf")


class Params(DualEncoderParams, ClassifierLossSettings, AdamTableSettings):
    """Parameters of `unidec`."""

    dim: Count | None = None
    """Size of both heads together, half each; null: twice the encoder's."""
    init_classifier: Literal["labels", "xavier"] = "labels"
    """Initial rows of Psi; labels: vectors of the label texts; xavier: random, as in the papers."""
    logits: Literal["cosine", "dot", "plain-dot"] = "cosine"
    """Scores of the classifier; dot: inner product in training, cosine in search (papers); plain-dot: never cosine."""
    dropout_classifier: Dropout = 0.1
    """Dropout of the gathered rows of Psi."""
    beta_classifier: Steps = 0
    """Extra positives per query for the classifier alone (POS-CLF)."""
    lr_classifier: Positive | None = None
    """Learning rate of Psi; null: the encoder's default, 1e-3 for a transformer (papers)."""
    scorer: Literal["concat", "de", "clf", "fused"] = "concat"
    """Scorer whose numbers the run reports; concat, de and clf are always measured, fused only if named here."""
    fused_weight: Share | None = None
    """Weight w of the dual encoder in scorer fused, w de + (1 - w) clf; null: chosen on validation rows."""

    _fused_alone = model_validator(mode="after")(fused_alone)

    @model_validator(mode="after")
    def _two_halves(self) -> "Params":
        if self.dim is not None and self.dim % 2:
            raise ValueError(f"dim is {self.dim}; it is the size of both heads together, so take an even number")
        return self


def build(inputs: Inputs, params: Params) -> Parts:
    """Build dual encoder and classifier on one encoder, with half of `dim` each."""
    import torch
    from torch import nn

    from harness.model.heads import Classifier, TwoHeads, start_projection
    from harness.model.scoring import TwoHeadScoring, measured
    from harness.seeds import stream_seed
    from harness.train.assembly import groups_of, pooled_stage, retrieval_head
    from harness.train.optim import Group
    from harness.train.tables import start_table, table_options

    encoder, dim = inputs.encoder, params.dim // 2 if params.dim else inputs.encoder.dim
    classifier = Classifier(
        encoder.dim,
        dim,
        inputs.train.shape[1],
        "cosine" if params.logits == "cosine" else "dot",
        params.dropout,
        params.dropout_classifier,
        searched="dot" if params.logits == "plain-dot" else "cosine",
        **table_options(params),
    )
    generator = torch.Generator().manual_seed(stream_seed(inputs.seed, "init", 1))
    assert isinstance(classifier.projection, nn.Linear)
    start_projection(classifier.projection, params.init_heads, generator)
    head = retrieval_head(inputs, dim, params.dropout, params.init_heads)
    model = TwoHeads(encoder, head, classifier).to(inputs.device)

    def stages() -> "tuple[Stage, ...]":
        lr_heads = params.lr_heads or encoder.learning_rates.heads
        lr_table = params.lr_classifier or encoder.learning_rates.classifier
        groups = groups_of("heads", lr_heads, params, head, classifier.projection)
        exact = params.optimiser_table == "exact"
        groups.append(Group("classifier", lr_table, params.weight_decay, [], [classifier.table], exact))
        stage = pooled_stage(
            *("unidec", inputs, params, model, groups),
            classifier_losses=params,
            extra=params.beta_classifier,
            begin=lambda: start_table(inputs, classifier, params.init_classifier),
        )
        return (stage,)

    scorers = measured(params.scorer, SCORERS)
    scoring = TwoHeadScoring(model, scorers, inputs.device, inputs.batch_tokens, params.fused_weight)
    return Parts(scoring, model, stages)


METHOD = Method(Params, build)
