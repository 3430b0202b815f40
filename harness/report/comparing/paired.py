"""Statistics on paired rows: how far two methods are apart, and whether chance alone would put them there.

d_i is the difference of the two scores of test row i, of M rows.

    interval   95 % percentile bootstrap: M rows drawn with replacement; the statistic is mean d or, for a ratio of
               averages such as PSP, 100 mean d / mean ideal, whose denominator is drawn along with the rows
    p          both methods alike, each d_i is as likely as -d_i: (1 + #{|sum s_i d_i| >= |sum d_i|}) / (1 + draws)
    Holm       the i-th smallest of m p values times m - i + 1, never below the one before it, at most 1

Rows of equal values are interchangeable. So one draw is not M choices but one multinomial number per distinct value
(binomial for signs), and P@k has few distinct values whatever M is. Where a set has many, near values share a cell of
a grid, and what a cell's mean leaves out is added as normal noise of exactly its covariance; mean and variance of the
statistic stay exact. Time: draws x cells. Memory: M values and one block of draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.05
"""What is decided is decided at this level; intervals cover one minus it."""
_SINGLE_ROWS = 4096
"""Up to so many rows every row is a cell of its own."""
_DISTINCT = 512
"""Up to so many distinct values every one is a cell of its own."""
_GRID = {1: (256,), 2: (64, 8)}
"""Cells of the grid along each column, by the number of columns."""
_BLOCK_NUMBERS = 2**20
"""Random numbers held at a time."""
_ROUNDING = 1e-6
"""Scores are stored as float32; sums that differ by less, relatively, are the same sum."""


@dataclass(frozen=True)
class Cells:
    """M rows of C columns, with equal or near rows put together."""

    counts: NDArray[np.int64]
    """Rows in each cell, [G]."""
    centres: Floats
    """Their mean, [G, C]."""
    scatter: Floats
    """Sum over rows of (row - centre)(row - centre)^T, [C, C]; zero where cells hold equal rows."""

    @property
    def single(self) -> bool:
        """Whether every row is a cell of its own."""
        return len(self.counts) == int(self.counts.sum())


def group_rows(values: Floats) -> Cells:
    """Puts the rows of `values` [M, C] into cells: single rows, else distinct ones, else those of a grid."""
    rows, columns = values.shape
    nothing = np.zeros((columns, columns))
    if rows <= _SINGLE_ROWS:
        return Cells(np.ones(rows, np.int64), values, nothing)
    codes = _codes(values, lambda column, _: np.unique(column, return_inverse=True)[1])
    exact = int(codes.max()) < _DISTINCT
    if not exact:
        codes = _codes(values, _grid_places)
    counts = np.bincount(codes)
    centres = np.stack([np.bincount(codes, column) / counts for column in values.T], axis=1)
    if exact:
        return Cells(counts, centres, nothing)
    lost = values - centres[codes]
    return Cells(counts, centres, lost.T @ lost)


def _codes(values: Floats, places: Callable[[Floats, int], NDArray[np.int64]]) -> NDArray[np.int64]:
    """A cell number per row, from 0 without gaps, [M]; rows share a cell that share a place in every column."""
    codes = np.zeros(len(values), np.int64)
    for column, parts in zip(values.T, _GRID[values.shape[1]], strict=True):
        place = places(column, parts)
        codes = np.unique(codes * (int(place.max()) + 1) + place, return_inverse=True)[1]
    return codes


def _grid_places(column: Floats, parts: int) -> NDArray[np.int64]:
    """Which of `parts` equal parts of the column's range each value [M] is in."""
    low, high = float(column.min()), float(column.max())
    if low == high:
        return np.zeros(len(column), np.int64)
    return np.minimum(((column - low) * (parts / (high - low))).astype(np.int64), parts - 1)


def bootstrap_interval(
    difference: Floats, ideal: Floats | None = None, *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The interval of the mean difference, or of the difference of two ratios with a common denominator.

    Args:
        difference: Differences of the two scores of each row, [M].
        ideal: The largest score of each row, [M], of mean 100, where the metric is a ratio of averages.
        resamples: Number of draws.
        seed: Same seed, same interval.
    """
    columns = [difference] if ideal is None else [difference, ideal]
    cells, rows = group_rows(np.stack(columns, axis=1)), len(difference)
    share = cells.counts / rows

    def counts(generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        if not cells.single:
            return generator.multinomial(rows, share, size)
        picked = generator.integers(0, rows, (size, rows)) + rows * np.arange(size)[:, None]
        return np.bincount(picked.ravel(), minlength=size * rows).reshape(size, rows)

    sums = _drawn_sums(cells, counts, resamples, seed)
    if ideal is None:
        drawn = sums[:, 0] / rows
    else:  # as in the metric itself, an empty denominator gives 0
        drawn = 100 * sums[:, 0] / np.where(sums[:, 1] > 0, sums[:, 1], np.inf)
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def sign_flip_p(difference: Floats, *, resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p value of the paired permutation test on the mean of `difference` [M]; 1 if all are zero.

    Exchanging the two methods in a row flips the sign of its difference. A denominator that both share is not touched,
    so for a ratio of averages the test on the numerators is the test on the ratio.
    """
    sizes = np.abs(difference[difference != 0])
    if not len(sizes):
        return 1.0
    cells = group_rows(sizes[:, None])

    def signs(generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        if cells.single:
            return 2 * generator.integers(0, 2, (size, len(sizes)), np.int8).astype(np.int64) - 1
        return 2 * generator.binomial(cells.counts, 0.5, (size, len(cells.counts))) - cells.counts

    sums = _drawn_sums(cells, signs, resamples, seed)[:, 0]
    observed = abs(float(difference.sum())) - _ROUNDING * float(sizes.sum())
    return (1 + int(np.count_nonzero(np.abs(sums) >= observed))) / (1 + resamples)


def _drawn_sums(
    cells: Cells, draw: Callable[[np.random.Generator, int], NDArray[np.int64]], resamples: int, seed: int
) -> Floats:
    """Sums over the rows of every draw, [resamples, C]; `draw` gives how often each cell counts, [size, G]."""
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_NUMBERS // len(cells.counts))
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    sums: Floats = np.concatenate([draw(generator, size) @ cells.centres for size in sizes])
    if cells.scatter.any():
        variances, axes = np.linalg.eigh(cells.scatter)
        spread = np.sqrt(np.maximum(variances, 0)) * axes
        sums += generator.standard_normal((resamples, len(spread))) @ spread.T
    return sums


def holm(values: Sequence[float]) -> list[float]:
    """The p values of one family, corrected for their number; in the order given."""
    corrected, least = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        least = max(least, min(1.0, values[index] * (len(values) - place)))
        corrected[index] = least
    return corrected
