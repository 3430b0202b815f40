"""The classifier table Psi [L, D] of a method: how it is stored, and its initial values.

Initial values are the classifier's vectors of the label texts, or noise. They are made for a block of labels at a time,
so that a table in bfloat16, or one that fills the memory of a machine, needs no second one beside it.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from harness.data.ragged import Ragged
from harness.model.encoders.encoder import NORM_FLOOR, encode, unit
from harness.model.heads import Classifier
from harness.model.scoring import projected
from harness.seeds import stream_seed
from harness.settings.method import Inputs
from harness.settings.parameters import TableSettings

TableStart = Literal["labels", "xavier", "normal"]

START_BLOCK = 1 << 18
"""Labels initialised at once; a multiple of the block size of `projected`, so that its blocks stay whole."""
_NORMAL_DEVIATION = 0.02
"""Standard deviation of a table drawn from a normal distribution, as in Renee's code."""


def table_options(params: TableSettings) -> dict[str, Any]:
    """Return the arguments of `Classifier` for the type and the device of its table."""
    return {"table_type": getattr(torch, params.table_precision), "table_on_host": params.table_device == "host"}


def start_table(inputs: Inputs, classifier: Classifier, start: TableStart) -> None:
    """Initialise Psi: the classifier's vectors of the label texts, or noise (xavier: UniDEC, normal: Renee)."""
    weight = classifier.table.weight.detach()
    generator = torch.Generator().manual_seed(stream_seed(inputs.seed, "init", 2))
    if start == "labels":
        _start_from_labels(inputs, classifier, weight, generator)
        return
    labels, dim = weight.shape
    bound = math.sqrt(3.0) * math.sqrt(2.0 / (labels + dim))  # as in `torch.nn.init.xavier_uniform_`
    for part in _blocks(labels):
        rows = weight[part]
        noise = rows if rows.device.type == "cpu" and rows.dtype == torch.float32 else torch.empty(rows.shape)
        if start == "xavier":
            noise.uniform_(-bound, bound, generator=generator)
        else:
            noise.normal_(0.0, _NORMAL_DEVIATION, generator=generator)
        if noise is not rows:
            rows.copy_(noise)


def _start_from_labels(inputs: Inputs, classifier: Classifier, weight: Tensor, generator: torch.Generator) -> None:
    """Write the vectors of the label texts; a label without text gets a random direction."""
    without = np.zeros(len(weight), np.bool_)
    for part in _blocks(len(weight)):
        encoded = encode(
            inputs.encoder,
            _texts(inputs.label_tokens, part),
            device=inputs.device,
            batch_tokens=inputs.batch_tokens,
            progress=f"start the classifier from label texts{_place(part, len(weight))}",
        )
        vectors = torch.from_numpy(projected(classifier, encoded, inputs.device))
        without[part] = (vectors.norm(dim=1) < NORM_FLOOR).numpy()
        weight[part].copy_(vectors)
    if not without.any():
        return
    for part in _blocks(len(weight)):  # drawn for all labels, so that a label's direction depends on no other label
        directions = torch.randn(weight[part].shape, generator=generator)
        chosen = torch.from_numpy(np.flatnonzero(without[part]))
        weight[part][chosen] = unit(directions[chosen]).to(weight.device, weight.dtype)


def _blocks(labels: int) -> Iterator[slice]:
    """Yield all labels as slices of at most `START_BLOCK`."""
    for start in range(0, labels, START_BLOCK):
        yield slice(start, min(start + START_BLOCK, labels))


def _texts(tokens: Ragged, part: slice) -> Ragged:
    """Return the tokens of the labels of a block."""
    return tokens if part == slice(0, len(tokens)) else tokens.take(np.arange(part.start, part.stop))


def _place(part: slice, labels: int) -> str:
    """Return the range of labels for the name of a progress bar; empty if one block holds all of them."""
    return "" if part == slice(0, labels) else f", {part.start:,} to {part.stop:,} of {labels:,}"
