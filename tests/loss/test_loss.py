"""Every registered loss against its definition in plain Python, and the identities that tie the losses together."""

import math
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from harness.errors import UserError
from harness.loss import LOSSES, get, two_way
from tests.support.oracles import (
    ORACLES,
    SOFTMAX,
    definition,
    made,
    random_case,
    settled,
    spread,
    value_and_gradient,
)

every_loss = pytest.mark.parametrize(("name", "variant"), ORACLES)
every_ranking_loss = pytest.mark.parametrize(("name", "variant"), [key for key in ORACLES if key[0] != "bce"])
softmax_losses = pytest.mark.parametrize("name", [*SOFTMAX, "pick-one-label"])


def random_target(positive: Tensor, seed: int) -> Tensor:
    """In (0, 1] where positive, not a number elsewhere: nobody may look there."""
    target = 1 - torch.rand(positive.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return target.masked_fill(~positive, math.nan)


def test_every_registered_loss_is_tested() -> None:
    assert {name for name, _ in ORACLES} == set(LOSSES)
    assert all(LOSSES.summary(name) for name in LOSSES)


@every_loss
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 6), labels=st.integers(1, 7), density=st.floats(0, 1))
@settings(max_examples=10)
def test_equals_its_definition(name: str, variant: str, seed: int, rows: int, labels: int, density: float) -> None:
    """fault 45: rows without a positive, full rows and ignored positives occur among the examples"""
    scores, positive, ignored = random_case(seed, rows, labels, density=density)
    for given_scores, mask, target in product(
        (scores, spread(scores)), (None, ignored), (None, random_target(positive, seed))
    ):
        expected = definition(name, variant, given_scores, positive, mask, target)
        found = made(name, variant)(given_scores, positive, ignored=mask, target=target)
        assert found.shape == ()
        assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@every_loss
@pytest.mark.parametrize(("weight", "apart"), [(1.0, False), (0.0, False), (0.3, False), (0.3, True)])
def test_gradient_equals_finite_differences(name: str, variant: str, weight: float, apart: bool) -> None:
    scores, positive, ignored = random_case(3, rows=5, labels=6)
    positive[2] = False
    positive[4] = True
    positive[:, 1] = False
    if apart:
        scores = spread(scores)
    for mask, target in product((None, ignored), (None, random_target(positive, 3))):

        def loss(leaf: Tensor, mask: Tensor | None = mask, target: Tensor | None = target) -> Tensor:
            return two_way(made(name, variant), leaf, positive, weight, ignored=mask, target=target)

        leaf = scores.clone().requires_grad_()
        assert torch.autograd.gradcheck(loss, leaf, eps=1e-5, atol=1e-7, rtol=1e-5, fast_mode=True)


@every_loss
@pytest.mark.parametrize("apart", ["nothing", "everything", "one query", "one label", "a little"])
def test_float32_keeps_its_digits(name: str, variant: str, apart: str) -> None:
    scores, positive, ignored = random_case(5, rows=40, labels=60, scale=6.0, density=0.05)
    positive[3, 4] = True
    ignored[3, 4] = False
    if apart == "everything":
        scores = spread(scores)
    elif apart == "one label":
        scores[:, 4] -= 200
    else:
        scores[3] -= {"nothing": 0, "a little": 45, "one query": 200}[apart]
    scores = scores.float()

    def loss(leaf: Tensor) -> Tensor:
        return two_way(made(name, variant), leaf, positive, 0.5, ignored=ignored)

    value, gradient = value_and_gradient(loss, scores)
    exact_value, exact_gradient = value_and_gradient(loss, scores.double())
    assert value.dtype == gradient.dtype == torch.float32
    assert value.item() == pytest.approx(exact_value.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-4, atol=1e-6 * exact_gradient.abs().max())


@every_loss
def test_order_of_queries_and_labels_does_not_matter(name: str, variant: str) -> None:
    """fault 60"""
    scores, positive, ignored = random_case(7)
    positive = settled(name, variant, positive)
    rows, labels = torch.randperm(len(scores)), torch.randperm(scores.shape[1])
    for weight in (1.0, 0.4):
        loss = partial(two_way, made(name, variant), weight=weight)
        before = loss(scores, positive, ignored=ignored)
        after = loss(*(part[rows][:, labels] for part in (scores, positive)), ignored=ignored[rows][:, labels])
        torch.testing.assert_close(before, after)


