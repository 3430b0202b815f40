"""Label texts as augmented rows, with targets from how often labels occur together (thesis 1.3).

    G_ij = number of train rows that have both i and j, so G_jj is the number of rows of j
    gandalf (eq. 1.6)   y_ij = G_ij / G_jj ~ P[Y_i | Y_j]                            if that is > delta, else 0
    glas (eq. 1.8, 1.9) y_ij = sigmoid(S_ij), S_ij = (G_ij / G_jj + G_ij / G_ii) / 2 if S_ij > delta, else 0
    one-hot (table 1.2) y_ij = 1 if i = j, else 0

i is the label, j the text: gandalf divides by the rows of the text's label, so the text of a rare label points at a
frequent one and hardly the other way round; glas is symmetric. Labels that never occur together get no target: by the
equation it would be sigmoid(0) = 1/2 for all of them, an L x L array. The self target is 1 for gandalf and
sigmoid(1) = 0.731 for glas. G is computed a block of labels at a time and cut at delta at once: memory is one block and
the result.

The thesis (figure 1.4) thins out labels in two ways: a uniform draw, or draws from bins of increasing frequency that
prefer the tail. Here the second is exact: the labels with the fewest train rows come first, ties by smaller id.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.augment import AugmentedRows, Frame, Given
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.io.progress import progress

if TYPE_CHECKING:
    from harness.settings.schema import AugmentSettings

Numbers = NDArray[np.float64]
Counts = NDArray[np.int32]
Strength = Callable[[Counts, Counts, Counts], Numbers]
"""Maps the counts (G_ij, G_jj, G_ii) of n pairs, [n] each, to the number that is compared with delta, [n]."""

_BLOCK = 1 << 22
"""Products summed up in one block; 8 bytes each before equal pairs are added up."""


def gandalf(given: Given) -> AugmentedRows:
    """Make a row for every label with a text and a train row; targets are P[Y_i | Y_j] above delta."""
    labels = labels_to_make(given)
    targets = strengths(given.train, labels, conditional, given.options.delta)
    return AugmentedRows(given.label_tokens.take(labels), targets)


def glas(given: Given) -> AugmentedRows:
    """Make a row for every label with a text and a train row; targets are sigmoid(S_ij) where S_ij is above delta."""
    labels = labels_to_make(given)
    targets = strengths(given.train, labels, _symmetric, given.options.delta)
    targets.data = 1 / (1 + np.exp(-targets.data))
    return AugmentedRows(given.label_tokens.take(labels), targets)


def labels_to_make(given: Given) -> NDArray[np.int64]:
    """Return the labels that have a text and a train row, or the share of them in the options, increasing."""
    counts = rows_per_label(given.train)
    allowed = has_text(given.label_tokens, given.frame) & (counts > 0)
    return chosen_labels(counts, allowed, given.options, given.generator)


def conditional(both: Counts, of_text: Counts, of_label: Counts) -> Numbers:
    """Return P[Y_i | Y_j]: the share of the rows of the text's label that have the other label too."""
    return np.divide(both, of_text)


def _symmetric(both: Counts, of_text: Counts, of_label: Counts) -> Numbers:
    return 0.5 * (np.divide(both, of_text) + np.divide(both, of_label))


