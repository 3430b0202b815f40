"""The optimiser of a training: torch's AdamW for dense parameters, and one that touches few rows for tables.

`Optimiser` drives both kinds, gives them their learning rates and turns their state into named tensors; the second kind
is `harness.train.rowsparse`. A table all of whose rows move at every step is updated by its objective
(`harness.train.blocked`); it is scheduled and saved here.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from torch import Tensor, nn

from harness.errors import DataError, unknown_name
from harness.model.rows import RowTable
from harness.repro import stream_seed
from harness.train.dense import DenseAdamW
from harness.train.rowsparse import RowSparseAdam

if TYPE_CHECKING:
    from harness.train.blocked import BlockedSgd

Shape = Literal["cosine", "linear", "constant"]

_FUSED_DEVICES = ("cpu", "cuda")
_NORM_FLOOR = 1e-6
"""Added to the gradient norm before dividing by it, as `torch.nn.utils.clip_grad_norm_` does."""


@dataclass(frozen=True)
class Group:
    """Parameters and tables that share a learning rate and a weight decay."""

    name: str
    """Unique: it begins the names of the group's state."""
    lr: float
    """Peak learning rate; the schedule's factor multiplies it."""
    weight_decay: float
    parameters: Sequence[nn.Parameter] = ()
    """Those that do not require a gradient are left out."""
    tables: Sequence[RowTable] = ()


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves: a linear rise over `warmup_steps`, then a fall to 0 at the end, or none."""

    shape: Shape = "cosine"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise unknown_name("schedule", self.shape, get_args(Shape))
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative (got {self.warmup_steps})")

    def factor(self, step: int, total_steps: int) -> float:
        """What multiplies the learning rate at a step of [0, total_steps): more than 0, at most 1.

        Zero would be reached at `total_steps`, the first step not made.
        """
        if not 0 <= step < total_steps:
            raise ValueError(f"step {step} is not one of {total_steps}")
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        remaining = (total_steps - step) / (total_steps - self.warmup_steps)
        # sin^2(pi r / 2) = (1 + cos(pi (1 - r))) / 2, which does not cancel to 0 when r is small
        return remaining if self.shape == "linear" else math.sin(math.pi / 2 * remaining) ** 2


def decayed(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters (with, without) weight decay: all but the weights of LayerNorms; biases are decayed."""
    norms = {id(part.weight) for part in module.modules() if isinstance(part, nn.LayerNorm)}
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [p for p in trainable if id(p) not in norms], [p for p in trainable if id(p) in norms]


