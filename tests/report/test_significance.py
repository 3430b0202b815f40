"""The test of differences against enumeration, against scipy, and against its own promises."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from harness.report import significance
from harness.report.significance import Difference, bootstrap_interval, difference_of, holm, interval, p_value, scope

Floats = NDArray[np.float64]


def few_valued(rows: int, seed: int, shift: float = 0.0) -> Floats:
    """Differences like those of P@5."""
    generator = np.random.default_rng(seed)
    return generator.choice([-40.0, -20.0, 0.0, 20.0, 40.0], rows, p=[0.05, 0.15 - shift, 0.6, 0.15 + shift, 0.05])


def many_valued(rows: int, seed: int) -> tuple[Floats, Floats]:
    """Differences and ideals like those of PSP@5: skewed, all different, and correlated."""
    generator = np.random.default_rng(seed)
    ideal = generator.lognormal(0, 0.7, rows)
    ideal *= 100 / ideal.mean()
    return ideal * generator.choice([-0.5, 0.0, 0.5], rows, p=[0.2, 0.3, 0.5]) * generator.random(rows), ideal


@given(st.lists(st.sampled_from([-40.0, -20.0, -7.25, 0.0, 3.5, 20.0, 100 / 3]), min_size=1, max_size=9))
@settings(max_examples=40, derandomize=True)
def test_sign_flips_agree_with_all_of_them(differences: list[float]) -> None:
    values, resamples = np.array(differences), 4000
    flips = np.array(list(itertools.product([-1, 1], repeat=len(values)))) @ values
    exact = float(np.mean(np.abs(flips) >= abs(values.sum()) - 1e-9))
    expected = (1 + resamples * exact) / (1 + resamples)
    error = np.sqrt(exact * (1 - exact) / resamples)
    assert abs(p_value(Difference(values), resamples=resamples) - expected) <= 5 * error + 1e-12


def test_by_hand() -> None:
    assert p_value(Difference(np.full(199, 20.0)), resamples=999) == 1 / 1000, "one in all draws and one more"
    nothing = np.zeros(50)
    assert p_value(Difference(nothing)) == 1
    assert bootstrap_interval(nothing) == bootstrap_interval(nothing, np.full(50, 100.0)) == (0, 0)
    without_labels = bootstrap_interval(np.array([0.0, 50.0]), np.array([0.0, 200.0]), resamples=200)
    assert without_labels == (0, 25), "an empty denominator"
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.7, 0.6]), holm([0.02]), holm([])) == ([1.0, 1.0], [0.02], [])


@pytest.mark.parametrize("limit", [4096, 0], ids=["drawn", "normal limit"])
def test_intervals_agree_with_scipy(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are random: an end of an interval from R draws has the standard error sqrt(.025 x .975 / R) sigma / .058."""
    monkeypatch.setattr(significance, "MANY_ROWS", limit)
    resamples = 4000
    plain, (ratio, ideal) = few_valued(300, 1, 0.05), many_valued(700, 2)
    options = {"paired": True, "method": "percentile", "n_resamples": resamples}
    theirs = [
        stats.bootstrap((plain + 50, np.full(300, 50.0)), lambda a, b, axis: (a - b).mean(axis), rng=5, **options),
        stats.bootstrap((ratio, ideal), lambda a, b, axis: 100 * a.mean(axis) / b.mean(axis), rng=5, **options),
    ]
    ours = [bootstrap_interval(*both, resamples=resamples, seed=1) for both in ((plain, None), (ratio, ideal))]
    for their, our in zip(theirs, ours, strict=True):
        error = np.sqrt(0.025 * 0.975 / resamples) / 0.058 * their.standard_error
        assert np.allclose(our, their.confidence_interval, rtol=0, atol=5 * np.sqrt(2) * error)


def test_a_ratio_is_drawn_with_its_denominator() -> None:
    """The oracle against nothing is 100 whatever rows are drawn; with a fixed denominator it would seem to vary."""
    _, ideal = many_valued(300, 3)
    assert np.allclose(bootstrap_interval(ideal, ideal), 100)
    low, high = bootstrap_interval(ideal)
    assert high - low > 5


