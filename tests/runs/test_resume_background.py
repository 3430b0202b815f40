"""A run that is killed, stopped or out of disk while a checkpoint is written beside it loses no earlier one."""

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.io import files
from harness.run import run
from harness.runs.record import RunRecord, read_record
from tests.support.interrupted_runs import assert_same, kill_at_step, taken_up
from tests.support.training_runs import config, in_child, only_run

EVERY = 3
"""Steps from one checkpoint to the next."""


def kill_beside_training(name: str, call: int) -> None:
    """A training that is killed inside a function that writes its third checkpoint, once it has gone on beside that.

    By one step at least; at the fourth checkpoint it would wait for the third.
    """
    from harness.train import checkpoint
    from harness.train.loop import Training

    place = files if name == "write_manifest" else checkpoint
    original, count, calls, gone_on = getattr(place, name), Training._count, [], threading.Event()

    def dying(folder: Path, *arguments: Any, **options: Any) -> Any:
        calls.extend([1] if "step-" in str(folder) else [])  # manifests are written of caches as well
        if len(calls) == call:
            assert threading.current_thread() is not threading.main_thread()
            gone_on.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(folder, *arguments, **options)

    def counted(self: Training, *arguments: Any) -> None:
        count(self, *arguments)
        if self.position.step > 3 * EVERY:
            gone_on.set()

    setattr(place, name, dying)
    Training._count = counted  # type: ignore[method-assign]
    run(config(checkpoint={"min_seconds": 1000.0, "every_steps": EVERY, "background": "always"}), track="none")


@pytest.mark.parametrize(
    ("name", "call", "left"),
    [("write_tensors", 3, [3, 6]), ("write_manifest", 3, [3, 6]), ("remove_folder", 1, [3, 6, 9])],
)
def test_killed_while_a_checkpoint_is_written_beside_the_training(
    name: str, call: int, left: list[int], workspace: Path, tmp_path: Path, whole: tuple[RunRecord, bytes]
) -> None:
    """fault 2: before a byte of the third one is there, before it has its name, and before the first one goes"""
    assert in_child(lambda: kill_beside_training(name, call), tmp_path / "said") == -signal.SIGKILL
    kept = sorted(int(path.name.removeprefix("step-")) for path in only_run(workspace).glob("checkpoints/step-*"))
    assert kept == left
    assert_same(taken_up(workspace), whole)


def test_a_signal_while_a_checkpoint_is_written_waits_for_it_and_for_its_own(
    workspace: Path, tmp_path: Path, whole: tuple[RunRecord, bytes]
) -> None:
    """fault 5"""
    from harness.train import checkpoint

    def signalled() -> None:
        write = checkpoint.write_tensors

        def slow(*arguments: Any) -> str:
            time.sleep(0.3)
            return write(*arguments)

        checkpoint.write_tensors = slow
        saving = {"min_seconds": 1000.0, "every_steps": EVERY, "background": "always"}
        kill_at_step(4, signal.SIGTERM, checkpoint=saving)

    assert in_child(signalled, tmp_path / "said") == 1
    names = sorted(path.name for path in (only_run(workspace) / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000004"]
    assert_same(taken_up(workspace), whole)


def test_a_disk_that_fills_up_ends_the_run_and_leaves_the_checkpoint_before(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[RunRecord, bytes]
) -> None:
    """faults 31 and 33"""
    from harness.train import checkpoint

    write, calls = checkpoint.write_tensors, []

    def full(*arguments: Any) -> str:
        calls.append(threading.current_thread().name)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    wanted = config(checkpoint={"every_steps": EVERY, "background": "always"})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(OSError, match="No space left on device"):
            run(wanted, track="none")
    folder = only_run(workspace)
    assert all(name.startswith("checkpoint") for name in calls)
    assert read_record(folder).status == "failed"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000003"]
    assert_same(taken_up(workspace), whole)
