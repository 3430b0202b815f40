"""Runs that are killed, stopped and started twice from outside, at moments they know nothing of."""

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.runs.record import RunRecord, read_record
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.interrupted_runs import assert_same, pause_at_step, saved_steps, steps_done, taken_up
from tests.support.tracked_runs import eventually, stored_runs
from tests.support.training_runs import STEPS, begin_child, config, exit_code, in_child, only_run

SEED = 11
EVERY_STEP: dict[str, Any] = {"min_seconds": 1000.0, "every_steps": 1}


def test_killed_again_and_again_at_random_moments(
    workspace: Path, tmp_path: Path, whole: tuple[RunRecord, bytes], account: Account
) -> None:
    """fault 1: the run pauses two steps later, so that it cannot get away"""
    draw, killed, kept = random.Random(SEED), [], [0]
    for _ in range(3):
        wanted, seconds = kept[-1] + draw.randint(1, 3), draw.uniform(0, 0.015)
        earlier = only_run(workspace).name if killed else None
        child = begin_child(
            lambda name=earlier, step=wanted + 2: pause_at_step(step, earlier=name, checkpoint=EVERY_STEP),
            tmp_path / "said",
        )
        eventually(lambda: max([0, *saved(workspace)]) >= wanted, pause=0.0005)  # noqa: B023
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
        killed.append(f"{1000 * seconds:.1f} ms after step {wanted}")
        kept.append(saved(workspace)[-1])
    with steps_done() as steps:
        again = taken_up(workspace)
    assert_same(again, whole, times=3)
    assert kept == sorted(set(kept))
    assert list(steps) == list(range(kept[-1] + 1, STEPS + 1))
    account.did(f"SIGKILL at random moments (seed {SEED}): " + ", ".join(killed))
    account.saw(
        f"taken up at steps {', '.join(map(str, kept[1:]))} of {STEPS}; {len(again[1]):,} bytes of model and "
        f"{len(again[0].metrics)} metrics equal those of one go"
    )


def saved(workspace: Path) -> list[int]:
    """Steps of the only run that have a checkpoint; empty also before there is a run."""
    return saved_steps(only_run(workspace)) if list(workspace.glob("runs/*/events.jsonl")) else []


def kill_in_the_bytes(step: int, share: float) -> None:
    """A training that is killed when this share of the tensors of a checkpoint is on disk."""
    from harness.run import run
    from harness.train.checkpoint import tensorfile

    write = tensorfile._Hashed.write

    def dying(self: Any, data: Any) -> int:
        place = Path(self._file.name)
        if place.parent.name.startswith(f".step-{step:08d}."):
            (before,) = place.parents[1].glob(f"step-{step - 3:08d}/{place.name}")  # as large as this one is to be
            room = int(share * before.stat().st_size) - self._file.tell()
            if room < len(data):
                self._file.write(bytes(data)[:room])
                self._file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return write(self, data)

    tensorfile._Hashed.write = dying  # type: ignore[method-assign]
    run(config(checkpoint={"min_seconds": 1000.0, "every_steps": 3}), track="none")


def test_killed_in_the_first_half_of_a_checkpoint(
    workspace: Path, tmp_path: Path, whole: tuple[RunRecord, bytes], account: Account
) -> None:
    """fault 2"""
    assert in_child(lambda: kill_in_the_bytes(9, share=0.49), tmp_path / "said") == -signal.SIGKILL
    folder = only_run(workspace)
    size = (folder / "checkpoints" / "step-00000006" / "tensors.safetensors").stat().st_size
    (half,) = folder.glob("checkpoints/.step-00000009.*/tensors.safetensors")
    written = half.stat().st_size
    assert 0 < written < size / 2
    assert saved_steps(folder) == [3, 6]
    with steps_done() as steps:
        again = taken_up(workspace)
    assert_same(again, whole)
    assert list(steps) == list(range(7, STEPS + 1))
    assert [path.name for path in folder.rglob("*") if path.name.startswith(".")] == []
    assert not (folder / "checkpoints").exists()
    account.did(f"SIGKILL after {written:,} of {size:,} bytes of the checkpoint of step 9")
    account.saw(f"the half had no name a reader takes; went on at step {min(steps) - 1}, no part of it left, same bits")


@contextmanager
def pausing(workspace: Path, said: Path, **options: Any) -> Iterator[int]:
    """A process in the midst of step 6 of a run, by its pid; killed if it is still there at the end."""
    child = begin_child(lambda: pause_at_step(6, checkpoint={"min_seconds": 1000.0}, **options), said)
    try:
        eventually((workspace / "runs" / "pausing").exists)
        yield child
    finally:
        try:
            os.kill(child, signal.SIGKILL)
            exit_code(child)
        except (ProcessLookupError, ChildProcessError):
            pass  # as the test wanted


@pytest.mark.usefixtures("forked_uploader")
def test_sigterm_saves_and_tells_mlflow_in_seconds(
    workspace: Path, tmp_path: Path, mlflow_store: str, whole: tuple[RunRecord, bytes], account: Account
) -> None:
    """fault 5: in the midst of a training that MLflow knows to be at work"""
    from harness.tracking.store import open_store

    client = open_store(mlflow_store)
    with pausing(workspace, tmp_path / "said", track="mlflow") as child:
        eventually(lambda: [run for run in stored_runs(client) if run.info.status == "RUNNING"])
        os.kill(child, signal.SIGTERM)
        began = time.monotonic()
        code = exit_code(child)
        seconds = time.monotonic() - began
    (stored,) = stored_runs(client)
    assert (code, stored.info.status) == (1, "KILLED")
    folder = only_run(workspace)
    assert saved_steps(folder) == [6]
    assert read_record(folder).status == "killed"
    with steps_done() as steps:
        assert_same(taken_up(workspace), whole)
    assert min(steps) == 7
    account.did("SIGTERM in the midst of step 6 of a training that MLflow (SQLite) has as RUNNING")
    account.saw(f"{seconds:.1f} s later step 6 was saved, MLflow said {stored.info.status}, and the process was gone")


def test_a_second_process_is_told_who_holds_the_run(
    workspace: Path,
    tmp_path: Path,
    whole: tuple[RunRecord, bytes],
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """faults 11 and 12: `run --resume` of a run that is being trained, and once more when that process was killed"""
    with pausing(workspace, tmp_path / "said", tracking={"system_seconds": 0.0}) as child:  # nothing goes on beside it
        folder = only_run(workspace)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        code = call("run", "--resume", folder.name, "--track", "none")
        told = capsys.readouterr().err
        assert code == 2
        holder = f"locked by pid {child} on host {socket.gethostname()}"
        assert told.startswith(f"error: run {folder.name} is {holder} since ")
        assert told.count("\n") == 1
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
    assert_same(taken_up(workspace), whole)
    assert f"was locked by pid {child}, which has ended" in capsys.readouterr().err
    account.did("`run --resume` of a run that another process trains; again once that one had SIGKILL")
    account.saw(f"exit code {code}, told the holder's pid and host, not a byte changed; then taken over, same bits")
