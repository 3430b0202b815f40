"""Processes that a bench or a sweep starts: their share of the machine, how they are told to stop, why they ended."""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from harness.repro import available_cores, computing_threads
from harness.tracking.places import without_paths

STOP_SECONDS = 120.0
"""How long a process may take to save itself before it is killed; a second signal makes it hurry."""
_TAIL_BYTES = 8192
_WIDTH = 300
"""Characters of a line that is told; a terminal shows less."""


class ChildProcess:
    """A running process; in a group of its own, so that Ctrl-C reaches it only through whoever started it."""

    def __init__(self, words: list[str], log: Path, environment: dict[str, str], **streams: Any) -> None:
        """Starts it.

        Args:
            words: Its command line.
            log: Takes what it writes; to standard error alone where `streams` has another place for the rest.
            environment: Added to that of this process.
            streams: Further arguments of `subprocess.Popen`.
        """
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                words,
                stderr=errors,
                env={**os.environ, **environment},
                process_group=0,
                **{"stdout": errors, **streams},
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

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


class Interrupts:
    """Notes Ctrl-C, SIGTERM and a closed terminal inside its block instead of unwinding the work in the middle."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._untold: list[signal.Signals] = []
        self._previous: dict[int, Any] = {}

    def take(self) -> list[signal.Signals]:
        """What arrived since the last call."""
        taken, self._untold = self._untold, []
        return taken

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup and `&` in scripts mean it
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        self._untold.append(signal.Signals(number))


def share_of_cores(workers: int) -> dict[str, str]:
    """Environment that gives each of several processes its share of the cores; one alone is left as `run` would be."""
    if workers == 1:
        return {}
    share = max(1, available_cores() // workers)
    return {"OMP_NUM_THREADS": str(min(share, computing_threads()))}


def why_ended(code: int, log: Path) -> str:
    """Why a process ended, in one line, from its exit code and what it wrote last."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
        return f"ended by {name}{hint}"
    lines = tail(log)
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
    return without_paths(told[-1]) if told else f"ended with exit code {code}"


def tail(log: Path) -> list[str]:
    """The last lines of a log, without empty ones and without what would steer a terminal."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = ("".join(letter for letter in line if letter.isprintable()).rstrip() for line in text.splitlines())
    return [line[:_WIDTH] for line in lines if line.strip()]
