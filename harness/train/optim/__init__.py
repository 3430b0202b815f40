"""The optimiser of a training: torch's AdamW for dense parameters, and AdamW that touches few rows for tables.

`Optimiser` drives both kinds, gives them their learning rates and turns their state into named tensors. The rows that a
step does not touch either stay (`harness.train.optim.row_sparse`) or end up where dense AdamW would have them
(`harness.train.optim.lazy`). A table all of whose rows have a gradient at every step is updated by its objective
(`harness.train.optim.blocked`); it is scheduled and saved here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from harness.errors import DataError
from harness.model.tables import RowTable
from harness.seeds import stream_seed
from harness.settings.parameters import Undecayed
from harness.train.optim.dense import DenseAdamW
from harness.train.optim.lazy import LazyAdamW
from harness.train.optim.row_sparse import TableAdamW, TouchedAdamW

if TYPE_CHECKING:
    from harness.train.optim.blocked import BlockedSgd

Shape = Literal["cosine", "linear", "constant"]

_NORM_FLOOR = 1e-6
"""Added to the gradient norm before dividing by it, as `torch.nn.utils.clip_grad_norm_` does."""


@dataclass(frozen=True)
class Group:
    """Parameters and tables that share a learning rate and a weight decay."""

    name: str
    """Unique name; the names of the group's saved tensors begin with it."""
    lr: float
    """Peak learning rate; the schedule's factor multiplies it."""
    weight_decay: float
    parameters: Sequence[nn.Parameter] = ()
    """Dense parameters; those that do not require a gradient are left out."""
    tables: Sequence[RowTable] = ()
    exact: bool = False
    """Whether all rows of the tables move at every step, as in dense AdamW; else only those that were touched."""


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves: a linear rise over `warmup_steps`, then a fall to 0 at the end, or none."""

    shape: Shape = "cosine"
    warmup_steps: int = 0

    def factor(self, step: int, total_steps: int) -> float:
        """Return the factor of the learning rate at a step of [0, total_steps): more than 0, at most 1.

        Zero would be reached at `total_steps`, the first step not made.
        """
        assert 0 <= step < total_steps
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        remaining = (total_steps - step) / (total_steps - self.warmup_steps)
        # sin^2(pi r / 2) = (1 + cos(pi (1 - r))) / 2, which does not cancel to 0 when r is small
        return remaining if self.shape == "linear" else math.sin(math.pi / 2 * remaining) ** 2


def decayed(module: nn.Module, undecayed: Undecayed = "norms") -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters with and those without weight decay, LayerNorm weights and maybe all biases."""
    spared = {id(part.weight) for part in module.modules() if isinstance(part, nn.LayerNorm)}
    if undecayed == "norms-and-biases":
        spared |= {id(part) for name, part in module.named_parameters() if name.endswith("bias")}
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [p for p in trainable if id(p) not in spared], [p for p in trainable if id(p) in spared]


