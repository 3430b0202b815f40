"""Which labels become rows, and the plainest rows: every label's text with the label itself as its target.

The thesis (figure 1.4) thins out labels in two ways: a uniform draw, or draws from bins of increasing frequency that
prefer the tail. Here the second is exact: the labels with the fewest train rows come first, ties by smaller id.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.augment import Frame, Given, Made
from harness.data.ragged import Ragged
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.config import AugmentSettings


def one_hot(given: Given) -> Made:
    """A row for every label with a text, seen in train or not; its only target is itself (thesis table 1.2, Z')."""
    counts = rows_per_label(given.train)
    labels = chosen_labels(counts, has_text(given.label_tokens, given.frame), given.options, given.generator)
    return Made(given.label_tokens.take(labels), self_targets(labels, given.train.shape[1]))


def chosen_labels(
    counts: NDArray[np.int64], allowed: NDArray[np.bool_], options: "AugmentSettings", generator: np.random.Generator
) -> NDArray[np.int64]:
    """The labels that become rows, increasing, [A]: a share of those that may.

    A larger share of the same seed holds every label of a smaller one.

    Args:
        counts: Train rows of every label, [L].
        allowed: Labels that may become rows, [L].
        options: `labels` is the share, `order` says who comes first.
        generator: Draws the random order.
    """
    labels = np.flatnonzero(allowed)
    if not len(labels):
        raise UserError("no label has both a text and a train row, so there is nothing to make rows from")
    count = round(options.labels * len(labels))
    if not count:
        raise UserError(f"augment_options.labels {options.labels} of {len(labels):,} labels is no label; raise it")
    if options.order == "tail-first":
        order = np.argsort(counts[labels], kind="stable")
    else:
        order = generator.permutation(len(labels))
    return np.sort(labels[order[:count]])


def rows_per_label(train: csr_array) -> NDArray[np.int64]:
    """How many rows have each label, [L]."""
    return np.bincount(train.indices, minlength=train.shape[1])


def has_text(label_tokens: Ragged, frame: Frame) -> NDArray[np.bool_]:
    """Labels with a text, [L]; a row without any token would teach nothing."""
    found = label_tokens.lengths > sum(frame)
    if not found.any():
        raise UserError(
            "the labels of this dataset have no text, and augment makes rows of label texts; set augment=none or "
            "augment=mixup"
        )
    return found


def self_targets(labels: NDArray[np.int64], count: int) -> csr_array:
    """1 for the label itself, [A, count]."""
    ones = np.ones(len(labels), np.float32)
    return csr_array((ones, labels, np.arange(len(labels) + 1)), shape=(len(labels), count))
