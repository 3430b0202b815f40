"""Labels that occur together, for the figure of examples: train matrix [N, L] -> `Neighbours`, a handful of labels.

    share of label i among the rows of j = number of train rows with both / number of train rows of j

which is what gandalf trains the text of j on (thesis 1.3, figure 1.2). Examples are frequent labels, head or torso,
with the most neighbours of a share of at least a fifth, not all of one share; no label is shown twice. All ties go to
more train rows, then to the smaller index, so that equal data gives equal examples.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.augment.choice import rows_per_label
from harness.augment.cooccurrence import conditional, strengths
from harness.data.ragged import Texts
from harness.metrics import frequency_bins
from harness.report.evidence import Example, Neighbour, Neighbours

EXAMPLES = 6
SHOWN = 6
"""Neighbours kept of an example."""
_CLEAR = 0.2
"""Share from which a neighbour counts when examples are chosen."""
_FAINT = 0.1
"""Share at and below which a neighbour is not kept at all."""
_LEAST_ROWS = 8
"""Of an example: of fewer rows every share is a large one."""
_FEWEST = 2
"""Neighbours of an example, and different shares among them: bars of one length show nothing."""
_FEWEST_ITEMS = 30
"""Labels that are items themselves: of fewer a share says nothing."""
_DIGITS = 4


@dataclass(frozen=True)
class _Found:
    """Neighbours of some labels, each label's strongest first."""

    labels: NDArray[np.int64]
    """[A]."""
    ends: NDArray[np.int64]
    """Where each label's neighbours begin and end, [A + 1]."""
    others: NDArray[np.int64]
    """[T]."""
    shares: NDArray[np.float64]
    """[T]."""

    def of(self, place: int) -> slice:
        """The strongest neighbours of one label."""
        first, end = int(self.ends[place]), int(self.ends[place + 1])
        return slice(first, min(end, first + SHOWN))


def find_neighbours(
    name: str, digest: str, train: csr_array, label_ids: Texts, same: csr_array | None = None
) -> Neighbours:
    """Examples of labels that occur together, and whether such labels are also what the items point at.

    Args:
        name: Of the dataset.
        digest: Of its content.
        train: Positives of the train rows, [N, L].
        label_ids: [L].
        same: Filter pairs of the train rows, [N, L]: the label is the same item as the row.
    """
    counts = rows_per_label(train)
    wanted = np.flatnonzero((frequency_bins(train) < 2) & (counts >= _LEAST_ROWS))
    examples: list[Example] = []
    if len(wanted):
        found = _neighbours(train, wanted, counts)
        for place in _chosen(found, counts):
            kept = found.of(place)
            examples.append(
                Example(
                    label=label_ids[int(found.labels[place])],
                    train_rows=int(counts[found.labels[place]]),
                    neighbours=[
                        Neighbour(label=label_ids[int(other)], share=round(float(share), _DIGITS))
                        for other, share in zip(found.others[kept], found.shares[kept], strict=True)
                    ],
                )
            )
    items, share = (0, None) if same is None else _true_share(train, same, counts)
    return Neighbours(dataset=name, digest=digest, examples=examples, items=items, true_share=share)


def _true_share(train: csr_array, same: csr_array, counts: NDArray[np.int64]) -> tuple[int, float | None]:
    """How many labels are items with a train row, and how much of what is expected beside them their rows have.

    Gandalf takes the shares for targets of the label's text. With y_ij the share of the rows of label j that have i
    too, and Y_i(j) whether the row of item j has i: sum of y_ij Y_i(j) over sum of y_ij, i other than j, y_ij > 0.1.
    """
    pairs = same.tocoo()
    labels = np.flatnonzero((counts > 0) & (np.bincount(pairs.col, minlength=len(counts)) == 1))
    if len(labels) < _FEWEST_ITEMS:
        return len(labels), None
    item = np.zeros(len(counts), np.int64)
    item[pairs.col] = pairs.row
    found = _neighbours(train, labels, counts)
    place = np.repeat(np.arange(len(labels)), np.diff(found.ends))
    own = csr_array((found.shares, (place, found.others)), shape=(len(labels), len(counts)))
    true = own.multiply(train[item[labels]].astype(bool)).sum()
    return len(labels), round(float(true) / float(own.sum()), _DIGITS) if own.nnz else None


def _neighbours(train: csr_array, labels: NDArray[np.int64], counts: NDArray[np.int64]) -> _Found:
    """All neighbours of `labels` [A] above the faintest share, but for the labels themselves."""
    shares = strengths(train, labels, conditional, _FAINT)
    place = np.repeat(np.arange(len(labels)), np.diff(shares.indptr))
    others = shares.indices.astype(np.int64)
    kept = others != labels[place]
    place, others, values = place[kept], others[kept], shares.data[kept].astype(np.float64)
    order = np.lexsort((others, -counts[others], -values, place))
    ends = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=len(labels)))])
    return _Found(labels, ends, others[order], values[order])


def _chosen(found: _Found, counts: NDArray[np.int64]) -> list[int]:
    """Places of the examples: most clear neighbours first, and none that shows a label which is shown already."""
    place = np.repeat(np.arange(len(found.labels)), np.diff(found.ends))
    clear = np.bincount(place[found.shares >= _CLEAR], minlength=len(found.labels))
    order = np.lexsort((found.labels, -counts[found.labels], -clear))
    shown: set[int] = set()
    chosen: list[int] = []
    for candidate in order[clear[order] >= _FEWEST].tolist():
        kept = found.of(candidate)
        own = {int(found.labels[candidate]), *found.others[kept].tolist()}
        if not own & shown and len(np.unique(found.shares[kept])) >= _FEWEST:
            shown |= own
            chosen.append(candidate)
        if len(chosen) == EXAMPLES:
            break
    return chosen
