"""Forked processes in place of new ones: they need not import torch or Optuna again, which takes seconds."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import IO, Any

import pytest

from harness.experiments import jobs
from tests.support.training_runs import limit_lifetime


class Forked:
    """Takes the place of `subprocess.Popen`: a forked process that does `act` with the words of the command."""

    def __init__(
        self,
        act: Callable[[list[str]], int | None],
        words: list[str],
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: dict[str, str],
        **ignored: Any,
    ) -> None:
        self.returncode: int | None = None
        ours, theirs = os.pipe() if stdin == subprocess.PIPE else (None, None)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                for number in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if ours is not None and theirs is not None:
                    os.dup2(ours, 0)
                    os.close(theirs)
                    sys.stdin = os.fdopen(0)
                os.dup2(stdout.fileno(), 1)
                os.dup2(stderr.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
                os.environ.update(env)
                limit_lifetime()
                code = act(words) or 0
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
        """Exit code, None while it runs."""
        return self.wait(os.WNOHANG)

    def wait(self, options: int = 0) -> int | None:
        """Exit code."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


def fork_jobs(patch: pytest.MonkeyPatch, act: Callable[[list[str]], int | None]) -> None:
    """Lets jobs that are submitted from now on be forked processes that do `act`."""
    popen = partial(Forked, act)
    patch.setattr(jobs, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE))