@every_loss
@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize("junk", [1e6, math.inf, -math.inf, math.nan])
def test_ignored_pairs_have_no_influence(name: str, variant: str, weight: float, junk: float) -> None:
    scores, positive, ignored = random_case(11)
    loss = made(name, variant)
    with_junk = scores.masked_fill(ignored, junk)
    expected, _ = value_and_gradient(lambda leaf: two_way(loss, leaf, positive & ~ignored, weight, ignored), scores)
    value, gradient = value_and_gradient(lambda leaf: two_way(loss, leaf, positive, weight, ignored), with_junk)
    torch.testing.assert_close(value, expected)
    assert not gradient[ignored].any()
    assert gradient.isfinite().all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, variant: str, dtype: torch.dtype) -> None:
    scores, positive, ignored = random_case(17)
    half = scores.to(dtype)

    def loss(leaf: Tensor) -> Tensor:
        return two_way(made(name, variant), leaf, positive, 0.5, ignored=ignored)

    value, gradient = value_and_gradient(loss, half)
    expected, expected_gradient = value_and_gradient(loss, half.float())
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))


@every_loss
def test_autocast_changes_nothing(name: str, variant: str) -> None:
    scores, positive, _ = random_case(19)

    def loss(leaf: Tensor) -> Tensor:
        return two_way(made(name, variant), leaf, positive, 0.5)

    expected = value_and_gradient(loss, scores.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = value_and_gradient(loss, scores.float())
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@every_loss
@pytest.mark.parametrize("size", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_extreme_logits_stay_finite(name: str, variant: str, size: float, weight: float) -> None:
    scores, positive, _ = random_case(23)
    positive[0] = True
    for middle in (0, -2, 2):
        logits = (size * (scores.sign() + middle)).float()
        value, gradient = value_and_gradient(lambda leaf: two_way(made(name, variant), leaf, positive, weight), logits)
        assert value.isfinite()
        assert gradient.isfinite().all()
        if weight == 1:
            assert value.item() == pytest.approx(definition(name, variant, logits, positive), rel=1e-5, abs=1e-30)


@every_loss
@pytest.mark.parametrize("weight", [1.0, 0.5, 0.0])
def test_without_any_positive_the_graph_survives(name: str, variant: str, weight: float) -> None:
    """fault 45"""
    scores, positive, ignored = random_case(29)
    positive[:] = False
    for mask in (None, ignored, ~positive):
        value, gradient = value_and_gradient(
            lambda leaf, mask=mask: two_way(made(name, variant), leaf, positive, weight, mask),  # type: ignore[misc]
            scores,
        )
        assert value.isfinite()
        assert gradient.isfinite().all()
        if name in SOFTMAX:
            assert value == 0
            assert not gradient.any()


@every_loss
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (1, 1)])
def test_smallest_matrices(name: str, variant: str, shape: tuple[int, int]) -> None:
    for marked in (True, False):
        positive = torch.full(shape, marked)
        value, gradient = value_and_gradient(
            lambda leaf, positive=positive: two_way(made(name, variant), leaf, positive, 0.5),  # type: ignore[misc]
            torch.zeros(shape),
        )
        assert value.isfinite()
        assert gradient.isfinite().all()


@every_loss
def test_scores_are_left_alone_and_the_graph_can_be_walked_twice(name: str, variant: str) -> None:
    scores, positive, ignored = random_case(43)
    leaf = scores.clone().requires_grad_()
    value = 3 * two_way(made(name, variant), leaf, positive, 0.5, ignored=ignored)
    (once,) = torch.autograd.grad(value, leaf, retain_graph=True)
    (twice,) = torch.autograd.grad(value, leaf)
    assert torch.equal(once, twice)
    assert torch.equal(leaf, scores)
    _, single = value_and_gradient(lambda leaf: two_way(made(name, variant), leaf, positive, 0.5, ignored), scores)
    torch.testing.assert_close(once, 3 * single)
    with torch.no_grad():
        silent = two_way(made(name, variant), leaf, positive, 0.5, ignored=ignored)
    assert not silent.requires_grad
    torch.testing.assert_close(3 * silent, value.detach())


