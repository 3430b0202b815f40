"""AdamW over a table [R, D] that reads and writes only some of its rows; here the kind that leaves the others alone.

With g the gradient of a row that is updated for the t-th time:

    m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
    w <- (1 - lr decay) w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

t counts the updates of that row, so a row first touched late makes an ordinary first step; a row that is not touched
keeps weight and moments bit for bit. That is another optimiser than AdamW over the whole table, which moves every row
at every step: `harness.train.optim.lazy` does what that one does.

Moments are where the table is and of its type. A bfloat16 table is computed in float32 and written with stochastic
rounding, moments included: v changes by a thousandth a step, which rounding to the nearest of 8 bits would never show.
The random numbers are a function of (seed, first row of a block of the update).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.model.tables import RandomBits, RowTable, lazy_zeros, put_rows, round_stochastically

BLOCK_ELEMENTS = {"cpu": 2**17, "cuda": 2**20}
"""Rows times D updated at once. On a CPU 2 MiB of scratch stay in its cache until they are written back; in smaller
blocks a dozen calls a block cost more than that saves. A CUDA device waits for its next kernel unless blocks are large.
"""


class TableAdamW:
    """Moments of one table [R, D], and access to blocks of its rows; `TouchedAdamW` and `LazyAdamW` update them."""

    counter: str
    """Name of the int32 tensor [R] that says which step each row is at."""
    block_elements = BLOCK_ELEMENTS
    """Rows times D updated at once, by type of device."""

    def __init__(self, table: RowTable, betas: tuple[float, float], eps: float) -> None:
        """Make zero moments on the device of the table, which must not move afterwards."""
        self.table = table
        self.betas = betas
        self.eps = eps
        weight = table.weight
        self.exp_avg = lazy_zeros(tuple(weight.shape), weight.dtype, weight.device)
        """First moment m, [R, D]."""
        self.exp_avg_sq = lazy_zeros(tuple(weight.shape), weight.dtype, weight.device)
        """Second moment v, [R, D]."""
        self.steps = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        """What `counter` names, [R]."""
        self._block = max(1, self.block_elements.get(weight.device.type, 2**20) // max(1, weight.shape[1]))
        self._stored = weight.new_empty(self._block if self.rounds else 0, weight.shape[1])
        """Buffer for rows in the stored type, between table and scratch memory; empty if the types are equal."""

    @property
    def rounds(self) -> bool:
        """Whether rows are stored in another type (bfloat16) than they are computed in, so that writing rounds."""
        return self.table.weight.dtype != self.table.arithmetic

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of the state, not copied."""
        yield self.counter, self.steps
        yield "exp_avg", self.exp_avg
        yield "exp_avg_sq", self.exp_avg_sq

    def update(self, rows: Tensor, gradient: Tensor, lr: float, weight_decay: float, seed: int = 0) -> None:
        """Update the given rows.

        Args:
            rows: Row numbers, int64 [U], distinct.
            gradient: Gradient of those rows, [U, D].
            lr: Learning rate of this step.
            weight_decay: Decoupled: the rows lose the fraction lr x weight_decay.
            seed: Seed of the stochastic rounding of a bfloat16 table; pass another one at every step.
        """
        raise NotImplementedError

    def _stores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return weight, first and second moment as stored, [R, D] each."""
        return self.table.weight, self.exp_avg, self.exp_avg_sq

    def _scratch(self, buffers: int) -> Tensor:
        """Return memory for blocks of rows in the type of arithmetic, [buffers, block, D]."""
        weight = self.table.weight
        return torch.empty(buffers, self._block, weight.shape[1], dtype=self.table.arithmetic, device=weight.device)

    def _blocks(self, rows: int, size: int | None = None) -> Iterator[slice]:
        """Yield `rows` rows as slices of at most `size`, by default a block."""
        size = size or self._block
        for start in range(0, rows, size):
            yield slice(start, min(start + size, rows))

    def _read(self, whole: Tensor, rows: Tensor, copy: Tensor) -> None:
        """Copy the rows [u] of a stored tensor [R, D] to scratch memory [u, D]."""
        if self.rounds:
            copy.copy_(torch.index_select(whole, 0, rows, out=self._stored[: len(rows)]))
        else:
            torch.index_select(whole, 0, rows, out=copy)

    def _write(self, whole: Tensor, rows: Tensor, copy: Tensor, bits: RandomBits | None) -> None:
        """Write updated rows [u, D] from scratch memory to a stored tensor [R, D], rounding if it is bfloat16."""
        if bits is not None:
            round_stochastically(copy, bits, self._stored[: len(rows)])
            copy = self._stored[: len(rows)]
        put_rows(whole, rows, copy)


class TouchedAdamW(TableAdamW):
    """AdamW over the rows that were touched since the last step."""

    counter = "steps"

    def __init__(self, table: RowTable, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(table, betas, eps)
        self._buffers = self._scratch(4)

    def step(self, lr: float, weight_decay: float, seed: int = 0) -> None:
        """Update the rows gathered from the table since the last step and clear the list of them."""
        touched = self.table.collect()
        if touched is not None:
            self.update(*touched, lr, weight_decay, seed)

    @torch.no_grad()
    def update(self, rows: Tensor, gradient: Tensor, lr: float, weight_decay: float, seed: int = 0) -> None:
        """Update the given rows; arguments as for `TableAdamW.update`."""
        counts = self.steps.index_select(0, rows) + 1
        self.steps.index_copy_(0, rows, counts)
        bias1, bias2 = (1 - beta ** counts.double()[:, None] for beta in self.betas)
        # (m / bias1) / (sqrt(v / bias2) + eps) = m / (slope sqrt(v) + floor)
        slope, floor = (bias1 / bias2.sqrt()).to(gradient.dtype), (bias1 * self.eps).to(gradient.dtype)
        with one_thread(rows.device):
            for part in self._blocks(len(rows)):
                bits = RandomBits(seed, part.start, rows.device) if self.rounds else None
                self._update_block(rows[part], gradient[part], slope[part], floor[part], lr, lr * weight_decay, bits)

    def _update_block(
        self,
        rows: Tensor,
        gradient: Tensor,
        slope: Tensor,
        floor: Tensor,
        lr: float,
        decay: float,
        bits: RandomBits | None,
    ) -> None:
        """Update one block of rows in scratch memory: fresh memory costs more than the arithmetic.

        Args:
            rows: Row numbers, int64 [u], distinct.
            gradient: Gradient of those rows, [u, D].
            slope: Factor of sqrt(v) in the denominator, [u, 1].
            floor: Added to slope x sqrt(v), [u, 1].
            lr: Learning rate.
            decay: The fraction of the weights that is lost.
            bits: Random bits for the rounding; None if nothing is rounded.
        """
        beta1, beta2 = self.betas
        weight, mean, square, denominator = self._buffers[:, : len(rows)]
        stored = tuple(zip(self._stores(), (weight, mean, square), strict=True))
        for whole, copy in stored:
            self._read(whole, rows, copy)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        torch.sqrt(square, out=denominator).mul_(slope).add_(floor)
        weight.mul_(1 - decay).addcdiv_(mean, denominator, value=-lr)
        for whole, copy in stored:
            self._write(whole, rows, copy, bits)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Limit torch to one thread inside the block if the device is a CPU.

    A dozen passes over a block are bound by memory, and threads meet after each: two that sleep while they wait, as the
    command line has them, took a fifth more processor time than one, and no less time.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
