"""Stochastic rounding to bfloat16: the right mean, the two neighbours and nothing else, the same bits again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.model.rounding import RandomBits, round_stochastically

pytestmark = pytest.mark.usefixtures("one_thread")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def rounded(values: Tensor, seed: int = 0, position: int = 0) -> Tensor:
    out = torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)
    round_stochastically(values, RandomBits(seed, position, values.device), out)
    return out


def neighbours(values: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest bfloat16 numbers towards zero and away from it, by their bits."""
    low = (values.view(torch.int32) & -65_536).view(torch.float32)
    exact = low == values
    high = (low.view(torch.int32) + 65_536).view(torch.float32)
    return low, torch.where(exact, low, high)


@pytest.mark.parametrize("device", DEVICES)
def test_the_mean_of_many_roundings_is_the_number(device: str) -> None:
    """Numbers at known shares of the way between two neighbours; a mean of n errs by 0.5 / sqrt(n) of a step."""
    shares = torch.linspace(0, 1, 33)[:-1]
    values = (1 + shares / 128) * torch.tensor([[1.0], [-1.0], [2.0**-130], [3e30]])
    low, high = neighbours(values)
    draws = 40_000
    many = rounded(values.repeat(draws, 1, 1).to(device)).cpu().double()
    step = (high - low).double().abs().clamp(min=1e-300)
    error = (many.mean(0) - values.double()).abs() / step
    assert float(error[low != high].max()) < 5 * 0.5 / draws**0.5
    assert torch.equal(many.min(0).values.float(), torch.minimum(low, high))
    assert torch.equal(many.max(0).values.float(), torch.maximum(low, high))


@settings(max_examples=100)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40), st.integers(0, 2**32))
def test_one_of_the_two_neighbours(numbers: list[float], seed: int) -> None:
    values = torch.tensor(numbers, dtype=torch.float32)
    found, (low, high) = rounded(values, seed).float(), neighbours(values)
    assert bool(((found == low) | (found == high)).all())
    again = rounded(found, seed + 1)
    assert torch.equal(again.float(), found)  # what bfloat16 has stays


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_finite_stays(device: str) -> None:
    """Also a NaN whose bits are all ones, which counted on would be minus zero, and one of which few bits are set."""
    odd = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000]).to(torch.int32).view(torch.float32)
    values = torch.cat([odd, torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1.0])]).to(device)
    for seed in range(20):
        found = rounded(values, seed).cpu()
        assert found[:4].isnan().all()
        assert found[4:].tolist() == [torch.inf, -torch.inf, 0.0, 0.0, 1.0]


def test_small_steps_arrive_where_nearest_would_stand_still() -> None:
    """1 + 1,000 steps of 1/1000: to the nearest every one of them is lost, at random none is on average."""
    weight = torch.ones(4000)
    nearest = weight.bfloat16()
    for step in range(1000):
        weight = rounded(weight + 1e-3, step).float()
        nearest = (nearest.float() + 1e-3).bfloat16()
    assert torch.equal(nearest.float(), torch.ones(4000))
    assert float(weight.mean()) == pytest.approx(2, abs=0.01)


def test_bits_are_a_function_of_seed_and_position() -> None:
    values = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    first = rounded(values, 3, 5)
    torch.manual_seed(2)
    assert torch.equal(rounded(values, 3, 5), first)
    assert not torch.equal(rounded(values, 3, 6), first)
    assert not torch.equal(rounded(values, 4, 5), first)


@pytest.mark.parametrize("device", DEVICES)
def test_draws_are_uniform_and_go_on(device: str) -> None:
    bits = RandomBits(0, 0, device)
    first, second = bits.draw(torch.Size([65_536])).cpu(), bits.draw(torch.Size([7, 3])).cpu()
    assert (first.dtype, second.shape) == (torch.int32, (7, 3))
    assert (int(first.min()) >= 0, int(first.max()) < 65_536) == (True, True)
    counts = np.bincount(first.numpy() // 4096, minlength=16)
    assert np.abs(counts - 4096).max() < 5 * 4096**0.5
    assert not torch.equal(first[:21].view(7, 3), second)
