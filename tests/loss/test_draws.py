"""Losses that draw positives: what they draw, how often, and from where."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from harness.loss import get, two_way
from harness.loss.draws import draw_one, draw_some
from tests.support.oracles import DRAWN, random_case, value_and_gradient

drawing_losses = pytest.mark.parametrize("name", sorted({name for name, _ in DRAWN}))


def shuffled_anchors(anchors: int, pairs: int, seed: int) -> Tensor:
    """Anchors of `pairs` pairs for each, in any order, [anchors * pairs]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.arange(anchors).repeat(pairs)[torch.randperm(anchors * pairs, generator=draw)]


def test_every_anchor_draws_one_pair() -> None:
    anchor = torch.tensor([3, 0, 3, 5, 3, 0])
    for seed in range(50):
        drawn = draw_one(anchor, 7, None, torch.Generator().manual_seed(seed))
        assert torch.bincount(anchor[drawn], minlength=7).tolist() == [1, 0, 0, 1, 0, 1, 0]
    assert not draw_one(anchor[:0], 3, None).any()


def test_chances_are_proportional_to_the_targets() -> None:
    anchors, chances = 20_000, torch.tensor([0.1, 1.0, 0.4, 0.5])
    anchor = shuffled_anchors(anchors, 4, 0)
    which = torch.randint(4, anchor.shape, generator=torch.Generator().manual_seed(1))
    drawn = draw_one(anchor, anchors, chances[which], torch.Generator().manual_seed(2))
    assert torch.equal(torch.bincount(anchor[drawn], minlength=anchors), torch.ones(anchors, dtype=torch.int64))
    order = torch.argsort(anchor, stable=True)
    expected = torch.zeros(4).index_add_(
        0,
        which[order],
        (chances[which[order]].view(anchors, 4) / chances[which[order]].view(anchors, 4).sum(1, True)).flatten(),
    )
    found = torch.bincount(which[drawn], minlength=4)
    assert ((found - expected).abs() < 4 * expected.sqrt()).all()


def test_every_set_of_pairs_is_equally_likely() -> None:
    anchors = 20_000
    drawn = draw_some(torch.arange(anchors).repeat_interleave(5), anchors, 2, torch.Generator().manual_seed(0))
    sets = drawn.view(anchors, 5).long() @ 2 ** torch.arange(5)
    counts = torch.bincount(sets, minlength=32)
    wanted = [2**first + 2**second for first, second in itertools.combinations(range(5), 2)]
    assert counts[wanted].sum() == anchors
    assert ((counts[wanted] - anchors / 10).abs() < 4 * math.sqrt(anchors / 10)).all()


def test_up_to_k_pairs_are_drawn() -> None:
    anchor = torch.tensor([4, 1, 4, 4, 1, 4, 2, 4])
    for seed in range(50):
        drawn = draw_some(anchor, 6, 3, torch.Generator().manual_seed(seed))
        assert torch.bincount(anchor[drawn], minlength=6).tolist() == [0, 2, 1, 0, 3, 0]
    assert not draw_some(anchor[:0], 3, 2).any()


@drawing_losses
@pytest.mark.parametrize("weight", [1.0, 0.5, 0.0])
def test_what_is_drawn_depends_on_the_seed_alone(name: str, weight: float) -> None:
    scores, positive, _ = random_case(3, rows=20, labels=20, density=0.5)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return two_way(get(name), scores, positive, weight).item()

    assert loss(1) == loss(1)
    assert len({loss(seed) for seed in range(10)}) > 1


@pytest.mark.parametrize(("name", "weight"), [("pick-one-label", 1.0), ("pick-one-label", 0.5), ("soft-topk", 1.0)])
def test_how_much_is_drawn_depends_on_the_shape_alone(name: str, weight: float) -> None:
    scores, positive, ignored = random_case(5)
    states = []
    for marks in (positive, ~positive, positive & False, positive | True):
        for mask in (None, ignored):
            torch.manual_seed(0)
            two_way(get(name), scores, marks, weight, mask)
            states.append(torch.get_rng_state())
    assert all(torch.equal(state, states[0]) for state in states)
    torch.manual_seed(0)
    assert not torch.equal(torch.get_rng_state(), states[0])


@drawing_losses
def test_a_generator_replaces_the_global_one(name: str) -> None:
    scores, _, _ = random_case(7)
    positive = torch.ones_like(scores, dtype=torch.bool)
    positive[:, 7:] = False
    torch.manual_seed(9)
    expected = two_way(get(name), scores, positive, 0.5)
    before = torch.get_rng_state()
    found = two_way(get(name), scores, positive, 0.5, generator=torch.Generator().manual_seed(9))
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("soft", [False, True])
def test_pick_one_label_is_decoupled_softmax_on_average(soft: bool) -> None:
    """Every copy of the batch draws for itself."""
    copies = 4000
    scores, positive, ignored = random_case(11)
    target = torch.sigmoid(scores)
    soft_value, hard_value = (
        get("decoupled-softmax")(scores, positive, ignored=ignored, target=t) for t in (target, None)
    )
    assert abs(soft_value - hard_value) > 0.2
    given = target if soft else None
    expected = value_and_gradient(
        lambda leaf: get("decoupled-softmax")(leaf, positive, ignored=ignored, target=given), scores
    )

    def many(leaf: Tensor) -> Tensor:
        return get("pick-one-label")(
            leaf.repeat(copies, 1),
            positive.repeat(copies, 1),
            ignored=ignored.repeat(copies, 1),
            target=None if given is None else given.repeat(copies, 1),
            generator=torch.Generator().manual_seed(2),
        )

    found = value_and_gradient(many, scores)
    assert abs(found[0] - expected[0]) < 0.05
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0.01)


def test_pick_one_label_both_ways_on_average() -> None:
    scores, positive, ignored = random_case(13, scale=1.0)
    draws = torch.Generator().manual_seed(3)
    values = torch.stack(
        [two_way(get("pick-one-label"), scores, positive, 0.3, ignored, generator=draws) for _ in range(600)]
    )
    expected = two_way(get("decoupled-softmax"), scores, positive, 0.3, ignored)
    assert values.std() > 0
    assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(len(values))


def test_other_positives_neither_pull_nor_push() -> None:
    """Each query moves one positive closer; its other positives keep still."""
    scores, positive, _ = random_case(17, density=0.6)
    torch.manual_seed(0)
    value, gradient = value_and_gradient(lambda leaf: get("pick-one-label")(leaf, positive), scores)
    moved = positive & (gradient != 0)
    has_both = positive.any(1) & ~positive.all(1)
    assert torch.equal(moved.sum(1), has_both.long())
    drawn = value_and_gradient(lambda leaf: get("decoupled-softmax")(leaf, moved, ignored=positive & ~moved), scores)
    torch.testing.assert_close(value, drawn[0])
    torch.testing.assert_close(gradient, drawn[1])
