"""The worker processes of one sweep: started, told to stop, and understood when they have ended."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.bench.children import why_ended

COMMAND = (sys.executable, "-m", "harness.sweep.worker")


class Worker:
    """A running worker; in a group of its own, so that Ctrl-C reaches it through the sweep alone."""

    def __init__(self, plan: dict[str, Any], group: str, logs: Path, environment: dict[str, str]) -> None:
        """Starts it with a plan; its output goes to a file in `logs`."""
        token = secrets.token_hex(3)
        self.name = f"{socket.gethostname()}:{os.getpid()}:{token}"
        """Tells the workers of all machines apart."""
        self.claimed = False
        """Whether it was seen with a trial."""
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"worker-{os.getpid()}-{token}.log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                process_group=0,
            )
        order = {"plan": plan, "group": group, "worker": self.name}
        with suppress(BrokenPipeError):  # it died at once; its exit code says so
            self._input.write(json.dumps(order).encode() + b"\n")
            self._input.flush()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        code = self._process.poll()
        if code is not None:
            with suppress(OSError):
                self._input.close()
        return code

    def send(self, number: int) -> None:
        """Sends a signal to it and to what it has started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Ends it at once and waits until it is gone."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def reason(self, code: int) -> str:
        """Why it ended, in one line."""
        return why_ended(code, self.log)

    @property
    def _input(self) -> Any:
        """Open as long as the sweep lives; see `harness.sweep.worker`."""
        return self._process.stdin
