"""The optimiser of a training: schedules, groups, clipping, and a state that resumes bit for bit."""

import math
from itertools import pairwise

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.errors import DataError, UserError
from harness.model.rows import RowTable
from harness.train.optim import Group, Optimiser, Schedule, decayed
from tests.test_rows import random, torch_adamw, touch

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


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_last_step_of_a_long_training_still_learns(shape):
    assert 0 < Schedule(shape).factor(10**9 - 1, 10**9) < 1e-8


def test_schedule_mistakes():
    with pytest.raises(UserError, match="did you mean 'cosine'"):
        Schedule("cosin")
    with pytest.raises(ValueError, match="warmup_steps"):
        Schedule("cosine", -1)
    for step in (-1, 10, 11):
        with pytest.raises(ValueError, match="not one of 10"):
            Schedule("constant").factor(step, 10)


class Small(nn.Module):
    """A dense layer, a normalisation, a frozen parameter and a table."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.frozen = nn.Parameter(random(4), requires_grad=False)
        self.table = RowTable(random(30, 4, seed=seed))
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


@pytest.mark.parametrize("stop", [0, 1, 5, 11])
def test_resumed_equals_never_stopped(stop):
    """fault 1, the optimiser's part: weights, moments and counts agree in every bit."""
    whole = Small()
    straight = optimiser_of(whole)
    for step in range(12):
        if step == stop:
            saved = safetensors.torch.save(straight.state())
            weights = weights_of(whole)
        whole.backward(step)
        straight.step(step)

    again = Small(seed=99)
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


def test_state_names_and_shapes_are_there_from_the_start():
    model = Small()
    optimiser = optimiser_of(model)
    before = {name: (tensor.shape, tensor.dtype) for name, tensor in optimiser.state().items()}
    assert before["dense.0.exp_avg"] == ((4, 4), torch.float32)
    assert before["dense.0.step"][0] == (1,)
    assert before["tables.classifier.0.exp_avg_sq"] == ((30, 4), torch.float32)
    assert before["tables.classifier.0.steps"] == ((30,), torch.int32)
    assert len(before) == 3 * (3 + 1 + 1)
    model.backward(0)
    optimiser.step(0)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in optimiser.state().items()} == before
    assert all(tensor.is_contiguous() for tensor in optimiser.state().values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("dense.1.exp_avg"), r"dense\.1\.exp_avg is missing"),
        (lambda state: state.update(extra=torch.zeros(1)), "extra is not known here"),
        (lambda state: state.update({"dense.0.exp_avg": torch.zeros(4, 5)}), r"\[4, 5\] but should be .*\[4, 4\]"),
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


def test_fused_is_used_here_and_equals_the_plain_implementation():
    weight = 1 + random(257, 33).abs()
    parameter = nn.Parameter(weight.clone())
    optimiser = Optimiser([Group("dense", 1e-3, 0.05, [parameter])], CONSTANT, 10)
    assert optimiser._dense is not None
    assert optimiser._dense.fused
    gradients = [random(257, 33, seed=step) for step in range(10)]
    for step, gradient in enumerate(gradients):
        parameter.grad = gradient.clone()
        optimiser.step(step)
    expected = torch_adamw(weight, gradients, lr=1e-3, weight_decay=0.05)
    torch.testing.assert_close(parameter.detach(), expected.detach(), rtol=1e-6, atol=0)


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


def test_parameter_without_gradient_stays():
    model = Small()
    optimiser = optimiser_of(model)
    before = weights_of(model)
    model.linear.bias.grad = torch.ones(4)
    optimiser.step(0)
    changed = {name for name, tensor in weights_of(model).items() if not torch.equal(tensor, before[name])}
    assert changed == {"linear.bias"}


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


def test_nothing_dense_and_nothing_at_all():
    table = RowTable(random(3, 2))
    only_rows = Optimiser([Group("rows", 0.1, 0.0, [], [table])], CONSTANT, 2, clip=1.0)
    touch(table, [1], torch.ones(1, 2))
    only_rows.step(0)
    only_rows.step(1)
    assert set(only_rows.state()) == {f"tables.rows.0.{key}" for key in ("steps", "exp_avg", "exp_avg_sq")}
    empty = Optimiser([], CONSTANT, 1)
    empty.step(0)
    empty.zero_grad()
    assert empty.state() == {}


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


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_nan_gradient_shows_in_the_weights(clip):
    model = Small()
    optimiser = optimiser_of(model, clip=clip)
    before = weights_of(model)
    touch(model.table, [3, 4], torch.tensor([[math.nan] * 4, [1.0] * 4]))
    optimiser.step(0)
    weight = model.table.weight
    assert weight[3].isnan().all()
    assert weight[4].isnan().all() == (clip is not None)
    others = [row for row in range(30) if row not in (3, 4)]
    assert torch.equal(weight[others], before["table.weight"][others])


def test_mistakes_in_groups():
    first, table = nn.Parameter(random(2, 2)), RowTable(random(2, 2))
    with pytest.raises(ValueError, match=r"shape \[2, 2\] appears twice: in groups 'a' and 'b'"):
        Optimiser([Group("a", 0.1, 0.0, [first]), Group("b", 0.1, 0.0, [first])], CONSTANT, 1)
    with pytest.raises(ValueError, match="appears twice"):
        Optimiser([Group("a", 0.1, 0.0, [first, first])], CONSTANT, 1)
    with pytest.raises(ValueError, match="appears twice"):
        Optimiser([Group("a", 0.1, 0.0, [], [table]), Group("b", 0.1, 0.0, [], [table])], CONSTANT, 1)
    with pytest.raises(ValueError, match="unique"):
        Optimiser([Group("a", 0.1, 0.0), Group("a", 0.1, 0.0)], CONSTANT, 1)
    with pytest.raises(ValueError, match="begin with"):
        Optimiser([Group("tables.a", 0.1, 0.0)], CONSTANT, 1)
    with pytest.raises(ValueError, match="clip"):
        Optimiser([], CONSTANT, 1, clip=0)
