"""Runs that are interrupted, resumed and compared with one that was never interrupted."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.run import run
from harness.runs.record import RunRecord
from harness.runs.resume import find_earlier
from harness.settings.schema import RunConfig
from harness.train.loop import Training
from tests.support.training_runs import config, only_run


def after_steps(act: Callable[..., None]) -> None:
    """Make trainings of this process call `act(training, losses, rows, pool)` after every step from now on."""
    count = Training._count

    def counted(self: Training, *figures: Any) -> None:
        count(self, *figures)
        act(self, *figures)

    Training._count = counted  # type: ignore[method-assign]


def kill_at_step(step: int, *signals: signal.Signals, track: str = "none", **settings: object) -> None:
    """Run a small training that sends itself signals right after a step."""
    killed_after(step, config(**settings), *signals, track=track)


def killed_after(step: int, settings: RunConfig, *signals: signal.Signals, track: str = "none") -> None:
    """Run a training with the given config that sends itself signals right after a step."""

    def kill(training: Training, *_: Any) -> None:
        if training.position.step == step:
            for number in signals or (signal.SIGKILL,):
                os.kill(os.getpid(), number)

    after_steps(kill)
    run(settings, track=track)


def pause_at_step(step: int, *, earlier: str | None = None, track: str = "none", **settings: object) -> None:
    """Run or resume a training that waits after a step until a signal arrives."""

    def pause(training: Training, *_: Any) -> None:
        if training.position.step == step:
            (training.run_log.folder.parent / "pausing").touch()  # beside it: a run folder holds nothing strange
            boundary = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
            while boundary.pending is None:  # not signal.pause(), which would not see one that came just before
                time.sleep(0.005)

    after_steps(pause)
    run(config(**settings), track=track, earlier=find_earlier(earlier) if earlier else None)


@contextmanager
def steps_done() -> Iterator[dict[int, NDArray[np.int64]]]:
    """Record the rows of every step that trainings do inside the block, by the number of the step, from 1."""
    seen: dict[int, NDArray[np.int64]] = {}

    def note(training: Training, losses: dict[str, float], rows: NDArray[np.int64], pool: Any) -> None:
        seen[training.position.step] = rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_count", Training._count)  # to be put back afterwards
        after_steps(note)
        yield seen


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of a run that have a checkpoint."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*"))


def finished(home: Path, **settings: object) -> tuple[RunRecord, bytes]:
    """Run without an interruption; return the record and the bytes of the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        record = run(config(**settings), track="none")
        return record, (only_run(home) / "model" / "model.safetensors").read_bytes()


def taken_up(workspace: Path, **settings: object) -> tuple[RunRecord, bytes]:
    """Resume the interrupted run of a workspace; return its record and the bytes of its model."""
    folder = only_run(workspace)
    record = run(config(**settings), track="none", earlier=find_earlier(folder.name))
    return record, (folder / "model" / "model.safetensors").read_bytes()


def assert_same(resumed: tuple[RunRecord, bytes], whole: tuple[RunRecord, bytes], times: int = 1) -> None:
    """Check that model and numbers of both runs are equal bit for bit, and that one was resumed `times` times."""
    assert resumed[1] == whole[1]
    assert resumed[0].metrics == whole[0].metrics
    assert resumed[0].scorers == whole[0].scorers
    assert len(resumed[0].resumed) == times
