"""SoftTop-k: the threshold, what it costs to be below it, and what happens at the ends."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.errors import UserError
from harness.loss import get
from harness.loss.topk import balance, solve_threshold
from tests.support.oracles import random_case, value_and_gradient

soft_topk = get("soft-topk")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 18.0, 100.0])
@pytest.mark.parametrize(("rows", "labels"), [(30, 5000), (30, 20), (3, 40_000)])
def test_k_labels_pass(dtype: torch.dtype, scale: float, rows: int, labels: int) -> None:
    draw = torch.Generator().manual_seed(1)
    scores = scale * torch.randn(rows, labels, generator=draw, dtype=dtype)
    for k, alpha in ((1, 2.0), (5, 2.0), (15, 0.3)):
        t = solve_threshold(scores, k, alpha)
        assert t.shape == (rows, 1)
        assert t.dtype == dtype
        passing = torch.sigmoid(alpha * (scores.double() + t)).sum(1)
        # a logit of size a has an error of a eps, and far below the threshold z = e^a
        room = 2 * torch.finfo(dtype).eps * alpha * (scores.abs().amax(1) + t[:, 0].abs())
        assert ((passing - k).abs() <= k * room.clamp(min=1e-6 if dtype == torch.float32 else 1e-14)).all()


@given(
    scores=st.lists(st.floats(-50, 50), min_size=2, max_size=40),
    k=st.integers(1, 39),
    alpha=st.floats(0.05, 20),
)
@settings(max_examples=150)
def test_k_labels_pass_whatever_the_scores(scores: list[float], k: int, alpha: float) -> None:
    row = torch.tensor([scores], dtype=torch.float64)
    t = solve_threshold(row, k, alpha)
    if k >= len(scores):
        assert t.item() == math.inf
    else:
        assert torch.sigmoid(alpha * (row + t)).sum().item() == pytest.approx(k, rel=1e-11)


@pytest.mark.parametrize(("k", "labels"), [(1, 2), (1, 50), (5, 6), (5, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_have_equal_chances(k: int, labels: int, dtype: torch.dtype) -> None:
    """Every z is k / n: the threshold is logit(k / n) / alpha - s, the loss is log(n / k)."""
    scores = torch.full((3, labels), 7.0, dtype=dtype)
    expected = math.log(k / (labels - k)) / 2 - 7
    torch.testing.assert_close(solve_threshold(scores, k, 2.0), torch.full((3, 1), expected, dtype=dtype))
    positive = torch.zeros(3, labels, dtype=torch.bool)
    positive[:, 0] = True
    value, gradient = value_and_gradient(lambda leaf: soft_topk(leaf, positive, k=k), scores)
    assert value.item() == pytest.approx(math.log(labels / k), rel=1e-6)
    assert gradient[:, 0].tolist() == pytest.approx([-2 * (1 - k / labels) * (1 - 1 / labels) / 3] * 3, rel=1e-5)


@pytest.mark.parametrize("gap", [1e-3, 1.0, 30.0, 200.0, 1e6, 1e30])
@pytest.mark.parametrize("first", [True, False])
def test_a_threshold_lies_in_the_middle_of_a_gap(gap: float, first: bool) -> None:
    """With one of two labels passing, z_1 + z_2 = 1: the threshold is halfway, however saturated both are."""
    scores = torch.tensor([[gap, 0.0]])
    positive = torch.tensor([[first, not first]])
    value, gradient = value_and_gradient(lambda leaf: soft_topk(leaf, positive, k=1), scores)
    ahead = gap if first else -gap
    assert value.item() == pytest.approx(math.log1p(math.exp(-ahead)) if ahead > -30 else gap, rel=1e-5, abs=1e-30)
    pull = 1 / (1 + math.exp(min(ahead, 700.0)))
    expected = [-pull, pull] if first else [pull, -pull]
    assert gradient[0].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-37)


def test_labels_that_are_no_candidates_do_not_count() -> None:
    scores, _, ignored = random_case(1, rows=20, labels=40)
    found = solve_threshold(scores.masked_fill(ignored, -math.inf), 3, 2.0)
    for row, skipped, t in zip(scores, ignored, found, strict=True):
        torch.testing.assert_close(solve_threshold(row[~skipped][None], 3, 2.0)[0], t)


@pytest.mark.parametrize("remaining", [0, 1, 4, 5])
def test_with_no_more_than_k_candidates_all_pass(remaining: int) -> None:
    """fault 45"""
    scores, positive, ignored = random_case(2)
    positive[:, 0] = True
    ignored[:] = False
    ignored[3] = torch.arange(9) >= remaining
    others = torch.arange(len(scores)) != 3
    assert solve_threshold(scores.masked_fill(ignored, -math.inf), 5, 2.0).isinf()[:, 0].tolist() == (~others).tolist()

    def loss(leaf: Tensor, mask: Tensor) -> Tensor:
        return soft_topk(leaf, positive & mask[:, None], ignored=ignored, generator=torch.Generator().manual_seed(0))

    value, gradient = value_and_gradient(lambda leaf: loss(leaf, others | True), scores)
    rest, rest_gradient = value_and_gradient(lambda leaf: loss(leaf, others), scores)
    queries = len(scores) if remaining else len(scores) - 1
    torch.testing.assert_close(value * queries, rest * (len(scores) - 1))
    torch.testing.assert_close(gradient * queries, rest_gradient * (len(scores) - 1))
    assert not gradient[3].any()


def test_a_candidate_more_than_k_is_finite() -> None:
    scores, positive, _ = random_case(3, rows=50, labels=6)
    value, gradient = value_and_gradient(lambda leaf: soft_topk(leaf, positive), scores.float())
    assert value > 0
    assert gradient.isfinite().all()
    assert gradient.any()


def test_positives_beyond_k_are_masked() -> None:
    scores, positive, _ = random_case(4, rows=30, labels=40, scale=1.0, density=0.3)
    torch.manual_seed(0)
    value, gradient = value_and_gradient(lambda leaf: soft_topk(leaf, positive, k=4), scores)
    drawn = positive & (gradient != 0)
    assert (positive.sum(1) > 4).any()
    assert torch.equal(drawn.sum(1), positive.sum(1).clamp(max=4))
    expected = value_and_gradient(lambda leaf: soft_topk(leaf, drawn, ignored=positive & ~drawn, k=4), scores)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(gradient, expected[1])


def test_a_shift_of_a_row_changes_nothing() -> None:
    scores, positive, _ = random_case(5)
    shift = torch.linspace(-1e3, 1e3, len(scores), dtype=torch.float64)[:, None]

    def loss(leaf: Tensor) -> Tensor:
        return soft_topk(leaf, positive, k=3, generator=torch.Generator().manual_seed(0))

    here, there = value_and_gradient(loss, scores), value_and_gradient(loss, scores + shift)
    torch.testing.assert_close(there[0], here[0])
    torch.testing.assert_close(there[1], here[1])
    torch.testing.assert_close(here[1].sum(1), torch.zeros(len(scores), dtype=torch.float64))


def test_labels_can_be_visited_in_blocks() -> None:
    k, alpha = 5, 2.0
    scores = 3 * torch.randn(20, 1000, generator=torch.Generator().manual_seed(6))
    best, place = (alpha * scores).topk(k, 1)
    rest = (alpha * scores).scatter(1, place, -math.inf).split(170, 1)
    visits = 0

    def rest_sums(t: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal visits
        visits += 1
        parts = [torch.sigmoid(block + t) for block in rest]
        sums = (sum(part.sum(1, True) for part in parts), sum(part.square().sum(1, True) for part in parts))
        return torch.as_tensor(sums[0]), torch.as_tensor(sums[1])

    t = balance(best, rest_sums, -best[:, -1:])
    torch.testing.assert_close(t / alpha, solve_threshold(scores, k, alpha), rtol=1e-5, atol=1e-6)
    assert visits < 8


def test_mistakes_are_explained() -> None:
    """fault 65"""
    scores, positive, _ = random_case(8)
    for wrong in ({"k": 0}, {"alpha": 0.0}, {"alpha": math.nan}):
        with pytest.raises(UserError, match="soft-topk needs"):
            soft_topk(scores, positive, **wrong)
