"""AdamW over dense parameters: torch's own update without torch's optimiser class.

`torch.optim.Optimizer` loads torch's compiler when it is made and when it steps, two seconds of a process that compiles
nothing. The function that does the arithmetic does not, so the parameters it leaves are the same bit for bit.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

FUSED_DEVICES = ("cpu", "cuda")


class DenseAdamW:
    """AdamW over parameters that share a learning rate and a weight decay; moments are zeros at first."""

    def __init__(self, parameters: Iterable[nn.Parameter], betas: tuple[float, float], eps: float) -> None:
        """Take the parameters that require a gradient; arguments as for `harness.train.optim.Optimiser`."""
        self.betas, self.eps = betas, eps
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.fused = all(parameter.device.type in FUSED_DEVICES for parameter in parameters)
        """Whether torch's fused kernel does the whole update."""
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: {
                "step": torch.zeros((), device=parameter.device if self.fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in parameters
        }

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the parameters that have one, in the order of the parameters."""
        return [parameter.grad for parameter in self.state if parameter.grad is not None]

    @torch.no_grad()
    def step(self, lr: float, weight_decay: float) -> None:
        """Update every parameter that has a gradient once."""
        parameters: list[Tensor] = [parameter for parameter in self.state if parameter.grad is not None]
        states = [state for parameter, state in self.state.items() if parameter.grad is not None]
        if parameters:
            adamw(
                parameters,
                self.gradients(),
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=self.fused,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,
                weight_decay=weight_decay,
                eps=self.eps,
                maximize=False,
            )

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for parameter in self.state:
            parameter.grad = None
