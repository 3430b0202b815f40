"""The optimiser of a training: schedules, groups, clipping, and a state that resumes bit for bit."""

import math
import sys
from itertools import pairwise

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.errors import DataError
from harness.model.tables import RowTable
from harness.train.optim import Group, Optimiser, Schedule, decayed
from harness.train.optim.dense import DenseAdamW
from tests.model.test_tables import random, touch

pytestmark = pytest.mark.usefixtures("one_thread")

CONSTANT = Schedule("constant")


@given(
    shape=st.sampled_from(["cosine", "linear", "constant"]),
    warmup=st.integers(0, 50),
    total=st.integers(1, 200),
)
def test_schedule_rises_then_falls(shape, warmup, total):
    factors = [Schedule(shape, warmup).factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    rise, fall = factors[:warmup], factors[warmup:]
    np.testing.assert_allclose(rise, np.arange(1, len(rise) + 1) / max(1, warmup), rtol=1e-12)
    progress = np.arange(len(fall)) / max(1, total - warmup)
    closed_form = {"cosine": (1 + np.cos(np.pi * progress)) / 2, "linear": 1 - progress, "constant": 1 + 0 * progress}
    np.testing.assert_allclose(fall, closed_form[shape], rtol=1e-9, atol=1e-12)
    if fall:
        assert fall[0] == 1
        assert all(later < earlier or shape == "constant" for earlier, later in pairwise(fall))


class Small(nn.Module):
    """A dense layer, a normalisation, a frozen parameter and a table."""

    def __init__(self, seed: int = 0, table_type: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.frozen = nn.Parameter(random(4), requires_grad=False)
        self.table = RowTable(random(30, 4, seed=seed).to(table_type))
        with torch.no_grad():
            for number, parameter in enumerate(self.linear.parameters()):
                parameter.copy_(random(*parameter.shape, seed=seed + number))

    def backward(self, step: int) -> None:
        rows = torch.randperm(30, generator=torch.Generator().manual_seed(step))[:7].sort().values
        scores = self.norm(self.linear(random(5, 4, seed=step))) * self.frozen @ self.table.gather(rows).T
        scores.square().mean().backward()


def optimiser_of(model: Small, total: int = 12, **options: object) -> Optimiser:
    with_decay, without = decayed(model)
    groups = [
        Group("dense", 1e-2, 0.05, with_decay),
        Group("norms", 1e-2, 0.0, without),
        Group("classifier", 5e-2, 0.05, [], [model.table]),
    ]
    return Optimiser(groups, Schedule("cosine", 3), total, **options)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("table_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [0, 1, 5, 11])
def test_resumed_equals_never_stopped(stop, table_type):
    """fault 1, the optimiser's part: weights, moments and counts agree in every bit, those that are rounded too."""
    whole = Small(table_type=table_type)
    straight = optimiser_of(whole)
    for step in range(12):
        if step == stop:
            saved = safetensors.torch.save(straight.state())
            weights = weights_of(whole)
        whole.backward(step)
        straight.step(step)

    again = Small(seed=99, table_type=table_type)
    again.load_state_dict(weights)
    resumed = optimiser_of(again)
    resumed.load_state(safetensors.torch.load(saved))
    for step in range(stop, 12):
        again.backward(step)
        resumed.step(step)
    assert weights_of(whole).keys() == weights_of(again).keys()
    for name, tensor in weights_of(whole).items():
        assert torch.equal(tensor, weights_of(again)[name]), name
    for name, tensor in straight.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert whole.table.weight.dtype == straight.state()["tables.classifier.0.exp_avg"].dtype == table_type


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("dense.1.exp_avg"), r"dense\.1\.exp_avg"),
        (lambda state: state.update(extra=torch.zeros(1)), "extra"),
        (lambda state: state.update({"dense.0.exp_avg": torch.zeros(4, 5)}), r"\[4, 5\].* but should be .*\[4, 4\]"),
        (lambda state: state.update({"dense.0.step": torch.zeros(1, dtype=torch.int64)}), "int64.*float32"),
    ],
)
def test_foreign_state_is_refused_whole(change, message):
    model = Small()
    optimiser = optimiser_of(model)
    state = {name: torch.ones_like(tensor) for name, tensor in optimiser.state().items()}
    change(state)
    with pytest.raises(DataError, match=message):
        optimiser.load_state(state)
    assert not any(tensor.any() for tensor in optimiser.state().values())


def test_transposed_parameters_resume_too():
    """torch gives such a parameter transposed moments; files hold contiguous ones."""
    parameter = nn.Parameter(random(3, 5).T)
    optimiser = Optimiser([Group("only", 0.1, 0.0, [parameter])], CONSTANT, 5)
    parameter.grad = random(3, 5, seed=1).T
    optimiser.step(0)
    other = Optimiser([Group("only", 0.1, 0.0, [nn.Parameter(random(3, 5).T)])], CONSTANT, 5)
    other.load_state(safetensors.torch.load(safetensors.torch.save(optimiser.state())))
    assert torch.equal(other.state()["only.0.exp_avg"], optimiser.state()["only.0.exp_avg"])