@pytest.mark.parametrize("weight", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("reduction", ["mean", "sum-labels"])
def test_a_pair_on_its_own_has_no_direction(weight: float, reduction: str) -> None:
    """Labels that are hard negatives only count as much in bce whatever the weight."""
    scores, positive, ignored = random_case(53)
    positive[:, 5] = False
    found = two_way(get("bce"), scores, positive, weight, ignored, reduction=reduction)
    torch.testing.assert_close(found, get("bce")(scores, positive, ignored=ignored, reduction=reduction))


@every_ranking_loss
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.7, 0.0])
def test_two_way_is_the_sum_of_two_calls(name: str, variant: str, weight: float, apart: bool) -> None:
    scores, positive, ignored = random_case(53)
    positive = settled(name, variant, positive)
    positive[:, 5] = False
    scores = spread(scores) if apart else scores
    loss = made(name, variant)
    chosen = (positive & ~ignored).any(0)
    assert not chosen.all()
    for target in (None, random_target(positive, 13)):

        def together(leaf: Tensor, target: Tensor | None = target) -> Tensor:
            return two_way(loss, leaf, positive, weight, ignored=ignored, target=target)

        def separately(leaf: Tensor, target: Tensor | None = target) -> Tensor:
            forth = loss(leaf, positive, ignored=ignored, target=target)
            turned = None if target is None else target[:, chosen].T
            back = loss(leaf[:, chosen].T, positive[:, chosen].T, ignored=ignored[:, chosen].T, target=turned)
            return weight * forth + (1 - weight) * back

        found, expected = value_and_gradient(together, scores), value_and_gradient(separately, scores)
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize(("weight", "calls"), [(1.0, [(7, 9)]), (0.0, [(8, 7)]), (0.5, [(8, 7), (7, 9)])])
def test_two_way_of_a_loss_from_outside(weight: float, calls: list[tuple[int, int]]) -> None:
    """A direction of weight zero is not computed; labels without a positive are no rows of the transposed matrix.

    Such a loss need not know targets as long as there are none.
    """
    scores, positive, _ = random_case(61)
    positive[0] = True
    positive[:, 5] = False
    target = random_target(positive, 61).nan_to_num(0.0)
    seen: list[Any] = []

    def outside(
        scores: Tensor, positive: Tensor, *, ignored: Tensor | None = None, margin: float, **options: Any
    ) -> Tensor:
        seen.append((tuple(scores.shape), tuple(options["target"].shape) if options else None))
        return (scores * options.get("target", positive)).sum()

    value = two_way(outside, scores, positive, weight, margin=0.3, target=target)
    torch.testing.assert_close(value, (scores * target).sum())
    value = two_way(outside, scores, positive, weight, margin=0.3)
    torch.testing.assert_close(value, (scores * positive).sum())
    assert seen == [(shape, shape) for shape in calls] + [(shape, None) for shape in calls]


@softmax_losses
def test_a_direction_of_weight_zero_is_not_computed(name: str) -> None:
    class Passes(TorchDispatchMode):
        """Counts operations on whole matrices."""

        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += any(isinstance(value, Tensor) and value.shape == (7, 9) for value in args)
            return func(*args, **(kwargs or {}))

    def passes(weight: float) -> int:
        scores, positive, _ = random_case(97)
        with Passes() as seen:
            two_way(get(name), scores, positive, weight)
        return seen.count

    assert 0 < passes(1.0) == passes(0.0) < passes(0.5)


def test_mistakes_are_explained() -> None:
    """fault 65"""
    scores, positive, _ = random_case(83)
    with pytest.raises(UserError, match="unknown loss 'supcom'; did you mean 'supcon'"):
        get("supcom")
    with pytest.raises(UserError, match="unknown reduction of loss bce 'sum'"):
        get("bce")(scores, positive, reduction="sum")
    for weight in (-0.1, 1.5, math.nan):
        with pytest.raises(UserError, match="between 0 and 1"):
            two_way(get("supcon"), scores, positive, weight)


@every_loss
def test_wrong_masks_are_refused(name: str, variant: str) -> None:
    scores, positive, ignored = random_case(89)
    loss = made(name, variant)
    with pytest.raises(ValueError, match="positive must be bool"):
        loss(scores, positive.double())
    with pytest.raises(ValueError, match="ignored must be bool"):
        loss(scores, positive, ignored=ignored[:, :1])
    with pytest.raises(ValueError, match="floating point matrix"):
        loss(scores.long(), positive)


