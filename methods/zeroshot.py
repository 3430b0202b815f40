"""`zeroshot`: score(query, label) = <f(query), f(label)> with a frozen encoder f. No training."""

from typing import Literal

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import Settings


class Params(Settings):
    """Parameters of `zeroshot`."""

    similarity: Literal["cosine", "dot"] = "cosine"
    """Similarity of vectors; cosine: scaled to unit length before the inner product; dot: as the encoder gives them."""


def build(inputs: Inputs, params: Params) -> Parts:
    """Build a scorer from the encoder, without training."""
    from harness.model.scoring import FrozenEncoder

    normalise = params.similarity == "cosine"
    return Parts(scoring=FrozenEncoder(inputs.encoder, normalise, inputs.device, inputs.batch_tokens))


METHOD = Method(Params, build)
