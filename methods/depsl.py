"""`depsl`: a dual encoder trained with pick-some-labels (DePSL; SupConDE in the preprint).

The objective is `harness.train.objectives.psl`, batches and hard negatives are `harness.batching.mined`. `unidec`
adds a classifier.
"""

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import Count, Dropout, HeadStart, PooledSettings, Positive


class Params(PooledSettings):
    """Parameters of `depsl`, and of the dual-encoder half of `unidec`."""

    dim: Count | None = None
    """Size of the vectors; null: the encoder's."""
    init_heads: HeadStart = "orthogonal"
    """Initial weights of the heads; orthogonal: keeps the encoder's geometry; xavier: as in the papers."""
    dropout: Dropout = 0.1
    """Dropout of the heads."""
    lr_heads: Positive | None = None
    """Learning rate of the heads; null: the encoder's default, 2e-4 for a transformer (papers)."""


def build(inputs: Inputs, params: Params) -> Parts:
    """Build a dual encoder without a classifier."""
    from harness.model.heads import TwoHeads
    from harness.model.scoring import TwoHeadScoring
    from harness.train.assembly import groups_of, pooled_stage, retrieval_head

    head = retrieval_head(inputs, params.dim or inputs.encoder.dim, params.dropout, params.init_heads)
    model = TwoHeads(inputs.encoder, head, None).to(inputs.device)
    lr = params.lr_heads or inputs.encoder.learning_rates.heads

    return Parts(
        TwoHeadScoring(model, ("de",), inputs.device, inputs.batch_tokens),
        model,
        lambda: (pooled_stage("depsl", inputs, params, model, groups_of("heads", lr, params, head)),),
    )


METHOD = Method(Params, build)
