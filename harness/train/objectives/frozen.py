"""A classifier on a frozen encoder: every train row is encoded once, and a step is a look-up (NGAME, second module).

    score = <N(Dropout(f(x_i))), N(Psi_l)>          over all positives of the batch's queries

Only the rows of Psi that are in the pool are read and written. The encoded rows are a function of the frozen weights,
so a resumed run encodes them again instead of storing them.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness import loss as losses
from harness.batching import LabelPool, LabelSpace
from harness.batching.mined import Vectors
from harness.model.dropout import seed_dropout
from harness.model.heads import Classifier
from harness.seeds import stream_seed
from harness.train import Batch
from harness.train.objectives.psl import logits, masks_of
from harness.train.timing import Timer


@dataclass
class FrozenQueries:
    """Vectors of the train rows from a frozen encoder, computed when first needed."""

    encode: Vectors

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """Vectors of the train rows, [N, E]."""
        return self.encode()


@dataclass
class ClassifierOnly:
    """Trains the table of a classifier and nothing else; a `harness.train.Objective`."""

    classifier: Classifier
    queries: FrozenQueries
    loss: str
    device: str
    seed: int
    temperature: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the loss."""

    @property
    def pieces(self) -> None:
        """Return None: no step encodes texts, so there are no pieces."""
        return None

    def work_in_pieces(self, tokens: int) -> None:
        """Do nothing: there are no pieces."""

    def texts(self, rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> None:
        """Return None: no step encodes texts."""
        return None

    def backward(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Leave the gradient of the loss in the gathered rows of the table; return the loss."""
        pool = batch.pool
        assert isinstance(pool, LabelPool)
        with timer.part("gather"):
            encoded = torch.from_numpy(self.queries.vectors[batch.rows]).to(self.device)
            rows = self.classifier.table.gather(torch.from_numpy(pool.labels), self.device)
            masks = masks_of(pool, self.device)
        with timer.part("loss"):
            seed_dropout(stream_seed(self.seed, "dropout", batch.step, 0))
            scores = logits(self.classifier(encoded), self.classifier.rows(rows), self.temperature)
            loss = losses.get(self.loss)(scores, masks.positive, ignored=masks.ignored, **masks.soft(), **self.options)
        with timer.part("backward"):
            torch.autograd.backward(loss)
        return {"loss": float(loss.detach())}
