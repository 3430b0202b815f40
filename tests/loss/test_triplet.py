"""The triplet loss: which labels take part, with which weights, and what the gradient runs through."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.errors import UserError
from harness.loss import get, two_way
from tests.support.oracles import random_case, value_and_gradient
from tests.support.tensor_sizes import largest

triplet = get("triplet")


def cosines(seed: int, rows: int = 12, labels: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    scores, positive, ignored = random_case(seed, rows, labels, scale=0.3, density=0.15)
    return scores.tanh(), positive, ignored


def recorded(
    scores: Tensor, positive: Tensor, *, sharpness: float, constant: bool = False, margin: float = 0.3
) -> Tensor:
    """The formula left to autograd, query by query."""
    losses = []
    for row, mine in zip(scores, positive, strict=True):
        lowest = row[mine].sort().values[:3]
        highest = row[~mine].sort(descending=True).values[:4]
        for score in lowest:
            hinge = (highest - score + margin).clamp(min=0)
            violators = highest[hinge > 0]
            weights = (violators / sharpness).softmax(0)
            weights = weights.detach() if constant else weights
            losses.append(torch.cat((weights * hinge[hinge > 0], hinge[hinge <= 0] * 0)))
    return torch.cat(losses).mean()


@pytest.mark.parametrize("sharpness", [0.1, 1.0])
def test_the_gradient_runs_through_the_weights(sharpness: float) -> None:
    scores, positive, _ = cosines(1)
    expected = value_and_gradient(lambda leaf: recorded(leaf, positive, sharpness=sharpness), scores)
    options: dict[str, Any] = {"hardest_positives": 3, "hardest_negatives": 4, "sharpness": sharpness}
    found = value_and_gradient(lambda leaf: triplet(leaf, positive, **options), scores)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    other = value_and_gradient(lambda leaf: recorded(leaf, positive, sharpness=sharpness, constant=True), scores)
    assert not torch.allclose(found[1], other[1], rtol=1e-3)


def test_an_example_by_hand() -> None:
    """Hinges 0.4, 0.2 and 0 over three slots, without weights."""
    scores = torch.tensor([[0.5, 0.6, 0.4, 0.1]], dtype=torch.float64)
    positive = torch.tensor([[True, False, False, False]])
    value, gradient = value_and_gradient(lambda leaf: triplet(leaf, positive, weighting="none"), scores)
    assert value.item() == pytest.approx(0.6 / 3)
    torch.testing.assert_close(gradient, torch.tensor([[-2.0, 1.0, 1.0, 0.0]], dtype=torch.float64) / 3)


def test_weights_are_a_softmax_over_the_violators_alone() -> None:
    scores = torch.tensor([[0.5, 0.6, 0.4, 0.1]], dtype=torch.float64)
    positive = torch.tensor([[True, False, False, False]])
    first, second = torch.tensor([0.6, 0.4], dtype=torch.float64).div(0.1).softmax(0).tolist()
    assert triplet(scores, positive).item() == pytest.approx((first * 0.4 + second * 0.2) / 3)
    further = torch.cat((scores, scores.new_full((1, 1), 0.19)), 1)
    mark = torch.cat((positive, positive[:, 1:2]), 1)
    assert triplet(further, mark).item() == pytest.approx((first * 0.4 + second * 0.2) / 4)


def test_only_the_hardest_take_part() -> None:
    scores, positive, ignored = cosines(3, rows=20, labels=60)
    _, gradient = value_and_gradient(
        lambda leaf: triplet(
            *(leaf, positive), ignored=ignored, hardest_negatives=4, hardest_positives=2, margin=9.0, weighting="none"
        ),
        scores,
    )
    for row, mine, skipped, moved in zip(scores, positive, ignored, gradient, strict=True):
        positives, negatives = (mine & ~skipped).nonzero()[:, 0], (~mine & ~skipped).nonzero()[:, 0]
        if len(positives):
            assert set(moved.nonzero()[:, 0].tolist()) == {
                *positives[row[positives].argsort()[:2]].tolist(),
                *negatives[row[negatives].argsort(descending=True)[:4]].tolist(),
            }


def test_satisfied_margins_cost_nothing() -> None:
    scores, positive, _ = cosines(4)
    apart = torch.where(positive, 0.9, 0.5) + 0.01 * scores
    value, gradient = value_and_gradient(lambda leaf: triplet(leaf, positive, hardest_positives=None), apart)
    assert value == 0
    assert not gradient.any()


def test_slots_that_do_not_exist_do_not_count() -> None:
    """A query with one negative has one slot for each positive; one without negatives has none."""
    scores, positive, _ = cosines(5, rows=4, labels=6)
    positive[0] = True
    positive[1] = True
    positive[1, 2] = False
    positive[2] = False
    positive[3] = False
    positive[3, :2] = True
    found = triplet(scores, positive, weighting="none", hardest_positives=3, margin=5.0)
    single = scores[1, 2] - scores[1, positive[1]].sort().values[:3] + 5
    double = scores[3, 2:] - scores[3, :2, None] + 5
    torch.testing.assert_close(found, torch.cat((single, double.flatten())).mean())


def test_targets_weigh_the_slots() -> None:
    scores, positive, _ = cosines(6)
    target = torch.rand(scores.shape, dtype=torch.float64).clamp(min=0.01)
    found = triplet(scores, positive, target=target, hardest_positives=None, hardest_negatives=3, weighting="none")
    total, count = 0.0, 0.0
    for row, mine, weights in zip(scores, positive, target, strict=True):
        hardest = row[~mine].sort(descending=True).values[:3]
        hinge = (hardest - row[mine, None] + 0.3).clamp(min=0)
        total += float((weights[mine, None] * hinge).sum())
        count += float(weights[mine].sum() * 3)
    assert found.item() == pytest.approx(total / count)


def test_nothing_is_larger_than_the_scores() -> None:
    """No array of queries times labels times labels."""
    scores, positive, _ = cosines(7, rows=50, labels=200)
    elements = largest(lambda: value_and_gradient(lambda leaf: two_way(triplet, leaf, positive, 0.5), scores))
    assert elements == scores.numel()


def test_mistakes_are_explained() -> None:
    """fault 65"""
    scores, positive, _ = cosines(8)
    with pytest.raises(UserError, match="unknown weighting of loss triplet 'scores'; did you mean 'score'"):
        triplet(scores, positive, weighting="scores")
    for wrong in ({"hardest_negatives": 0}, {"hardest_positives": 0}, {"sharpness": 0.0}):
        with pytest.raises(UserError, match=f"{next(iter(wrong))} of loss triplet"):
            triplet(scores, positive, **wrong)
