"""A table of which a training step reads and writes only the rows it touches, and its storage in bfloat16.

The classifier table Psi [L, D] and the static encoder's token table [V, D] are such tables: a batch touches a few
thousand of possibly millions of rows. `gather` copies those rows into a small leaf tensor; autograd fills the gradient
of that leaf; `collect` hands rows and gradient to an optimiser of `harness.train.optim`. No gradient of the
size of the table exists, so neither time nor activation memory depends on its number of rows. The exception: once a
step has gathered more rows than the table has (a label space encoded in blocks), gradients are summed in a tensor of
the table's size as they arrive, and a block's leaf is freed with its graph.

A table has a home: the device of its model, or CPU memory while the model computes elsewhere. It may be stored in
bfloat16; what is gathered, and every sum, is float32. Rows are written back with stochastic rounding:

    bits(y) = the upper 16 of (bits(x) + u),      u uniform over the integers of [0, 65536)

bfloat16 is the upper half of float32, so y is one of the two neighbours of x, the upper one with a probability equal to
the share of the way from the lower one, and E[y] = x. A step changes a weight by less than the 8 bits of bfloat16 can
show: rounded to the nearest it would never move, rounded like this it moves by the right amount on average.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.model.dropout import without_memory

_READ_BLOCK = 65_536
"""Rows converted at once when a whole table is read."""


class Lagging(Protocol):
    """An optimiser that leaves rows of a table behind and catches them up when they are read."""

    def read(self, rows: Tensor) -> Tensor:
        """Return distinct rows [U] as they are now, in the type of arithmetic, [U, D]."""
        ...

    def settle(self) -> None:
        """Catch up all rows."""
        ...


class RowTable(nn.Module):
    """A table [R, D] without a dense gradient."""

    def __init__(self, weight: Tensor, *, on_host: bool = False) -> None:
        """Store the initial values [R, D].

        Args:
            weight: Initial values, in the type in which the table is stored.
            on_host: Keep the table in CPU memory, whatever device its model moves to.
        """
        super().__init__()
        if on_host and weight.device.type != "cpu":
            raise ValueError(f"a table that stays in CPU memory begins there, not on {weight.device}")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.on_host = on_host
        self.lagging: Lagging | None = None
        """The optimiser to ask for rows as they are now; None if `weight` says it."""
        self._touched: list[tuple[Tensor, Tensor]] = []
        self._gathered = 0
        self._sum: _Sum | None = None

    @property
    def arithmetic(self) -> torch.dtype:
        """Type of gathered rows and of their gradients."""
        return torch.float32 if self.weight.dtype == torch.bfloat16 else self.weight.dtype

    def gather(self, rows: Tensor, device: torch.device | str | None = None) -> Tensor:
        """Return the given rows [U] (int64, distinct) as a tensor [U, D] whose gradient reaches this table.

        Every gather since the last `collect` counts; rows may repeat between two gathers, not within one.

        Args:
            rows: Row numbers, on any device; on the table's device they need not be moved.
            device: Device of the result; None for the device of `rows`.
        """
        target = rows.device if device is None else torch.device(device)
        rows = rows.to(self.weight.device)
        # from pinned memory a copy does not wait for what the device computes at the moment
        pinned = target.type == "cuda" and self.weight.device.type == "cpu"
        if self.lagging is not None:
            found = self.lagging.read(rows)
            found = found.pin_memory() if pinned else found
        else:
            shape, dtype = (len(rows), self.weight.shape[1]), self.weight.dtype
            copy = torch.empty(shape, dtype=dtype, pin_memory=True) if pinned else None
            found = torch.index_select(self.weight, 0, rows, out=copy)
        leaf = found.to(target, self.arithmetic, non_blocking=pinned)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            self._gathered += len(rows)
            if self._gathered <= len(self.weight):
                self._touched.append((rows, leaf))
            else:
                self._sum = self._sum or _Sum(self.weight, self.arithmetic)
                leaf.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._sum.take, rows)
                )
        return leaf

    def collect(self) -> tuple[Tensor, Tensor] | None:
        """Return the distinct rows [U] gathered since the last call and their gradients [U, D], or None; clear both.

        Both are on the table's device.
        """
        home = self.weight.device
        touched = [(rows, leaf.grad.to(home)) for rows, leaf in self._touched if leaf.grad is not None]
        total = self._sum
        self.forget()
        if total is not None:
            for rows, gradient in touched:
                total.add(rows, gradient)
            return total.collected()
        if not touched:
            return None
        if len(touched) == 1:
            return touched[0]
        rows, place = torch.unique(torch.cat([rows for rows, _ in touched]), return_inverse=True)
        gradient = torch.zeros(len(rows), self.weight.shape[1], dtype=self.arithmetic, device=home)
        return rows, gradient.index_add_(0, place, torch.cat([part for _, part in touched]))

    def forget(self) -> None:
        """Clear what was gathered and free the memory of summed gradients."""
        self._touched.clear()
        self._gathered, self._sum = 0, None

    def whole(self) -> Tensor:
        """Return all rows as they are now, [R, D], as stored and without a gradient."""
        if self.lagging is not None:
            self.lagging.settle()
        return self.weight.detach()

    def vectors(self) -> NDArray[np.float32]:
        """Return all rows [R, D] as float32 in CPU memory: a view if they are that already, else a copy."""
        weight = self.whole()
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            return np.asarray(weight.numpy())
        found = np.empty(weight.shape, np.float32)
        for start in range(0, len(weight), _READ_BLOCK):
            found[start : start + _READ_BLOCK] = weight[start : start + _READ_BLOCK].float().cpu().numpy()
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the table, for `to`, `cuda` and the like; do nothing if it stays in CPU memory."""
        return self if self.on_host else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class _Sum:
    """The sum of the gradients of many gathers, [R, D]."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self._gradient = torch.zeros(weight.shape, dtype=dtype, device=weight.device)
        self._touched = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)

    def add(self, rows: Tensor, gradient: Tensor) -> None:
        """Add the gradient [U, D] of distinct rows [U]."""
        self._gradient.index_add_(0, rows, gradient.to(self._gradient.device))
        self._touched[rows] = True

    def take(self, rows: Tensor, leaf: Tensor) -> None:
        """Add the gradient that has just arrived at a leaf [U, D] and remove it there."""
        if leaf.grad is not None:
            self.add(rows, leaf.grad)
            leaf.grad = None

    def collected(self) -> tuple[Tensor, Tensor] | None:
        """Return the rows [U] that got a gradient, and the gradient [U, D]; None if there are no such rows."""
        rows = self._touched.nonzero().squeeze(1)
        return (rows, self._gradient.index_select(0, rows)) if len(rows) else None


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return zeros; on the CPU memory is taken when a row is first written.

    `torch.zeros` writes every page. numpy's zeros are the system's untouched pages, large ones where it offers them,
    and on those scattered rows are read faster too.
    """
    size = math.prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu" or not size or without_memory():
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