@pytest.mark.parametrize("limit", [4096, 0], ids=["drawn", "normal limit"])
def test_intervals_cover_and_tests_hold_their_level(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing differs, 95 % of the intervals hold 0 and 5 % of the p values are below 0.05."""
    monkeypatch.setattr(significance, "MANY_ROWS", limit)
    trials, covered, rejected = 300, 0, 0
    for trial in range(trials):
        difference = few_valued(150, trial) if trial % 2 else np.random.default_rng(trial).laplace(size=150)
        low, high = bootstrap_interval(difference, resamples=400, seed=trial)
        covered += low <= 0 <= high
        rejected += p_value(Difference(difference), resamples=400, seed=trial) < 0.05
    # three standard errors of a share of 300, and one percent for the percentile interval of 150 rows
    assert 0.90 <= covered / trials <= 0.99
    assert 0.01 <= rejected / trials <= 0.09


def test_the_limit_of_many_rows_is_what_draws_give() -> None:
    """4,000 rows are drawn; the same rows twice over are more than that, and are not."""
    difference, ideal = many_valued(4000, 7)
    error = np.std(difference - difference.mean() * ideal / 100) / np.sqrt(4000)
    centre = difference.mean()
    one = np.array(bootstrap_interval(difference, ideal)) - centre
    two = np.array(bootstrap_interval(np.tile(difference, 2), np.tile(ideal, 2))) - centre
    assert np.allclose(one, np.sqrt(2) * two, rtol=0, atol=0.2 * error)


@given(st.integers(0, 2**32 - 1), st.floats(-2, 2))
@settings(max_examples=20, derandomize=True)
def test_the_normal_approximation_is_the_test_that_draws(seed: int, effect: float) -> None:
    """With many rows nothing is drawn; the p value is that of drawn signs, but for their chance."""
    difference, _ = many_valued(1000, seed % 1000)
    difference += effect * difference.std() / np.sqrt(1000) - difference.mean()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "MANY_DIFFERENCES", 10_000)
        drawn = p_value(Difference(difference), resamples=4000)
    assert p_value(Difference(difference)) == pytest.approx(drawn, abs=0.05)


def test_same_seed_same_numbers() -> None:
    difference, ideal = many_valued(500, 8)
    first, again, other = (bootstrap_interval(difference, ideal, resamples=500, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    small = few_valued(60, 8)
    assert p_value(Difference(small), seed=3) == p_value(Difference(small), seed=3)


def test_memory_is_some_copies_of_the_rows_whatever_the_number_of_draws() -> None:
    difference, ideal = many_valued(200_000, 9)
    tracemalloc.start()
    bootstrap_interval(difference, ideal)
    bootstrap_interval(difference[:4096], ideal[:4096], resamples=2000)
    p_value(Difference(difference))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * difference.nbytes + 8 * 4 * significance.BLOCK_NUMBERS


@given(st.lists(st.floats(0.0001, 1), min_size=1, max_size=8))
def test_holm_against_its_definition(values: list[float]) -> None:
    """No step down the list: the largest, over all p values up to one's own, of it times the number not below it."""
    expected = [max(min(1, q * sum(r >= q for r in values)) for q in values if q <= p) for p in values]
    assert holm(values) == pytest.approx(expected)


# -- rows and trainings together


def trained(trainings: int, rows: int, seed: int, of_all: float, of_one: float, ahead: float = 0.0) -> Floats:
    """Scores [n, M] of trainings that move all rows by `of_all` and each by `of_one` (standard deviations)."""
    generator = np.random.default_rng([seed, trainings])
    alike = of_all * generator.standard_normal((trainings, 1))
    return 50 + ahead + alike + of_one * generator.standard_normal((trainings, rows))


def test_the_variance_of_trainings_by_hand() -> None:
    """Means 40 and 60 have variance 200. In the rows 0, 80 and 80, 40 it is 3,200 and 800, 2,000 in the mean: the rows
    that change one by one give 1,800 of them, which is more than there is; in 39, 59 and 41, 61 it is 200, and they
    give none.
    """
    steady = np.array([[39.0, 41.0], [59.0, 61.0]])
    by_rows = np.array([[0.0, 80.0], [80.0, 40.0]])
    again = np.full((3, 2), 50.0)
    found = difference_of(steady, again)
    assert found.rows.tolist() == [-1.0, 1.0]
    assert found.trainings == ((pytest.approx(100.0), 1), (0.0, 2))
    assert difference_of(by_rows, again).trainings == ((0.0, 1), (0.0, 2))
    # mean 0.5 of variance 0.5 by rows (sum of squares 2 over 2 x 2) and 100 by trainings, with one degree of freedom
    moved = difference_of(steady + 0.5, again)
    t = 0.5 / np.sqrt((0.25 + 2.25) / 4 + 100)
    freedom = (100.625 / 100) ** 2
    assert moved.freedom((0.25 + 2.25) / 4) == pytest.approx(freedom)
    assert p_value(moved) == pytest.approx(max(2 * stats.t.sf(t, freedom), p_value(Difference(moved.rows))))


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(2, 5), st.floats(0, 3))
@settings(max_examples=30, derandomize=True)
def test_the_variance_of_trainings_is_that_of_the_two_way_table(
    seed: int, first: int, second: int, size: float
) -> None:
    """Mean squares of trainings and of rows x trainings; a table of one method is all there is to it."""
    both = trained(first, 60, seed, size, 5.0), trained(second, 60, seed + 1, 0.3, 9.0)
    expected = []
    for scores in both:
        trainings, rows = scores.shape
        left = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + scores.mean()
        by_row = np.square(left).sum() / ((trainings - 1) * (rows - 1))
        of_means = rows * np.square(scores.mean(axis=1) - scores.mean()).sum() / (trainings - 1)
        expected.append(max(0.0, (of_means - by_row) / rows) / trainings)
    found = difference_of(*both)
    assert [variance for variance, _ in found.trainings] == pytest.approx(expected, abs=1e-9)
    assert [freedom for _, freedom in found.trainings] == [first - 1, second - 1]


