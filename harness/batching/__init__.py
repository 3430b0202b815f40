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
    """Whether label p is a train label of query i, [B, P]; every positive of the batch in the pool is marked."""
    ignored: NDArray[np.bool_] | None = None
    """Filter pairs, neither positive nor negative, [B, P]; None if there are none."""
    encoded: int | None = None
    """Number of labels, the first ones, that every head scores; the classifier alone scores the others; None = all."""
    target: NDArray[np.float32] | None = None
    """Target of each positive, in (0, 1], and 0 elsewhere, [B, P]; None if all targets are 1."""
    drawn: NDArray[np.bool_] | None = None
    """Positives that the query itself drew, [B, P]; None unless the picker was asked to mark them."""

    @property
    def size(self) -> int:
        """Number of labels P."""
        return len(self.labels)

    @cached_property
    def positives(self) -> float:
        """Mean number of positives per query."""
        return float(np.count_nonzero(self.positive)) / max(1, len(self.positive))

    @cached_property
    def negatives(self) -> float:
        """Mean number of negatives per query."""
        ignored = 0 if self.ignored is None else np.count_nonzero(self.ignored & ~self.positive)
        return self.size - self.positives - ignored / max(1, len(self.positive))

    @property
    def shared(self) -> int:
        """Number of labels that every head scores."""
        return len(self.labels) if self.encoded is None else self.encoded


@dataclass(frozen=True)
class LabelSpace:
    """All L labels as the pool of one batch: known pairs as coordinates, because no [B, L] array may exist.

    Pairs are in order of label, then query, so that those of a block of labels are neighbours; see `block`.
    """

    rows: int
    """Number of queries B."""
    size: int
    """Number of labels L."""
    query: NDArray[np.int64]
    """Query of each of the n positive pairs, as its index in the batch, [n]."""
    label: NDArray[np.int64]
    """Label of each positive pair, increasing, [n]."""
    target: NDArray[np.float32]
    """Target of each positive pair, in (0, 1], [n]; 1 without augmentation, and where it weighted the draw instead."""
    drawn: NDArray[np.bool_]
    """Whether the query drew the pair, [n]; all True where every positive counts."""
    ignored_query: NDArray[np.int64]
    """Query of each of the F filter pairs that are not positives, as its index in the batch, [F]."""
    ignored_label: NDArray[np.int64]
    """Label of each of these filter pairs, increasing, [F]."""

    @property
    def positives(self) -> float:
        """Mean number of positives per query."""
        return len(self.label) / max(1, self.rows)

    @property
    def negatives(self) -> float:
        """Mean number of negatives per query."""
        return self.size - self.positives - len(self.ignored_label) / max(1, self.rows)

    def block(self, start: int, stop: int) -> tuple[slice, slice]:
        """Return the slices of the positive pairs and of the ignored pairs of labels start <= l < stop."""
        return (
            slice(*np.searchsorted(self.label, [start, stop]).tolist()),
            slice(*np.searchsorted(self.ignored_label, [start, stop]).tolist()),
        )
