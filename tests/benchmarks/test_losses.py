"""Losses against the same formulas left to autograd, both directions, forward and backward.

The references are written as the formulas read, with dense masks; the gathered ones are the most that plain torch does
without a gradient of its own. SoftTop-k finds its threshold by 32 halvings of an interval, as its authors' code does.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.loss import get, two_way
from tests.benchmarks.obvious import dense_decoupled_softmax, mean_over_positives
from tests.benchmarks.race import Race, size

QUERIES, LABELS = size(1103, 60), size(5000, 200)
POSITIVES, SCALE, PASSING = 5, 18.0, 5
Plain = Callable[[Tensor, Tensor], Tensor]


def dense_supcon(scores: Tensor, positive: Tensor) -> Tensor:
    """SupCon of [B, P]."""
    return mean_over_positives(-scores.log_softmax(1), positive)


def gathered_decoupled_softmax(scores: Tensor, positive: Tensor) -> Tensor:
    """Decoupled softmax of [B, P] with the positives gathered."""
    row, label = positive.nonzero(as_tuple=True)
    gap = scores.masked_fill(positive, -torch.inf).logsumexp(1)[row] - scores[row, label]
    return _mean_over_pairs(functional.softplus(gap), row, len(scores))


def gathered_supcon(scores: Tensor, positive: Tensor) -> Tensor:
    """SupCon of [B, P] with the positives gathered."""
    row, label = positive.nonzero(as_tuple=True)
    return _mean_over_pairs(scores.logsumexp(1)[row] - scores[row, label], row, len(scores))


def dense_triplet(scores: Tensor, positive: Tensor) -> Tensor:
    """Triplet loss of [B, P] with its default options: the hardest positive, ten negatives."""
    hardest = scores.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    negatives = scores.masked_fill(positive, -torch.inf).topk(10, 1).values
    hinge = (negatives - hardest + 0.3).clamp(min=0)
    weights = (negatives / 0.1).masked_fill(hinge == 0, -torch.inf).softmax(1).nan_to_num(0.0)
    return (weights * hinge)[positive.any(1)].mean()


def halving_soft_topk(scores: Tensor, positive: Tensor) -> Tensor:
    """SoftTop-k of [B, P] with its default options and no more than `PASSING` positives in a row: none is drawn."""
    alpha = 2.0
    with torch.no_grad():
        low = -scores.amax(1, keepdim=True) - 10 / alpha
        high = -scores.amin(1, keepdim=True) + 10 / alpha
        for _ in range(32):
            middle = (low + high) / 2
            too_few = torch.sigmoid(alpha * (scores + middle)).sum(1, keepdim=True) < PASSING
            low, high = torch.where(too_few, middle, low), torch.where(too_few, high, middle)
        passing = torch.sigmoid(alpha * (scores + middle))
        slope = (alpha * passing * (1 - passing)).sum(1, keepdim=True)
    # a step of Newton's method at the root: nothing in value, d t / d s in its gradient
    passed = torch.sigmoid(alpha * (scores + middle)).sum(1, keepdim=True)
    threshold = middle - (passed - passed.detach()) / slope
    row, label = positive.nonzero(as_tuple=True)
    return _mean_over_pairs(-functional.logsigmoid(alpha * (scores[row, label] + threshold[row, 0])), row, len(scores))


def _mean_over_pairs(losses: Tensor, row: Tensor, queries: int) -> Tensor:
    count = torch.bincount(row, minlength=queries)
    return (losses / count[row]).sum() / count.count_nonzero()


@pytest.mark.parametrize(
    ("name", "reference", "plain"),
    [
        ("decoupled-softmax", "autograd, dense masks", dense_decoupled_softmax),
        ("decoupled-softmax", "autograd, positives gathered", gathered_decoupled_softmax),
        ("supcon", "autograd, dense masks", dense_supcon),
        ("supcon", "autograd, positives gathered", gathered_supcon),
        ("triplet", "autograd, dense masks", dense_triplet),
        ("soft-topk", "32 halvings, autograd", halving_soft_topk),
    ],
)
def test_loss(race: Race, name: str, reference: str, plain: Plain) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, labels = (functional.normalize(torch.randn(count, 64, generator=generator)) for count in (QUERIES, LABELS))
    scores = (1.0 if name == "triplet" else SCALE) * queries @ labels.T
    positive = torch.rand(QUERIES, LABELS, generator=generator) < POSITIVES / LABELS
    if name == "soft-topk":
        positive &= (positive.cumsum(1) <= PASSING) & (positive.cumsum(0) <= PASSING)

    def ours() -> tuple[float, Tensor]:
        leaf = scores.detach().requires_grad_()
        return _backward(two_way(get(name), leaf, positive, 0.5), leaf)

    def theirs() -> tuple[float, Tensor]:
        leaf = scores.detach().requires_grad_()
        return _backward(0.5 * plain(leaf, positive) + 0.5 * plain(leaf.T, positive.T), leaf)

    (own, own_gradient), (other, other_gradient) = ours(), theirs()
    assert own == pytest.approx(other, rel=1e-5)
    assert (own_gradient - other_gradient).abs().max() <= 1e-5 * other_gradient.abs().max()
    inputs = f"{QUERIES:,} queries x {LABELS:,} labels, {POSITIVES} positives a query"
    race(f"{name}, both ways, forward and backward", inputs, reference, ours, theirs, at_least=2.0, rounds=9)


def _backward(loss: Tensor, leaf: Tensor) -> tuple[float, Tensor]:
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad
