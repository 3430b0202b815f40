"""Threads that run beside the one that needs their work."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import numpy as np

_BEGINS_WITH = 4 << 20
"""Bytes that are to be had before a thread is started; more than Python needs to begin one."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Threads(ThreadPoolExecutor):
    """A pool that raises MemoryError where there is no memory to begin a thread.

    The system may still start one then, on the stack of one that has ended. It dies before it can say that it has
    begun, and whoever started it waits for that for ever (python/cpython issue 140746).
    """

    def submit(self, fn: Callable[Given, Made], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Made]:
        """As in the standard library."""
        np.empty(_BEGINS_WITH, np.uint8)
        return super().submit(fn, *args, **kwargs)
