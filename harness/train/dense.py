"""AdamW over dense parameters: torch's own update without torch's optimiser class.

`torch.optim.Optimizer` loads torch's compiler when it is made and when it steps, two seconds of a process that compiles
nothing. The function that does the arithmetic does not, so the parameters it leaves are the same bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw


class DenseAdamW:
    """Steps the parameters of several groups; its state is made at once, so that it has one form."""

    def __init__(
        self, param_groups: Sequence[dict[str, Any]], betas: tuple[float, float], eps: float, fused: bool
    ) -> None:
        """Zero moments for every parameter.

        Args:
            param_groups: Each with `params`, `lr` and `weight_decay`; `lr` may change between steps.
            betas: (b1, b2).
            eps: Added to the root of the second moment.
            fused: Whether one kernel does the whole update.
        """
        self.param_groups = list(param_groups)
        self.betas, self.eps, self.fused = betas, eps, fused
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: {
                "step": torch.zeros((), device=parameter.device if fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for group in self.param_groups
            for parameter in group["params"]
        }

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state[parameter] for parameter in parameters]
            if not parameters:
                continue
            adamw(
                parameters,
                [parameter.grad for parameter in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=self.fused,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=self.eps,
                maximize=False,
            )

    def zero_grad(self) -> None:
        """Forgets all gradients."""
        for parameter in self.state:
            parameter.grad = None
