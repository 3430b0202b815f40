"""`dpr`: a dual encoder that tells one positive a query from the other queries' positives (InfoNCE).

Each query draws one of its positives; the pool is the union of what the batch drew (and, in `ance`, of mined hard
negatives). Papers of one relevant passage a question treat everything else as negative; here a query has many labels,
so its other positives and its filter pairs take no part. The encoder is used as it is, without a head.
"""

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import (
    Batching,
    Count,
    LossName,
    NotNegative,
    PooledSettings,
    Positive,
    Schedule,
    Steps,
)


class Params(PooledSettings):
    """Parameters of `dpr`: a dual encoder without heads."""

    normalise: bool = True
    """Whether scores are cosines; false: inner products of the encoder's vectors, as in the paper (temperature 1)."""
    batching: Batching = "random"
    beta: Count | None = 1
    """Positives drawn per query; its other positives are masked."""
    eta: Steps = 0
    """Hard negatives drawn per query from its shortlist; all queries of the batch are scored against them."""
    fill: bool = False
    loss: LossName = "pick-one-label"
    temperature: Positive = 0.05
    """Divisor of the scores; use 1 with `normalise: false`."""
    weight_decay: NotNegative = 0.0
    schedule: Schedule = "linear"
    warmup_epochs: NotNegative = 1.0
    clip: Positive | None = 2.0


def build(inputs: Inputs, params: Params) -> Parts:
    """Build a dual encoder without heads."""
    from harness.model.scoring import TwoHeadScoring
    from harness.train.assembly import plain_model, pooled_stage

    model = plain_model(inputs, normalise=params.normalise)
    return Parts(
        TwoHeadScoring(model, ("de",), inputs.device, inputs.batch_tokens),
        model,
        lambda: (pooled_stage("dpr", inputs, params, model, drawn_only=True),),
    )


METHOD = Method(Params, build)