def test_every_step_has_its_learning_rate():
    """Dense parameters and rows both follow the schedule: equal to torch's AdamW with the rate set by hand."""
    weight = 1 + random(6, 4).abs()
    dense, table = nn.Parameter(weight.clone()), RowTable(weight.clone())
    groups = [Group("dense", 0.02, 0.1, [dense]), Group("rows", 0.01, 0.1, [], [table])]
    optimiser = Optimiser(groups, Schedule("linear", 2), 8)
    by_hand = {name: nn.Parameter(weight.clone()) for name in ("dense", "rows")}
    adams = {name: torch.optim.AdamW([parameter], fused=False, weight_decay=0.1) for name, parameter in by_hand.items()}
    for step in range(8):
        gradient = random(6, 4, seed=step)
        factor = (step + 1) / 2 if step < 2 else (8 - step) / 6
        assert optimiser.learning_rates(step) == pytest.approx({"dense": 0.02 * factor, "rows": 0.01 * factor})
        dense.grad = gradient.clone()
        touch(table, list(range(6)), gradient.clone())
        optimiser.step(step)
        for name, rate in (("dense", 0.02), ("rows", 0.01)):
            by_hand[name].grad = gradient.clone()
            adams[name].param_groups[0]["lr"] = rate * factor
            adams[name].step()
    torch.testing.assert_close(dense.detach(), by_hand["dense"].detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(table.weight.detach(), by_hand["rows"].detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_dense_steps_equal_those_of_torch(fused: bool) -> None:
    """Bit for bit, with changing learning rates, and a parameter that has no gradient in some steps."""
    ours, theirs = ([nn.Parameter(random(*shape)) for shape in ((7, 5), (5,), (3, 2, 4))] for _ in range(2))
    own = DenseAdamW(ours, betas=(0.9, 0.98), eps=1e-6)
    assert own.fused
    own.fused = fused
    reference = torch.optim.AdamW(theirs, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=fused)
    for step in range(6):
        for each in (ours, theirs):
            for place, parameter in enumerate(each):
                unused = place == 2 and step % 2 == 0
                parameter.grad = None if unused else random(*parameter.shape, seed=10 * step + place)
        own.step(0.1 / (step + 1), 0.01)
        reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        for name, value in own.state[mine].items():
            assert torch.equal(value, reference.state[other][name])


def test_a_step_loads_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiler hidden a step is made all the same; torch's own optimiser cannot make one."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    weight = nn.Parameter(torch.ones(3))
    weight.sum().backward()
    DenseAdamW([weight], (0.9, 0.999), 1e-8).step(0.1, 0.0)
    assert (weight != 1).all()
    with pytest.raises(ImportError):
        torch.optim.AdamW([weight]).step()


def test_step_clears_and_zero_grad_forgets():
    model = Small()
    optimiser = optimiser_of(model)
    model.backward(0)
    optimiser.step(0)
    assert all(parameter.grad is None for parameter in model.parameters())
    model.backward(1)
    optimiser.zero_grad()
    before = weights_of(model)
    optimiser.step(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())


def test_frozen_parameters_are_left_out():
    model = Small()
    model.linear.weight.requires_grad_(False)
    optimiser = Optimiser([Group("all", 1e-2, 0.05, list(model.parameters()), [model.table])], CONSTANT, 5)
    before = weights_of(model)
    model.backward(0)
    optimiser.step(0)
    changed = {name for name, tensor in weights_of(model).items() if not torch.equal(tensor, before[name])}
    assert changed == {"linear.bias", "norm.weight", "norm.bias", "table.weight"}
    assert {name.rpartition(".")[0] for name in optimiser.state()} == {"all.0", "all.1", "all.2", "tables.all.0"}


def test_decayed_spares_only_the_weights_of_layer_norms():
    model = nn.Sequential(
        nn.Linear(3, 3), nn.LayerNorm(3), nn.LayerNorm(3, elementwise_affine=False), nn.Embedding(4, 3)
    )
    with_decay, without = decayed(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in with_decay} == {"0.weight", "0.bias", "1.bias", "3.weight"}
    assert {names[id(p)] for p in without} == {"1.weight"}
    model[0].requires_grad_(False)
    assert {names[id(p)] for p in decayed(model)[0]} == {"1.bias", "3.weight"}


@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_clipping_equals_torch_on_the_dense_equivalent(clip):
    """First moments are compared, because a first step of Adam does not depend on the scale of its gradient."""
    linear, table = nn.Linear(3, 2), RowTable(random(10, 3))
    dense_linear, dense_table = nn.Linear(3, 2), nn.Parameter(random(10, 3))
    groups = [Group("dense", 0.1, 0.0, list(linear.parameters())), Group("rows", 0.1, 0.0, [], [table])]
    optimiser = Optimiser(groups, CONSTANT, 3, clip=clip)
    adam = torch.optim.AdamW([*dense_linear.parameters(), dense_table], lr=0.1, weight_decay=0.0)
    gradients = [random(2, 3, seed=1), random(2, seed=2)]
    for ours, theirs, gradient in zip(linear.parameters(), dense_linear.parameters(), gradients, strict=True):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    first, second = random(2, 3, seed=3), random(3, 3, seed=4)
    touch(table, [2, 7], first)
    touch(table, [7, 8, 9], second)
    dense_table.grad = torch.zeros(10, 3).index_add_(0, torch.tensor([2, 7, 7, 8, 9]), torch.cat([first, second]))
    nn.utils.clip_grad_norm_([*dense_linear.parameters(), dense_table], clip)
    optimiser.step(0)
    adam.step()
    state = optimiser.state()
    for name, parameter in zip(("dense.0", "dense.1", "tables.rows.0"), adam.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(state[f"{name}.exp_avg"], adam.state[parameter]["exp_avg"], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("table_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_nan_gradient_shows_in_the_weights(clip, table_type):
    model = Small(table_type=table_type)
    optimiser = optimiser_of(model, clip=clip)
    before = weights_of(model)
    touch(model.table, [3, 4], torch.tensor([[math.nan] * 4, [1.0] * 4]))
    optimiser.step(0)
    weight = model.table.weight
    assert weight[3].isnan().all()
    assert weight[4].isnan().all() == (clip is not None)
    others = [row for row in range(30) if row not in (3, 4)]
    assert torch.equal(weight[others], before["table.weight"][others])
