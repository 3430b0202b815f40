"""How often the test of reports marks methods that are equally good, and how often it sees a difference.

Methods are made up, but vary like those of the committed runs. Score i of a training is the sum over K slots (P@K and
PSP@K count K labels a row) of weights of labels times hits; a slot is hit where a normal number is below a threshold.
That number is a sum of what both methods share (the row is hard), what one method does to the row in all of its
trainings, what one training does to all rows, and what it does to this one. The size of each is solved from the
analysis of variance of two methods of the committed results, on test sets as large as theirs.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, owens_t
from scipy.stats import norm

from harness.report.published import baselines, row_scores, table_results
from harness.report.results import ROWS, Results, read_results
from harness.report.significance import LEVEL, Difference, difference_of, p_value
from harness.settings.published import published_table, table_paths

Floats = NDArray[np.float64]
ROOT = Path(__file__).parents[2]
SIZES = ((2, 2), (3, 3), (5, 5), (2, 3), (5, 3), (2, 5))
LARGE = 5000
"""Number of test rows above which a set is large."""
SPREAD = 0.7
"""Spread of the logarithm of the labels' weights in PSP."""


@dataclass(frozen=True)
class Pair:
    """What varies in the scores of two methods on one dataset, in squared points."""

    dataset: str
    metric: str
    rows: int
    mean: float
    """Mean score of both, percent."""
    trainings: tuple[float, float]
    """Variance of a training's effect on all rows, of each method."""
    chance: tuple[float, float]
    """Variance of its effect on a single row (rows x trainings)."""
    difference: float
    """Variance over rows of the methods' difference, without that chance."""


def mean_squares(scores: Floats) -> tuple[float, float]:
    """Return the variance of trainings and of rows x trainings from [n, M] scores: two-way table, random effects."""
    trainings, rows = scores.shape
    means, whole = scores.mean(axis=1), scores.mean()
    left = scores - means[:, None] - scores.mean(axis=0) + whole
    chance = np.square(left).sum() / ((trainings - 1) * (rows - 1))
    of_trainings = rows * np.square(means - whole).sum() / (trainings - 1)
    return max(0.0, float(of_trainings - chance) / rows), float(chance)


def measured_pair(dataset: str, metric: str, first: Floats, second: Floats) -> Pair:
    (one, chance), (other, other_chance) = mean_squares(first), mean_squares(second)
    spread = float((first.mean(axis=0) - second.mean(axis=0)).var(ddof=1))
    spread -= chance / len(first) + other_chance / len(second)
    mean = float(first.mean() + second.mean()) / 2
    return Pair(dataset, metric, first.shape[1], mean, (one, other), (chance, other_chance), max(0.0, spread))


@cache
def measured() -> tuple[Pair, ...]:
    """Every row of every table of the committed results against its first baseline, if both were trained repeatedly."""
    results: Results = read_results(ROOT / "reports")
    found = {}
    for name in table_paths():
        for table in table_results(results.records, published_table(name)):
            against = baselines(table)[:1]
            for row in table.rows:
                trained = [one for one in (row, *(table.rows[place] for place in against)) if len(one.records) > 1]
                if len(trained) < 2 or row.run == trained[1].run:
                    continue
                for metric in ROWS:
                    first, second = (row_scores(one, metric, results) for one in trained)
                    if first is not None and second is not None:
                        key = (metric, *(run.run_id for one in trained for run in one.records))
                        found[key] = measured_pair(table.dataset, metric, first, second)
    return tuple(pair for pair in found.values() if 0 < pair.mean < 100)


def correlation(threshold: float, disagreement: float) -> float:
    """Return the correlation of two standard normals whose hits, below the threshold, differ with this probability."""
    largest = 4 * owens_t(threshold, 1.0)
    if disagreement >= largest:
        return 0.0
    ratio = brentq(lambda ratio: 4 * owens_t(threshold, ratio) - disagreement, 0, 1)
    return float((1 - ratio**2) / (1 + ratio**2))


