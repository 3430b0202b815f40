"""Losses against the same formulas left to autograd.

The references are written the way the formulas read, with dense masks; the second one of decoupled softmax gathers the
positives first, which is the most that plain torch code can do without a gradient of its own. SoftTop-k finds its
threshold by 32 halvings of an interval, as the code of its authors does.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from harness.loss import get, two_way
from harness.perf import Row, compare, turns

QUERIES, LABELS, POSITIVES_PER_QUERY, SCALE = 1103, 5000, 5, 18.0
PASSING = 5
AT_LEAST = 2.0
REPEATS = 9

Plain = Callable[[Tensor, Tensor], Tensor]


def rows() -> Iterator[Row]:
    """Forward and backward of both directions at once."""
    scores, positive = random_case(torch.Generator().manual_seed(0))
    for name, reference, plain in (
        ("decoupled-softmax", "autograd, dense masks", dense_decoupled_softmax),
        ("decoupled-softmax", "autograd, positives gathered", gathered_decoupled_softmax),
        ("supcon", "autograd, dense masks", dense_supcon),
        ("supcon", "autograd, positives gathered", gathered_supcon),
    ):
        yield _compared(name, reference, plain, scores, positive)
    yield _compared("triplet", "autograd, dense masks", dense_triplet, scores / SCALE, positive)
    few = positive & (positive.cumsum(1) <= PASSING) & (positive.cumsum(0) <= PASSING)
    yield _compared("soft-topk", "32 halvings, autograd", halving_soft_topk, scores, few)


def random_case(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cosines times the scale, and a mask of positives, [QUERIES, LABELS]."""
    queries, labels = (functional.normalize(torch.randn(count, 64, generator=generator)) for count in (QUERIES, LABELS))
    chance = POSITIVES_PER_QUERY / LABELS
    return SCALE * queries @ labels.T, torch.rand(QUERIES, LABELS, generator=generator) < chance


def dense_decoupled_softmax(scores: Tensor, positive: Tensor) -> Tensor:
    """Decoupled softmax of [B, P]; every entry is compared with the negatives, then the positives are picked."""
    negatives = scores.masked_fill(positive, -torch.inf).logsumexp(1, keepdim=True)
    return _mean_over_positives(torch.logaddexp(scores, negatives) - scores, positive)


def dense_supcon(scores: Tensor, positive: Tensor) -> Tensor:
    """SupCon of [B, P]."""
    return _mean_over_positives(-scores.log_softmax(1), positive)


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


def _mean_over_positives(losses: Tensor, positive: Tensor) -> Tensor:
    chosen = positive.to(losses.dtype)
    count = chosen.sum(1)
    return ((losses * chosen).sum(1) / count.clamp(min=1)).sum() / count.count_nonzero()


def _mean_over_pairs(losses: Tensor, row: Tensor, queries: int) -> Tensor:
    count = torch.bincount(row, minlength=queries)
    return (losses / count[row]).sum() / count.count_nonzero()


def _compared(name: str, reference: str, plain: Plain, scores: Tensor, positive: Tensor) -> Row:
    def ours() -> tuple[float, Tensor]:
        leaf = scores.detach().requires_grad_()
        return _backward(two_way(get(name), leaf, positive, 0.5), leaf)

    def theirs() -> tuple[float, Tensor]:
        leaf = scores.detach().requires_grad_()
        return _backward(0.5 * plain(leaf, positive) + 0.5 * plain(leaf.T, positive.T), leaf)

    _require_equal(ours(), theirs())
    own, other = turns(ours, theirs, repeats=REPEATS)
    return compare(
        f"{name} both ways, forward and backward",
        f"{QUERIES:,} queries x {LABELS:,} labels, {POSITIVES_PER_QUERY} positives a query",
        f"{reference}, {torch.get_num_threads()} threads",
        own,
        other,
        at_least=AT_LEAST,
    )


def _backward(loss: Tensor, leaf: Tensor) -> tuple[float, Tensor]:
    loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return loss.item(), leaf.grad


def _require_equal(ours: tuple[float, Tensor], theirs: tuple[float, Tensor]) -> None:
    worst = float((ours[1] - theirs[1]).abs().max() / theirs[1].abs().max())
    if abs(ours[0] - theirs[0]) > 1e-5 * abs(theirs[0]) or worst > 1e-5:
        raise AssertionError(f"the two sides compute different things, so their times mean nothing: {worst}")
