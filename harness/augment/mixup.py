"""Texts mixed with texts (thesis table 1.6): words of two texts in one row, their labels in the same shares.

    lambda ~ Beta(ALPHA, ALPHA)   tokens: lambda of text a, then 1 - lambda of b   y = lambda y_a + (1 - lambda) y_b

Mixup was defined on vectors; here it is done on tokens, so that any encoder reads the rows. Of a text of n tokens
round(lambda n) are kept, a uniform draw in their old order; the sum of both parts is rounded once, so a row is never
longer than the longer of its texts. A text of which no token is left gives no target: the other one counts in full.

`mixup` pairs every row with another, each being first once and second once. `label_mixup` pairs every row with the text
of one of its own labels, drawn uniformly, whose only target is itself: the thesis merely says that a label's text and a
row are combined, and rests on a row being interchangeable with its labels' texts (1.2). That label keeps its target 1;
the others get lambda. Both make a row for every row with text and labels, once per run.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.augment import AugmentedRows, Frame, Given
from harness.augment.label_texts import blocks, has_text, self_targets
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.io.progress import progress

ALPHA = 0.2
"""Parameter of the Beta distribution of lambda; with 0.2 most mixed rows are close to one of their texts."""
_BLOCK = 1 << 22
"""Tokens sorted at a time."""

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]


def mixup(given: Given) -> AugmentedRows:
    """Make rows that mix two train rows."""
    train, train_tokens, frame, generator = given.train, given.train_tokens, given.frame, given.generator
    rows = np.flatnonzero((train_tokens.lengths > sum(frame)) & (np.diff(train.indptr) > 0))
    if len(rows) < 2:
        raise UserError("mixup needs at least two train rows with text and labels")
    circle = generator.permutation(rows)
    first, second = circle, np.roll(circle, -1)
    one, other, share = _mixed_tokens(train_tokens.take(first), train_tokens.take(second), frame, generator)
    targets = _weighted(train[first], train[second], share)
    return AugmentedRows(_framed(one, other, train_tokens, frame), targets, (first, second))


def label_mixup(given: Given) -> AugmentedRows:
    """Make rows that mix every train row with the text of one of its labels."""
    train, train_tokens, frame, generator = given.train, given.train_tokens, given.frame, given.generator
    label_tokens = given.label_tokens
    with_text = has_text(label_tokens, frame)
    kept = with_text[train.indices].astype(np.float32)
    owned = csr_array((kept, train.indices, train.indptr), shape=train.shape, copy=True)
    owned.eliminate_zeros()
    degree = np.diff(owned.indptr)
    rows = np.flatnonzero((train_tokens.lengths > sum(frame)) & (degree > 0))
    if not len(rows):
        raise UserError("no train row with a text has a label with a text, so there is nothing to mix")
    nth = (generator.random(len(rows)) * degree[rows]).astype(np.int64)
    labels = owned.indices[owned.indptr[rows] + nth].astype(np.int64)
    one, other, share = _mixed_tokens(train_tokens.take(rows), label_tokens.take(labels), frame, generator)
    targets = _weighted(train[rows], self_targets(labels, train.shape[1]), share)
    return AugmentedRows(_framed(one, other, train_tokens, frame), targets, (rows,))


def _mixed_tokens(
    first: Ragged, second: Ragged, frame: Frame, generator: np.random.Generator
) -> tuple[Ragged, Ragged, Numbers]:
    """Return the kept tokens of both texts [A], without special tokens, and the first one's share of targets [A]."""
    share = generator.beta(ALPHA, ALPHA, len(first))
    lengths = [column.lengths - sum(frame) for column in (first, second)]
    part = share * lengths[0]
    # floor(x + 1/2), because rounding halves to even would not be monotone in steps of one
    kept = np.floor(part + 0.5).astype(np.int64)
    total = np.floor(part + (1 - share) * lengths[1] + 0.5).astype(np.int64)
    rest = np.minimum(total - kept, lengths[1])
    share = np.where(kept == 0, 0.0, np.where(rest == 0, 1.0, share))
    with progress("mix texts", total=2 * len(first), unit="texts") as advance:
        parts = []
        for column, count in ((first, kept), (second, rest)):
            parts.append(some_tokens(column, count, frame, generator))
            advance(len(column))
    return parts[0], parts[1], share


def some_tokens(column: Ragged, count: Integers, frame: Frame, generator: np.random.Generator) -> Ragged:
    """Draw `count` tokens of every text [n] uniformly; they keep their order, special tokens are left out."""
    lengths = column.lengths - sum(frame)
    values = []
    for part in blocks(lengths, _BLOCK):
        inside = lengths[part]
        row = np.repeat(np.arange(len(inside)), inside)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(inside) - inside, inside)
        # sorted by (row, ticket) the tokens of a row are in random order, and the first `count` of them are taken
        order = np.argsort((row << 32) | generator.integers(1 << 32, size=len(row)), kind="stable")
        taken = np.sort(order[nth < count[part][row]])
        at = column.offsets[part][row[taken]] + frame[0] + nth[taken]
        values.append(column.values[at])
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return Ragged(np.concatenate(values), offsets)


def _framed(first: Ragged, second: Ragged, like: Ragged, frame: Frame) -> Ragged:
    """Join the tokens of the first and second text of each row, inside the special tokens of the rows of `like`."""
    before, after = like[0][: frame[0]], like[0][len(like[0]) - frame[1] :]
    offsets = np.concatenate([[0], np.cumsum(first.lengths + second.lengths + sum(frame))]).astype(np.int64)
    values = np.empty(offsets[-1], like.values.dtype)
    for nth, token in enumerate(before):
        values[offsets[:-1] + nth] = token
    for nth, token in enumerate(after):
        values[offsets[1:] - frame[1] + nth] = token
    for column, start in ((first, offsets[:-1] + frame[0]), (second, offsets[:-1] + frame[0] + first.lengths)):
        values[np.arange(len(column.values)) + np.repeat(start - column.offsets[:-1], column.lengths)] = column.values
    return Ragged(values, offsets)


def _weighted(first: csr_array, second: csr_array, share: Numbers) -> csr_array:
    """Return the targets share y_a + (1 - share) y_b of positives [A, L] each; float32, zeros are not stored."""
    parts = [
        csr_array((np.repeat(weight, np.diff(matrix.indptr)), matrix.indices, matrix.indptr), shape=matrix.shape)
        for matrix, weight in ((first, share), (second, 1 - share))
    ]
    targets = parts[0] + parts[1]
    targets.data = np.minimum(targets.data, 1.0).astype(np.float32)
    targets.eliminate_zeros()
    targets.sort_indices()
    return targets
