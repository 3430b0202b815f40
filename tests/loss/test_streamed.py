"""Losses that meet their scores in blocks of labels against their definitions in float64; blocks and their pairs."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.batching import LabelSpace
from harness.data.ragged import Ragged
from harness.loss.streamed import DecoupledSoftmax, SoftTopK, StreamedLoss, Totals
from harness.train.objectives.fullspace import LabelOrder, located
from tests.faults.accounts import Account
from tests.support.oracles import masks, random_space, softmax_by_definition, texts, topk_by_definition

pytestmark = pytest.mark.usefixtures("one_thread")


def streamed(
    make: Callable[[int, Tensor, Tensor], StreamedLoss], scores: Tensor, space: LabelSpace, edges: list[int]
) -> tuple[Totals, Tensor, StreamedLoss]:
    """Loss and gradient [B, L] of scores [B, L] that are met in blocks."""
    order = LabelOrder(Ragged(np.zeros(0, np.int64), np.zeros(space.size + 1, np.int64)), None, np.array(edges))
    query, share, blocks = located(space, order, "cpu")
    loss = make(space.rows, query, share)
    pieces = [scores[:, start:stop] for start, stop in pairwise(edges)]
    for block, piece in zip(blocks, pieces, strict=True):
        loss.read(block, piece.clone(memory_format=torch.contiguous_format))
    totals = loss.totals()
    gradients = []
    for block, piece in zip(blocks, pieces, strict=True):
        terms = piece.clone(memory_format=torch.contiguous_format)
        loss.terms(block, terms)
        gradient = terms * totals.factor[:, None]
        gradient[block.query, block.label] += totals.pair[block.drawn]
        gradients.append(gradient)
    return totals, torch.cat(gradients, 1), loss


def soft_topk(labels: int, k: int) -> Callable[[int, Tensor, Tensor], StreamedLoss]:
    return lambda rows, query, share: SoftTopK(rows, query, share, k=k, labels=labels)


def dense(definition: Callable[[Tensor], Tensor], scores: Tensor) -> tuple[float, Tensor]:
    """Value and gradient in float64."""
    leaf = scores.double().requires_grad_()
    value = definition(leaf)
    value.backward()
    assert leaf.grad is not None
    return value.item(), leaf.grad


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    labels=st.integers(2, 70),
    cuts=st.sets(st.integers(1, 69), max_size=6),
    spread=st.sampled_from([0.1, 3.0, 10.0]),  # further apart no label is near the threshold, and no gradient is left
    share=st.sampled_from([0.05, 0.3]),
    soft=st.booleans(),
    k=st.integers(1, 3),
)
def test_streamed_losses_are_those_of_the_definition(seed, labels, cuts, spread, share, soft, k):
    """parity 3"""
    space = random_space(5, labels, seed, soft=soft, share=share)
    scores = spread * torch.randn(5, labels, generator=torch.Generator().manual_seed(seed))
    edges = sorted({0, labels, *(cut for cut in cuts if cut < labels)})
    cases = [(DecoupledSoftmax, lambda s: softmax_by_definition(s, space))]
    if k < labels:
        cases.append((soft_topk(labels, k), lambda s: topk_by_definition(s, space, k)))
    for make, definition in cases:
        totals, gradient, _ = streamed(make, scores, space, edges)
        value, wanted = dense(definition, scores)
        assert totals.loss.item() == pytest.approx(value, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=2e-6)


def test_a_loss_in_chunks_is_the_dense_loss(account: Account) -> None:
    """parity 3: both losses over all labels, in chunks of very different sizes"""
    labels, edges = 400, [0, 1, 40, 47, 200, 399, 400]
    space = random_space(12, labels, seed=5, soft=True, share=0.02)
    scores = 3 * torch.randn(12, labels, generator=torch.Generator().manual_seed(5))
    told = []
    for name, make, definition in (
        ("softmax", DecoupledSoftmax, lambda s: softmax_by_definition(s, space)),
        ("soft top-5", soft_topk(labels, 5), lambda s: topk_by_definition(s, space, 5)),
    ):
        totals, gradient, _ = streamed(make, scores, space, edges)
        value, wanted = dense(definition, scores)
        worst = float((gradient.double() - wanted).abs().max() / wanted.abs().max())
        assert value > 0.1
        assert totals.loss.item() == pytest.approx(value, rel=1e-6)
        assert worst < 1e-5
        told.append(f"{name} {totals.loss.item():.6f} and {value:.6f}, gradients to {worst:.0e}")
    account.did(f"losses of 12 queries over {labels} labels in {len(edges) - 1} chunks, against dense ones in float64")
    account.saw("; ".join(told))


@pytest.mark.parametrize("far", [0.0, 1e4, -1e4])
def test_huge_scores(far: float) -> None:
    """Large or small as a whole, and far from each other: whole numbers, so that float32 holds them."""
    space = random_space(8, 50, seed=1)
    scores = torch.randint(-3000, 3000, (8, 50), generator=torch.Generator().manual_seed(1)).float() + far
    scores[:, 20:] -= 3000
    scores[:4] = scores[:4] // 1000
    edges = [0, 9, 20, 33, 50]
    totals, gradient, _ = streamed(DecoupledSoftmax, scores, space, edges)
    value, wanted = dense(lambda s: softmax_by_definition(s, space), scores)
    assert totals.loss.item() == pytest.approx(value, rel=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-7)


def test_the_threshold_lies_in_the_middle_of_a_wide_gap() -> None:
    """There sigmoid(x) = e^x on both sides, and the count is K to the last digit wherever in the gap one looks."""
    scores = 100 * torch.randint(-300, 300, (8, 50), generator=torch.Generator().manual_seed(1)).float()
    space = random_space(8, 50, seed=1, drawn=1.0)
    totals, gradient, loss = streamed(soft_topk(50, 2), scores, space, [0, 9, 20, 33, 50])
    assert isinstance(loss, SoftTopK)
    scores[space.ignored_query, space.ignored_label] = -torch.inf
    best = scores.sort(1, descending=True).values
    clear = (best[:, 0] > best[:, 1]) & (best[:, 1] > best[:, 2]) & (best[:, 2] > best[:, 3])
    assert clear.sum() > 4
    torch.testing.assert_close(loss._threshold[clear], -(best[:, 1] + best[:, 2])[clear] / 2, rtol=1e-6, atol=1e-2)
    assert math.isfinite(totals.loss)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("make", [DecoupledSoftmax, soft_topk(30, 1)], ids=["softmax", "topk"])
@pytest.mark.parametrize("value", [1e6, math.inf, math.nan])
def test_what_takes_no_part_has_no_influence(make, value: float) -> None:
    space = random_space(4, 30, seed=8, share=0.2)
    scores = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    other = scores.clone()
    other[space.query[~space.drawn], space.label[~space.drawn]] = value
    other[space.ignored_query, space.ignored_label] = value
    first, gradient, _ = streamed(make, scores, space, [0, 11, 30])
    second, same, _ = streamed(make, other, space, [0, 11, 30])
    assert first.loss == second.loss
    assert torch.equal(gradient, same)
    outside = (scores - other).ne(0) | (other != other)
    assert outside.any()
    assert not gradient[outside].any()


def test_nothing_to_choose_from() -> None:
    """Every label is a positive or a filter pair: nothing can be wrong."""
    query, label = np.tile([0, 1], 4), np.repeat(np.arange(4), 2)
    drawn = np.ones(8, bool)
    nothing = np.zeros(0, np.int64)
    space = LabelSpace(2, 4, query, label, np.ones(8, np.float32), drawn, nothing, nothing)
    scores = torch.randn(2, 4)
    totals, gradient, _ = streamed(DecoupledSoftmax, scores, space, [0, 1, 4])
    assert totals.loss == 0
    assert not gradient.any()
    few = LabelSpace(2, 4, query[:4], label[:4], np.ones(4, np.float32), drawn[:4], query[4:], label[4:])
    totals, gradient, _ = streamed(soft_topk(4, 2), scores, few, [0, 1, 4])  # two candidates, two places
    assert totals.loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize("spread", [0.3, 4.0, 20.0])
def test_k_labels_pass_the_threshold(k: int, spread: float) -> None:
    """Of 3,000 labels, most of them known by their power sums alone."""
    scores = spread * torch.randn(6, 3000, generator=torch.Generator().manual_seed(k))
    space = random_space(6, 3000, seed=0, share=0.001)
    _, _, loss = streamed(soft_topk(3000, k), scores, space, [0, 700, 720, 3000])
    assert isinstance(loss, SoftTopK)
    target, positive, ignored = masks(space)
    passing = torch.sigmoid(scores.double() + loss._threshold.double()[:, None])
    passing[ignored | (positive & (target == 0))] = 0
    torch.testing.assert_close(passing.sum(1), torch.full((6,), float(k), dtype=torch.float64), rtol=5e-6, atol=0)


def test_blocks_hold_every_label_once() -> None:
    labels = texts(97, seed=3)
    for chunk, tokens in ((10, None), (1000, None), (10, 20), (1000, 20), (3, 10**6)):
        order = LabelOrder.of(labels, chunk, tokens)
        blocks = [order.texts(index) for index in range(len(order.edges) - 1)]
        assert sum(map(len, blocks)) == 97
        assert max(map(len, blocks)) == order.widest <= chunk
        if tokens is not None:
            assert all(len(block) == 1 or len(block) * block.lengths.max(initial=1) <= tokens for block in blocks)
        together = [row.tolist() for block in blocks for row in (block[i] for i in range(len(block)))]
        places = np.arange(97) if order.place is None else order.place
        assert [together[place] for place in places] == [labels[i].tolist() for i in range(97)]


def test_pairs_are_found_in_their_blocks() -> None:
    labels = texts(40, seed=3)
    space = random_space(5, 40, seed=0, soft=True, share=0.2)
    order = LabelOrder.of(labels, 6, 20)
    query, share, blocks = located(space, order, "cpu")
    drawn, outside, shares = set(), set(), {}
    names = np.empty(40, np.int64)
    names[order.place] = np.arange(40)
    for block, start, stop in zip(blocks, order.edges, order.edges[1:], strict=False):
        width = stop - start
        assert torch.equal(block.query * width + block.label, block.hits)
        assert torch.equal(query[block.drawn], block.query)
        for row, label, part in zip(block.query.tolist(), block.label.tolist(), share[block.drawn], strict=True):
            drawn.add((row, int(names[start + label])))
            shares[row] = shares.get(row, 0.0) + float(part)
        outside |= {(place // width, int(names[start + place % width])) for place in block.outside.tolist()}
    pairs = list(zip(space.query.tolist(), space.label.tolist(), space.drawn, strict=True))
    ignored = set(zip(space.ignored_query.tolist(), space.ignored_label.tolist(), strict=True))
    assert drawn == {(row, label) for row, label, taken in pairs if taken}
    assert outside == {(row, label) for row, label, taken in pairs if not taken} | ignored
    assert all(total == pytest.approx(1 / len(shares)) for total in shares.values())