@softmax_losses
def test_one_positive_a_row_is_cross_entropy(name: str) -> None:
    scores, _, _ = random_case(67)
    target = torch.randint(scores.shape[1], (len(scores),))
    positive = functional.one_hot(target, scores.shape[1]).bool()
    found = value_and_gradient(lambda leaf: get(name)(leaf, positive), scores)
    expected = value_and_gradient(lambda leaf: functional.cross_entropy(leaf, target), scores)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


GOLDEN = {
    ("supcon", ""): (2.890825704, 3.148928296),
    ("decoupled-softmax", ""): (1.776217249, 2.350498358),
    ("pal", ""): (7.12465905, 6.363595878),
    ("bce", ""): (0.959816553, 0.959816553),
    ("bce", "sum-labels"): (5.758899317, 5.521860825),
    ("pick-one-label", ""): (4.67362882, 5.048416038),
    ("triplet", ""): (0.659996973, 0.951872068),
    ("triplet", "stage 2"): (0.725235938, 0.982530084),
    ("triplet", "plain"): (1.019354839, 1.241820276),
    ("soft-topk", ""): (0.256048623, 0.128024312),
    ("soft-topk", "k = 2"): (1.317526448, 1.392206579),
}


def golden_case() -> tuple[Tensor, Tensor]:
    """Five queries and six labels from arithmetic alone, so that no generator is pinned; one row, one column empty."""
    scores = torch.tensor([[((7 * i + 3 * j * j + i * j) % 11) - 4.5 for j in range(6)] for i in range(5)])
    positive = torch.tensor([[(i + 2 * j) % 5 < 2 and i != 3 and j != 4 for j in range(6)] for i in range(5)])
    return scores, positive


@every_loss
def test_golden_values(name: str, variant: str) -> None:
    scores, positive = golden_case()
    positive = settled(name, variant, positive)
    one, both = GOLDEN[name, variant]
    assert made(name, variant)(scores, positive).item() == pytest.approx(one, rel=2e-6)
    assert two_way(made(name, variant), scores, positive, 0.5).item() == pytest.approx(both, rel=2e-6)


# ---------------------------------------------------------------- soft targets


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_a_target_of_one_is_none(name: str, variant: str, dtype: torch.dtype, weight: float) -> None:
    scores, positive, ignored = random_case(5, rows=20, labels=30)
    loss = made(name, variant)
    ones = torch.ones(scores.shape)
    plain = value_and_gradient(lambda leaf: two_way(loss, leaf, positive, weight, ignored), scores.to(dtype))
    soft = value_and_gradient(
        lambda leaf: two_way(loss, leaf, positive, weight, ignored, target=ones), scores.to(dtype)
    )
    assert torch.equal(plain[0], soft[0])
    assert torch.equal(plain[1], soft[1])


@every_loss
def test_targets_of_ignored_pairs_have_no_influence(name: str, variant: str) -> None:
    scores, positive, ignored = random_case(11)
    target = random_target(positive, 11)
    loss = made(name, variant)
    expected = two_way(loss, scores, positive & ~ignored, 0.5, ignored, target=target)
    for junk in (math.nan, 0.0, -3.0):
        found = two_way(loss, scores, positive, 0.5, ignored, target=target.masked_fill(ignored, junk))
        assert torch.equal(found, expected)


def test_bce_of_soft_targets_is_that_of_torch() -> None:
    """The gradient is sigmoid(s) - y, also with a soft y."""
    scores, positive, _ = random_case(23)
    target = random_target(positive, 23)
    dense = target.nan_to_num(0.0)
    found = value_and_gradient(lambda leaf: get("bce")(leaf, positive, target=target), scores)
    expected = value_and_gradient(lambda leaf: functional.binary_cross_entropy_with_logits(leaf, dense), scores)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[1] * scores.numel(), torch.sigmoid(scores) - dense)


@every_loss
def test_wrong_targets_are_refused(name: str, variant: str) -> None:
    scores, positive, _ = random_case(29)
    loss = made(name, variant)
    with pytest.raises(ValueError, match="target must be floating point"):
        loss(scores, positive, target=positive)
    with pytest.raises(ValueError, match="target must be floating point"):
        loss(scores, positive, target=torch.ones(scores.shape[1]))
    for wrong in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="greater than 0 and at most 1"):
            loss(scores, positive, target=torch.full(scores.shape, wrong))
