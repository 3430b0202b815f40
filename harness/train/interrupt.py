"""When a training run may be stopped: between two steps.

An optimiser step that is cut in half cannot be resumed exactly. `StepBoundary` holds Ctrl-C (SIGINT) and SIGTERM until
the loop calls `check()`, where a checkpoint can be written; a second signal is not held::

    with StepBoundary() as boundary:
        for batch in batches:
            with boundary.immediate():  # nothing can be lost: stop at once
                mine(...)
            step(batch)
            if boundary.pending:
                save_checkpoint()
            boundary.check()
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from harness.errors import Terminated

_NOTICE = b"stopping after this step and saving; once more to stop at once\n"
_STANDARD_ERROR = 2


class StepBoundary:
    """Holds SIGINT and SIGTERM inside its block; outside the main thread, which gets no signals, it does nothing."""

    pending: signal.Signals | None
    """The first signal that arrived inside the block."""

    def __init__(self) -> None:
        self.pending = None
        self._immediate = 0
        self._previous: dict[int, Any] = {}
        self._process = os.getpid()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` or `Terminated` if a signal is pending; call it where stopping is safe."""
        if self.pending is not None:
            _stop(self.pending)

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Mark work that may be interrupted anywhere: a pending or new signal is raised at once; may be nested."""
        self._immediate += 1
        try:
            self.check()
            yield
        finally:
            self._immediate -= 1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup and `&` in scripts mean it
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
        if error is None:
            self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # a forked worker inherits this handler; its parent decides about Ctrl-C, and may terminate it
            if number == signal.SIGTERM:
                _die(number)
            return
        if self.pending is None:
            self.pending = signal.Signals(number)
            if not self._immediate:
                with suppress(OSError):
                    # not print: a handler may interrupt a write to the same stream, which Python forbids to re-enter
                    os.write(_STANDARD_ERROR, _NOTICE)
                return
        elif number == signal.SIGTERM:
            _die(number)
        _stop(number)


def _stop(number: int) -> NoReturn:
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _die(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
