"""Tables with row-sparse gradients and their optimiser against dense autograd; stochastic rounding to bfloat16."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.model.tables import RandomBits, RowTable, round_stochastically
from harness.train.optim.row_sparse import BLOCK_ELEMENTS, TouchedAdamW

pytestmark = pytest.mark.usefixtures("one_thread")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def touch(table: RowTable, rows: list[int], gradient: Tensor) -> None:
    """Leaves the given gradient in the given rows."""
    table.gather(torch.tensor(rows)).backward(gradient)


def table(rows: int = 6, dim: int = 3, dtype: torch.dtype = torch.float32) -> RowTable:
    return RowTable(torch.randn(rows, dim, generator=torch.Generator().manual_seed(0), dtype=dtype))


def scattered(collected: tuple[Tensor, Tensor] | None, like: Tensor) -> Tensor:
    """Collected gradients as a dense gradient."""
    assert collected is not None
    rows, gradient = collected
    assert len(rows.unique()) == len(rows)
    return torch.zeros_like(like).index_copy_(0, rows, gradient)


@settings(max_examples=50)
@given(
    ids=st.lists(st.integers(0, 11), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_gradients_equal_those_of_a_dense_embedding(ids, cuts, seed):
    """One gather or several whose rows overlap, each row used any number of times."""
    ours = table(12, 4, torch.float64)
    dense = nn.Embedding.from_pretrained(ours.weight.detach().clone(), freeze=False)
    target = torch.randn(len(ids), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ((dense(torch.tensor(ids)) - target) ** 3).sum().backward()

    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    loss = torch.zeros((), dtype=torch.float64)
    for start, stop in pairwise(bounds):
        rows, place = torch.tensor(ids[start:stop]).unique(return_inverse=True)
        loss = loss + ((ours.gather(rows)[place] - target[start:stop]) ** 3).sum()
    loss.backward()
    collected = ours.collect()
    assert collected is not None
    assert sorted(collected[0].tolist()) == sorted(set(ids))
    torch.testing.assert_close(scattered(collected, ours.weight), dense.weight.grad, rtol=1e-12, atol=1e-12)


def test_a_gather_without_gradient_counts_for_nothing():
    """It was not used in the loss, or the loss was never differentiated."""
    ours = table()
    ours.gather(torch.tensor([0, 1]))
    ours.gather(torch.tensor([3])).sum().backward()
    collected = ours.collect()
    assert collected is not None
    assert collected[0].tolist() == [3]
    ours.gather(torch.tensor([2]))
    assert ours.collect() is None


def test_more_rows_gathered_than_there_are():
    """A label space in blocks: gradients are summed as they arrive, and no leaf outlives its graph."""
    ours, other = table(6, 3), table(6, 3)
    blocks = [[0, 1, 2], [2, 3], [0, 5], [2, 5], [1]]
    waiting = ours.gather(torch.tensor([1, 2]))  # its gradient comes last, as that of the queries does
    expected = torch.zeros(6, 3).index_add_(0, torch.tensor([1, 2]), torch.ones(2, 3))
    for number, rows in enumerate(blocks):
        gradient = random(len(rows), 3, seed=number)
        touch(ours, rows, gradient)
        expected.index_add_(0, torch.tensor(rows), gradient)
        assert sum(len(rows) for rows, _ in ours._touched) <= 6
    twice = ours.gather(torch.tensor([3]))
    for factor in (1.0, 2.0):
        (factor * twice).sum().backward()
    assert twice.grad is None
    expected[3] += 3
    waiting.sum().backward()
    collected = ours.collect()
    assert collected is not None
    assert collected[0].tolist() == [0, 1, 2, 3, 5]
    torch.testing.assert_close(scattered(collected, ours.weight), expected)
    assert ours.collect() is None
    for one in (ours, other):  # what is gathered next is counted anew
        touch(one, [4], torch.ones(1, 3))
    assert torch.equal(scattered(ours.collect(), ours.weight), scattered(other.collect(), other.weight))


def test_no_dense_gradient_and_still_a_parameter():
    ours = table()
    ours.gather(torch.tensor([0])).sum().backward()
    assert ours.weight.grad is None
    assert list(ours.state_dict()) == ["weight"]
    assert ours.state_dict()["weight"].shape == (6, 3)


HYPERPARAMETERS = {
    "lr": st.floats(1e-5, 0.1),
    "weight_decay": st.floats(0, 0.5),
    "beta1": st.floats(0, 0.99),
    "beta2": st.floats(0.5, 0.9999),
    "eps": st.floats(1e-10, 1e-3),
}


def loop_over_rows(weight, history, lr, weight_decay, beta1, beta2, eps):
    """The formula of the module, one row and one step at a time, in numpy float64."""
    weight = weight.copy()
    mean, square, count = np.zeros_like(weight), np.zeros_like(weight), np.zeros(len(weight), int)
    for rows, gradient in history:
        for row, g in zip(rows, gradient, strict=True):
            count[row] += 1
            mean[row] = beta1 * mean[row] + (1 - beta1) * g
            square[row] = beta2 * square[row] + (1 - beta2) * g**2
            corrected = mean[row] / (1 - beta1 ** count[row])
            root = np.sqrt(square[row] / (1 - beta2 ** count[row]))
            weight[row] = weight[row] - lr * weight_decay * weight[row] - lr * corrected / (root + eps)
    return weight, mean, square, count


@settings(max_examples=40)
@given(
    touched=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
    **HYPERPARAMETERS,
)
def test_some_rows_touched_equals_a_loop(touched, seed, lr, weight_decay, beta1, beta2, eps):
    weight = random(8, 3, seed=seed, dtype=torch.float64)
    history = [
        (rows, random(len(rows), 3, seed=seed + 1 + step, dtype=torch.float64)) for step, rows in enumerate(touched)
    ]
    table = RowTable(weight.clone())
    ours = TouchedAdamW(table, (beta1, beta2), eps)
    for rows, gradient in history:
        touch(table, rows, gradient)
        ours.step(lr, weight_decay)
    expected = loop_over_rows(
        weight.numpy(), [(rows, g.numpy()) for rows, g in history], lr, weight_decay, beta1, beta2, eps
    )
    for mine, theirs in zip((table.weight, ours.exp_avg, ours.exp_avg_sq, ours.steps), expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-9, atol=1e-12)


def test_untouched_rows_keep_every_bit():
    table = RowTable(random(9, 4))
    ours = TouchedAdamW(table)
    touch(table, [1, 3, 5], random(3, 4, seed=1))
    ours.step(0.1, 0.5)
    before = [tensor.detach().clone() for tensor in (table.weight, ours.exp_avg, ours.exp_avg_sq, ours.steps)]
    touch(table, [5, 8], random(2, 4, seed=2))
    ours.step(0.1, 0.5)
    still = [0, 1, 2, 3, 4, 6, 7]
    for old, new in zip(before, (table.weight, ours.exp_avg, ours.exp_avg_sq, ours.steps), strict=True):
        assert torch.equal(old[still], new[still])
        assert not torch.equal(old[[5, 8]], new[[5, 8]])
    ours.step(0.1, 0.5)
    assert ours.steps.tolist() == [0, 1, 0, 1, 0, 2, 0, 0, 1]


def test_blocks_do_not_change_a_bit(monkeypatch):
    results = []
    for elements in (2**20, 7 * 4):
        monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", elements)
        table = RowTable(random(40, 4))
        ours = TouchedAdamW(table)
        for step in range(3):
            rows = torch.randperm(40, generator=torch.Generator().manual_seed(step))[:23]
            touch(table, rows.tolist(), random(23, 4, seed=step))
            ours.step(0.01, 0.1)
        results.append((table.weight.detach(), ours.exp_avg, ours.exp_avg_sq))
    assert all(torch.equal(whole, blocks) for whole, blocks in zip(*results, strict=True))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the resident set from /proc")
def test_moments_take_memory_when_rows_are_touched():
    def resident_mib() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 2**10

    table = RowTable(torch.from_numpy(np.zeros((2_000_000, 64), np.float32)))
    before = resident_mib()
    ours = TouchedAdamW(table)
    touch(table, [0, 1_999_999], torch.ones(2, 64))
    ours.step(0.1, 0)
    assert ours.exp_avg.shape == (2_000_000, 64)
    assert resident_mib() - before < 100  # both moments together span 977 MiB


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
