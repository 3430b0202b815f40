"""Runs that are interrupted, taken up again and held against one that never stopped."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

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


def assert_same(resumed: tuple[RunRecord, bytes], whole: tuple[RunRecord, bytes]) -> None:
    """Model and numbers of both are the same to the last bit."""
    assert resumed[1] == whole[1]
    assert resumed[0].metrics == whole[0].metrics
    assert resumed[0].views == whole[0].views
    assert len(resumed[0].resumed) == 1
