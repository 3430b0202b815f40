"""`dpr`: a dual encoder that tells one positive a query from the other queries' positives (InfoNCE).

Each query draws one of its positives; the pool is the union of what the batch drew (and, in `ance`, of mined hard
negatives). Papers of one relevant passage a question treat everything else as negative; here a query has many labels,
so its other positives and its filter pairs take no part. The encoder is used as it is, without a head.
"""

from typing import Any

from harness.method import Inputs, Method, Parts
from harness.model.heads import PlainHead, TwoHeads
from harness.model.scoring import TwoHeadScorer
from harness.train import Stage
from harness.train.assembly import MiningSettings, encoder_groups, make_optimiser, mined_batches, retrieval_vectors
from harness.train.psl import LossSettings, PickSomeLabels
from harness.train.settings import OptimSettings


class PlainParams(MiningSettings, LossSettings, OptimSettings):
    """Knobs of a dual encoder without heads."""

    normalise: bool = True


def build(inputs: Inputs, params: PlainParams) -> Parts:
    """The encoder for both sides."""
    model = plain_model(inputs, params.normalise)
    scorer = TwoHeadScorer(model, ("de",), inputs.device, inputs.batch_tokens)
    return Parts(scorer, model, lambda: (pooled_stage("dpr", inputs, params, model),))


def plain_model(inputs: Inputs, normalise: bool) -> TwoHeads:
    """The encoder's own vectors as the dual encoder's."""
    return TwoHeads(inputs.encoder, PlainHead(normalise), None).to(inputs.device)


def pooled_stage(
    name: str, inputs: Inputs, params: PlainParams, model: TwoHeads, options: dict[str, Any] | None = None
) -> Stage:
    """Training against the pool of a batch; only the positives that a query drew count. `options` are the loss's."""
    source = mined_batches(inputs, params, *retrieval_vectors(inputs, model), mark_drawn=True)
    objective = PickSomeLabels(
        model=model,
        queries=inputs.train_tokens,
        labels=inputs.label_tokens,
        losses=params,
        classifier_losses=None,
        settings=params,
        device=inputs.device,
        seed=inputs.seed,
        drawn_only=True,
        options=options or {},
    )
    groups = encoder_groups(inputs.encoder, params.lr_encoder, params.weight_decay)
    return Stage(name, params.epochs, source, objective, make_optimiser(inputs, params, groups, source.steps))


METHOD = Method(PlainParams, build)
