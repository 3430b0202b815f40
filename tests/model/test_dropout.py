"""Dropout: what torch's does, from another stream of random numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from harness.model.dropout import Dropout, dropout, kept_scale, seed_dropout
from harness.model.encoders.attention import attention

GOLDEN_BITS = ["0110111111110011", "0110100011111110", "1110111100010111", "1001111111111011"]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_scale(p: float) -> None:
    torch.manual_seed(1)
    count = 400_000
    values = dropout(torch.ones(count), p)
    share = float((values == 0).float().mean())
    assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / count) + 1 / 65_536
    assert torch.equal(values.unique(), torch.tensor([0.0, kept_scale(p)]))
    assert float(values.mean()) == pytest.approx(1.0, abs=0.01)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), min_size=0, max_size=3),
    p=st.floats(0, 0.99),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_forward_and_gradient_drop_the_same(shape: list[int], p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    values = torch.ones(shape, dtype=dtype, requires_grad=True)
    dropped = dropout(values, p)
    assert (dropped.shape, dropped.dtype) == (values.shape, dtype)
    dropped.backward(torch.ones_like(dropped))
    assert values.grad is not None
    assert torch.equal(values.grad, dropped.detach())


def test_same_seed_same_mask_next_call_another() -> None:
    values = torch.ones(1000)
    torch.manual_seed(4)
    first, second = dropout(values, 0.3), dropout(values, 0.3)
    torch.manual_seed(4)
    assert torch.equal(dropout(values, 0.3), first)
    assert not torch.equal(first, second)


def test_identity_in_evaluation_and_without_a_share() -> None:
    values = torch.randn(5, 3)
    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0) is values
    module = Dropout(0.5).eval()
    assert module(values) is values
    assert not torch.equal(module.train()(values), values)
    assert torch.equal(dropout(values, 1.0), torch.zeros(5, 3))


def test_the_stream_stays_as_it_is() -> None:
    """Whoever changes these bits changes every training with dropout."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(4, 16), 0.25) != 0).int()
    assert ["".join(map(str, row)) for row in kept.tolist()] == GOLDEN_BITS


def test_a_query_that_may_look_nowhere_gives_numbers() -> None:
    """Padding far behind a text, seen through a window of attention: NaN there would reach every token."""
    query, key, value = (torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(n)) for n in range(3))
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 3, :] = False
    layer = nn.Identity()
    layer.is_causal = False
    found, _ = attention(layer, query.requires_grad_(), key, value, mask, dropout=0.25)
    (gradient,) = torch.autograd.grad(found.sum(), query)
    assert found.isfinite().all()
    assert gradient.isfinite().all()


def test_a_seed_is_that_of_torch() -> None:
    drawn = []
    for seed in (torch.manual_seed, seed_dropout):
        seed(2**62 + 5)
        drawn.append(torch.rand(9))
    assert torch.equal(*drawn)