def test_with_one_training_on_a_side_it_is_the_test_of_rows() -> None:
    for sizes in ((1, 5), (5, 1), (1, 1)):
        first, second = (trained(size, 300, size, 3.0, 20.0) for size in sizes)
        found = difference_of(first, second)
        rows = Difference(first.mean(axis=0) - second.mean(axis=0))
        assert not found.trained_again
        assert (p_value(found), interval(found)) == (p_value(rows), interval(rows))
        assert not difference_of(first[:1], second[:1], paired=True).trained_again
    assert difference_of(first[[0, 0]], second[[0, 0]]).trained_again


def test_a_method_that_is_always_the_same_adds_no_variance() -> None:
    """Neighbours by word counts have no chance in them: with all trainings equal, it is the test of rows."""
    first, second = (np.tile(trained(1, 300, seed, 0.0, 20.0), (3, 1)) for seed in (1, 2))
    found = difference_of(first, second)
    assert found.trained_again
    assert found.variance == pytest.approx(0, abs=1e-20)
    assert p_value(found) == pytest.approx(p_value(Difference(found.rows)), rel=1e-6)
    assert difference_of(first, trained(3, 300, 3, 4.0, 20.0)).variance > 0


def test_scores_of_the_same_trainings_are_paired() -> None:
    """What a training does to both scorers of its model says nothing about which is better."""
    one = trained(3, 500, 4, 5.0, 10.0)
    other = one + 1.0 + np.random.default_rng(5).normal(0, 3, one.shape)
    apart, paired = difference_of(other, one), difference_of(other, one, paired=True)
    assert p_value(paired) < 0.001 < 0.2 < p_value(apart)
    assert len(paired.trainings) == 1


@pytest.mark.parametrize("limit", [4096, 0], ids=["drawn", "normal limit"])
@pytest.mark.parametrize("ratio", [False, True])
def test_an_interval_leaves_out_zero_where_p_is_small(limit: int, ratio: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except near the level: p takes the variance of rows as if nothing differed, the interval as it is."""
    monkeypatch.setattr(significance, "MANY_ROWS", limit)
    ideal = np.random.default_rng(0).lognormal(0, 0.7, 400)
    ideal *= 100 / ideal.mean()
    decided = []
    for seed in range(120):
        first = trained(3, 400, seed, 1.0, 15.0)
        second = trained(2, 400, seed, 1.0, 15.0, ahead=seed / 25)
        scale = ideal / 100 if ratio else 1.0
        found = difference_of(second * scale, first * scale)
        p = p_value(found, resamples=1000)
        low, high = interval(found, ideal if ratio else None, resamples=1000)
        assert low < found.rows.mean() < high
        if not 0.035 < p < 0.07:
            decided.append(p < 0.05)
            assert decided[-1] is not (low <= 0 <= high)
    assert 20 < sum(decided) < len(decided) - 20


def test_a_margin_is_added_in_every_row() -> None:
    found = difference_of(trained(3, 200, 1, 1.0, 9.0), trained(3, 200, 2, 1.0, 9.0))
    assert found.shifted(2.5).rows == pytest.approx(found.rows + 2.5)
    assert found.shifted(2.5).trainings == found.trainings


def test_what_a_result_holds_for_is_said() -> None:
    every, both, rows = scope([]), scope(["A", "B"]), scope(["A", "B"], others=False)
    assert every == "with other test rows and other trainings"
    assert "and these trainings" in rows
    assert both == f"{every}; for A, B {rows}"
