"""Forked processes in place of new interpreters, which would import torch, Optuna or MLflow again: seconds each."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import IO, Any

import pytest

from tests.support.tracked_runs import eventually


def limit_lifetime(seconds: int = 150) -> None:
    """End this forked process after `seconds`, with the stacks of its threads on standard error.

    It has none of its parent's other threads, but the locks that they held, so it may wait for ever.
    """
    faulthandler.register(signal.SIGALRM, file=2, chain=True)
    signal.alarm(seconds)


class Forked:
    """A forked process, leader of its process group, whose exit code is what `work` returns; used like `Popen`."""

    def __init__(
        self,
        work: Callable[[], int | None],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | None = None,
        env: dict[str, str] | None = None,
        lifetime: int = 150,
        **ignored: Any,
    ) -> None:
        self.returncode: int | None = None
        ours, theirs = os.pipe() if stdin == subprocess.PIPE else (None, None)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                if ours is not None and theirs is not None:
                    os.dup2(ours, 0)
                    os.close(theirs)
                    sys.stdin = os.fdopen(0)
                if not isinstance(stdout, int):
                    os.dup2(stdout.fileno(), 1)
                    sys.stdout = os.fdopen(1, "w")
                if stderr is not None:
                    os.dup2(stderr.fileno(), 2)
                    sys.stderr = os.fdopen(2, "w", buffering=1)
                os.environ.update(env or {})
                _start_afresh()
                limit_lifetime(lifetime)
                code = work() or 0
                sys.stdout.flush()
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)
        if ours is not None:
            os.close(ours)
        self.stdin = None if theirs is None else os.fdopen(theirs, "wb")

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = 600.0) -> int:
        """Wait for the process to end; return its exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def _start_afresh() -> None:
    """Give the process its own group, signal handlers and database connections: SQLite forbids sharing."""
    os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if store := sys.modules.get("mlflow.store.tracking.sqlalchemy_store"):
        for engine in store.SqlAlchemyStore._engine_map.values():
            engine.dispose(close=False)


def ended_pid() -> int:
    """Return the pid of a process that has ended."""
    process = Forked(int)
    process.wait()
    return process.pid


def _forking(act: Callable[[list[str]], int | None]) -> SimpleNamespace:
    """Return a stand-in for the module `subprocess`: its `Popen` forks a process that calls `act` with the command."""
    return SimpleNamespace(
        Popen=lambda words, **options: Forked(lambda: act(words), **options),
        **{name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "TimeoutExpired")},
    )


def fork_jobs(patch: pytest.MonkeyPatch, act: Callable[[list[str]], int | None]) -> None:
    """Make jobs that are submitted from now on forked processes that call `act`."""
    patch.setattr("harness.experiments.jobs.subprocess", _forking(act))


def hold_behind(step: int, patch: pytest.MonkeyPatch, over: Callable[[], bool] = lambda: False) -> None:
    """Make trainings wait after a step until they are told to stop, or `over` is true."""
    from harness.train.loop import Training

    count = Training._count

    def held(self: Training, *rest: Any) -> None:
        count(self, *rest)
        if self.position.step > step:
            boundary = signal.getsignal(signal.SIGINT).__self__  # type: ignore[union-attr]
            eventually(lambda: boundary.pending or over(), pause=0.01)

    patch.setattr(Training, "_count", held)


@pytest.fixture
def forked_uploader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make uploaders forked processes that give up soon after the end of their run."""
    import mlflow  # noqa: F401  once, for all of them

    from harness.tracking import uploader

    monkeypatch.setattr(uploader, "subprocess", _forking(lambda words: uploader.main(words[3:])))
    monkeypatch.setattr(uploader, "_AFTER_END_SECONDS", 0.2)
