"""`unidec`: dual encoder and classifier trained together on one pool of picked labels.

`unidec-thesis` and `unidec-v1` are the papers' own settings. See `methods.depsl` for the dual-encoder half and
`harness.train.psl` for the objective.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from harness.method import Inputs, Method, Parts
from harness.model.heads import Classifier, TwoHeads, start_projection
from harness.model.scoring import TwoHeadScorer
from harness.repro import stream_seed
from harness.train import Stage
from harness.train.optim import Group
from harness.train.psl import ClassifierLossSettings
from harness.train.settings import Dropout, Positive, TableSettings
from harness.train.tables import start_table, table_options
from methods.depsl import DualEncoderParams, make_stage, retrieval_head

VIEWS = ("concat", "de", "clf")


class Params(DualEncoderParams, ClassifierLossSettings, TableSettings):
    """Knobs of `unidec`."""

    init_classifier: Literal["labels", "xavier"] = "labels"
    logits: Literal["cosine", "dot", "plain-dot"] = "cosine"
    dropout_classifier: Dropout = 0.1
    beta_classifier: Annotated[int, Field(ge=0)] = 0
    lr_classifier: Positive | None = None
    scorer: Literal["concat", "de", "clf"] = "concat"

    @model_validator(mode="after")
    def _two_halves(self) -> "Params":
        if self.dim is not None and self.dim % 2:
            raise ValueError(f"dim is {self.dim}; it is the size of both heads together, so take an even number")
        return self


def build(inputs: Inputs, params: Params) -> Parts:
    """Dual encoder and classifier on one encoder; half of `dim` each."""
    dim = params.dim // 2 if params.dim else inputs.encoder.dim
    classifier = Classifier(
        inputs.encoder.dim,
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
    model = TwoHeads(inputs.encoder, retrieval_head(inputs, params, dim), classifier)
    model.to(inputs.device)
    views = (params.scorer, *(view for view in VIEWS if view != params.scorer))
    scorer = TwoHeadScorer(model, views, inputs.device, inputs.batch_tokens)
    return Parts(scorer, model, lambda: (unified_stage(inputs, params, model, classifier),))


def unified_stage(inputs: Inputs, params: Params, model: TwoHeads, classifier: Classifier) -> Stage:
    """Both heads at once."""
    lr = params.lr_classifier or inputs.encoder.learning_rates.classifier
    return make_stage(
        "unidec",
        inputs,
        params,
        model,
        classifier=[Group("classifier", lr, params.weight_decay, [], [classifier.table])],
        classifier_losses=params,
        extra=params.beta_classifier,
        begin=lambda: start_table(inputs, classifier, params.init_classifier),
    )


METHOD = Method(Params, build)
