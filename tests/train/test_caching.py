"""Gradients of a batch in bounded memory: whatever is kept or encoded again, they are those of one pass."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.ragged import Ragged
from harness.model.encoders.encoder import GROUPING, Encoder, Grouping, load_encoder, micro_batches, to_tensors
from harness.train.caching import BatchEncoding, distinct_rows
from tests.faults.accounts import Account
from tests.support.oracles import texts

pytestmark = pytest.mark.usefixtures("models_home")


def column(rows: list[list[int]]) -> Ragged:
    lengths = [len(row) for row in rows]
    return Ragged(np.array([token for row in rows for token in row], dtype=np.int64), np.cumsum([0, *lengths]))


@pytest.fixture(scope="module")
def encoder(models_home: None) -> Encoder:
    made = load_encoder("tiny", seed=3).train()
    for part in made.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.2
    return made


class Counted:
    """Counts the tokens that go through an encoder, by whether a graph is kept."""

    def __init__(self, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept = self.passed = self.held = self.peak = 0
        forward = type(encoder).forward

        def count(model: Encoder, ids: Tensor, offsets: Tensor) -> Tensor:
            vectors = forward(model, ids, offsets)
            padded = int(offsets.diff().max()) * (len(offsets) - 1)
            if torch.is_grad_enabled():
                self.kept += padded
                self.held += padded
                self.peak = max(self.peak, self.held)
                vectors.register_hook(lambda _: self.release(padded))
            else:
                self.passed += padded
            return vectors

        monkeypatch.setattr(type(encoder), "forward", count)

    def release(self, tokens: int) -> None:
        self.held -= tokens


def results(encoder: Encoder, tokens: Ragged, budget: int, **how: bool) -> tuple[Tensor, list[Tensor]]:
    """Vectors, and gradients of a fixed function of them."""
    encoder.zero_grad()
    with torch.random.fork_rng(devices=[]):
        encoding = BatchEncoding(encoder, tokens, "cpu", budget, lambda group: 100 + group, **how)
        weights = torch.randn(encoding.vectors.shape, generator=torch.Generator().manual_seed(9))
        (encoding.vectors * weights).sum().square().backward()
        encoding.backward()
    found = [part.grad.clone() for part in encoder.parameters() if part.grad is not None]
    encoder.zero_grad()
    return encoding.vectors.detach(), found


def assert_same(left: tuple[Tensor, list[Tensor]], right: tuple[Tensor, list[Tensor]]) -> None:
    scale = max(float(gradient.abs().max()) for gradient in right[1])
    torch.testing.assert_close(left[0], right[0], atol=1e-6, rtol=1e-5)
    for a, b in zip(left[1], right[1], strict=True):
        torch.testing.assert_close(a, b, atol=2e-6 * scale, rtol=1e-4)


SMALL = Grouping(call=8, most=64)
"""Groups so small that a batch of a test has many."""


@settings(max_examples=8)
@given(st.integers(64, 2000), st.integers(1, 40), st.booleans())
def test_with_dropout_budgets_above_the_largest_group_change_nothing(
    encoder: Encoder, budget: int, count: int, keep: bool
) -> None:
    """parity 1: with the same groups of texts, and so the same dropout"""
    encoder.train()
    tokens = texts(count, seed=count, shortest=1, longest=24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GROUPING, "cpu", SMALL)
        assert_same(results(encoder, tokens, budget, keep=keep), results(encoder, tokens, 10**6, cache=False))


@settings(max_examples=5)
@given(st.integers(1, 80), st.integers(1, 40))
def test_without_dropout_no_budget_changes_anything(encoder: Encoder, budget: int, count: int) -> None:
    """parity 1"""
    encoder.eval()
    tokens = texts(count, seed=count, shortest=1, longest=24)
    assert_same(results(encoder, tokens, budget), results(encoder, tokens, 10**6, cache=False))


def contrastive(encoder: Encoder, tokens: Ragged, budget: int, **how: bool) -> tuple[float, list[Tensor]]:
    """Loss and gradients of queries and labels that are negatives of each other: every vector depends on all."""
    encoder.zero_grad()
    with torch.random.fork_rng(devices=[]):
        encoding = BatchEncoding(encoder, tokens, "cpu", budget, lambda group: 100 + group, **how)
        queries, labels = nn.functional.normalize(encoding.vectors, dim=1).chunk(2)
        loss = nn.functional.cross_entropy(queries @ labels.T / 0.05, torch.arange(len(queries)))
        loss.backward()
        encoding.backward()
    found = [part.grad.clone() for part in encoder.parameters() if part.grad is not None]
    encoder.zero_grad()
    return loss.item(), found


def test_gradient_caching_is_the_full_batch(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    """parity 1: a contrastive loss with dropout, to 1e-6 of the largest gradient"""
    monkeypatch.setitem(GROUPING, "cpu", SMALL)
    tokens = texts(64, seed=11, shortest=1, longest=24)
    encoder.train()
    counted = Counted(encoder, monkeypatch)
    loss, whole = contrastive(encoder, tokens, 10**6, cache=False)
    at_once, counted.peak = counted.peak, 0
    cached_loss, cached = contrastive(encoder, tokens, 64, keep=False)
    scale = max(float(gradient.abs().max()) for gradient in whole)
    worst = max(float((one - other).abs().max()) for one, other in zip(whole, cached, strict=True)) / scale
    assert counted.passed > 0
    assert counted.peak <= 64 < at_once
    assert abs(loss - cached_loss) <= 1e-6 * loss
    assert 0 < scale
    assert worst <= 1e-6
    account.did(
        f"a contrastive batch of 64 texts, {at_once} tokens at once and at most {counted.peak} at once, dropout on"
    )
    account.saw(f"loss {loss:.6f} and {cached_loss:.6f}; gradients differ by {worst:.0e} of the largest")


def test_vectors_come_in_the_order_of_the_rows(encoder: Encoder) -> None:
    tokens = texts(23, seed=4, shortest=1, longest=24)
    encoder.eval()
    encoding = BatchEncoding(encoder, tokens, "cpu", 20, lambda chunk: chunk)
    one_by_one = torch.cat([encoder(*to_tensors(tokens.take(np.array([row])), "cpu")) for row in range(23)])
    assert torch.allclose(encoding.vectors, one_by_one, atol=1e-5)


def test_with_dropout_tiny_budgets_equal_their_own_groups_kept(encoder: Encoder) -> None:
    encoder.train()
    tokens = texts(12, seed=1, shortest=1, longest=24)
    for budget in (1, 24):
        assert_same(results(encoder, tokens, budget), results(encoder, tokens, budget, cache=False))


@pytest.mark.parametrize("budget", [40, 128, 300, 10_000])
def test_as_much_as_fits_is_encoded_once(encoder: Encoder, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPING, "cpu", SMALL)
    tokens = texts(50, seed=5, shortest=1, longest=24)
    groups = micro_batches(tokens.lengths, budget)
    padded = sum(len(group) * int(tokens.lengths[group].max()) for group in groups)
    largest = max(len(group) * int(tokens.lengths[group].max()) for group in groups)
    counted = Counted(encoder, monkeypatch)
    results(encoder, tokens, budget)
    assert counted.kept == padded
    assert counted.peak <= budget
    assert counted.held == 0
    assert (counted.passed == 0) == (padded <= budget)
    assert counted.passed <= max(0, padded - budget + largest)


def test_nothing_is_kept_where_others_need_the_room(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(encoder, monkeypatch)
    tokens = texts(12, seed=6, shortest=1, longest=24)
    for cache, passed in ((True, True), (False, False)):
        counted.kept = counted.passed = 0
        encoding = BatchEncoding(encoder, tokens, "cpu", 10**6, lambda group: group, cache=cache, keep=False)
        assert (counted.kept == 0) is passed
        assert (counted.passed > 0) is passed
        encoding.vectors.sum().backward()
        encoding.backward()
        assert counted.kept > 0
    encoder.zero_grad()


# ---------------------------------------------------------------- texts that occur more than once


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=30))
def test_distinct_rows_are_those_of_a_dictionary(rows: list[list[int]]) -> None:
    first, place = distinct_rows(column(rows))
    known = list(dict.fromkeys(map(tuple, rows)))
    assert [tuple(rows[row]) for row in first] == known
    assert [known[index] for index in place] == [tuple(row) for row in rows]


def test_a_repeated_text_is_encoded_once_and_its_gradients_are_summed(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = texts(6, seed=7, shortest=1, longest=24)
    order = np.array([0, 1, 2, 1, 3, 4, 0, 5, 1])
    counted = Counted(encoder.train(), monkeypatch)
    vectors, gradients = results(encoder, once.take(order), 10**6)
    assert counted.kept == sum(len(g) * int(once.lengths[g].max()) for g in micro_batches(once.lengths, 10**6))
    assert torch.equal(vectors[[0, 1, 1]], vectors[[6, 3, 8]])
    encoder.eval()
    expected = results(encoder, once.take(order), 10**6)
    monkeypatch.setattr("harness.train.caching.distinct_rows", lambda tokens: (np.arange(9), np.arange(9)))
    assert_same(expected, results(encoder, once.take(order), 10**6))
    assert any(gradient.any() for gradient in gradients)
