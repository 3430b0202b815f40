"""Fusion of rankings: the top labels of several searches of the same queries in, one top K out.

A label's fused score is a weighted sum over the rankings that found it; a ranking that did not adds 0. What one adds is

    1 / (60 + rank)                                         reciprocal rank fusion, rank from 1 (Cormack et al., 2009)
    1 for its first label, 1/n for the last of its n labels, linear in the score between       scaled scores

Neither depends on the scale of the scores. The fused score is summed in float64 and rounded once to float32; labels are
ordered by it, equal ones by the smaller id, so the same rankings give the same bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.index import TopK
from harness.io.progress import progress

RANK_CONSTANT = 60
"""Added to every rank, so that the first label of one ranking does not outweigh all others."""
_BLOCK_VALUES = 1 << 21
"""Largest number of predicted labels that are fused at a time."""
_LOW = 0xFFFFFFFF

Floats = NDArray[np.float64]
Value = Callable[[NDArray[np.int32], NDArray[np.float32]], Floats]
"""What a ranking adds to its labels: from ids [n, K] and scores [n, K] to values [n, K], above 0 where there is one."""


def reciprocal_ranks(ids: NDArray[np.int32], scores: NDArray[np.float32]) -> Floats:
    """Return 1 / (60 + rank) for each label of `ids` [n, K], 0 where there is none, [n, K]; scores are not used."""
    return np.where(ids >= 0, 1 / (RANK_CONSTANT + 1 + np.arange(ids.shape[1])), 0.0)


def scaled_scores(ids: NDArray[np.int32], scores: NDArray[np.float32]) -> Floats:
    """Scale the scores [n, K] of each row: 1 for its best label, 1/n for the last of its n labels, 0 for none, [n, K].

    The last of a short ranking is not worth nothing: it was found, where others were not. Equal scores all get 1.
    """
    found = ids >= 0
    count = np.maximum(found.sum(1, keepdims=True), 1)
    exact = np.where(found, scores.astype(np.float64), 0.0)
    lowest = np.where(found, exact, np.inf).min(1, keepdims=True)
    span = exact[:, :1] - lowest
    height = np.where(span > 0, (exact - lowest) / np.where(span > 0, span, 1.0), 1.0)
    return np.where(found, (1 + (count - 1) * height) / count, 0.0)


@dataclass(frozen=True)
class Candidates:
    """All labels that some ranking found, for n queries."""

    ids: NDArray[np.int32]
    """Label ids of each query, ascending, then -1 for none, [n, U]."""
    values: Floats
    """What each of the R rankings adds to them, [R, n, U]."""

    @classmethod
    def of(cls, rankings: Sequence[TopK], value: Value, rows: slice | NDArray[np.int64]) -> "Candidates":
        """Collect the labels of the given rows of R rankings, each [M, K]; K may differ between them."""
        parts = [np.asarray(one.ids[rows]) for one in rankings]
        added = [value(part, np.asarray(one.scores[rows])) for part, one in zip(parts, rankings, strict=True)]
        every = np.concatenate(parts, axis=1)
        order = np.argsort(every, axis=1, kind="stable")
        sorted_ids = np.take_along_axis(every, order, 1)
        new = sorted_ids >= 0
        new[:, 1:] &= sorted_ids[:, 1:] != sorted_ids[:, :-1]
        place = np.cumsum(new, axis=1) - 1  # -1 before the first label
        shape = (len(every), int(place.max(initial=-1)) + 1)
        ids, values = np.full(shape, -1, np.int32), np.zeros((len(rankings), *shape))
        row, column = np.nonzero(sorted_ids >= 0)
        at = place[row, column]
        ids[row, at] = sorted_ids[row, column]
        origin = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
        values[origin[order[row, column]], row, at] = np.concatenate(added, axis=1)[row, order[row, column]]
        return cls(ids, values)

    def best(self, weights: Sequence[float], k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids [n, k] (-1 = none) and scores [n, k] (-inf = none) of the best labels, with R weights >= 0."""
        total = np.zeros(self.ids.shape)
        for weight, values in zip(weights, self.values, strict=True):  # one by one: always summed in the same order
            total += weight * values
        # score and id share an integer: bits of floats >= 0 are ordered as the floats are
        bits = total.astype(np.float32).view(np.int32).astype(np.int64)
        keys = np.where(self.ids >= 0, bits << 32 | (_LOW - self.ids.astype(np.int64)), -1)
        if (more := keys.shape[1] - k) > 0:
            keys = np.partition(keys, more, axis=1)[:, more:]
        keys = np.pad(np.sort(keys, axis=1)[:, ::-1], ((0, 0), (0, max(0, -more))), constant_values=-1)
        found = keys >= 0
        scores = (keys >> 32).astype(np.int32).view(np.float32)
        return np.where(found, _LOW - (keys & _LOW), -1).astype(np.int32), np.where(found, scores, np.float32(-np.inf))


def fuse(rankings: Sequence[TopK], value: Value, weights: Sequence[float], k: int) -> TopK:
    """Fuse R rankings [M, K] of the same queries into their best k labels.

    Args:
        rankings: Predictions by row, best first, each label once; K may differ between them.
        value: What a ranking adds to its labels: `reciprocal_ranks` or `scaled_scores`.
        weights: A weight >= 0 for each ranking, [R].
        k: Labels to keep for each row.
    """
    count = len(rankings[0].ids)
    ids, scores = np.empty((count, k), np.int32), np.empty((count, k), np.float32)
    step = max(1, _BLOCK_VALUES // sum(one.ids.shape[1] for one in rankings))
    with progress("fuse", count) as advance:
        for start in range(0, count, step):
            block = slice(start, min(start + step, count))
            ids[block], scores[block] = Candidates.of(rankings, value, block).best(weights, k)
            advance(block.stop - block.start)
    return TopK(ids, scores, backend="fusion", recall=None)


def shares(parts: int, steps: int) -> NDArray[Any]:
    """Return every way to split 1 into `parts` weights that are multiples of 1 / `steps`, [ways, parts]."""
    if parts == 1:
        return np.ones((1, 1))
    ways = np.indices((steps + 1,) * (parts - 1)).reshape(parts - 1, -1).T
    ways = ways[ways.sum(1) <= steps]
    return np.concatenate([ways, steps - ways.sum(1, keepdims=True)], axis=1) / steps


def plainest(values: Sequence[float], by_row: Sequence[Floats | None], distances: Sequence[float]) -> int:
    """Return the place of the weights to take of W that were tried: the nearest to equal ones that are level.

    Level are weights whose metric is at most one standard error below the best one's, the error being that of the mean
    difference over the rows: a few hundred rows tell little more apart.

    Args:
        values: The metric with each of them, [W].
        by_row: Its value for every row [n] with each; None for a metric of the whole set, where the best counts.
        distances: How far each is from equal weights, [W].
    """
    best = max(range(len(values)), key=lambda place: (values[place], -distances[place]))

    def level(place: int) -> bool:
        mine, other = by_row[place], by_row[best]
        if mine is None or other is None or len(mine) < 2:
            return values[place] == values[best]
        behind = other - mine
        return bool(behind.mean() <= behind.std(ddof=1) / math.sqrt(len(behind)))

    return min(filter(level, range(len(values))), key=lambda place: (distances[place], -values[place]))
