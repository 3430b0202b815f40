"""`dexml`: a dual encoder with the decoupled softmax over in-batch, mined or all labels, one positive at a time.

    in-batch    the pool is what the batch drew
    hnm         plus mined hard negatives, from epoch `random_epochs` on
    full        all L labels: `harness.train.fullspace`

`loss: soft-topk` draws up to `topk` positives and asks for them among the best `topk`; see `harness.loss.topk`. In the
full regime pools, batches of similar queries and hard negatives have no place, nor have their knobs.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from harness.method import Inputs, Method, Parts
from harness.model.heads import TwoHeads
from harness.model.scoring import TwoHeadScorer
from harness.train import Stage
from harness.train.assembly import encoder_groups, make_optimiser
from harness.train.fullspace import FullSpace
from harness.train.wholespace import WholeSpaceBatches
from methods.dpr import PlainParams, plain_model, pooled_stage

_LOSSES = ("pick-one-label", "decoupled-softmax", "soft-topk")


class Params(PlainParams):
    """Knobs of `dexml`."""

    regime: Literal["in-batch", "hnm", "full"] = "full"
    grad_cache_size: Annotated[int, Field(ge=1)] = 4096
    topk: Annotated[int, Field(ge=1)] = 5

    @field_validator("loss")
    @classmethod
    def _in_all_regimes(cls, name: str) -> str:
        if name not in _LOSSES:
            raise ValueError(f"dexml trains with one of {', '.join(_LOSSES)}")
        return name

    @model_validator(mode="after")
    def _one_way(self) -> "Params":
        if self.regime == "full" and self.lambda_d != 1:
            raise ValueError(
                "regime full has no symmetric term, because a label never sees all queries; set lambda_d=1"
            )
        return self


def build(inputs: Inputs, params: Params) -> Parts:
    """The encoder for both sides."""
    model = plain_model(inputs, params.normalise)
    scorer = TwoHeadScorer(model, ("de",), inputs.device, inputs.batch_tokens)
    return Parts(scorer, model, lambda: (make_stage(inputs, params, model),))


def make_stage(inputs: Inputs, params: Params, model: TwoHeads) -> Stage:
    """Training in the regime asked for."""
    asked_for_topk = params.loss == "soft-topk"
    if asked_for_topk:
        params = params.model_copy(update={"beta": params.topk})
    if params.regime == "full":
        return full_stage(inputs, params, model)
    pooled = params.model_copy(update={"eta": params.eta if params.regime == "hnm" else 0})
    return pooled_stage("dexml", inputs, pooled, model, {"k": params.topk} if asked_for_topk else {})


def full_stage(inputs: Inputs, params: Params, model: TwoHeads) -> Stage:
    """Training against all labels."""
    source = WholeSpaceBatches(
        inputs.train,
        inputs.train_filter,
        params.batch_size,
        beta=params.beta,
        soft=inputs.soft,
        seed=inputs.seed,
        warn=inputs.warn,
    )
    objective = FullSpace(
        model=model,
        queries=inputs.train_tokens,
        labels=inputs.label_tokens,
        loss="soft-topk" if params.loss == "soft-topk" else "decoupled-softmax",
        temperature=params.temperature,
        chunk=params.grad_cache_size,
        settings=params,
        device=inputs.device,
        seed=inputs.seed,
        k=params.topk,
    )
    groups = encoder_groups(inputs.encoder, params.lr_encoder, params.weight_decay)
    return Stage("dexml", params.epochs, source, objective, make_optimiser(inputs, params, groups, source.steps))


METHOD = Method(Params, build)
