"""Pick-some-labels: the rows of a batch in, the labels it is scored against out.

Query i draws up to beta of its positives P_i and up to eta of its hard negatives H_i. The pool is their union over the
batch, L_B, and what counts as positive in it is everything known to be, not only what was drawn:

    L_B = union_i [ sample(P_i, beta) + sample(H_i - P_i - F_i, eta) ]     positive_i = P_i & L_B     F_i: filter pairs

A cap on |L_B| keeps, in this order, drawn positives, drawn negatives and, to fill a gap, other positives; within each
kind those of most queries come first, then smaller ids. Thesis 2.3.2, preprint 3.1; POS-CLF is preprint C.4.

All work is on flat arrays of the batch's stored pairs, so a pick costs what the batch holds, whatever N and L are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from harness.batching import LabelPool
from harness.batching.pairs import Integers, Pairs, draw, draw_again, pairs_of, rows_of
from harness.errors import UserError

_NO_TICKET = 1 << 62
"""Stands for an entry that must not be drawn: larger than every ticket; its low bits are 0, an existing column."""


class _Places:
    """Index of each label in the pool, -1 if absent; clearing costs as much as was written, never L."""

    def __init__(self, labels: int) -> None:
        self._place = np.full(labels, -1, np.int32)
        self._written: list[Integers] = []

    def write(self, labels: Integers) -> None:
        """Give the distinct labels [U] the indices 0 to U - 1."""
        self._written.append(labels)
        self._place[labels] = np.arange(len(labels), dtype=np.int32)

    def of(self, labels: Integers) -> NDArray[np.int32]:
        """Return the index of each label in the pool, -1 if absent; same shape."""
        return self._place[labels]

    def clear(self) -> None:
        """Set the index of every label to -1."""
        for labels in self._written:
            self._place[labels] = -1
        self._written.clear()


class LabelPicker:
    """Picks the label pool of one batch after the other; holds what is constant over a training.

    One picker serves one thread, because its picks share a scratch array.
    """

    def __init__(
        self,
        train: csr_array,
        filter_pairs: csr_array | None,
        *,
        beta: int | None,
        eta: int,
        extra: int = 0,
        pool_size: int | None = None,
        replacement: bool = False,
        fill: bool = True,
        soft: bool = False,
        mark_drawn: bool = False,
    ) -> None:
        """Store the labels and the sizes.

        Args:
            train: Positives [N, L]; every stored entry is one, whatever its value.
            filter_pairs: Pairs [N, L] that are never negatives, or None.
            beta: Positives drawn per query; all it has if it has fewer, or if beta is None.
            eta: Hard negatives drawn per query from its row of `hard`; all of them if there are fewer.
            extra: Further positives drawn per query for the classifier alone, from those not in the shared pool.
            pool_size: Most labels that every head scores; None for no cap. The extra ones do not count.
            replacement: Draw the beta positives with replacement, so that fewer may be distinct (reference code).
            fill: Complete a pool smaller than `pool_size` with positives that no query has drawn.
            soft: The stored values of `train` are targets in (0, 1]: they go into the pool, and positives are drawn in
                proportion to them.
            mark_drawn: Whether the pool says which positives each query drew.
        """
        self._labels = train.shape[1]
        self._train = rows_of(train, values=soft)
        self._filter = None if filter_pairs is None or not filter_pairs.nnz else rows_of(filter_pairs)
        self._beta, self._eta, self._extra = beta, eta, extra
        self._soft, self._mark_drawn = soft, mark_drawn
        self._pool_size, self._replacement, self._fill = pool_size, replacement, fill
        self._places = _Places(self._labels)
        self.hard: NDArray[np.int32] | None = None
        """Labels each train row is most confused about, [N, H], distinct within a row, -1 = none; None before mining.

        Assign a new list at each refresh. Positives and filter pairs in it are never drawn.
        """

    def pick(self, rows: Integers, positives: np.random.Generator, negatives: np.random.Generator) -> LabelPool:
        """Return the pool of a batch; how many random numbers it takes depends on the arguments alone.

        Args:
            rows: Train rows of the batch, int64 [B]. A row without labels has no positive.
            positives: Random numbers for the positives, the extra ones too.
            negatives: Random numbers for the hard negatives.
        """
        known = pairs_of(self._train, rows)
        masked = None if self._filter is None else pairs_of(self._filter, rows)
        drawing = self._drawn_positives(known, len(rows), positives)
        drawn = known.label[drawing]
        against = self._drawn_negatives(rows, known, masked, negatives)
        try:
            shared = self._shared_labels(drawn, against, known)
            labels = self._with_extra(shared, known, positives)
            self._places.write(labels)
            positive = np.zeros((len(rows), len(labels)), np.bool_)
            inside, cells = self._cells(known, len(labels))
            positive.reshape(-1)[cells] = True
            target = _scattered(positive.shape, cells, known.target[inside]) if self._soft else None
            own = self._marked(known, drawing, positive.shape) if self._mark_drawn else None
            ignored = None if masked is None else self._cells(masked, len(labels))[1]
        finally:
            self._places.clear()
        return LabelPool(
            labels,
            positive,
            ignored=None if ignored is None else _mask_outside(positive, ignored),
            encoded=len(shared) if self._extra else None,
            target=target,
            drawn=own,
        )

    def _drawn_positives(self, known: Pairs, queries: int, generator: np.random.Generator) -> Integers:
        """Draw positives; return indices into `known`, each at most once."""
        if self._beta is None:
            return np.arange(len(known.label))
        if not self._replacement:
            return draw(known.query, self._beta, generator, weight=known.target if self._soft else None)
        return draw_again(known.query, queries, self._beta, generator, known.target if self._soft else None)

    def _drawn_negatives(
        self, rows: Integers, known: Pairs, masked: Pairs | None, generator: np.random.Generator
    ) -> Integers:
        """Draw labels from the queries' rows of `hard`; a label that several queries drew is repeated."""
        if self.hard is None or not self.hard.shape[1] or not self._eta:
            return np.zeros(0, np.int64)
        listed = self.hard[rows]
        draw = min(self._eta, listed.shape[1])
        never_keys = [pairs.keys(self._labels) for pairs in (known, masked) if pairs is not None]
        ticket, column_mask = _tickets(listed.shape, generator)
        ticket[listed < 0] = _NO_TICKET
        drawn = [np.zeros(0, np.int64)]
        query = np.arange(len(rows))
        # A list hardly ever holds a pair that must not be drawn. So only winners are looked up, and a query with such a
        # winner draws again without it; it ends with what it would have drawn from a clean list.
        while len(query):
            won = np.partition(ticket[query], draw - 1, axis=1)[:, :draw]
            column = won & column_mask
            label = listed[query[:, None], column].astype(np.int64)
            valid = won != _NO_TICKET
            key = query[:, None] * self._labels + label
            wrong = valid & np.logical_or.reduce([_contains(keys, key) for keys in never_keys])
            ticket[query[wrong.nonzero()[0]], column[wrong]] = _NO_TICKET
            again = wrong.any(axis=1)
            drawn.append(label[valid & ~again[:, None]])
            query = query[again]
        return np.concatenate(drawn)

    def _shared_labels(self, drawn: Integers, against: Integers, known: Pairs) -> Integers:
        """Return the labels that every head scores, increasing, [P]."""
        if self._pool_size is None:
            return _distinct(np.concatenate([drawn, against]))[0]
        shared = _most_frequent(drawn, self._pool_size)
        for further in (against, known.label) if self._fill else (against,):
            if room := self._pool_size - len(shared):
                self._places.write(shared)
                shared = np.concatenate([shared, _most_frequent(further[self._places.of(further) < 0], room)])
        return np.sort(shared)

    def _with_extra(self, shared: Integers, known: Pairs, generator: np.random.Generator) -> Integers:
        """Return the shared labels, followed by the labels that only the classifier scores, increasing too."""
        if not self._extra:
            return shared
        self._places.write(shared)
        further = draw(known.query, self._extra, generator, self._places.of(known.label) < 0)
        return np.concatenate([shared, _distinct(known.label[further])[0]])

    def _marked(self, known: Pairs, drawing: Integers, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return whether each query drew each label itself, [B, P]."""
        _, cells = self._cells(Pairs(known.query[drawing], known.label[drawing], known.target[drawing]), shape[1])
        return _scattered(shape, cells, np.ones(len(cells), np.bool_))

    def _cells(self, pairs: Pairs, labels: int) -> tuple[Integers, Integers]:
        """Return the indices of the pairs whose label is in the pool, and their flat positions in a [B, P] array."""
        place = self._places.of(pairs.label)
        inside = np.flatnonzero(place >= 0)
        return inside, pairs.query[inside] * labels + place[inside]


def pick_some_labels(
    rows: Integers,
    train: csr_array,
    *,
    beta: int,
    eta: int = 0,
    hard: NDArray[np.int32] | None = None,
    filter_pairs: csr_array | None = None,
    pool_size: int | None = None,
    extra: int = 0,
    replacement: bool = False,
    fill: bool = True,
    positives: np.random.Generator,
    negatives: np.random.Generator,
) -> LabelPool:
    """Return the pool of a single batch; arguments as for `LabelPicker`, checked. Training keeps a picker instead."""
    rows, hard = np.asarray(rows), None if hard is None else np.asarray(hard)
    sizes = (("beta", beta, 1), ("eta", eta, 0), ("extra", extra, 0), ("pool_size", pool_size, 1))
    _require_arguments(rows, train, filter_pairs, *sizes)
    require_hard(hard, *train.shape)
    picker = LabelPicker(
        train,
        filter_pairs,
        beta=beta,
        eta=eta,
        extra=extra,
        pool_size=pool_size,
        replacement=replacement,
        fill=fill,
    )
    picker.hard = hard
    return picker.pick(rows.astype(np.int64), positives, negatives)


def _tickets(shape: tuple[int, ...], generator: np.random.Generator) -> tuple[Integers, int]:
    """Draw distinct random numbers [B, H] below `_NO_TICKET`; return them and the bit mask of their column."""
    bits = shape[1].bit_length()
    ticket = generator.integers(_NO_TICKET >> bits, size=shape) << bits
    return ticket | np.arange(shape[1]), (1 << bits) - 1


def _distinct(labels: Integers) -> tuple[Integers, Integers]:
    """Return the distinct labels, increasing, and their counts; np.unique would hash, which is slower here."""
    labels = np.sort(labels)
    first = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]])[: len(labels)])
    return labels[first], np.diff(first, append=len(labels))


def _most_frequent(labels: Integers, room: int) -> Integers:
    """Return up to `room` distinct labels, the most frequent ones, ties by smaller id."""
    distinct, count = _distinct(labels)
    return distinct if len(distinct) <= room else distinct[np.argsort(-count, kind="stable")[:room]]


def _scattered(shape: tuple[int, ...], cells: Integers, values: NDArray[Any]) -> NDArray[Any]:
    """Return zeros [B, P] with `values` [n] at the flat positions `cells` [n]."""
    array = np.zeros(shape, values.dtype)
    array.reshape(-1)[cells] = values
    return array


def _mask_outside(positive: NDArray[np.bool_], cells: Integers) -> NDArray[np.bool_] | None:
    """Return a mask [B, P], true at the flat positions `cells` that are not positive; None if there are none."""
    cells = cells[~positive.reshape(-1)[cells]]
    if not len(cells):
        return None
    mask = np.zeros(positive.shape, np.bool_)  # unlike zeros_like this leaves untouched pages to the system
    mask.reshape(-1)[cells] = True
    return mask


def _contains(keys: Integers, wanted: Integers) -> NDArray[np.bool_]:
    """Return which of the wanted keys, of any shape, are among the increasing `keys` [n]."""
    if not len(keys):
        return np.zeros(wanted.shape, np.bool_)
    found: NDArray[np.bool_] = keys.take(np.searchsorted(keys, wanted), mode="clip") == wanted
    return found


def _require_arguments(
    rows: NDArray[Any], train: csr_array, filter_pairs: csr_array | None, *sizes: tuple[str, int | None, int]
) -> None:
    """Raise unless rows [B] are row numbers of `train` [N, L], and every size, by name, is as large as it must be."""
    for what, matrix in (("train labels", train), ("filter pairs", filter_pairs)):
        if matrix is not None and not (issparse(matrix) and matrix.ndim == 2):
            raise UserError(f"{what} must be a two-dimensional scipy sparse array, not {type(matrix).__name__}")
    if filter_pairs is not None and filter_pairs.shape != train.shape:
        raise UserError(f"filter pairs of shape {filter_pairs.shape} do not belong to train labels {train.shape}")
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise UserError(f"a batch must be train row numbers [B], not {rows.dtype} of shape {rows.shape}")
    if rows.size and not 0 <= rows.min() <= rows.max() < train.shape[0]:
        raise UserError(f"row {rows[(rows < 0) | (rows >= train.shape[0])][0]} is outside the train rows")
    for name, size, least in sizes:
        if size is not None and size < least:
            raise UserError(f"{name} = {size}: it must be at least {least}")


def require_hard(hard: NDArray[Any] | None, count: int, labels: int) -> None:
    """Raise unless `hard` is None or holds label ids, -1 for none, for each of `count` train rows, [N, H]."""
    if hard is None:
        return
    if hard.ndim != 2 or hard.dtype.kind not in "iu":
        raise UserError(f"hard negatives must be label ids [N, H], not {hard.dtype} of shape {hard.shape}")
    if len(hard) != count:
        raise UserError(f"{len(hard):,} rows of hard negatives for {count:,} train rows; mine them again")
    if hard.size and not -1 <= hard.min() <= hard.max() < labels:
        raise UserError(f"hard negatives must be ids from 0 to {labels - 1} or -1 for none; mine them again")
