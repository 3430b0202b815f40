"""Batches: which queries go together, and which labels they are scored against.

    BatchPlan (clusters of queries, hard negatives)  ->  rows [B]  ->  LabelPool (labels [P], positive [B, P])

`cluster` splits queries into balanced clusters, `plan` turns clusters into batches of an epoch, `pool` picks labels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelPool:
    """The labels L_B that one batch Q_B is scored against."""

    labels: NDArray[np.int64]
    """Distinct label ids, [P]."""
    positive: NDArray[np.bool_]
    """[B, P]: label p is a train label of query i. Every positive of the batch that is in the pool is marked."""
    ignored: NDArray[np.bool_] | None = None
    """[B, P]: filter pairs, neither positive nor negative; None if there is none."""
    encoded: int | None = None
    """The first `encoded` labels are scored by every head, the others by the classifier alone; None = all of them."""

    @property
    def shared(self) -> int:
        """How many labels every head scores."""
        return len(self.labels) if self.encoded is None else self.encoded