def simulated(
    pair: Pair, sizes: tuple[int, int], generator: np.random.Generator, ahead: float = 0.0
) -> tuple[Floats, Floats]:
    """Return scores [n, M] of two methods of a pair, the second `ahead` points above the first."""
    slots, weighted = int(pair.metric[-1]), pair.metric.startswith("PSP")
    shape = (pair.rows, slots)
    weights = generator.lognormal(-(SPREAD**2) / 2, SPREAD, shape) if weighted else np.ones(shape)
    scale = 100 / slots
    doubled = scale**2 * slots * (np.exp(SPREAD**2) if weighted else 1.0)  # variance of a row if one half of it is hit
    threshold = float(ndtri(pair.mean / 100))
    kept = [correlation(threshold, 2 * chance / doubled) for chance in pair.chance]
    apart = (2 * pair.difference + 2 * sum(pair.chance)) / doubled / 2
    shared = min(*kept, correlation(threshold, apart))
    hard = np.sqrt(shared) * generator.standard_normal(shape, np.float32)
    found = []
    for place, (size, own, variance) in enumerate(zip(sizes, kept, pair.trainings, strict=True)):
        latent = hard + np.sqrt(own - shared) * generator.standard_normal(shape, np.float32)
        common = min(variance / (100 * norm.pdf(threshold)) ** 2, 1 - own)
        shifts = np.sqrt(common) * generator.standard_normal(size)
        chance = np.sqrt(1 - own - common) * generator.standard_normal((size, *shape), np.float32)
        bar = float(ndtri((pair.mean + ahead * (place - 0.5)) / 100))
        hits = latent + chance + shifts[:, None, None] < bar
        found.append(scale * (hits * weights).sum(axis=2))
    return found[0], found[1]


def drawn(count: int, pairs: tuple[Pair, ...], ahead: float = 0.0, seed: int = 0) -> list[Difference]:
    """Simulated comparisons of measured pairs; one of sixteen on a large test set, for its time."""
    generator, found = np.random.default_rng(seed), list[Difference]()
    large = [pair for pair in pairs if pair.rows > LARGE]
    small = [pair for pair in pairs if pair.rows <= LARGE]
    for place in range(count):
        among = large if large and place % 16 == 0 else small
        pair = among[generator.integers(len(among))]
        found.append(difference_of(*simulated(pair, SIZES[place % len(SIZES)], generator, ahead)))
    return found


def marked(differences: list[Difference]) -> float:
    return float(np.mean([p_value(one, resamples=1000) < LEVEL for one in differences]))


def test_one_in_twenty_is_marked_where_nothing_differs() -> None:
    """5 %, plus or minus 1. Of 6,000 pairs, as the number alone makes half a point of chance in 2,000."""
    assert 0.04 <= marked(drawn(6000, measured())) <= 0.06


def test_trainings_that_vary_are_no_difference_of_methods() -> None:
    """With the largest variance of trainings that was measured, in every pair; rows alone mark a quarter of them."""
    most = max(max(pair.trainings) for pair in measured())
    assert most > 0.5
    pairs = tuple(replace(pair, trainings=(most, most)) for pair in measured() if pair.rows <= LARGE)
    found = drawn(600, pairs)
    assert marked(found) <= 0.1
    assert marked([Difference(one.rows) for one in found]) >= 0.2


def test_two_trainings_a_side_of_which_one_varies() -> None:
    """The worst case: no other design marks more, and rows alone would mark most."""
    small = [pair for pair in measured() if pair.rows <= LARGE]
    pairs = tuple(replace(pair, trainings=(10.0, 0.0)) for pair in small)
    generator = np.random.default_rng(0)
    found = [difference_of(*simulated(pairs[place % len(pairs)], (2, 2), generator)) for place in range(1500)]
    assert 0.07 <= marked(found) <= 0.15
    assert marked([Difference(one.rows) for one in found]) >= 0.4


def test_what_differs_is_seen() -> None:
    """Three points on a thousand rows, after two to five trainings."""
    small = tuple(pair for pair in measured() if pair.rows <= LARGE)
    assert marked(drawn(300, small, ahead=3.0)) >= 0.8
