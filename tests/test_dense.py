"""AdamW without torch's optimiser class: the same bits, and no compiler loaded."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from harness.train.dense import DenseAdamW


def parameters(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7, 5), (5,), (3, 2, 4))]


@pytest.mark.parametrize("fused", [True, False])
def test_steps_equal_those_of_torch(fused: bool) -> None:
    """Two groups, changing learning rates, and a parameter that has no gradient in some steps."""
    ours, theirs = parameters(0), parameters(0)
    groups = [
        [{"params": each[:1], "lr": 0.1, "weight_decay": 0.01}, {"params": each[1:], "lr": 0.3, "weight_decay": 0.0}]
        for each in (ours, theirs)
    ]
    own = DenseAdamW(groups[0], betas=(0.9, 0.98), eps=1e-6, fused=fused)
    reference = torch.optim.AdamW(groups[1], betas=(0.9, 0.98), eps=1e-6, fused=fused)
    for step in range(6):
        gradients = parameters(step + 1)
        for each in (ours, theirs):
            for place, (parameter, gradient) in enumerate(zip(each, gradients, strict=True)):
                parameter.grad = None if place == 2 and step % 2 == 0 else gradient.detach().clone()
        for optimiser in (own, reference):
            optimiser.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimiser.step()
        own.zero_grad()
        assert all(parameter.grad is None for parameter in ours)
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other)
    for mine, other in zip(ours, theirs, strict=True):
        for name, value in own.state[mine].items():
            assert torch.equal(value, reference.state[other][name])


def test_a_step_loads_no_compiler() -> None:
    script = """
import sys, torch
from harness.train.dense import DenseAdamW
weight = torch.nn.Parameter(torch.ones(3))
adam = DenseAdamW([{"params": [weight], "lr": 0.1, "weight_decay": 0.0}], (0.9, 0.999), 1e-8, fused=True)
weight.sum().backward()
adam.step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
