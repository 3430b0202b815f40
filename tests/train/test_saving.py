"""Checkpoints that are written beside a training: whole, in order, never torn, and no thread is left."""

import errno
import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.errors import Pruned, Terminated
from harness.train import checkpoint
from harness.train.checkpoint import Checkpoints, tensorfile
from harness.train.checkpoint.saver import Saver, all_finite
from tests.support.tracked_runs import eventually


def values(step: int) -> dict[str, Tensor]:
    return {"weight": torch.full((40, 5), float(step)), "moment": torch.arange(4) * step}


def fill(tensors: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    """The values of a step in the memory of those before, as an optimiser leaves them."""
    for name, tensor in values(step).items():
        tensors[name].copy_(tensor)
    return tensors


def latest_step(checkpoints: Checkpoints) -> int:
    """Step of the newest checkpoint, after its tensors were found to be those of that step."""
    found = checkpoints.latest()
    assert found is not None
    step: int = found[0]["step"]
    assert all(torch.equal(found[1][name], tensor) for name, tensor in values(step).items())
    return step


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("checkpoint", "sha256"))}


def no_log(*_: Any, **__: Any) -> None:
    raise AssertionError("nothing is to be told")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    assert not threads()
    yield
    assert not threads()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writers wait until it opens."""
    opened, write = threading.Event(), checkpoint.write_tensors

    def waiting(*arguments: Any) -> str:
        assert opened.wait(30)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write_tensors", waiting)
    yield opened
    opened.set()


def test_what_is_written_is_the_moment_of_the_save(tmp_path: Path, gate: threading.Event) -> None:
    tensors, told = values(1), []
    with Saver(Checkpoints(tmp_path), "always", no_log) as saver:
        saver.save(1, {"step": 1}, tensors, lambda: told.append(1))
        fill(tensors, 2)  # the training goes on while nothing is on disk
        assert Checkpoints(tmp_path).steps() == []
        assert told == []
        gate.set()
        assert saver.steps() == [1]
    assert told == [1]
    assert latest_step(Checkpoints(tmp_path)) == 1


def test_the_next_save_and_the_end_wait_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    write = checkpoint.write_tensors

    def slow(*arguments: Any) -> str:
        under_way.append(1)
        assert len(under_way) == 1
        time.sleep(0.02)
        under_way.pop()
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    tensors, checkpoints = values(0), Checkpoints(tmp_path, keep=9)
    with Saver(checkpoints, "always", no_log) as saver:
        for step in range(1, 6):
            saver.save(step, {"step": step}, fill(tensors, step))
            fill(tensors, 99)
    assert checkpoints.steps() == [1, 2, 3, 4, 5]
    assert latest_step(checkpoints) == 5


def test_who_stays_has_it_on_disk_and_needs_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Saver, "_copied", no_log)
    with Saver(Checkpoints(tmp_path), "always", no_log) as saver:
        saver.save(1, {"step": 1}, values(1), stay=True)
        assert latest_step(Checkpoints(tmp_path)) == 1


@pytest.mark.parametrize("looks", ["check", "wait", "save", "end"])
def test_a_full_disk_is_told_by_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: str) -> None:
    """faults 31 and 33: the error is the one of the write, and the checkpoint before stays."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, {"step": 3}, values(3))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensorfile, "_write_elements", full)

    def work() -> None:
        with Saver(checkpoints, "always", no_log) as saver:
            saver.save(4, {"step": 4}, values(4))
            while looks == "check":
                saver.check()
            if looks == "wait":
                saver.wait()
            if looks == "save":
                saver.save(5, {"step": 5}, values(5))

    with pytest.raises(OSError, match="No space left on device"):
        work()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    assert latest_step(checkpoints) == 3


