"""A forked process in place of a new interpreter that would import MLflow, which takes seconds of a processor."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.training_runs import limit_lifetime


class ForkedProcess:
    """A process that does `work`, whose result is its exit code; used as `subprocess.Popen` is."""

    def __init__(self, work: Callable[[], int | None], lifetime: int = 150) -> None:
        def act() -> None:
            limit_lifetime(lifetime)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _forget_connections()
            os._exit(work() or 0)

        self._process = multiprocessing.get_context("fork").Process(target=act)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def _forget_connections() -> None:
    """Let this process open the databases that its parent has open anew, as SQLite wants it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose(close=False)


def ended_pid() -> int:
    """The number of a process that is gone."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.pid or 0


@pytest.fixture
def forked_uploader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploaders that are started from now on are forked."""
    import mlflow  # noqa: F401  once, for all of them

    from harness.tracking import uploader

    def started(command: list[str], **_: Any) -> ForkedProcess:
        return ForkedProcess(lambda: uploader.main(command[3:]))

    class Fake:
        Popen = staticmethod(started)
        DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    monkeypatch.setattr(uploader, "subprocess", Fake)
