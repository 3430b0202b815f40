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

From s = 2048 on q_j varies so little that one point does, with half of the arithmetic:

    sum = 1 / (a / M_{-1} + eps / M_0)

is exact where a is far above eps and where it is far below; in between the relative error is at most k2 / 4, 8e-6. What
a weight moves by in all that it skips after a touch is at most about 65 lr, and seldom that near to eps: 8e-7 for a
learning rate of 3e-3. Skips of one sign add up, to some 1e-6 in thousands of touches, where float32 itself is ten times
as far off. Points and bounds are those of b1 = 0.9, b2 = 0.999.

Besides the moments there is an int32 a row, 48 bytes a step of the training, and copies of the pool's rows.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adamw import adamw

from harness.errors import UserError
from harness.machine.threads import Threads
from harness.model.tables import RandomBits, RowTable, round_stochastically
from harness.seeds import stream_seed
from harness.train.optim.dense import FUSED_DEVICES
from harness.train.optim.row_sparse import BLOCK_ELEMENTS, TableAdamW, one_thread

JUMPS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)
"""Steps at which a jump ends that begins before. After the last of them all rows are caught up once."""
ONE_POINT, ONE_POINT_RATE = 2048, 3e-3
"""Step after which all rows are caught up once more, and one point is enough for learning rates up to this one."""
_ORDERS = (-1, 0, 1, 2, 3)
"""The n of the moments M_n."""
LAZY_BLOCK_ELEMENTS = BLOCK_ELEMENTS | {"cpu": 2**20}
"""As `BLOCK_ELEMENTS`; most pools are one block, because here calls cost more than the cache saves."""
_SMALLER, _AT_ONCE = 4, 16
"""When all rows are caught up blocks are so much smaller, for the cache; the jumps of so many are computed together."""
_SPREAD = 1e-11
"""Least k2 that is more than rounding; below it the points are one."""
_LEAST = 1e-30
"""Least M_0 that moves anything, and least share of a moment that is left; float32 is slow below 1e-38."""

Arrays = tuple[NDArray[np.float64], NDArray[np.float64]]


