"""Threads that run beside the one that needs their work.

Without memory to begin one, the system may still start a thread, on the stack of one that has ended. It dies before it
can say that it has begun, and whoever started it waits for that for ever (python/cpython issue 140746). So the system
is asked for the memory first; another thread may take it in between, but has hardly any time for that.
"""

import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_BEGINS_WITH = 16 << 20
"""Bytes to start a thread: its stack is 8 MiB by default, and Python needs less than one more."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def begin(thread: threading.Thread) -> None:
    """Start a thread; raise MemoryError if there is not enough memory for one."""
    _ask_the_system()
    thread.start()


class Threads(ThreadPoolExecutor):
    """A thread pool whose `submit` raises MemoryError if there is no memory for a new thread."""

    def submit(self, fn: Callable[Given, Made], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Made]:
        """Run the call in a thread; check for memory first until the pool has all of its threads."""
        if len(self._threads) < self._max_workers:
            _ask_the_system()
        return super().submit(fn, *args, **kwargs)


def _ask_the_system() -> None:
    """Raise MemoryError if the system cannot give a thread its memory; memory kept by the C library does not help."""
    try:
        mmap.mmap(-1, _BEGINS_WITH).close()
    except OSError as error:
        raise MemoryError(f"no memory to begin a thread ({_BEGINS_WITH >> 20} MiB)") from error


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computing_threads() -> int:
    """Return the number of threads of a matrix product; the last digits of results depend on it."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    return int(own) if own.isascii() and own.isdigit() and int(own) else available_cores()
