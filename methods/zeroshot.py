"""`zeroshot`: score(query, label) = <f(query), f(label)> with a frozen encoder f. No training."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.config import Settings
from harness.data.ragged import Ragged
from harness.method import Inputs, Method, Parts
from harness.model.encoder import Encoder, encode


class Params(Settings):
    """Knobs of `zeroshot`."""

    similarity: Literal["cosine", "dot"] = "cosine"


@dataclass(frozen=True)
class FrozenEncoder:
    """The same encoder for both sides."""

    encoder: Encoder
    normalise: bool
    device: str
    batch_tokens: int

    views = ("encoder",)
    text_view = "encoder"

    def query_vectors(self, tokens: Ragged, views: tuple[str, ...] = views) -> dict[str, NDArray[np.float32]]:
        """Vectors of queries, [n, D]."""
        return {"encoder": self._vectors(tokens, "encode queries")}

    def label_vectors(self, tokens: Ragged, views: tuple[str, ...] = views) -> dict[str, NDArray[np.float32]]:
        """Vectors of labels, [L, D]."""
        return {"encoder": self._vectors(tokens, "encode labels")}

    def _vectors(self, tokens: Ragged, description: str) -> NDArray[np.float32]:
        return encode(
            self.encoder,
            tokens,
            device=self.device,
            batch_tokens=self.batch_tokens,
            normalise=self.normalise,
            progress=description,
        )


def build(inputs: Inputs, params: Params) -> Parts:
    """Wraps the encoder as it is."""
    return Parts(
        scorer=FrozenEncoder(inputs.encoder, params.similarity == "cosine", inputs.device, inputs.batch_tokens)
    )


METHOD = Method(Params, build)
