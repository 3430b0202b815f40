"""Which differences between methods are more than chance: the one test of tables, findings and `report --compare`.

Method A was trained n_A times and B n_B times; y_si is the score of test row i after training s, in percent, of M rows.
d_i is row i's mean over the trainings of A minus that of B, so mean d is the difference of the reported metrics. Other
rows would change it, and so would other trainings:

    rows       if both are equally good, d_i is as likely as -d_i: sum d_i has mean 0 and variance sum d_i^2. With
               many rows that sum is normal: p_rows = erfc(|sum d| / sqrt(2 sum d^2)). With few, signs are drawn:
               (1 + #{|sum s_i d_i| >= |sum d_i|}) / (1 + draws). What a training does to one row and not to the
               next is in d_i, and so in this part
    trainings  what a training does to all rows alike. s^2 is the variance over trainings of a method's mean, w the
               mean over rows of the variance over trainings of a row's score; (w - s^2) / (M - 1) is what rows that
               change one by one add to s^2, and is taken off, as the rows' part has it:
               v = max(0, s^2 - (w - s^2) / (M - 1)) / n, for A and for B. Where A and B are scores of the same
               trainings, such as two scorers of one model, v is that of the differences y_si(A) - y_si(B) alone
    p          V = sum d^2 / M^2 + sum v is the variance of mean d (two-way random effects, rows x trainings):
               p = max(p_rows, P(|t_f| > |mean d| / sqrt V)), with f = V^2 / sum(v^2 / (n - 1)) degrees of freedom
               (Satterthwaite)
    interval   95 % of mean d or, for a ratio of averages such as PSP, of 100 mean d / mean ideal. By rows: up to
               4,096 of them the percentile bootstrap, M rows drawn with replacement, ideal along with d; with more
               its normal limit: +- 1.96 se, where se^2 = var(d) / M or, for the ratio (delta method),
               (100 / mean ideal)^2 var(d - t ideal / 100) / M. By rows and trainings: +- t_f sqrt(se^2 + sum v).
               The interval reaches as far as the farther of both, as p is the larger of both
    Holm       the i-th smallest of m p values times m - i + 1, never below the one before it, at most 1

With one training on a side nothing is known of how its trainings differ: p and interval are those of rows, and hold for
other rows of the kind with these trained models. `Difference.trained_again` says which of both a result is, and reports
say it beside the result.

Where it is not exact:

- f is estimated too. Where trainings add several times the variance of rows, two trainings a side mark up to 8 % of
  pairs without a difference, and about 10 % if those of one method vary and those of the other do not.
- With few rows that differ the draw of signs is cautious: it marks less than 5 % of such pairs.
- Rows are taken as drawn one by one. Neighbours in a dataset may be alike, such as packages of one family: "other rows"
  are another draw from the same collection, not another collection, and not rows of families that it lacks.
- A draw of trainings with replacement would be no test where there are two to five: their variance comes out a half
  to a fifth too small.

tests/report/test_calibration.py simulates methods that are equally good, with the variances of the committed runs, and
counts how many are marked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from scipy.special import stdtr, stdtrit

from harness.report.results import Floats

LEVEL = 0.05
"""Significance level; intervals cover one minus it."""
DEFAULT_RESAMPLES = 10_000
MANY_DIFFERENCES = 200
"""From this number of differing rows on, their sum counts as normally distributed."""
_SAME = 1e-6
"""Relative difference below which scores, stored as float32, count as equal."""
MANY_ROWS = 4096
"""Above this number of rows the interval is that of a normal mean."""
BLOCK_NUMBERS = 2**20
"""Random numbers in memory at a time."""


@dataclass(frozen=True)
class Difference:
    """By how much one method is ahead of another on the same test rows."""

    rows: Floats
    """Difference of every test row, mean over trainings, [M]."""
    trainings: tuple[tuple[float, int], ...] = ()
    """Variance that trainings add to the mean difference, with its degrees of freedom, n - 1: of each method, or of the
    differences where both have the same trainings. Empty if a method was trained once."""

    @property
    def trained_again(self) -> bool:
        """Whether p and interval hold for other trainings, too, and not only for other rows."""
        return bool(self.trainings)

    @property
    def variance(self) -> float:
        """Variance that trainings add to the mean difference; 0 where it is unknown."""
        return sum(variance for variance, _ in self.trainings)

    def shifted(self, points: float) -> "Difference":
        """Return the difference with `points` added in every row."""
        return replace(self, rows=self.rows + points)

    def freedom(self, of_rows: float) -> float:
        """Return the degrees of freedom, given the variance of the mean that is due to rows."""
        total = of_rows + self.variance
        return total * total / sum(variance * variance / freedom for variance, freedom in self.trainings)


def difference_of(scores: Floats, reference: Floats, *, paired: bool = False) -> Difference:
    """Return by how much `scores` is ahead of `reference`.

    Args:
        scores: Score of every test row after every training, [n, M].
        reference: Those of the other method, [n of its own, M].
        paired: Whether both are scores of the same trainings, in the same order.
    """
    rows = ahead_of(scores.mean(axis=0), reference.mean(axis=0))
    assert np.isfinite(rows).all(), "a row without a score"
    samples = [scores - reference] if paired else [scores, reference]
    if min(map(len, samples)) < 2:
        return Difference(rows)
    return Difference(rows, tuple((_of_trainings(one), len(one) - 1) for one in samples))


def _of_trainings(scores: Floats) -> float:
    """Return the variance of a method's mean score that is common to all rows of a training, from [n, M] scores."""
    of_means = float(scores.mean(axis=1).var(ddof=1))
    of_rows = float(scores.var(axis=0, ddof=1).mean())
    return max(0.0, of_means - (of_rows - of_means) / max(1, int(scores.shape[1]) - 1)) / len(scores)