class LazyAdamW(TableAdamW):
    """AdamW over all rows of one table, of which a step computes those that were gathered."""

    counter = "at_step"
    block_elements = LAZY_BLOCK_ELEMENTS

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
        assert min(rates, default=1.0) > 0, "sums over many rates of 0 would be rounding alone, and divide by it"
        assert betas == (0.9, 0.999), "where jumps end, and from where one point is enough"
        if (lost := max(rates, default=0.0) * weight_decay) >= 1 - betas[0]:
            raise UserError(
                f"a learning rate of {max(rates):g} with weight_decay {weight_decay:g} takes {lost:.0%} of every row "
                f"of a table at each step; stay below {1 - betas[0]:.0%}, or set optimiser_table=touched "
                "(optimiser_tokens=touched if it is that of the encoder's tokens)"
            )
        self.seed = seed
        self._done = torch.zeros(1, dtype=torch.int32)
        device = table.weight.device
        sums, kept = _sums(np.asarray(rates, np.float64), weight_decay, betas)
        self._sums, self._kept = (torch.from_numpy(part).to(device) for part in (sums, kept))
        falls = [betas[1], *(betas[0] * betas[1] ** (n / 2) for n in _ORDERS)]
        self._falls = torch.tensor(falls, dtype=torch.float64).log().to(device)
        """Logarithms of b2, and of r_n for every n of `_ORDERS`."""
        self._one_point_from = ONE_POINT if max(rates, default=0.0) <= ONE_POINT_RATE else None
        self._rates = rates
        self._work = self._scratch(2)
        self._small_block = max(1, self._block // _SMALLER)
        """Rows of a block when all are caught up."""
        self._ready: tuple[Tensor, tuple[Tensor, Tensor, Tensor]] | None = None
        """Rows [U] that were gathered last, with their weights and moments now, [U, D] each."""
        self._settlers: list[Future[None]] = []
        """Threads that catch up all rows; a signal may have come before they were waited for."""
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
        wait(self._settlers)
        yield "done", self._done
        yield from super().state()

    def loaded(self) -> None:
        """Take note that other values were copied into the state."""
        self._ready, self._current = None, -1

    @torch.no_grad()
    def read(self, rows: Tensor) -> Tensor:
        """Return distinct rows [U] of the table as they are after the steps done, [U, D]; nothing is written."""
        wait(self._settlers)
        count, dim = len(rows), self.table.weight.shape[1]
        weight, mean, square = (self._work.new_empty(count, dim) for _ in range(3))
        values = weight, mean, square
        jumps = self._jumps(self.steps.index_select(0, rows))
        with one_thread(rows.device):
            for part in self._blocks(count):
                for whole, copy in zip(self._stores(), values, strict=True):
                    self._read(whole, rows[part], copy[part])
                for jump in jumps:
                    self._move([copy[part] for copy in values], jump[:, part], self._work)
        self._ready = rows, values
        return values[0]

    @torch.no_grad()
    def update(self, rows: Tensor, gradient: Tensor, lr: float, weight_decay: float, seed: int = 0) -> None:
        """Update the given rows in the step after those done; arguments as for `TableAdamW.update`."""
        assert self.table.lagging is self, "the rows were gathered without this optimiser"
        assert math.isclose(lr, self._rates[self.done]), "rows that skip this step will move at another rate"
        if self._ready is None or self._ready[0] is not rows:
            self.read(rows)
        assert self._ready is not None
        values, self._ready = self._ready[1], None
        (weight, mean, square), device = values, gradient.device
        with one_thread(device):
            adamw(
                *([weight], [gradient.contiguous()], [mean], [square], [], [self._done.to(device, torch.float32)]),
                fused=device.type in FUSED_DEVICES,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,
                weight_decay=weight_decay,
                eps=self.eps,
                maximize=False,
            )
            for part in self._blocks(len(rows)):
                bits = RandomBits(seed, part.start, rows.device) if self.rounds else None
                for whole, copy in zip(self._stores(), values, strict=True):
                    self._write(whole, rows[part], copy[part], bits)
        self.steps.index_fill_(0, rows, self.done + 1)

    def advance(self) -> None:
        """Count a step as done, after `update` if there were gradients."""
        self._done += 1
        if self.done in (JUMPS[-1], self._one_point_from):
            self.settle()

    def settle(self) -> None:
        """Catch up all rows; called by one thread at a time.

        Threads with blocks of their own never wait for each other, and no signal is raised between two of their writes.
        """
        wait(self._settlers)
        if self._current == self.done:
            return
        device = self.table.weight.device
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        starts = range(0, len(self.table.weight), _AT_ONCE * self._small_block)
        try:
            with Threads(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                self._settlers = [pool.submit(self._settle_rows, starts[share::threads]) for share in range(threads)]
                for part in self._settlers:
                    part.result()
        finally:  # the setting of the latest thread is that of all that start afterwards
            torch.set_num_threads(threads)
        self._current = self.done

    @torch.no_grad()
    def _settle_rows(self, starts: Iterable[int]) -> None:
        """Catch up the rows of the groups of blocks that begin at `starts`; this is the work of one thread."""
        rows, size = len(self.table.weight), self._small_block
        work = self._work.new_empty(2, size, self.table.weight.shape[1])
        for start in starts:
            jumps = self._jumps(self.steps[start : start + _AT_ONCE * size])
            for near in self._blocks(min(_AT_ONCE * size, rows - start), size):
                part = slice(start + near.start, start + near.stop)
                stored = [whole[part] for whole in self._stores()]
                values = [whole.to(work.dtype) for whole in stored]  # itself where nothing is rounded
                for jump in jumps:
                    self._move(values, jump[:, near], work)
                if self.rounds:
                    bits = RandomBits(stream_seed(self.seed, "rounding", self.done), part.start, work.device)
                    rounded = [torch.empty_like(whole) for whole in stored]
                    for copy, target in zip(values, rounded, strict=True):
                        round_stochastically(copy, bits, target)
                    for whole, copy in zip(stored, rounded, strict=True):
                        whole.copy_(copy)
                self.steps[part] = self.done

    def _jumps(self, at: Tensor) -> list[Tensor]:
        """Return the jumps that bring rows from the steps they are at, int32 [u], to those done.

        Returns:
            What `_move` needs of each jump, [5 or 8, u]: W(s), b1^(t-s), b2^(t-s); then for one point the factor of a
            and the constant of what m is divided by, else the constant and the factor of a in the numerator of the sum,
            and in its denominator eps^2, the factor of a and that of a^2.
        """
        at = at.long()
        if self._one_point_from is not None and self.done > self._one_point_from:
            return [self._one_point(at).to(self.table.arithmetic)]
        stops = [self.done]
        if self.done <= JUMPS[-1] and len(at):
            earliest = int(at.where(at > 0, self.done).min())  # a row at 0 has no moments: one jump does
            stops = [*(stop for stop in JUMPS if earliest < stop < self.done), self.done]
        jumps = []
        for stop in stops:
            after = at.clamp(min=stop)
            jumps.append(self._two_points(at, after).to(self.table.arithmetic))
            at = after
        return jumps

    def _move(self, values: Sequence[Tensor], jump: Tensor, work: Tensor) -> None:
        """Bring weights and moments of rows, [u, D] each, to where a jump [5 or 8, u] ends; `work` is [2, >= u, D].

        Nothing is allocated here: memory that ran out between two writes would leave half of a jump.
        """
        weight, mean, square = values
        a, below = work[:, : len(weight)]
        kept, mean_fall, square_fall, *terms = jump[:, :, None]
        torch.sqrt(square, out=a)
        weight.mul_(kept)
        if len(terms) == 2:
            weight.addcdiv_(mean, a.mul_(terms[0]).add_(terms[1]), value=-1)
        else:
            constant, linear, floor, low, high = terms
            torch.mul(a, high, out=below).add_(low).mul_(a).add_(floor)  # faster than addcmul with two columns
            weight.addcdiv_(a.mul_(linear).add_(constant).mul_(mean), below, value=-1)
        mean.mul_(mean_fall)
        square.mul_(square_fall)

    def _one_point(self, at: Tensor) -> Tensor:
        """Return the jump from the steps `at` [u] to those done; float64, [5, u]."""
        kept, falls, moments = self._moments(at, torch.tensor([self.done], device=at.device), 2)
        moments.clamp_(min=_LEAST)  # nothing was skipped, or the learning rate was 0: m is divided by far too much
        return torch.stack([kept, *falls, moments[0].reciprocal(), self.eps / moments[1]])

    def _two_points(self, at: Tensor, after: Tensor) -> Tensor:
        """Return the jump from the steps `at` [u] to `after` [u]; float64, [8, u]."""
        kept, falls, moments = self._moments(at, after, 5)
        some, eps = moments[1] >= _LEAST, self.eps
        m0, m1, m2, m3 = (moment.where(some, 1.0) for moment in moments[1:])
        q = m1 / m0
        k2 = m2 / (m0 * q**2) - 1
        k3 = m3 / (m0 * q**3) - 3 * k2 - 1
        k = (k3 / k2).where(k2 > _SPREAD, 0.0)
        total = m0 * some
        numerator = total * eps, total * q * (1 + k)
        denominator = torch.full_like(q, eps**2), q * (2 + k) * eps, q**2 * (1 + k - k2)
        return torch.stack([kept, *falls, *numerator, *denominator])

    def _moments(self, at: Tensor, after: Tensor, orders: int) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Return W(s) [u], b1^(t-s) and b2^(t-s) [u], and M_n for the first `orders` of `_ORDERS` [orders, u]."""
        kept = (self._kept[after] - self._kept[at]).exp()
        falls = (self._falls[: orders + 1, None] * (after - at)).clamp_(min=-600).exp_()
        falls.masked_fill_(falls < _LEAST, 0.0)
        moments = (kept * self._sums[:orders, at]).sub_(falls[1:] * self._sums[:orders, after])
        return kept, (falls[2], falls[0]), moments


def _sums(rates: NDArray[np.float64], weight_decay: float, betas: tuple[float, float]) -> Arrays:
    """Return F_n(s) [5, T + 1] and the logarithm of W(0) after every step [T + 1], given the rates of T steps."""
    (beta1, beta2), steps = betas, np.arange(1, len(rates) + 1)
    keep = 1 - rates * weight_decay
    sums = np.zeros((len(_ORDERS), len(rates) + 1))
    for place, n in enumerate(_ORDERS):
        share = rates / ((1 - beta1**steps) * (1 - beta2**steps) ** (n / 2))
        fall = beta1 * beta2 ** (n / 2) / keep
        backwards = zip((fall * share)[::-1].tolist(), fall[::-1].tolist(), strict=True)
        sums[place] = [*accumulate(backwards, lambda later, step: step[0] + step[1] * later, initial=0.0)][::-1]
    return sums, np.concatenate([[0.0], np.log(keep).cumsum()])