class Optimiser:
    """Steps all groups together: dense parameters with torch's AdamW, tables with `RowSparseAdam`."""

    def __init__(
        self,
        groups: Sequence[Group],
        schedule: Schedule,
        total_steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float | None = None,
        blocked: "Sequence[BlockedSgd]" = (),
        seed: int = 0,
    ) -> None:
        """Takes parameters and tables where they are: move a model to its device first.

        Args:
            groups: Together they name every parameter and table at most once.
            schedule: Shared by all groups.
            total_steps: Steps of the whole training.
            betas: (b1, b2).
            eps: Added to the root of the second moment.
            clip: Largest norm of all gradients together, rows of tables included; None for no limit.
            blocked: Tables that their objective updates; here they have learning rates and a state, and are not
                clipped, because their gradient is never there as a whole.
            seed: Of the rounding of bfloat16 tables.
        """
        groups = (*groups, *(table.group for table in blocked))
        _require_distinct(groups, blocked)
        if clip is not None and clip <= 0:
            raise ValueError(f"clip must be greater than 0 (got {clip})")
        self.groups = groups
        self.blocked = tuple(blocked)
        self.schedule = schedule
        self.total_steps = total_steps
        self.clip = clip
        self.seed = seed
        self._trainable = {group.name: [p for p in group.parameters if p.requires_grad] for group in groups}
        self._dense = _dense(self.groups, self._trainable, betas, eps)
        self._sparse = {group.name: [RowSparseAdam(table, betas, eps) for table in group.tables] for group in groups}

    def learning_rates(self, index: int) -> dict[str, float]:
        """The learning rate of every group at a step of [0, total_steps)."""
        factor = self.schedule.factor(index, self.total_steps)
        return {group.name: group.lr * factor for group in self.groups}

    def step(self, index: int) -> None:
        """Makes step `index` of [0, total_steps) with the gradients at hand and clears them.

        A parameter without a gradient and a row that was not touched stay as they are.
        """
        rates = self.learning_rates(index)
        touched = [
            (adam, *collected, rates[group.name], group.weight_decay)
            for group in self.groups
            for adam in self._sparse[group.name]
            if (collected := adam.table.collect()) is not None
        ]
        if self.clip is not None:
            dense = (p.grad for parameters in self._trainable.values() for p in parameters if p.grad is not None)
            _clip([*dense, *(gradient for _, _, gradient, _, _ in touched)], self.clip)
        if self._dense is not None:
            for settings in self._dense.param_groups:
                settings["lr"] = rates[settings["name"]]
            self._dense.step()
        for place, (adam, rows, gradient, rate, weight_decay) in enumerate(touched):
            rounding = stream_seed(self.seed, "rounding", index, place) if adam.rounds else 0
            adam.update(rows, gradient, rate, weight_decay, rounding)
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forgets all gradients and which rows were touched."""
        if self._dense is not None:
            self._dense.zero_grad()
        for group in self.groups:
            for table in group.tables:
                table.forget()

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts by name: encoder.0.exp_avg, tables.classifier.0.steps, tables.classifier.momentum.

        Tensors are contiguous and share no memory with each other, but with this optimiser: write them before the next
        step. Names and shapes are the same before the first step as after it.
        """
        return {name: tensor.contiguous() for name, tensor in self._named()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copies in what `state` of an equal optimiser gave; steps then continue bit for bit.

        Raises:
            DataError: Names, shapes or types differ. Nothing is changed then.
        """
        own = dict(self._named())
        _require_match(own, state)
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """The live state, a step count of torch's as one element [1]."""
        for group in self.groups:
            for position, parameter in enumerate(self._trainable[group.name]):
                assert self._dense is not None
                for key, tensor in self._dense.state[parameter].items():
                    yield f"{group.name}.{position}.{key}", tensor.view(1) if tensor.ndim == 0 else tensor
            for position, adam in enumerate(self._sparse[group.name]):
                for key in ("steps", "exp_avg", "exp_avg_sq"):
                    yield f"tables.{group.name}.{position}.{key}", getattr(adam, key)
        for table in self.blocked:
            if table.momentum is not None:
                yield f"tables.{table.group.name}.momentum", table.momentum


def _dense(
    groups: Sequence[Group],
    trainable: Mapping[str, Sequence[nn.Parameter]],
    betas: tuple[float, float],
    eps: float,
) -> DenseAdamW | None:
    """AdamW over the dense parameters; None without any."""
    parameters = [parameter for group in trainable.values() for parameter in group]
    if not parameters:
        return None
    fused = all(parameter.device.type in _FUSED_DEVICES for parameter in parameters)
    settings = [
        {"name": group.name, "params": trainable[group.name], "lr": group.lr, "weight_decay": group.weight_decay}
        for group in groups
    ]
    return DenseAdamW(settings, betas=betas, eps=eps, fused=fused)


def _clip(gradients: Sequence[Tensor], limit: float) -> None:
    """Scales gradients of any shapes in place so that their norm together is at most `limit`."""
    if not gradients:
        return
    norm = nn.utils.get_total_norm(gradients)
    factor = (limit / (norm + _NORM_FLOOR)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))


def _require_distinct(groups: Sequence[Group], blocked: "Sequence[BlockedSgd]") -> None:
    """Raises ValueError where a name, a parameter or a table occurs twice."""
    for name, count in Counter(group.name for group in groups).items():
        if count > 1 or name.startswith("tables."):  # the latter would mix with the names of tables' state
            raise ValueError(f"group name {name!r} must be unique and not begin with 'tables.'")
    owners: dict[int, str] = {}
    for group in groups:
        members: list[tuple[object, Tensor]] = [(parameter, parameter) for parameter in group.parameters]
        members += [(table, table.weight) for table in group.tables]
        members += [(sgd.table, sgd.table.weight) for sgd in blocked if sgd.group is group]
        for member, weight in members:
            if id(member) in owners:
                where = f"{owners[id(member)]!r} and {group.name!r}"
                raise ValueError(f"a parameter of shape {list(weight.shape)} appears twice: in groups {where}")
            owners[id(member)] = group.name


def _require_match(own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Raises DataError unless names, shapes and types agree."""
    faults = [f"{name} is missing" for name in own.keys() - loaded.keys()]
    faults += [f"{name} is not known here" for name in loaded.keys() - own.keys()]
    faults += [
        f"{name} is {loaded[name].dtype} {list(loaded[name].shape)} but should be {tensor.dtype} {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in loaded and (loaded[name].shape != tensor.shape or loaded[name].dtype != tensor.dtype)
    ]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise DataError(
            f"the saved optimiser state does not fit this model: {min(faults)}{more}; "
            "resume with the configuration the state was saved under, or start a new run"
        )