def strengths(
    train: csr_array, labels: NDArray[np.int64], strength: Strength, delta: float, block: int = _BLOCK
) -> csr_array:
    """Compute how strongly the texts of `labels` [A] point at every label, where above delta; float32 [A, L].

    Args:
        train: Positives [N, L], indices sorted and unique.
        labels: Labels whose texts become rows, each with a train row.
        strength: Maps counts to the strength, in float64: there 1/10 is 0.1, and not above it.
        delta: Pairs of this strength or less are left out.
        block: Products summed up at a time.
    """
    pattern = csr_array((np.ones(len(train.indices), np.int32), train.indices, train.indptr), shape=train.shape)
    rows_of = pattern.T.tocsr()
    counts = np.diff(rows_of.indptr)
    # the product of a label's rows with all rows adds up as many ones as these rows have labels
    work = np.asarray(rows_of @ np.diff(pattern.indptr).astype(np.int64), np.int64)[labels]
    indices, values, lengths = [], [], []
    with progress("label co-occurrence", total=len(labels), unit="labels") as advance:
        for part in blocks(work, block):
            own = labels[part]
            both = rows_of[own] @ pattern
            found = strength(both.data, np.repeat(counts[own], np.diff(both.indptr)), counts[both.indices])
            kept = found > delta
            ends = np.concatenate([[0], np.cumsum(kept)])[both.indptr]
            indices.append(both.indices[kept])
            values.append(found[kept].astype(np.float32))
            lengths.append(np.diff(ends))
            advance(len(own))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    result = csr_array((_joined(values), _joined(indices), indptr), shape=(len(labels), train.shape[1]))
    result.sort_indices()
    return result


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate the parts and empty the list, so that only one of several such lists is in memory twice."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def one_hot(given: Given) -> AugmentedRows:
    """Make a row for every label with a text, seen in train or not; its only target is itself (thesis 1.2, Z')."""
    counts = rows_per_label(given.train)
    labels = chosen_labels(counts, has_text(given.label_tokens, given.frame), given.options, given.generator)
    return AugmentedRows(given.label_tokens.take(labels), self_targets(labels, given.train.shape[1]))


def chosen_labels(
    counts: NDArray[np.int64], allowed: NDArray[np.bool_], options: "AugmentSettings", generator: np.random.Generator
) -> NDArray[np.int64]:
    """Choose the labels that become rows, a share of those that may; return them increasing, [A].

    A larger share of the same seed holds every label of a smaller one.

    Args:
        counts: Number of train rows of every label, [L].
        allowed: Whether each label may become a row, [L].
        options: `labels` is the share, `order` says which labels come first.
        generator: Draws the random order.
    """
    labels = np.flatnonzero(allowed)
    if not len(labels):
        raise UserError("no label has both a text and a train row, so there is nothing to make rows from")
    count = round(options.labels * len(labels))
    if not count:
        raise UserError(f"augment_options.labels {options.labels} of {len(labels):,} labels leaves none; raise it")
    if options.order == "tail-first":
        order = np.argsort(counts[labels], kind="stable")
    else:
        order = generator.permutation(len(labels))
    return np.sort(labels[order[:count]])


def rows_per_label(train: csr_array) -> NDArray[np.int64]:
    """Count the rows that have each label, [L]."""
    return np.bincount(train.indices, minlength=train.shape[1])


def has_text(label_tokens: Ragged, frame: Frame) -> NDArray[np.bool_]:
    """Return whether each label has a text, [L]; raise if none has. A row without tokens would teach nothing."""
    found = label_tokens.lengths > sum(frame)
    if not found.any():
        raise UserError(
            "the labels of this dataset have no text, and augment makes rows of label texts; set augment=none or "
            "augment=mixup"
        )
    return found


def self_targets(labels: NDArray[np.int64], count: int) -> csr_array:
    """Return targets [A, count] that are 1 for the row's own label."""
    ones = np.ones(len(labels), np.float32)
    return csr_array((ones, labels, np.arange(len(labels) + 1)), shape=(len(labels), count))


def blocks(work: NDArray[np.int64], limit: int) -> list[slice]:
    """Cut items into consecutive ranges that cost about `limit`; an item that costs more may stand alone.

    Every range costs less than `limit` without its last item.

    Args:
        work: Cost of every item, [n].
        limit: Cost of a range.
    """
    if not len(work):
        return []
    before = np.cumsum(work, dtype=np.int64) - work
    starts = np.flatnonzero(np.diff(before // limit, prepend=-1))
    return [slice(int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(work)], strict=True)]
