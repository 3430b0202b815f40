"""The whole label space as the pool of every batch: for one-vs-all training and for the full softmax."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching import LabelSpace
from harness.batching.pairs import draw, pairs_of, rows_of
from harness.errors import UserError


class LabelSpacePicker:
    """Knows the pairs of all train rows; a pick costs what the batch holds."""

    def __init__(
        self, train: csr_array, filter_pairs: csr_array, *, beta: int | None = None, soft: bool = False
    ) -> None:
        """Takes the labels.

        Args:
            train: Positives [N, L]; every stored entry is one.
            filter_pairs: Pairs [N, L] that are neither positive nor negative.
            beta: Positives a query draws; None for all it has.
            soft: Stored values are targets in (0, 1], and draws are in proportion to them; otherwise every stored entry
                is a whole positive.
        """
        if filter_pairs.shape != train.shape:
            raise UserError(f"filter pairs of shape {filter_pairs.shape} do not belong to train labels {train.shape}")
        if beta is not None and beta < 1:
            raise UserError(f"beta = {beta}: a query that draws no positive learns nothing; draw at least 1")
        self._labels, self._soft = train.shape[1], soft
        self._train, self._filter, self._beta = rows_of(train, values=soft), rows_of(filter_pairs), beta

    def pick(self, rows: NDArray[np.int64], positives: np.random.Generator) -> LabelSpace:
        """All labels for the train rows [B]; `positives` draws."""
        known, masked = pairs_of(self._train, rows), pairs_of(self._filter, rows)
        drawn, target = np.ones(len(known.label), np.bool_), known.target
        if self._beta is not None:
            target = np.ones_like(target)  # drawn in proportion to it, so counted in full
            drawn[:] = False
            drawn[draw(known.query, self._beta, positives, weight=known.target if self._soft else None)] = True
        order = np.argsort(known.label, kind="stable")
        outside = ~np.isin(masked.keys(self._labels), known.keys(self._labels), assume_unique=True)
        masked_order = np.flatnonzero(outside)[np.argsort(masked.label[outside], kind="stable")]
        return LabelSpace(
            len(rows),
            self._labels,
            known.query[order],
            known.label[order],
            target[order],
            drawn[order],
            masked.query[masked_order],
            masked.label[masked_order],
        )