def test_an_error_of_the_training_is_not_hidden_by_one_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorfile, "_write_elements", no_log)

    def work() -> None:
        with Saver(Checkpoints(tmp_path), "always", no_log) as saver:
            saver.save(1, {"step": 1}, values(1))
            assert saver.steps() == []  # asked by the message of the error
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        work()


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated, Pruned])
def test_who_stops_at_once_does_not_wait_for_a_long_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """A second Ctrl-C: the write ends with the piece at hand and leaves nothing."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, {"step": 3}, values(3))
    begun, update, pieces = threading.Event(), tensorfile._Hashed.write, []
    monkeypatch.setattr(tensorfile, "_ELEMENTS_PER_PIECE", 1)

    def slow(self: tensorfile._Hashed, data: Any) -> int:
        begun.set()
        pieces.append(1)
        time.sleep(0.05)
        return update(self, data)

    monkeypatch.setattr(tensorfile._Hashed, "write", slow)

    def work() -> None:
        with Saver(checkpoints, "always", no_log) as saver:
            saver.save(4, {"step": 4}, values(4))
            assert begun.wait(60)
            raise error

    with pytest.raises(error):
        work()
    assert len(pieces) < 100  # of about two hundred
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_auto_copies_only_into_a_quarter_of_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(tensor.nbytes for tensor in values(1).values())
    told: list[dict[str, Any]] = []
    writers: list[str] = []
    write = checkpoint.write_tensors
    monkeypatch.setattr(
        checkpoint, "write_tensors", lambda *rest: (writers.append(threading.current_thread().name), write(*rest))[1]
    )
    with Saver(
        Checkpoints(tmp_path), "auto", lambda kind, **metadata: told.append({"kind": kind, **metadata})
    ) as saver:
        for step, free in enumerate((4 * size - 1, 4 * size - 1, 4 * size, 0), 1):
            monkeypatch.setattr("harness.train.checkpoint.saver.free_memory", lambda free=free: free)
            saver.save(step, {"step": step}, values(step))
    assert [name.startswith("checkpoint") for name in writers] == [False, False, True, True]  # the copy is there
    assert [event["kind"] for event in told] == ["checkpoint_waits"]
    assert latest_step(Checkpoints(tmp_path)) == 4


def test_memory_that_runs_out_while_copying_costs_the_copy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    with Saver(Checkpoints(tmp_path), "always", no_log) as saver, monkeypatch.context() as patch:
        patch.setattr(torch, "empty", too_much)
        saver.save(1, {"step": 1}, values(1))
        assert Checkpoints(tmp_path).steps() == [1]
        assert not saver._buffers
    assert latest_step(Checkpoints(tmp_path)) == 1


def train_for_ever(folder: Path, checkpoints: Checkpoints) -> None:
    """Changes its tensors in place all the time, and saves them now and then."""
    tensors, step = values(0), checkpoints.steps()[-1]
    with Saver(checkpoints, "always", no_log) as saver:
        while True:
            step += 1
            saver.save(step, {"step": step}, fill(tensors, step))
            for other in range(5):
                fill(tensors, -other)


def test_killed_at_random_moments_the_latest_is_whole_and_of_one_moment(tmp_path: Path) -> None:
    """faults 1 and 2: SIGKILL while a write is under way and tensors move on."""
    checkpoints, before, leftovers, moments = Checkpoints(tmp_path), 1, 0, random.Random(0)
    checkpoints.save(1, {"step": 1}, values(1))
    for attempt in range(10):
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                train_for_ever(tmp_path, checkpoints)
            finally:
                os._exit(1)
        if attempt % 5 == 0:  # on a slow disk none of the others may save anything
            eventually(lambda: checkpoints.steps()[-1] > before, pause=0.001)  # noqa: B023
        time.sleep(moments.uniform(0.01, 0.08))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        leftovers += sum(path.name.startswith(".") for path in tmp_path.iterdir())
        step = latest_step(checkpoints)
        assert step >= before
        before = step
    assert before > 1
    assert leftovers > 0


def test_one_odd_number_among_many_is_found_wherever_it_is() -> None:
    weights = torch.full((100_003,), 3e38)  # whose sum is infinite
    assert all_finite(weights)
    for place in (0, 1, 7, 8, 50_000, 99_999, 100_002):
        for odd in (math.nan, math.inf, -math.inf):
            weights[place] = odd
            assert not all_finite(weights)
        weights[place] = 1.0
    assert all_finite(torch.zeros(0))
    assert all_finite(torch.arange(3))
    assert all_finite(torch.tensor([True]))
