"""`dexml`: a dual encoder with the decoupled softmax over in-batch, mined or all labels, one positive at a time.

    in-batch    the pool is what the batch drew
    hnm         plus mined hard negatives, from epoch `random_epochs` on
    full        all L labels: `harness.train.objectives.fullspace`

`loss: soft-topk` draws up to `topk` positives and asks for them among the best `topk`; see `harness.loss.topk`. In the
full regime pools, batches of similar queries and hard negatives have no place, nor have their parameters.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import field_validator, model_validator

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import Count, LossName, NotNegative, Positive, Steps, Undecayed
from methods.dpr import Params as DprParams

if TYPE_CHECKING:
    from harness.model.heads import TwoHeads
    from harness.train import Stage

_LOSSES = ("pick-one-label", "decoupled-softmax", "soft-topk")


class Params(DprParams):
    """Parameters of `dexml`; those of pools and clusters have no effect in the full regime."""

    regime: Literal["in-batch", "hnm", "full"] = "full"
    """Labels that a batch is scored against; full: all; in-batch: positives it drew; hnm: mined hard negatives, too."""
    batch_size: Count = 1024
    """Queries in a batch; 3000 on each of four GPUs in the published configs."""
    grad_cache_size: Count = 4096
    """Labels encoded and scored at once in the full regime; fewer need less memory."""
    random_epochs: Steps = 5
    beta: Count | None = 1
    """Positives drawn per query; its other positives are masked; soft-topk draws `topk`."""
    eta: Steps = 1
    """Hard negatives drawn per query from its shortlist (hnm); 5 for LF-Wikipedia-500K."""
    shortlist: Count | None = 100
    loss: LossName = "pick-one-label"
    """Loss: pick-one-label, soft-topk, or decoupled-softmax with beta above 1."""
    topk: Count = 5
    """Number k of labels that soft-topk lets pass."""
    weight_decay: NotNegative = 0.01
    undecayed: Undecayed = "norms-and-biases"
    warmup_epochs: NotNegative = 1.5
    """Epochs in which learning rates rise; by default a tenth of the epochs."""
    clip: Positive | None = None

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
    """Build a dual encoder without heads."""
    from harness.model.scoring import TwoHeadScoring
    from harness.train.assembly import plain_model, pooled_stage

    model = plain_model(inputs, normalise=params.normalise)
    topk = params.loss == "soft-topk"
    drawn = params.model_copy(update={"beta": params.topk}) if topk else params

    def stages() -> "tuple[Stage, ...]":
        if params.regime == "full":
            return (full_stage(inputs, drawn, model),)
        pooled = drawn.model_copy(update={"eta": params.eta if params.regime == "hnm" else 0})
        options = {"k": params.topk} if topk else {}
        return (pooled_stage("dexml", inputs, pooled, model, drawn_only=True, options=options),)

    return Parts(TwoHeadScoring(model, ("de",), inputs.device, inputs.batch_tokens), model, stages)


def full_stage(inputs: Inputs, params: Params, model: "TwoHeads") -> "Stage":
    """Return the stage that trains against all labels."""
    from harness.batching.whole import WholeSpaceBatches
    from harness.train import Stage
    from harness.train.assembly import encoder_groups, make_optimiser
    from harness.train.objectives.fullspace import FullSpace

    source = WholeSpaceBatches(inputs, params.batch_size, beta=params.beta)
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
    groups = encoder_groups(inputs.encoder, params)
    return Stage("dexml", params.epochs, source, objective, make_optimiser(inputs, params, groups, source.steps))


METHOD = Method(Params, build)