def put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Copy `values` [U, D] into the distinct rows [U] of a table [R, D], of the same type and device.

    On the CPU torch scatters rows element by element; numpy moves a row at once, whatever its type and length.
    """
    if table.device.type == "cpu" and table.is_contiguous() and table.numel() and len(rows):
        _whole(table)[rows.numpy()] = _whole(values)
    else:
        table.index_copy_(0, rows, values)


def _whole(table: Tensor) -> NDArray[np.void]:
    """View a contiguous table [R, D] in CPU memory as R byte strings."""
    octets = table.detach().reshape(-1).view(torch.uint8).numpy()
    return octets.view(f"V{len(octets) // len(table)}")


_UPPER_HALF = -65_536
"""Mask of the upper 16 bits of an int32."""


class RandomBits:
    """Random numbers of 16 bits, a function of a seed and a position."""

    def __init__(self, seed: int, position: int, device: torch.device | str = "cpu") -> None:
        """Start a sequence of random numbers.

        Args:
            seed: Seed, not negative, below 2^63.
            position: Where the numbers are used, for example the first row of a block; not negative.
            device: Device of the numbers; those of a CPU differ from those of other devices.
        """
        self._device = torch.device(device)
        if self._device.type == "cpu":
            self._words = np.random.SFC64([seed, position])
        else:
            mixed = np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0] >> 1
            self._generator = torch.Generator(self._device).manual_seed(int(mixed))

    def draw(self, shape: torch.Size) -> Tensor:
        """Return the next random numbers of [0, 65536), int32."""
        if self._device.type != "cpu":
            return torch.randint(
                1 << 16, shape, dtype=torch.int32, device=self._device, generator=self._generator, requires_grad=False
            )
        count = shape.numel()
        # 64 random bits are four numbers; a draw of one generator takes a tenth of the time of torch's
        words = np.asarray(self._words.random_raw(-(-count // 4)))
        return torch.from_numpy(words.view(np.uint16)[:count].astype(np.int32)).view(shape)


def round_stochastically(values: Tensor, bits: RandomBits, out: Tensor) -> None:
    """Write float32 `values` to `out` (bfloat16, the same shape, any device), rounded stochastically.

    Numbers that bfloat16 can represent, infinities and NaN are not changed.
    """
    rounded = bits.draw(values.shape).add_(values.view(torch.int32)).bitwise_and_(_UPPER_HALF).view(torch.float32)
    # the sum shows whether any value is NaN, whose bits must not be counted on into those of a number
    if values.device.type != "cpu" or not math.isfinite(float(values.sum())):
        rounded = torch.where(values.isnan(), values, rounded)
    out.copy_(rounded)
