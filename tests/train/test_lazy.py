"""AdamW over a whole table at the cost of its touched rows: torch's dense AdamW is the reference."""

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from harness.errors import DataError, UserError
from harness.model.tables import RowTable
from harness.train.optim import Group, Optimiser, Schedule
from harness.train.optim.lazy import JUMPS, LAZY_BLOCK_ELEMENTS, ONE_POINT, ONE_POINT_RATE, LazyAdamW
from tests.model.test_tables import random, touch

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, DIM = 60, 8
START = 0.1 * random(ROWS, DIM)


WARM = Schedule("cosine", 20)


def lazy(
    weight: Tensor,
    steps: int,
    *,
    schedule: Schedule = WARM,
    lr: float = 1e-3,
    decay: float = 0.05,
    eps: float = 1e-8,
    exact: bool = True,
    clip: float | None = None,
    seed: int = 0,
    on_host: bool = False,
) -> tuple[RowTable, Optimiser]:
    table = RowTable(weight.clone(), on_host=on_host)
    group = Group("classifier", lr, decay, [], [table], exact)
    return table, Optimiser([group], schedule, steps, clip=clip, eps=eps, seed=seed)


class Dense:
    """torch's AdamW on the whole table, with the learning rate of every step set by hand."""

    def __init__(self, weight: Tensor, steps: int, schedule: Schedule, lr: float, decay: float, eps: float) -> None:
        self.weight = nn.Parameter(weight.double())
        self._adam = torch.optim.AdamW([self.weight], lr=lr, weight_decay=decay, eps=eps, fused=False)
        self._rates = [lr * schedule.factor(step, steps) for step in range(steps)]

    def step(self, step: int, rows: Tensor, gradient: Tensor, clip: float | None = None) -> None:
        self.weight.grad = torch.zeros_like(self.weight).index_add_(0, rows, gradient.double())
        if clip is not None:
            nn.utils.clip_grad_norm_([self.weight], clip)
        self._adam.param_groups[0]["lr"] = self._rates[step]
        self._adam.step()


