"""Fixtures of every test, by `conftest.py`: three small finished runs, made once a process.

Nothing heavy is imported before a test asks for them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.infer.load import TrainedRun
    from harness.runs.record import RunRecord

DATA = "synthetic:train=240,test=80,labels=60"
TRAINING = {"epochs": 2, "batch_size": 64, "random_epochs": 1, "refresh_epochs": 1, "warmup_epochs": 0.0}


@pytest.fixture(scope="session")
def home_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model folder: the encoder of `zeroshot`, and the teacher of `depsl`'s static encoder."""
    from tests.support.small_models import small_workspace, write_model

    folder = tmp_path_factory.mktemp("models")
    with small_workspace(folder):
        return write_model(folder / "small-bert")


@pytest.fixture(scope="session")
def records(home_of_runs: Path, teacher: Path) -> "dict[str, RunRecord]":
    """Run the methods; return the records by method, that of `zeroshot` being the newest."""
    from harness.run import resolve_config, run
    from harness.settings.layers import Layer
    from tests.support.small_models import small_workspace

    settings: dict[str, dict[str, Any]] = {
        "unidec": {"encoder": "tiny", "params": TRAINING},
        "depsl": {"encoder": "static", "encoder_options": {"teacher": str(teacher), "dim": 12}, "params": TRAINING},
        "zeroshot": {"encoder": str(teacher), "tracking": {"model": "always"}},
    }
    with small_workspace(home_of_runs):
        return {
            name: run(resolve_config(name, DATA, [Layer("test", values)])[0], track="none")
            for name, values in settings.items()
        }


@pytest.fixture(scope="session")
def loaded(records: "dict[str, RunRecord]", home_of_runs: Path, teacher: Path) -> "dict[str, TrainedRun]":
    """Load the finished runs, by method."""
    from harness.infer.load import load_run
    from tests.support.small_models import small_workspace

    with small_workspace(home_of_runs):
        places = {"zeroshot": str(teacher)}
        return {name: load_run(record.run_id, encoder=places.get(name)) for name, record in records.items()}


@pytest.fixture
def unidec(loaded: "dict[str, TrainedRun]") -> "TrainedRun":
    return loaded["unidec"]


@pytest.fixture
def in_their_home(workspace: Path, home_of_runs: Path) -> Iterator[None]:
    """Use the workspace of the finished runs in place of the test's own."""
    from tests.support.small_models import small_workspace

    with small_workspace(home_of_runs):
        yield


@pytest.fixture
def own_home(records: "dict[str, RunRecord]", home_of_runs: Path, workspace: Path, one_thread: None) -> Path:
    """Copy the workspace of the finished runs into the test's own, which may be changed."""
    shutil.copytree(home_of_runs, workspace)
    return workspace
