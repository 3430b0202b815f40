"""Soft targets: every loss with them, against its definition and against itself without them."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.loss import get, two_way
from tests.loss_oracles import ORACLES, definition, made, random_case, settled, spread, value_and_gradient

every_loss = pytest.mark.parametrize(("name", "variant"), ORACLES)


def random_target(positive: Tensor, seed: int) -> Tensor:
    """In (0, 1] where positive, not a number elsewhere: nobody may look there."""
    target = 1 - torch.rand(positive.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return target.masked_fill(~positive, math.nan)


@every_loss
@pytest.mark.parametrize("density", [0.2, 0.6, 1.0])
def test_equals_its_definition(name: str, variant: str, density: float) -> None:
    for seed in range(4):
        scores, positive, ignored = random_case(seed, density=density)
        target = random_target(positive, seed)
        for given in (scores, spread(scores)):
            for mask in (None, ignored):
                expected = definition(name, variant, given, positive, mask, target)
                found = made(name, variant)(given, positive, ignored=mask, target=target)
                assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@every_loss
@pytest.mark.parametrize("weight", [1.0, 0.3, 0.0])
def test_gradient_equals_finite_differences(name: str, variant: str, weight: float) -> None:
    scores, positive, ignored = random_case(3, rows=5, labels=6)
    target = random_target(positive, 3)

    def loss(leaf: Tensor) -> Tensor:
        return two_way(made(name, variant), leaf, positive, weight, ignored, target=target)

    assert torch.autograd.gradcheck(loss, scores.requires_grad_(), eps=1e-5, atol=1e-7, rtol=1e-5, fast_mode=True)


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
def test_targets_matter(name: str, variant: str) -> None:
    scores, positive, _ = random_case(7)
    if name == "triplet":  # each query has one slot of its own, so that these weigh against each other
        scores, positive = scores / 3, positive | True
        positive[:, 3:] = False
    target = random_target(positive, 7)
    loss = made(name, variant)
    assert loss(scores, positive, target=target) != loss(scores, positive)


@every_loss
def test_targets_of_ignored_pairs_have_no_influence(name: str, variant: str) -> None:
    scores, positive, ignored = random_case(11)
    target = random_target(positive, 11)
    loss = made(name, variant)
    expected = two_way(loss, scores, positive & ~ignored, 0.5, ignored, target=target)
    for junk in (math.nan, 0.0, -3.0):
        found = two_way(loss, scores, positive, 0.5, ignored, target=target.masked_fill(ignored, junk))
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("name", "variant"), [key for key in ORACLES if key[0] != "bce"])
def test_two_way_is_the_sum_of_two_calls(name: str, variant: str) -> None:
    scores, positive, ignored = random_case(13)
    positive = settled(name, variant, positive)
    positive[:, 5] = False
    target = random_target(positive, 13)
    loss = made(name, variant)
    chosen = (positive & ~ignored).any(0)

    def separately(leaf: Tensor) -> Tensor:
        forth = loss(leaf, positive, ignored=ignored, target=target)
        turned = (part[:, chosen].T for part in (leaf, positive))
        return 0.7 * forth + 0.3 * loss(*turned, ignored=ignored[:, chosen].T, target=target[:, chosen].T)

    found = value_and_gradient(lambda leaf: two_way(loss, leaf, positive, 0.7, ignored, target=target), scores)
    expected = value_and_gradient(separately, scores)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("name", ["supcon", "decoupled-softmax", "pick-one-label", "soft-topk"])
def test_only_the_proportions_within_a_query_matter(name: str) -> None:
    scores, positive, _ = random_case(17)
    target = random_target(positive, 17)
    fewer = target * torch.linspace(0.1, 1, len(scores), dtype=torch.float64)[:, None]
    torch.testing.assert_close(
        made(name)(scores, positive, target=fewer), made(name)(scores, positive, target=target), rtol=1e-12, atol=0
    )


def test_pal_is_linear_in_the_targets() -> None:
    scores, positive, _ = random_case(19)
    target = random_target(positive, 19)
    torch.testing.assert_close(
        get("pal")(scores, positive, target=target / 2), get("pal")(scores, positive, target=target) / 2
    )


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


@pytest.mark.parametrize(("weight", "calls"), [(1.0, [(7, 9)]), (0.0, [(8, 7)]), (0.5, [(8, 7), (7, 9)])])
def test_a_loss_from_outside_gets_targets_only_where_there_are_any(weight: float, calls: list[tuple[int, int]]) -> None:
    scores, positive, _ = random_case(61)
    positive[0] = True
    positive[:, 5] = False
    target = random_target(positive, 61).nan_to_num(0.0)
    seen: list[Any] = []

    def outside(scores: Tensor, positive: Tensor, *, ignored: Tensor | None = None, **options: Any) -> Tensor:
        seen.append(tuple(options["target"].shape) if options else None)
        return (scores * options.get("target", 1.0)).sum()

    value = two_way(outside, scores, positive, weight, target=target)
    torch.testing.assert_close(value, (scores * target).sum())
    two_way(outside, scores, positive, weight)
    assert seen == calls + [None] * len(calls)
