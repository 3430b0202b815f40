"""The worker processes of one sweep: started, told to stop, and understood when they have ended."""

import json
import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.processes import ChildProcess

COMMAND = (sys.executable, "-m", "harness.sweep.worker")


class Worker(ChildProcess):
    """A running worker."""

    def __init__(self, plan: dict[str, Any], group: str, logs: Path, environment: dict[str, str]) -> None:
        """Starts it with a plan; its output goes to a file in `logs`."""
        token = secrets.token_hex(3)
        self.name = f"{socket.gethostname()}:{os.getpid()}:{token}"
        """Tells the workers of all machines apart."""
        self.claimed = False
        """Whether it was seen with a trial."""
        log = logs / f"worker-{os.getpid()}-{token}.log"
        super().__init__([*COMMAND], log, environment, stdin=subprocess.PIPE)
        order = {"plan": plan, "group": group, "worker": self.name}
        with suppress(BrokenPipeError):  # it died at once; its exit code says so
            self._input.write(json.dumps(order).encode() + b"\n")
            self._input.flush()

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        code = super().ended()
        if code is not None:
            with suppress(OSError):
                self._input.close()
        return code

    @property
    def _input(self) -> Any:
        """Open as long as the sweep lives; see `harness.sweep.worker`."""
        return self._process.stdin
