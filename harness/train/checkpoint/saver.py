"""Checkpoints written beside the training: it waits for a copy in memory, not for the disk.

    step | copy | step ...                      the training
                | write, hash, flush, rename    a thread

One write is under way at a time: the next save waits for it, and so does the end. What goes wrong in the thread is
raised by the next call that looks. Where the training stands still anyway, or memory is short, nothing is copied and
the caller writes. The memory of the copy is kept for the next one: taking it anew costs five times the copying.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Event
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from harness.errors import Pruned, Terminated, out_of_memory
from harness.machine.memory import GIB, free_memory
from harness.machine.threads import Threads
from harness.settings.schema import Background
from harness.train.checkpoint import Checkpoints

SHARE_OF_FREE = 4
"""With `background` "auto", a copy may take at most 1/4 of the free memory."""


class Saver:
    """Writes checkpoints in a thread; use as a context manager, which leaves no thread behind."""

    def __init__(self, checkpoints: Checkpoints, background: Background, log: Callable[..., None]) -> None:
        """Prepare to save.

        Args:
            checkpoints: The run's checkpoints.
            background: Whether to copy tensors and write them in the thread: "auto", "always" or "never".
            log: Logs an event (name, metadata) when a copy does not fit into memory.
        """
        self._checkpoints, self._background, self._log = checkpoints, background, log
        self._writer = Threads(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._buffers: dict[str, Tensor] = {}
        self._abandoned = Event()
        self._logged = False

    def save(
        self,
        step: int,
        state: dict[str, Any],
        tensors: dict[str, Tensor],
        then: Callable[[], None] = lambda: None,
        *,
        stay: bool = False,
    ) -> None:
        """Save the checkpoint of a step, arguments as for `Checkpoints.save`; tensors may change on return.

        Args:
            step: Optimiser steps done.
            state: Values for JSON; the caller must not change them afterwards.
            tensors: Tensors by name.
            then: Called when the checkpoint is on disk, maybe by the thread.
            stay: Whether to return only when the checkpoint is on disk.
        """
        self.wait()
        copy = None if stay else self._copied(tensors)
        if copy is None:
            self._write(step, state, tensors, then)
        else:
            self._writing = self._writer.submit(self._write, step, state, copy, then)

    def wait(self) -> None:
        """Wait for the current write, and raise its error if it failed."""
        if self._writing is not None:
            wait([self._writing])
            done, self._writing = self._writing, None
            done.result()

    def check(self) -> None:
        """Raise the error of a write that has failed; do not wait for one that still runs."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def steps(self) -> list[int]:
        """Wait for the current write; return the steps of the checkpoints on disk, oldest first."""
        if self._writing is not None:
            wait([self._writing])
        return self._checkpoints.steps()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt | Terminated | Pruned):  # who stops properly has waited before
            self._abandoned.set()
        try:
            self._writer.shutdown()
        except BaseException:  # a signal while waiting
            self._abandoned.set()
            self._writer.shutdown()
            raise
        finally:
            self._buffers = {}
        if error is None:
            self.wait()

    def _write(self, step: int, state: dict[str, Any], tensors: dict[str, Tensor], then: Callable[[], None]) -> None:
        self._checkpoints.save(step, state, tensors, self._go_on)
        then()

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise InterruptedError("the checkpoint was given up")

    def _copied(self, tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """Copy the tensors to host memory; None if settings or free memory do not allow a copy."""
        fitting = {name for name, kept in self._buffers.items() if name in tensors and _alike(kept, tensors[name])}
        self._buffers = {name: kept for name, kept in self._buffers.items() if name in fitting}
        missing = {name: tensor for name, tensor in tensors.items() if name not in fitting}
        if not self._room_for(sum(tensor.nbytes for tensor in missing.values())):
            self._buffers = {}
            return None
        try:
            self._buffers |= {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in missing.items()}
            return {name: self._buffers[name].copy_(tensor.detach()) for name, tensor in tensors.items()}
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        self._buffers = {}
        return None

    def _room_for(self, size: int) -> bool:
        if self._background != "auto" or size == 0:
            return self._background != "never"
        free = free_memory()
        if size * SHARE_OF_FREE <= free:
            return True
        if not self._logged:
            self._logged = True
            self._log("checkpoint_waits", copy_gib=round(size / GIB, 3), free_gib=round(free / GIB, 3))
        return False


def all_finite(tensor: Tensor) -> bool:
    """Return whether no element is infinite or NaN; it reads minimum and maximum alone, which needs no memory."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(extreme) for extreme in torch.aminmax(tensor.detach()))


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
