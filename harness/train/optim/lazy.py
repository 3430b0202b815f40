"""AdamW over a table of which a step reads and writes the gathered rows alone, with the result of dense AdamW.

Dense AdamW moves and decays every row at every step, also those whose gradient is zero: momentum carries them on. The
path of such a row is known beforehand, so it is caught up when it is gathered or when the table is read whole. Let a
row have the weight w and the moments m, v after step s, and no gradient in the steps s+1 .. t:

    m_t = b1^(t-s) m        v_t = b2^(t-s) v        w_t = W(s) w - m sum_{j=s+1..t} c_j / (q_j a + eps)

    a = sqrt(v)     W(j) = prod_{i=j+1..t} (1 - lr_i decay)
    c_j = lr_j W(j) b1^(j-s) / (1 - b1^j)     q_j = b2^((j-s)/2) / sqrt(1 - b2^j)

c_j and q_j are the same for all elements of a row. The sum over j is the integral of 1 / (q a + eps) over the measure
with the weights c_j at the points q_j; two-point Gauss quadrature replaces it by the measure of two points with the
same four moments M_n = sum_j c_j q_j^n. With q = M_1 / M_0, k2 and k3 the second and third central moment of q_j / q
under that measure, and k = k3 / k2, the points cancel out:

    sum = M_0 (q (1 + k) a + eps) / (q^2 (1 + k - k2) a^2 + q (2 + k) eps a + eps^2)

    M_n = W(s) F_n(s) - r_n^(t-s) F_n(t)      r_n = b1 b2^(n/2)
    F_n(s) = r_n / (1 - lr_{s+1} decay) (lr_{s+1} / ((1 - b1^(s+1)) (1 - b2^(s+1))^(n/2)) + F_n(s+1)),   F_n(end) = 0

so a table of F_n over all steps gives every M_n. b1^(j-s) leaves about a hundred steps to count, over which q_j hardly
varies: from s = 256 on the relative error of the sum is below 1e-6. At the beginning q_j falls like 1 / sqrt(j), and a
row is caught up in several jumps of at most a factor of about 1.4 (`JUMPS`), each of which is right to about 1e-5.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError
from harness.model.tables import RandomBits, RowTable, round_stochastically
from harness.seeds import stream_seed
from harness.train.optim.row_sparse import TableAdamW, one_thread

JUMPS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)
"""Steps at which a jump ends that begins before. After the last of them all rows are caught up once."""
_MOMENTS = 4
_AT_ONCE = 64
"""Blocks of rows whose jumps are computed together when all rows are caught up."""
_SPREAD = 1e-11
"""Least k2 that is more than rounding; below it the points are one."""

Arrays = tuple[NDArray[np.float64], NDArray[np.float64]]


class LazyAdamW(TableAdamW):
    """AdamW over all rows of one table, of which a step computes those that were gathered."""

    counter = "at_step"

    def __init__(
        self,
        table: RowTable,
        rates: Sequence[float],
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        seed: int = 0,
    ) -> None:
        """Make zero moments on the device of the table, which must not move afterwards, and attach to the table.

        Args:
            table: The table.
            rates: Learning rate of every step of the training.
            weight_decay: Decoupled: at every step a row loses the fraction lr x weight_decay.
            betas: Decay rates (b1, b2) of the first and second moment.
            eps: Added to the root of the second moment.
            seed: Seed of the stochastic rounding of a bfloat16 table that is caught up whole.
        """
        super().__init__(table, betas, eps)
        assert len(rates) < 2**31, "the step that a row is at is an int32"
        if (lost := max(rates, default=0.0) * weight_decay) >= 1 - betas[0]:
            raise UserError(
                f"a learning rate of {max(rates):g} with weight_decay {weight_decay:g} takes {lost:.0%} of every row "
                f"of a table at each step; stay below {1 - betas[0]:.0%}, or set optimiser_table=touched"
            )
        self.seed = seed
        self._done = torch.zeros(1, dtype=torch.int32)
        sums, kept = _sums(np.asarray(rates, np.float64), weight_decay, betas)
        self._sums, self._kept = (torch.from_numpy(part).to(table.weight.device) for part in (sums, kept))
        self._work = self._scratch(2)
        self._ready: tuple[Tensor, Tensor] | None = None
        """Rows [U] that were gathered last, with their weights and moments now, [3, U, D]."""
        self._unwritten: tuple[slice, Tensor] | None = None
        """Rows of the whole table whose values now, [3, u, D], are not all written: a signal came between."""
        self._current = 0
        """The step up to which the whole table is known to be caught up."""
        self.attach()

    def attach(self) -> None:
        """Become what the table asks for its rows: there may be an optimiser for each stage of a training."""
        self.table.lagging = self

    def detach(self) -> None:
        """Catch up all rows and leave the table as it is."""
        if self.table.lagging is self:
            self.settle()
            self.table.lagging = None

    @property
    def done(self) -> int:
        """Steps of the training that are done."""
        return int(self._done)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of the state, not copied; rows are as they are, each with the step it is at."""
        self._write_rest()
        yield "done", self._done
        yield from super().state()

    def loaded(self) -> None:
        """Take note that other values were copied into the state."""
        self._ready, self._current = None, -1

    @torch.no_grad()
    def read(self, rows: Tensor) -> Tensor:
        """Return distinct rows [U] of the table as they are after the steps done, [U, D]; nothing is written."""
        self._write_rest()
        values = self.table.weight.new_empty(3, len(rows), self.table.weight.shape[1], dtype=self.table.arithmetic)
        jumps = self._jumps(self.steps.index_select(0, rows))
        with one_thread(rows.device):
            for part in self._blocks(len(rows)):
                for whole, copy in zip(self._stores(), values[:, part], strict=True):
                    self._read(whole, rows[part], copy)
                for jump in jumps:
                    self._move(values[:, part], jump[:, part])
        self._ready = rows, values
        return values[0]

    @torch.no_grad()
    def update(self, rows: Tensor, gradient: Tensor, lr: float, weight_decay: float, seed: int = 0) -> None:
        """Update the given rows in the step after those done; arguments as for `TableAdamW.update`."""
        assert self.table.lagging is self, "the rows were gathered without this optimiser"
        if self._ready is None or self._ready[0] is not rows:
            self.read(rows)
        assert self._ready is not None
        values, self._ready = self._ready[1], None
        step, (beta1, beta2) = self.done + 1, self.betas
        bias1, bias2 = 1 - beta1**step, 1 - beta2**step
        with one_thread(rows.device):
            for part in self._blocks(len(rows)):
                weight, mean, square = values[:, part]
                denominator, given = self._work[0, : len(weight)], gradient[part]
                mean.lerp_(given, 1 - beta1)
                square.mul_(beta2).addcmul_(given, given, value=1 - beta2)
                # (m / bias1) / (sqrt(v / bias2) + eps) = m / (bias1 / sqrt(bias2) sqrt(v) + bias1 eps)
                torch.sqrt(square, out=denominator).mul_(bias1 / bias2**0.5).add_(bias1 * self.eps)
                weight.mul_(1 - lr * weight_decay).addcdiv_(mean, denominator, value=-lr)
                bits = RandomBits(seed, part.start, rows.device) if self.rounds else None
                for whole, copy in zip(self._stores(), (weight, mean, square), strict=True):
                    self._write(whole, rows[part], copy, bits)
        self.steps.index_fill_(0, rows, step)

    def advance(self) -> None:
        """Count a step as done, after `update` if there were gradients."""
        self._done += 1
        if self.done == JUMPS[-1]:
            self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Catch up all rows. An interrupt between two writes is made good by the next call of any method."""
        self._write_rest()
        if self._current == self.done:
            return
        buffer, count = self._scratch(3), len(self.table.weight)
        for start in range(0, count, _AT_ONCE * self._block):
            jumps = self._jumps(self.steps[start : start + _AT_ONCE * self._block])
            for near in self._blocks(min(_AT_ONCE * self._block, count - start)):
                part, values = slice(start + near.start, start + near.stop), buffer[:, : near.stop - near.start]
                for whole, copy in zip(self._stores(), values, strict=True):
                    copy.copy_(whole[part])
                for jump in jumps:
                    self._move(values, jump[:, near])
                self._unwritten = part, values
                self._write_rest()
        self._current = self.done

    def _write_rest(self) -> None:
        """Write the rows of `_unwritten`; done twice it gives the same bits."""
        if self._unwritten is None:
            return
        part, values = self._unwritten
        seed = stream_seed(self.seed, "rounding", self.done)
        bits = RandomBits(seed, part.start, values.device) if self.rounds else None
        for whole, copy in zip(self._stores(), values, strict=True):
            if bits is None:
                whole[part] = copy
            else:
                round_stochastically(copy, bits, whole[part])
        self.steps[part] = self.done
        self._unwritten = None

    def _jumps(self, at: Tensor) -> list[Tensor]:
        """Return the jumps that bring rows from the steps they are at, int32 [u], to those done; see `_skipped`."""
        at, stops = at.long(), [self.done]
        if self.done <= JUMPS[-1] and len(at):
            earliest = int(at.where(at > 0, self.done).min())  # a row at 0 has no moments: one jump does
            stops = [*(stop for stop in JUMPS if earliest < stop < self.done), self.done]
        jumps = []
        for stop in stops:
            after = at.clamp(min=stop)
            jumps.append(self._skipped(at, after).to(self.table.arithmetic))
            at = after
        return jumps

    def _move(self, values: Tensor, jump: Tensor) -> None:
        """Bring weights and moments [3, u, D] of rows to where a jump [8, u] ends, in place."""
        weight, mean, square = values
        a, below = self._work[:, : len(weight)]
        kept, mean_fall, square_fall, *terms = jump[:, :, None]
        constant, linear, floor, low, high = terms
        torch.sqrt(square, out=a)
        torch.mul(a, high, out=below).add_(low).mul_(a).add_(floor)  # addcmul with two columns takes four times as long
        a.mul_(linear).add_(constant).mul_(mean)
        weight.mul_(kept).addcdiv_(a, below, value=-1)
        mean.mul_(mean_fall)
        square.mul_(square_fall)

    def _skipped(self, at: Tensor, after: Tensor) -> Tensor:
        """Return what rows need that were not touched from the steps `at` [u] to `after` [u]; float64, [8, u].

        Returns:
            W(s), b1^(t-s), b2^(t-s); then the constant and the factor of a in the numerator of the sum, and in its
            denominator eps^2, the factor of a and that of a^2. The numerator is 0 if nothing was skipped.
        """
        (beta1, beta2), eps, skipped = self.betas, self.eps, (after - at).double()
        kept = (self._kept[after] - self._kept[at]).exp()
        falls = [(beta1 * beta2 ** (n / 2)) ** skipped for n in range(_MOMENTS)]
        moments = [
            kept * one_sum[at] - one_fall * one_sum[after] for one_sum, one_fall in zip(self._sums, falls, strict=True)
        ]
        some = skipped > 0
        m0, m1, m2, m3 = (moment.where(some, 1.0) for moment in moments)
        q = m1 / m0
        k2 = m2 / (m0 * q**2) - 1
        k3 = m3 / (m0 * q**3) - 3 * k2 - 1
        k = (k3 / k2).where(k2 > _SPREAD, 0.0)
        total = m0 * some
        numerator = total * eps, total * q * (1 + k)
        denominator = torch.full_like(q, eps**2), q * (2 + k) * eps, q**2 * (1 + k - k2)
        return torch.stack([kept, falls[0], beta2**skipped, *numerator, *denominator])


def _sums(rates: NDArray[np.float64], weight_decay: float, betas: tuple[float, float]) -> Arrays:
    """Return F_n(s) [4, T + 1] and the logarithm of W(0) after every step [T + 1], given the rates of T steps."""
    (beta1, beta2), steps = betas, np.arange(1, len(rates) + 1)
    keep = 1 - rates * weight_decay
    sums = np.zeros((_MOMENTS, len(rates) + 1))
    for n in range(_MOMENTS):
        share = rates / ((1 - beta1**steps) * (1 - beta2**steps) ** (n / 2))
        fall = beta1 * beta2 ** (n / 2) / keep
        backwards = zip((fall * share)[::-1].tolist(), fall[::-1].tolist(), strict=True)
        sums[n] = [*accumulate(backwards, lambda later, step: step[0] + step[1] * later, initial=0.0)][::-1]
    return sums, np.concatenate([[0.0], np.log(keep).cumsum()])
