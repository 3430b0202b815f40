"""What ties the losses to each other and to torch, and the values they had when they were written."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.loss import get, two_way
from tests.loss_oracles import ORACLES, SOFTMAX, made, random_case, settled, value_and_gradient


@pytest.mark.parametrize("name", [*SOFTMAX, "pick-one-label"])
def test_one_positive_a_row_is_cross_entropy(name: str) -> None:
    scores, _, _ = random_case(67)
    target = torch.randint(scores.shape[1], (len(scores),))
    positive = functional.one_hot(target, scores.shape[1]).bool()
    found = value_and_gradient(lambda leaf: get(name)(leaf, positive), scores)
    expected = value_and_gradient(lambda leaf: functional.cross_entropy(leaf, target), scores)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


def test_supcon_and_decoupled_softmax_differ_with_a_second_positive() -> None:
    scores, positive, _ = random_case(71)
    assert (positive.sum(1) > 1).any()
    assert get("decoupled-softmax")(scores, positive) < get("supcon")(scores, positive)


def test_pal_is_supcon_times_the_number_of_positives() -> None:
    scores, positive, _ = random_case(73)
    positive[:] = False
    positive.scatter_(1, torch.rand(scores.shape).argsort(1)[:, :4], True)
    torch.testing.assert_close(get("pal")(scores, positive), 4 * get("supcon")(scores, positive))


def test_bce_reductions_and_torch() -> None:
    scores, positive, _ = random_case(79)
    expected = functional.binary_cross_entropy_with_logits(scores, positive.double())
    torch.testing.assert_close(get("bce")(scores, positive), expected)
    torch.testing.assert_close(get("bce")(scores, positive, reduction="sum-labels"), expected * scores.shape[1])


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


@pytest.mark.parametrize(("name", "variant"), ORACLES)
def test_golden_values(name: str, variant: str) -> None:
    scores, positive = golden_case()
    positive = settled(name, variant, positive)
    one, both = GOLDEN[name, variant]
    assert made(name, variant)(scores, positive).item() == pytest.approx(one, rel=2e-6)
    assert two_way(made(name, variant), scores, positive, 0.5).item() == pytest.approx(both, rel=2e-6)
