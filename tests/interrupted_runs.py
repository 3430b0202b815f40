"""Runs that are interrupted, taken up again and held against one that never stopped."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.record import RunRecord
from harness.resume import find_earlier
from harness.run import run
from tests.training_runs import config, only_run


def kill_at_step(step: int, *signals: signal.Signals, track: str = "none", **settings: object) -> None:
    """A training that sends itself signals right after a step."""
    from harness.train.loop import Training

    count = Training._count

    def counted(self: Training, *arguments: Any) -> None:
        count(self, *arguments)
        if self.position.step == step:
            for number in signals or (signal.SIGKILL,):
                os.kill(os.getpid(), number)

    Training._count = counted  # type: ignore[method-assign]
    run(config(**settings), track=track)


def pause_at_step(step: int, *, earlier: str | None = None, track: str = "none", **settings: object) -> None:
    """A training, new or taken up, that does nothing more after a step until a signal arrives."""
    from harness.train.loop import Training

    count = Training._count

    def counted(self: Training, *arguments: Any) -> None:
        count(self, *arguments)
        if self.position.step == step:
            (self.journal.folder.parent / "pausing").touch()  # beside it: a run folder holds nothing strange
            boundary = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
            while boundary.pending is None:  # not signal.pause(), which would not see one that came just before
                time.sleep(0.005)

    Training._count = counted  # type: ignore[method-assign]
    run(config(**settings), track=track, earlier=find_earlier(earlier) if earlier else None)


@contextmanager
def steps_done() -> Iterator[dict[int, NDArray[np.int64]]]:
    """Rows of every step that trainings of this process do meanwhile, by the number of the step, from 1."""
    from harness.train.loop import Training

    count, seen = Training._count, {}

    def counted(self: Training, losses: dict[str, float], rows: NDArray[np.int64], pool: Any) -> None:
        count(self, losses, rows, pool)
        seen[self.position.step] = rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_count", counted)
        yield seen


def saved_steps(folder: Path) -> list[int]:
    """Steps of a run that have a checkpoint."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*"))


def finished(home: Path, **settings: object) -> tuple[RunRecord, bytes]:
    """A run that is not interrupted, and the bytes of its model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        record = run(config(**settings), track="none")
        return record, (only_run(home) / "model" / "model.safetensors").read_bytes()


def taken_up(workspace: Path, **settings: object) -> tuple[RunRecord, bytes]:
    """The same of the interrupted run of a workspace, after it was taken up."""
    folder = only_run(workspace)
    record = run(config(**settings), track="none", earlier=find_earlier(folder.name))
    return record, (folder / "model" / "model.safetensors").read_bytes()


def assert_same(resumed: tuple[RunRecord, bytes], whole: tuple[RunRecord, bytes], times: int = 1) -> None:
    """Model and numbers of both are the same to the last bit; one was taken up so many times."""
    assert resumed[1] == whole[1]
    assert resumed[0].metrics == whole[0].metrics
    assert resumed[0].views == whole[0].views
    assert len(resumed[0].resumed) == times