def drawn(step: int, rows: int = ROWS, *, rare: bool = True) -> tuple[Tensor, Tensor]:
    """Rows of a step, a few of which come back only after hundreds of steps, and gradients of very different sizes."""
    generator = np.random.default_rng([7, step])
    often = generator.choice(rows // 2, generator.integers(1, 6), replace=False)
    seldom = [rows // 2 + step // 9 % (rows // 2)] if rare and step % 9 == 0 else []
    chosen = torch.tensor([*often, *seldom])
    sizes = 10.0 ** generator.uniform(-7, -1, (len(chosen), 1))
    return chosen, torch.from_numpy(sizes * generator.standard_normal((len(chosen), DIM))).float()


@pytest.mark.parametrize("eps", [1e-8, 1e-6])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize(
    "schedule", [Schedule("cosine", 50), Schedule("linear", 0), Schedule("constant", 7)], ids=lambda one: one.shape
)
def test_equals_dense_adamw(schedule: Schedule, decay: float, eps: float) -> None:
    """To 1e-6 after every step, for rows that are gathered and for the table read whole."""
    steps = ONE_POINT + 200 if schedule.shape == "cosine" else 700
    table, optimiser = lazy(START, steps, schedule=schedule, decay=decay, eps=eps)
    dense = Dense(START, steps, schedule, 1e-3, decay, eps)
    for step in range(steps):
        rows, gradient = drawn(step)
        leaf = table.gather(rows)
        torch.testing.assert_close(leaf.double(), dense.weight[rows], rtol=0, atol=1e-6)
        leaf.backward(gradient)
        optimiser.step(step)
        dense.step(step, rows, gradient)
        if step % 97 == 0 or step in (3, steps - 1):
            np.testing.assert_allclose(table.vectors(), dense.weight.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("lr", [1e-2, ONE_POINT_RATE])
def test_a_table_that_is_never_read_whole_is_right_in_the_end(lr: float) -> None:
    """The longest skips; rows that were never touched have only decayed."""
    steps, schedule = ONE_POINT + 500, Schedule("cosine", 100)
    start = random(ROWS, DIM)
    table, optimiser = lazy(start, steps, schedule=schedule, lr=lr, decay=0.5)
    dense = Dense(start, steps, schedule, lr, 0.5, 1e-8)
    for step in range(steps):
        rows, gradient = drawn(step, ROWS - 2)
        touch(table, rows.tolist(), gradient)
        optimiser.step(step)
        dense.step(step, rows, gradient)
    optimiser.detach()
    assert table.lagging is None
    torch.testing.assert_close(table.weight.double(), dense.weight.detach(), rtol=0, atol=2e-6)
    kept = np.prod([1 - 0.5 * lr * schedule.factor(step, steps) for step in range(steps)])
    torch.testing.assert_close(table.weight[-2:], start[-2:] * kept, rtol=1e-5, atol=0)


def test_one_touch_and_a_long_skip() -> None:
    """Row by row of one table: touched once at step s, read at step t, for all early s and many t."""
    schedule = Schedule("constant", 30)
    gradient = random(1, DIM) * torch.logspace(-9, 0, DIM)
    cases = [*((early, 420, 1e-2) for early in (1, 2, 3, 5, 9, 17, 40, 130, 250)), (900, 1300, 1e-2)]
    for first, steps, lr in (*cases, *((ONE_POINT, ONE_POINT + 350, lr) for lr in (1e-2, ONE_POINT_RATE))):
        table, optimiser = lazy(torch.zeros(3, DIM), steps, schedule=schedule, lr=lr)
        dense = Dense(torch.zeros(3, DIM), steps, schedule, lr, 0.05, 1e-8)
        for step in range(steps):
            touched = step + 1 == first
            if touched:
                touch(table, [1], gradient)
            optimiser.step(step)
            dense.step(step, torch.tensor([1] * touched, dtype=torch.int64), gradient[: int(touched)])
            if step + 1 > first and (step - first) % 13 == 0:
                found = table.gather(torch.tensor([1])).detach()
                torch.testing.assert_close(found.double(), dense.weight[[1]].detach(), rtol=0, atol=1e-6)
        assert dense.weight[1].abs().max() > lr


def test_a_skip_from_the_last_jump_to_where_one_point_is_enough() -> None:
    """In float64: what one point for all of it would be wrong by is a hundred times the tolerance."""
    first, steps, schedule = JUMPS[-1] + 1, ONE_POINT + 60, Schedule("constant")
    gradient = (random(1, DIM) * torch.logspace(-9, 0, DIM)).double()
    table, optimiser = lazy(torch.zeros(3, DIM).double(), steps, schedule=schedule, lr=ONE_POINT_RATE, decay=0.0)
    dense = Dense(torch.zeros(3, DIM), steps, schedule, ONE_POINT_RATE, 0.0, 1e-8)
    for step in range(steps):
        touched = step + 1 == first
        if touched:
            table.gather(torch.tensor([1])).backward(gradient)
        optimiser.step(step)
        dense.step(step, torch.tensor([1] * touched, dtype=torch.int64), gradient[: int(touched)])
    torch.testing.assert_close(table.whole(), dense.weight.detach(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_blocks_of_several_threads_are_caught_up_once(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More groups of blocks than threads, the last one not full."""
    monkeypatch.setitem(LAZY_BLOCK_ELEMENTS, "cpu", 2**7)
    rows, steps = 331, 12
    table, optimiser = lazy(random(rows, DIM), steps)
    dense = Dense(random(rows, DIM), steps, WARM, 1e-3, 0.05, 1e-8)
    torch.set_num_threads(threads)
    try:
        for step in range(steps):
            touched = list(range(step % 3, rows, 3 + step))
            gradient = random(len(touched), DIM, seed=step)
            touch(table, touched, gradient)
            optimiser.step(step)
            dense.step(step, torch.tensor(touched), gradient)
            if step % 5 == 1:
                torch.testing.assert_close(table.whole().double(), dense.weight.detach(), rtol=0, atol=1e-6)
        optimiser.detach()
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(table.weight.double(), dense.weight.detach(), rtol=0, atol=1e-6)


def test_the_state_is_read_when_no_thread_moves_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RowTable(random(ROWS, DIM))
    adam = LazyAdamW(table, [1e-2] * 9, 0.0)
    touch(table, [1, 2], random(2, DIM))
    rows, gradient = table.collect() or pytest.fail("no gradient")
    adam.update(rows, gradient, 1e-2, 0.0)
    for _ in range(3):
        adam.advance()
    begun, released, move = threading.Event(), threading.Event(), LazyAdamW._move

    def held(*arguments: Any) -> None:
        begun.set()
        assert released.wait(60)
        move(*arguments)

    monkeypatch.setattr(LazyAdamW, "_move", held)
    settling = threading.Thread(target=adam.settle)
    settling.start()
    begun.wait()
    threading.Timer(0.2, released.set).start()
    names = [name for name, _ in adam.state()]
    assert released.is_set()
    assert names[0] == "done"
    settling.join()


@pytest.mark.parametrize("clip", [1e-3, 10.0])
def test_several_gathers_steps_without_any_and_clipping(clip: float) -> None:
    steps, schedule = 90, Schedule("linear", 5)
    table, optimiser = lazy(START, steps, schedule=schedule, clip=clip)
    dense = Dense(START, steps, schedule, 1e-3, 0.05, 1e-8)
    for step in range(steps):
        rows, gradient = drawn(step)
        if step % 5 == 4:
            rows, gradient = rows[:0], gradient[:0]
        else:
            table.gather(rows)  # without a gradient, as the forward pass of a batch that is made again
            table.forget()
            touch(table, rows.tolist(), gradient)
            touch(table, rows[:1].tolist(), 2 * gradient[:1])
            with torch.no_grad():
                table.gather(rows[:2])
        optimiser.step(step)
        dense.step(step, torch.cat([rows, rows[:1]]), torch.cat([gradient, 2 * gradient[:1]]), clip)
    np.testing.assert_allclose(table.vectors(), dense.weight.detach().numpy(), rtol=0, atol=1e-6)


def test_more_rows_gathered_than_there_are() -> None:
    steps = 12
    table, optimiser = lazy(random(6, DIM), steps)
    dense = Dense(random(6, DIM), steps, Schedule("cosine", 20), 1e-3, 0.05, 1e-8)
    for step in range(steps):
        rows, gradient = torch.arange(6)[: 4 + step % 2], random(4 + step % 2, DIM, seed=step)
        for _ in range(3):
            touch(table, rows.tolist(), gradient)
        optimiser.step(step)
        dense.step(step, rows, 3 * gradient)
    np.testing.assert_allclose(table.vectors(), dense.weight.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [0, 1, 5, 200, JUMPS[-1], 290])
def test_resumed_at_any_step_equals_never_stopped(stop: int, dtype: torch.dtype) -> None:
    """Bit for bit; what is saved are rows as they lie there, each with the step it is at."""
    steps = 300

    def train(table: RowTable, optimiser: Optimiser, first: int, last: int) -> None:
        for step in range(first, last):
            rows, gradient = drawn(step)
            touch(table, rows.tolist(), gradient)
            optimiser.step(step)
            if step % 120 == 119:
                table.whole()

    straight, optimiser = lazy(random(ROWS, DIM).to(dtype), steps, clip=1.0, seed=3)
    train(straight, optimiser, 0, stop)
    saved = safetensors.torch.save({"weight": straight.weight, **optimiser.state()})
    train(straight, optimiser, stop, steps)
    resumed, again = lazy(random(ROWS, DIM, seed=9).to(dtype), steps, clip=1.0, seed=3)
    state = safetensors.torch.load(saved)
    resumed.weight.data.copy_(state.pop("weight"))
    again.load_state(state)
    train(resumed, again, stop, steps)
    for table, one in ((straight, optimiser), (resumed, again)):
        table.whole()
        one.detach()
    assert torch.equal(straight.weight, resumed.weight)
    for name, tensor in optimiser.state().items():
        assert torch.equal(tensor, again.state()[name]), name


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupt_while_all_rows_are_caught_up(signals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved after a signal, or after a second one that does not wait, is as without it."""
    monkeypatch.setitem(LAZY_BLOCK_ELEMENTS, "cpu", 2**13)
    weight = random(900, 256)

    def trained() -> tuple[RowTable, Optimiser]:
        table, optimiser = lazy(weight, 20, lr=1e-2)
        for step in range(3):
            touch(table, list(range(step, 900, 3)), random(len(range(step, 900, 3)), 256, seed=step))
            optimiser.step(step)
        return table, optimiser

    calm, reference = trained()
    reference.settle()
    table, optimiser = trained()
    begun, move = threading.Event(), LazyAdamW._move

    def slow(*arguments: Any) -> None:
        begun.set()
        time.sleep(0.005)
        move(*arguments)

    def interrupt() -> None:
        begun.wait()
        for _ in range(signals):
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

    def settle() -> None:
        try:
            optimiser.settle()
        finally:
            sender.join()

    with monkeypatch.context() as patch:
        patch.setattr(LazyAdamW, "_move", slow)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                settle()
        finally:
            signal.signal(signal.SIGINT, handler)
        state = {name: tensor.clone() for name, tensor in optimiser.state().items()}
    again, resumed = lazy(torch.zeros(900, 256), 20, lr=1e-2)
    again.weight.data.copy_(table.weight)
    resumed.load_state(state)
    resumed.settle()
    assert torch.equal(again.weight, calm.weight)
    for name, tensor in reference.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name


def test_bfloat16_follows_float32_on_average() -> None:
    """1,500 copies of a few rows, rounded at random where they are written: their mean is the float32 training."""
    copies, kinds, steps = 1500, 3, 60
    start = random(kinds, DIM).bfloat16()
    stored, rounded = lazy(start.repeat(copies, 1), steps, lr=1e-2)
    straight, exact = lazy(start.float(), steps, lr=1e-2)
    for step in range(steps):
        rows = [kind for kind in range(kinds) if step % (3 * kind + 1) == 0]
        gradient = 0.1 * random(len(rows), DIM, seed=step) + 0.05
        touch(stored, [kind + kinds * copy for copy in range(copies) for kind in rows], gradient.repeat(copies, 1))
        touch(straight, rows, gradient)
        rounded.step(step)
        exact.step(step)
    found = stored.whole().float().view(copies, kinds, DIM)
    moved = (straight.whole() - start.float()).abs()
    assert moved.mean() > 1e-2
    torch.testing.assert_close(found.mean(0), straight.whole(), rtol=0, atol=0.02 * float(moved.max()))
    assert (found.std(0) > 0).all()


def test_catching_up_all_rows_rounds_at_random() -> None:
    """A few touches, then steps without any, each with a read of the whole table: to the nearest nothing would move."""
    copies, steps = 4000, 48
    start = random(1, DIM).bfloat16()
    stored, rounded = lazy(start.repeat(copies, 1), steps, lr=2e-5, decay=0.0, schedule=Schedule("constant"))
    straight, exact = lazy(start.float(), steps, lr=2e-5, decay=0.0, schedule=Schedule("constant"))
    first = stored.whole().clone()
    for step in range(steps):
        if step < 3:
            touch(stored, list(range(copies)), torch.ones(copies, DIM))
            touch(straight, [0], torch.ones(1, DIM))
        rounded.step(step)
        exact.step(step)
        for table in (stored, straight):
            table.whole()
    moved = float((straight.whole() - start.float()).abs().min())
    spacing = (torch.nextafter(start.abs(), start.abs() + 1) - start.abs()).float()
    assert moved < float(spacing.max()) / 4
    assert (stored.whole() != first).any(0).all()
    found = stored.whole().float()
    torch.testing.assert_close(found.mean(0), straight.whole()[0], rtol=0, atol=0.25 * moved)
    assert (found.std(0) < 1.5 * (moved * spacing).sqrt()).all()  # other random numbers at every step
    for name in ("exp_avg", "exp_avg_sq"):
        means = [optimiser.state()[f"tables.classifier.0.{name}"].float().mean(0) for optimiser in (rounded, exact)]
        torch.testing.assert_close(*means, rtol=0.01, atol=0)


def test_touched_rows_alone_is_another_optimiser() -> None:
    """And what the name says: a row that is in no pool keeps its bits."""
    table, optimiser = lazy(random(ROWS, DIM), 30, exact=False)
    for step in range(30):
        touch(table, [3], random(1, DIM, seed=step))
        optimiser.step(step)
    others = [row for row in range(ROWS) if row != 3]
    assert torch.equal(table.whole()[others], random(ROWS, DIM)[others])


def test_states_of_the_two_optimisers_are_told_apart() -> None:
    states = [lazy(random(ROWS, DIM), 30, exact=exact)[1] for exact in (True, False)]
    with pytest.raises(DataError, match=r"tables\.classifier\.0\.\w+ is .*(missing|but should be absent)"):
        states[0].load_state(states[1].state())
    with pytest.raises(DataError, match=r"tables\.classifier\.0\."):
        states[1].load_state(states[0].state())


def test_a_decay_that_outlasts_momentum_is_refused() -> None:
    with pytest.raises(UserError, match=r"optimiser_table=touched \(optimiser_tokens=touched"):
        lazy(random(ROWS, DIM), 30, lr=0.5, decay=0.3)


def test_of_two_optimisers_the_attached_one_counts() -> None:
    """Stages have optimisers of their own: the later one goes on where the earlier one left the table."""
    table = RowTable(random(ROWS, DIM))
    first, second = (
        Optimiser([Group("rows", 1e-2, 0.0, [], [table], exact=True)], Schedule("constant"), 5) for _ in range(2)
    )
    first.attach()
    for optimiser in (first, second):
        optimiser.attach()
        for step in range(5):
            touch(table, [step, step + 1], random(2, DIM, seed=step))
            optimiser.step(step)
        optimiser.detach()
        assert table.lagging is None
    touch(table, [1], random(1, DIM))
    with pytest.raises(AssertionError, match="without this optimiser"):
        first.step(0)


def test_rates_that_skipped_rows_would_not_move_at() -> None:
    table = RowTable(random(ROWS, DIM))
    with pytest.raises(AssertionError, match="rates of 0"):
        LazyAdamW(table, [0.0, 1e-3], 0.0)
    adam = LazyAdamW(table, [1e-3, 1e-3], 0.0)
    touch(table, [1], random(1, DIM))
    rows, gradient = table.collect() or pytest.fail("no gradient")
    with pytest.raises(AssertionError, match="at another rate"):
        adam.update(rows, gradient, 2e-3, 0.0)


def test_no_row_is_behind_by_2_to_the_31() -> None:
    class Endless:
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(AssertionError, match="int32"):
        LazyAdamW(RowTable(random(2, 2)), Endless(), 0.0)  # type: ignore[arg-type]
