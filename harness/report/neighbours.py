"""Find labels that occur together, for the figure of examples: train matrix [N, L] -> `Neighbours`, a few labels.

    share of label i among the rows of j = number of train rows with both / number of train rows of j

which is what gandalf trains the text of j on (thesis 1.3, figure 1.2). Examples are frequent labels, head or torso,
with the most neighbours of a share of at least a fifth, not all of one share; no label is shown twice. All ties go to
more train rows, then to the smaller index, so that equal data gives equal examples.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.augment.label_texts import conditional, rows_per_label, strengths
from harness.data.ragged import Texts
from harness.metrics import frequency_bins
from harness.report.results import Example, Neighbour, Neighbours

EXAMPLES = 6
SHOWN = 6
"""Neighbours kept per example."""
_CLEAR = 0.2
"""Smallest share of a neighbour that counts when examples are chosen."""
_FAINT = 0.1
"""Share up to which a neighbour is not kept at all."""
_LEAST_ROWS = 8
"""Fewest train rows of an example: with fewer, every share is large."""
_FEWEST = 2
"""Fewest neighbours of an example, and fewest different shares among them: equal bars show nothing."""
_FEWEST_ITEMS = 30
"""Fewest labels that are items themselves: with fewer, their share means nothing."""
_DIGITS = 4


def find_neighbours(
    name: str, digest: str, train: csr_array, label_ids: Texts, same: csr_array | None = None
) -> Neighbours:
    """Return examples of labels that occur together, and how often such labels are also labels of the item itself.

    Args:
        name: Name of the dataset.
        digest: Digest of its content.
        train: Positives of the train rows, [N, L].
        label_ids: Ids of the labels, [L].
        same: Filter pairs of the train rows, [N, L]: the label is the same item as the row.
    """
    counts = rows_per_label(train)
    wanted = np.flatnonzero((frequency_bins(train) < 2) & (counts >= _LEAST_ROWS))
    examples = _examples(train, wanted, counts, label_ids) if len(wanted) else []
    items, share = (0, None) if same is None else _true_share(train, same, counts)
    return Neighbours(dataset=name, digest=digest, examples=examples, items=items, true_share=share)


def _shares(train: csr_array, labels: NDArray[np.int64]) -> csr_array:
    """Return the share of the rows of `labels` [A] that have each other label, [A, L]; faint ones are left out."""
    found = strengths(train, labels, conditional, _FAINT).tocoo()
    kept = found.col != labels[found.row]
    return csr_array((found.data[kept].astype(np.float64), (found.row[kept], found.col[kept])), shape=found.shape)


def _examples(
    train: csr_array, labels: NDArray[np.int64], counts: NDArray[np.int64], label_ids: Texts
) -> list[Example]:
    """Choose from `labels` [A] those with most clear neighbours; no label is shown in two examples."""
    shares = _shares(train, labels)
    place = np.repeat(np.arange(len(labels)), np.diff(shares.indptr))
    clear = np.bincount(place[shares.data >= _CLEAR], minlength=len(labels))
    shown: set[int] = set()
    examples: list[Example] = []
    for candidate in np.lexsort((labels, -counts[labels], -clear)).tolist():
        others = shares.indices[shares.indptr[candidate] : shares.indptr[candidate + 1]]
        values = shares.data[shares.indptr[candidate] : shares.indptr[candidate + 1]]
        best = np.lexsort((others, -counts[others], -values))[:SHOWN]
        label, own = int(labels[candidate]), {int(labels[candidate]), *others[best].tolist()}
        if clear[candidate] < _FEWEST or len(examples) == EXAMPLES:
            break
        if own & shown or len(np.unique(values[best])) < _FEWEST:
            continue
        shown |= own
        neighbours = [
            Neighbour(label=label_ids[int(other)], share=round(float(share), _DIGITS))
            for other, share in zip(others[best], values[best], strict=True)
        ]
        examples.append(Example(label=label_ids[label], train_rows=int(counts[label]), neighbours=neighbours))
    return examples


def _true_share(train: csr_array, same: csr_array, counts: NDArray[np.int64]) -> tuple[int, float | None]:
    """Return how many labels are items with a train row, and which share of their neighbours these rows have as labels.

    Gandalf takes the shares for targets of the label's text. With y_ij the share of the rows of label j that have i
    too, and Y_i(j) whether the row of item j has i: sum of y_ij Y_i(j) over sum of y_ij, i other than j, y_ij > 0.1.
    """
    pairs = same.tocoo()
    labels = np.flatnonzero((counts > 0) & (np.bincount(pairs.col, minlength=len(counts)) == 1))
    if len(labels) < _FEWEST_ITEMS:
        return len(labels), None
    item = np.zeros(len(counts), np.int64)
    item[pairs.col] = pairs.row
    shares = _shares(train, labels)
    true = shares.multiply(train[item[labels]].astype(bool)).sum()
    return len(labels), round(float(true) / float(shares.sum()), _DIGITS) if shares.nnz else None