class Optimiser:
    """Steps all groups together: dense parameters with `DenseAdamW`, tables with `LazyAdamW` or `TouchedAdamW`."""

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
        """Take parameters and tables where they are: move a model to its device first.

        Args:
            groups: Groups of parameters and tables, of which none appears twice.
            schedule: Schedule of the learning rates of all groups.
            total_steps: Steps of the stage.
            betas: Decay rates (b1, b2) of the first and second moment.
            eps: Added to the root of the second moment.
            clip: Largest norm of all gradients together, rows of tables included; None for no limit.
            blocked: Tables that their objective updates; here they have learning rates and a state, and are not
                clipped, because their gradient is never there as a whole.
            seed: Seed of the stochastic rounding of bfloat16 tables.
        """
        self.groups = groups = (*groups, *(table.group for table in blocked))
        self.blocked = tuple(blocked)
        members = [*(member for group in groups for member in (*group.parameters, *group.tables))]
        members += [sgd.table for sgd in blocked]
        assert len({id(member) for member in members}) == len(members), "a parameter or table appears twice"
        assert len({group.name for group in groups}) == len(groups), "two groups have one name"
        self.schedule, self.total_steps, self.clip, self.seed = schedule, total_steps, clip, seed
        self._dense = {group.name: DenseAdamW(group.parameters, betas, eps) for group in groups}
        self._sparse: dict[str, list[TableAdamW]] = {}
        for group in groups:
            rates = [group.lr * schedule.factor(step, total_steps) for step in range(total_steps * group.exact)]
            self._sparse[group.name] = [
                LazyAdamW(table, rates, group.weight_decay, betas, eps, seed)
                if group.exact
                else TouchedAdamW(table, betas, eps)
                for table in group.tables
            ]

    def learning_rates(self, index: int) -> dict[str, float]:
        """Return the learning rate of every group at a step of [0, total_steps), by name."""
        factor = self.schedule.factor(index, self.total_steps)
        return {group.name: group.lr * factor for group in self.groups}

    def step(self, index: int) -> None:
        """Make step `index` of [0, total_steps) with the current gradients and clear them.

        A parameter without a gradient stays as it is, and so does a row that was not touched unless its group is exact.
        """
        rates = self.learning_rates(index)
        touched = [
            (adam, *collected, rates[group.name], group.weight_decay)
            for group in self.groups
            for adam in self._sparse[group.name]
            if (collected := adam.table.collect()) is not None
        ]
        if self.clip is not None:
            dense = [gradient for adam in self._dense.values() for gradient in adam.gradients()]
            _clip([*dense, *(gradient for _, _, gradient, _, _ in touched)], self.clip)
        for group in self.groups:
            self._dense[group.name].step(rates[group.name], group.weight_decay)
        for place, (adam, rows, gradient, rate, weight_decay) in enumerate(touched):
            rounding = stream_seed(self.seed, "rounding", index, place) if adam.rounds else 0
            adam.update(rows, gradient, rate, weight_decay, rounding)
        for adam in self._lazy():
            assert adam.done == index, "a table that all steps move has to see each of them once"
            adam.advance()
        self.zero_grad()

    def attach(self) -> None:
        """Be the one that the tables ask for rows as they are now; of several optimisers of a table the last is."""
        for adam in self._lazy():
            adam.attach()

    def settle(self) -> None:
        """Catch up all rows of all tables, so that the model's weights are what they are now."""
        for adam in self._lazy():
            adam.settle()

    def detach(self) -> None:
        """Catch up all rows and make no further step."""
        for adam in self._lazy():
            adam.detach()

    def _lazy(self) -> Iterator[LazyAdamW]:
        return (adam for adams in self._sparse.values() for adam in adams if isinstance(adam, LazyAdamW))

    def zero_grad(self) -> None:
        """Clear all gradients and the lists of touched rows."""
        for group in self.groups:
            self._dense[group.name].zero_grad()
            for table in group.tables:
                table.forget()

    def state(self) -> dict[str, Tensor]:
        """Return moments and step counts by name, such as encoder.0.exp_avg or tables.classifier.0.exp_avg.

        Tensors are contiguous and share no memory with each other, but with this optimiser: write them before the next
        step. Names and shapes are the same before the first step as after it.
        """
        return {name: tensor.contiguous() for name, tensor in self._named()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy in the `state` of an equal optimiser; steps then continue bit for bit.

        Raises:
            DataError: Names, shapes or types differ. Nothing is changed then.
        """
        own = dict(self._named())
        wanted, found = (
            {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in part.items()} for part in (own, state)
        )
        if faults := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
            name, more = faults[0], f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            raise DataError(
                f"the saved optimiser state does not fit this model: {name} is {found.get(name, 'missing')} "
                f"but should be {wanted.get(name, 'absent')}{more}; "
                "resume with the configuration the state was saved under, or start a new run"
            )
        for name, tensor in own.items():
            tensor.copy_(state[name])
        for adam in self._lazy():
            adam.loaded()

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors of the state, not copied; a scalar step count as one element [1]."""
        for group in self.groups:
            for position, moments in enumerate(self._dense[group.name].state.values()):
                for key, tensor in moments.items():
                    yield f"{group.name}.{position}.{key}", tensor.view(1) if tensor.ndim == 0 else tensor
            for position, adam in enumerate(self._sparse[group.name]):
                for key, tensor in adam.state():
                    yield f"tables.{group.name}.{position}.{key}", tensor
        for table in self.blocked:
            if table.momentum is not None:
                yield f"tables.{table.group.name}.momentum", table.momentum


def _clip(gradients: Sequence[Tensor], limit: float) -> None:
    """Scale gradients of any shapes in place so that their norm together is at most `limit`."""
    if not gradients:
        return
    norm = nn.utils.get_total_norm(gradients)
    factor = (limit / (norm + _NORM_FLOOR)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