def p_value(difference: Difference, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0) -> float:
    """Return the two-sided p value of a difference of 0, for other rows and, where they are known, other trainings.

    A denominator that both share is not touched, so for a ratio of averages the test on the numerators is the test on
    the ratio.

    Args:
        difference: From `difference_of`.
        resamples: Number of draws where few rows differ.
        seed: Seed of these draws.
    """
    rows, p = difference.rows, _p_of_rows(difference.rows, resamples, seed)
    if not difference.variance:
        return p
    of_rows = float(np.square(rows).sum()) / len(rows) ** 2
    t = abs(float(rows.mean())) / math.sqrt(of_rows + difference.variance)
    return max(p, 2 * float(stdtr(difference.freedom(of_rows), -t)))


def interval(
    difference: Difference, ideal: Floats | None = None, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the interval of the mean difference, or of the difference of two ratios with a common denominator.

    Args:
        difference: From `difference_of`.
        ideal: The largest score of each row, [M], of mean 100, where the metric is a ratio of averages.
        resamples: Number of draws.
        seed: Seed of the draws; the same seed gives the same interval.
    """
    low, high = bootstrap_interval(difference.rows, ideal, resamples=resamples, seed=seed)
    if not difference.variance:
        return low, high
    centre, error = _mean_and_error(difference.rows, ideal)
    freedom = difference.freedom(error**2)
    reach = float(stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(error**2 + difference.variance)
    return min(low, centre - reach), max(high, centre + reach)


def bootstrap_interval(
    difference: Floats, ideal: Floats | None = None, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the interval by rows alone: of the mean difference, or of that of two ratios with a common denominator.

    Args:
        difference: Differences of the two scores of each row, [M].
        ideal: The largest score of each row, [M], of mean 100, where the metric is a ratio of averages.
        resamples: Number of draws.
        seed: Seed of the draws; the same seed gives the same interval.
    """
    rows = len(difference)
    if rows > MANY_ROWS:
        centre, error = _mean_and_error(difference, ideal)
        reach = NormalDist().inv_cdf(1 - LEVEL / 2) * error
        return centre - reach, centre + reach

    def statistics(generator: np.random.Generator, size: int) -> Floats:
        picked = generator.integers(0, rows, (size, rows))
        drawn = difference[picked].sum(axis=1)
        if ideal is None:
            return np.asarray(drawn / rows)
        total = ideal[picked].sum(axis=1)
        return np.asarray(100 * drawn / np.where(total > 0, total, np.inf))  # an empty denominator gives 0, as in PSP

    low, high = np.quantile(_in_blocks(statistics, rows, resamples, seed), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _mean_and_error(difference: Floats, ideal: Floats | None) -> tuple[float, float]:
    """Return the mean difference or that of the ratios, and its standard error by rows, from [M] and [M]."""
    centre = float(difference.mean())
    residuals = difference
    if ideal is not None:
        scale = 100 / max(float(ideal.mean()), 1e-300)
        centre *= scale
        residuals = scale * (difference - centre * ideal / 100)
    return centre, float(residuals.std()) / math.sqrt(len(difference))


def _p_of_rows(difference: Floats, resamples: int, seed: int) -> float:
    """Return the two-sided p value of the sign-flip test on the mean of `difference` [M]; 1 if all are zero.

    Exchanging the two methods in a row flips the sign of its difference.
    """
    sizes = np.abs(difference[difference != 0])
    if not len(sizes):
        return 1.0
    if len(sizes) >= MANY_DIFFERENCES:
        spread = math.sqrt(2 * float(np.square(sizes).sum()))
        return math.erfc(abs(float(difference.sum())) / spread) if spread else 1.0

    def sums(generator: np.random.Generator, size: int) -> Floats:
        return np.asarray((2.0 * generator.integers(0, 2, (size, len(sizes)), np.int8) - 1) @ sizes)

    observed = abs(float(difference.sum())) - _SAME * float(sizes.sum())
    drawn = np.abs(_in_blocks(sums, len(sizes), resamples, seed))
    return (1 + int(np.count_nonzero(drawn >= observed))) / (1 + resamples)


def scope(alone: Sequence[str], others: bool = True) -> str:
    """Say for what results hold: other rows and trainings, or where a method was trained once, other rows.

    Args:
        alone: What was compared by rows alone.
        others: Whether anything was compared by rows and trainings.
    """
    both = "with other test rows and other trainings"
    if not alone:
        return both
    rows = "with other test rows and these trainings (a single one does not show how much trainings differ)"
    return f"{both}; for {', '.join(alone)} {rows}" if others else rows


def _in_blocks(draw: Callable[[np.random.Generator, int], Floats], rows: int, resamples: int, seed: int) -> Floats:
    """Return a statistic of every draw, [resamples]; `draw` makes a block of them, with a random number per row."""
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK_NUMBERS // rows)
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    return np.concatenate([draw(generator, size) for size in sizes])


def holm(values: Sequence[float]) -> list[float]:
    """Return the p values of one family after Holm's correction, in the order given."""
    corrected, least = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        least = max(least, min(1.0, values[index] * (len(values) - place)))
        corrected[index] = least
    return corrected


def ahead_of(scores: Floats, reference: Floats) -> Floats:
    """Return by how much `scores` is ahead in each row, [M]; 0 where they differ by rounding alone."""
    ahead: Floats = scores - reference
    ahead[np.abs(ahead) <= _SAME * np.maximum(np.abs(scores), np.abs(reference))] = 0.0
    return ahead
