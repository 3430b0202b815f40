"""Soft targets: every loss with them, against its definition and against itself without them."""

import math

import pytest
import torch
from torch.nn import functional

from harness.loss import get, two_way
from tests.loss.test_loss import random_target
from tests.support.oracles import ORACLES, made, random_case, value_and_gradient

every_loss = pytest.mark.parametrize(("name", "variant"), ORACLES)


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
