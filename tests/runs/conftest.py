"""Runs that several tests of this room share: made once, and copied by whoever changes them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.run import resolve_config, run
from harness.runs.record import RunRecord
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from tests.support.interrupted_runs import finished, kill_at_step, steps_done
from tests.support.training_runs import in_child, only_run

Whole = tuple[RunRecord, bytes]


@pytest.fixture(scope="session")
def whole_and_steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Whole, dict[int, NDArray[np.int64]]]:
    """The training that is never interrupted, with the bytes of its model, and the rows of its steps."""
    with steps_done() as steps:
        return finished(tmp_path_factory.mktemp("whole"), checkpoint={"background": "never"}), steps


@pytest.fixture(scope="session")
def whole(whole_and_steps: tuple[Whole, dict[int, NDArray[np.int64]]]) -> Whole:
    """The training that is never interrupted, and the bytes of its model."""
    return whole_and_steps[0]


VALIDATED: dict[str, Any] = {"validation": {"size": 0.2, "every_epochs": 2, "patience": 3}}


@pytest.fixture(scope="session")
def validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Whole]:
    """A training with validation rows that is never interrupted, and its workspace."""
    home = tmp_path_factory.mktemp("validated")
    return home, finished(home, **VALIDATED)


@pytest.fixture(scope="session")
def killed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a training that was killed after its second epoch."""
    home = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        in_child(lambda: kill_at_step(9), home / "said")
    return home


@pytest.fixture
def interrupted(killed_home: Path, workspace: Path) -> Path:
    """The folder of a training that was killed after its second epoch, in this test's workspace."""
    shutil.copytree(killed_home, workspace, symlinks=True)
    return only_run(workspace)


def scored(**values: object) -> RunConfig:
    """Settings of a run without training."""
    return resolve_config("zeroshot", "synthetic", [Layer("test", {"encoder": "tiny", **values})])[0]


@pytest.fixture(scope="session")
def scored_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """A workspace with a finished run without training, and its record."""
    home = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        return home, run(scored(), track="none")


@pytest.fixture
def record(scored_home: tuple[Path, RunRecord], workspace: Path) -> RunRecord:
    """The record of a finished run in this test's workspace."""
    shutil.copytree(scored_home[0], workspace, symlinks=True)
    return scored_home[1]
