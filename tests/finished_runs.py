"""Fixtures: one small finished run of every method, made once for all tests that use them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.config import Layer
from harness.record import RunRecord
from harness.run import resolve_config, run
from harness.trained import TrainedRun, load_run
from tests.small_models import small_workspace, write_model

DATA = "synthetic:train=240,test=80,labels=60"
TRAINING = {"epochs": 2, "batch_size": 64, "random_epochs": 1, "refresh_epochs": 1, "warmup_epochs": 0.0}


@pytest.fixture(scope="session")
def home_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: the encoder of `zeroshot`, and what the encoder of `depsl` is distilled from."""
    folder = tmp_path_factory.mktemp("models")
    with small_workspace(folder):
        return write_model(folder / "small-bert")


@pytest.fixture(scope="session")
def records(home_of_runs: Path, teacher: Path) -> dict[str, RunRecord]:
    """The records of the runs, by method; the one of `zeroshot` is the newest."""
    settings: dict[str, dict[str, Any]] = {
        "unidec": {"encoder": "tiny", "params": TRAINING},
        "depsl": {"encoder": "static", "encoder_options": {"teacher": str(teacher), "dim": 12}, "params": TRAINING},
        "zeroshot": {"encoder": str(teacher)},
    }
    with small_workspace(home_of_runs):
        return {
            name: run(resolve_config(name, DATA, [Layer("test", values)])[0], track="none")
            for name, values in settings.items()
        }


@pytest.fixture(scope="session")
def loaded(records: dict[str, RunRecord], home_of_runs: Path, teacher: Path) -> dict[str, TrainedRun]:
    """The runs, by method."""
    with small_workspace(home_of_runs):
        places = {"zeroshot": str(teacher)}
        return {name: load_run(record.run_id, encoder=places.get(name)) for name, record in records.items()}


@pytest.fixture
def unidec(loaded: dict[str, TrainedRun]) -> TrainedRun:
    return loaded["unidec"]


@pytest.fixture
def in_their_home(workspace: Path, home_of_runs: Path) -> Iterator[None]:
    """The workspace of the runs, in place of the one that every test has of its own."""
    with small_workspace(home_of_runs):
        yield
