"""Paired statistics against enumeration, against scipy, and against their own promises."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from harness.report import compare
from harness.report.compare import bootstrap_interval, holm, p_value

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
    assert abs(p_value(values, resamples=resamples) - expected) <= 5 * error + 1e-12


def test_by_hand() -> None:
    assert p_value(np.full(199, 20.0), resamples=999) == 1 / 1000, "one in all draws and one more"
    nothing = np.zeros(50)
    assert p_value(nothing) == 1
    assert bootstrap_interval(nothing) == bootstrap_interval(nothing, np.full(50, 100.0)) == (0, 0)
    without_labels = bootstrap_interval(np.array([0.0, 50.0]), np.array([0.0, 200.0]), resamples=200)
    assert without_labels == (0, 25), "an empty denominator"
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.7, 0.6]), holm([0.02]), holm([])) == ([1.0, 1.0], [0.02], [])


@pytest.mark.parametrize("limit", [4096, 0], ids=["drawn", "normal limit"])
def test_intervals_agree_with_scipy(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are random: an end of an interval from R draws has the standard error sqrt(.025 x .975 / R) sigma / .058."""
    monkeypatch.setattr(compare, "MANY_ROWS", limit)
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
    monkeypatch.setattr(compare, "MANY_ROWS", limit)
    trials, covered, rejected = 300, 0, 0
    for trial in range(trials):
        difference = few_valued(150, trial) if trial % 2 else np.random.default_rng(trial).laplace(size=150)
        low, high = bootstrap_interval(difference, resamples=400, seed=trial)
        covered += low <= 0 <= high
        rejected += p_value(difference, resamples=400, seed=trial) < 0.05
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
        patch.setattr(compare, "MANY_DIFFERENCES", 10_000)
        drawn = p_value(difference, resamples=4000)
    assert p_value(difference) == pytest.approx(drawn, abs=0.05)


def test_same_seed_same_numbers() -> None:
    difference, ideal = many_valued(500, 8)
    first, again, other = (bootstrap_interval(difference, ideal, resamples=500, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    small = few_valued(60, 8)
    assert p_value(small, seed=3) == p_value(small, seed=3)


def test_memory_is_some_copies_of_the_rows_whatever_the_number_of_draws() -> None:
    difference, ideal = many_valued(200_000, 9)
    tracemalloc.start()
    bootstrap_interval(difference, ideal)
    bootstrap_interval(difference[:4096], ideal[:4096], resamples=2000)
    p_value(difference)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * difference.nbytes + 8 * 4 * compare.BLOCK_NUMBERS


@given(st.lists(st.floats(0.0001, 1), min_size=1, max_size=8))
def test_holm_against_its_definition(values: list[float]) -> None:
    """No step down the list: the largest, over all p values up to one's own, of it times the number not below it."""
    expected = [max(min(1, q * sum(r >= q for r in values)) for q in values if q <= p) for p in values]
    assert holm(values) == pytest.approx(expected)
