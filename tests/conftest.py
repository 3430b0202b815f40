"""Shared fixtures: a workspace of its own for every test, finished runs, servers, small models."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# hooks and fixtures of every test
from tests.faults.accounts import (  # noqa: F401
    account,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
)
from tests.support.finished_runs import (  # noqa: F401
    home_of_runs,
    in_their_home,
    loaded,
    own_home,
    records,
    teacher,
    unidec,
)
from tests.support.forks import forked_uploader  # noqa: F401
from tests.support.servers import mlflow_server, mlflow_server_postgres, postgres  # noqa: F401

if TYPE_CHECKING:
    from tests.support.downloads import Site

# a shell that starts the tests with `&` lets them, and all that they start, ignore Ctrl-C
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a busy machine is not a failing test
settings.register_profile("patient", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own workspace and no tracking server from outside."""
    folder = tmp_path / "workspace"
    monkeypatch.setenv("HARNESS_HOME", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("harness.io.progress._QUIET_BELOW_SECONDS", 60.0)  # what is printed depends on no clock
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setattr("harness.tracking.uploader.PATIENCE_SECONDS", 100.0)  # a slow disk is not a store that hangs
    monkeypatch.setenv("HARNESS_TRACKING_NICE", "0")  # on a busy machine a process of the lowest priority gets nowhere
    return folder


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty MLflow database: creating the tables takes seconds, once for all processes of a test run."""
    from filelock import FileLock

    from harness.tracking.store import open_store

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made, draft = shared / "mlflow-template.db", tmp_path_factory.mktemp("mlflow")
    with FileLock(made.with_suffix(".lock")), pytest.MonkeyPatch.context() as patch:
        if not made.exists():
            patch.setenv("HARNESS_HOME", str(draft))
            open_store(f"sqlite:///{draft / 'mlflow.db'}")
            shutil.copy(draft / "mlflow.db", made)
    return made


@pytest.fixture
def mlflow_store(workspace: Path, mlflow_template: Path) -> str:
    """The workspace's MLflow store, ready; returns its URI."""
    workspace.mkdir(parents=True, exist_ok=True)
    shutil.copy(mlflow_template, workspace / "mlflow.db")
    return f"sqlite:///{workspace / 'mlflow.db'}"


@pytest.fixture
def home(workspace: Path) -> Path:
    """The workspace, by the name under which tests of other people's files know it."""
    return workspace


@pytest.fixture
def site() -> "Iterator[Site]":
    """A web server on loopback."""
    from tests.support.downloads import served

    with served() as running:
        yield running


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One torch thread: tensors this small gain nothing from a second, and on a busy machine they wait for it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One workspace for a module's small models, and one torch thread."""
    from tests.support.small_models import small_workspace

    with small_workspace(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory, models_home: None) -> Path:
    """A small random BERT on disk."""
    from tests.support.small_models import write_model

    return write_model(tmp_path_factory.mktemp("models") / "small-bert")
