"""Batches: which queries go together, and which labels they are scored against.

    BatchPlan (clusters of queries, hard negatives)  ->  rows [B]  ->  LabelPool (labels [P], positive [B, P])

`cluster` splits queries into balanced clusters, `plan` turns clusters into batches of an epoch, `pool` picks labels,
`whole` takes all of them.
"""

from dataclasses import dataclass
from functools import cached_property

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
    target: NDArray[np.float32] | None = None
    """[B, P]: how much a positive is one, in (0, 1], and 0 elsewhere; None where every positive is a whole one."""
    drawn: NDArray[np.bool_] | None = None
    """[B, P]: the positives that the query itself drew; None unless the picker was asked to mark them."""

    @property
    def size(self) -> int:
        """P."""
        return len(self.labels)

    @cached_property
    def positives(self) -> float:
        """Positives a query, on average."""
        return float(np.count_nonzero(self.positive)) / max(1, len(self.positive))

    @cached_property
    def negatives(self) -> float:
        """Negatives a query, on average."""
        ignored = 0 if self.ignored is None else np.count_nonzero(self.ignored & ~self.positive)
        return self.size - self.positives - ignored / max(1, len(self.positive))

    @property
    def shared(self) -> int:
        """How many labels every head scores."""
        return len(self.labels) if self.encoded is None else self.encoded


@dataclass(frozen=True)
class LabelSpace:
    """All L labels as the pool of one batch: known pairs as coordinates, because no [B, L] array may exist.

    Pairs are in order of label, then query, so that those of a block of labels are neighbours; see `block`.
    """

    rows: int
    """B."""
    size: int
    """L."""
    query: NDArray[np.int64]
    """Place in the batch of the query of each positive pair, [T]."""
    label: NDArray[np.int64]
    """Its label, [T], increasing."""
    target: NDArray[np.float32]
    """How much it is a positive, in (0, 1], [T]; 1 without augmentation, and where positives are drawn by it."""
    drawn: NDArray[np.bool_]
    """Whether the query drew it, [T]; all True where every positive counts."""
    ignored_query: NDArray[np.int64]
    """Likewise of the filter pairs that are not positives: the place of the query, [F]."""
    ignored_label: NDArray[np.int64]
    """[F], increasing."""

    @property
    def positives(self) -> float:
        """Positives a query, on average."""
        return len(self.label) / max(1, self.rows)

    @property
    def negatives(self) -> float:
        """Negatives a query, on average."""
        return self.size - self.positives - len(self.ignored_label) / max(1, self.rows)

    def block(self, start: int, stop: int) -> tuple[slice, slice]:
        """Where the positive pairs and the ignored pairs of labels start <= l < stop are."""
        return (
            slice(*np.searchsorted(self.label, [start, stop]).tolist()),
            slice(*np.searchsorted(self.ignored_label, [start, stop]).tolist()),
        )
