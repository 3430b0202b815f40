"""Optimisers: torch's AdamW for dense parameters, and an AdamW that reads and writes only the touched rows of a table.

With g the gradient of a row that is updated for the t-th time, lr already multiplied by the schedule's factor:

    m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
    w <- (1 - lr decay) w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

t counts the updates of that row, so a row first touched late makes an ordinary first step; a row that is not touched
keeps weight and moments bit for bit. `Optimiser` drives both kinds and turns their state into named tensors. A table
all of whose rows move at every step is updated by its objective (`harness.train.blocked`); it is scheduled and saved
here.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from harness.errors import DataError, unknown_name
from harness.model.rows import RowTable

if TYPE_CHECKING:
    from harness.train.blocked import BlockedSgd

Shape = Literal["cosine", "linear", "constant"]

_BLOCK_ELEMENTS = 2**20
"""Rows times D updated at once: 16 MiB of scratch. In smaller blocks rows stay cached until they are written back, but
threads meet a dozen times per block, which on shared cores costs more than it saves."""
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


class RowSparseAdam:
    """AdamW over the rows of one table [R, D] that were touched since the last step."""

    def __init__(self, table: RowTable, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        """Makes zero moments on the device of the table, which must not move afterwards."""
        self.table = table
        self.betas = betas
        self.eps = eps
        weight = table.weight
        self.exp_avg = lazy_zeros(weight)
        """m, [R, D]."""
        self.exp_avg_sq = lazy_zeros(weight)
        """v, [R, D]."""
        self.steps = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        """t, the number of updates of each row, [R]."""
        self._scratch = weight.new_empty(4, max(1, _BLOCK_ELEMENTS // max(1, weight.shape[1])), weight.shape[1])
        self._unit = _widest(weight)

    def step(self, lr: float, weight_decay: float) -> None:
        """Updates the rows gathered from the table since the last step and forgets that they were."""
        touched = self.table.collect()
        if touched is not None:
            self.update(*touched, lr, weight_decay)

    @torch.no_grad()
    def update(self, rows: Tensor, gradient: Tensor, lr: float, weight_decay: float) -> None:
        """Updates the given rows.

        Args:
            rows: int64 [U], distinct.
            gradient: Of those rows, [U, D].
            lr: Learning rate of this step.
            weight_decay: Decoupled: the rows lose the fraction lr x weight_decay.
        """
        counts = self.steps.index_select(0, rows) + 1
        self.steps.index_copy_(0, rows, counts)
        bias1, bias2 = (1 - beta ** counts.double()[:, None] for beta in self.betas)
        # (m / bias1) / (sqrt(v / bias2) + eps) = m / (slope sqrt(v) + floor)
        slope, floor = (bias1 / bias2.sqrt()).to(gradient.dtype), (bias1 * self.eps).to(gradient.dtype)
        size = self._scratch.shape[1]
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            self._update_block(rows[part], gradient[part], slope[part], floor[part], lr, lr * weight_decay)

    def _update_block(
        self, rows: Tensor, gradient: Tensor, slope: Tensor, floor: Tensor, lr: float, decay: float
    ) -> None:
        """One block of rows, in scratch memory: fresh memory costs more than the arithmetic.

        Args:
            rows: int64 [u], distinct.
            gradient: [u, D].
            slope: Factor of sqrt(v), [u, 1].
            floor: Added to that, [u, 1].
            lr: Learning rate.
            decay: The fraction of the weights that is lost.
        """
        beta1, beta2 = self.betas
        weight, mean, square, denominator = self._scratch[:, : len(rows)]
        stored = ((self.table.weight, weight), (self.exp_avg, mean), (self.exp_avg_sq, square))
        for whole, copy in stored:
            torch.index_select(whole, 0, rows, out=copy)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        torch.sqrt(square, out=denominator).mul_(slope).add_(floor)
        weight.mul_(1 - decay).addcdiv_(mean, denominator, value=-lr)
        for whole, copy in stored:
            whole.view(self._unit).index_copy_(0, rows, copy.view(self._unit))


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
        for adam, rows, gradient, rate, weight_decay in touched:
            adam.update(rows, gradient, rate, weight_decay)
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forgets all gradients and which rows were touched."""
        if self._dense is not None:
            self._dense.zero_grad(set_to_none=True)
        for group in self.groups:
            for table in group.tables:
                table.collect()

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


def lazy_zeros(like: Tensor) -> Tensor:
    """Zeros of the shape, type and device of a tensor [R, D]; on the CPU memory is taken when a row is first written.

    `torch.zeros` writes every page. numpy's zeros are the system's untouched pages, large ones where it offers them,
    and on those scattered rows are read faster too.
    """
    if like.device.type != "cpu":
        return torch.zeros_like(like)
    return torch.from_numpy(np.zeros(like.shape, dtype=like.detach()[:0].numpy().dtype))


def _widest(weight: Tensor) -> torch.dtype:
    """The largest type as which rows of `weight` [R, D] can be moved.

    On the CPU torch scatters rows element by element; in elements of 16 bytes that takes a quarter less time.
    """
    elements = 16 // weight.element_size()
    divisible = weight.shape[1] % elements == 0 and weight.storage_offset() % elements == 0
    return torch.complex128 if weight.device.type == "cpu" and weight.is_contiguous() and divisible else weight.dtype


def _dense(
    groups: Sequence[Group],
    trainable: Mapping[str, Sequence[nn.Parameter]],
    betas: tuple[float, float],
    eps: float,
) -> torch.optim.AdamW | None:
    """Torch's AdamW over the dense parameters, its state made at once so that it has one form; None without any."""
    parameters = [parameter for group in trainable.values() for parameter in group]
    if not parameters:
        return None
    fused = all(parameter.device.type in _FUSED_DEVICES for parameter in parameters)
    settings = [
        {"name": group.name, "params": trainable[group.name], "lr": group.lr, "weight_decay": group.weight_decay}
        for group in groups
    ]
    adam = torch.optim.AdamW(settings, betas=betas, eps=eps, fused=fused)
    for parameter in parameters:
        adam.state[parameter] = {
            "step": torch.zeros((), device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adam


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
