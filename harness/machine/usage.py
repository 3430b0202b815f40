"""Load and memory of the machine while a run is at work, measured by a thread beside it.

    with SystemMetrics(lambda values: run log.metrics(values, step), folder, every=10.0): ...

The first sample is taken at once, the next ones every so many seconds. Each counter is read on its own, so that one the
machine does not have is left out alone. Devices are asked only if this process uses them, and torch is never imported.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

import psutil

from harness.machine.threads import begin

GIB = 2**30
_FIRST_INTERVAL_SECONDS = 0.1
"""Time until the first sample: processor load is a difference, and needs a reading before."""
_PATIENCE_SECONDS = 5.0
"""Longest wait, at the end of a run, for a sample that is being recorded."""

Record = Callable[[dict[str, float]], None]


class SystemMetrics:
    """Passes samples to `record` while its block runs: at least one, or none with `every=0`."""

    def __init__(self, record: Record, folder: Path, every: float) -> None:
        """Prepare to sample.

        Args:
            record: Called with each sample, values by name, from another thread.
            folder: Folder on the disk whose free space is measured; need not exist yet.
            every: Seconds between samples; 0 for never.
        """
        self._record, self._folder, self._every = record, folder, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="system-metrics", daemon=True) if every > 0 else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            begin(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def _work(self) -> None:
        counters = list(_counters(self._folder))
        _sample(counters)  # starts the counters of processor time
        self._over.wait(min(_FIRST_INTERVAL_SECONDS, self._every))
        while self._recorded(_sample(counters)) and not self._over.wait(self._every):
            pass

    def _recorded(self, values: dict[str, float]) -> bool:
        try:
            if values:
                self._record(values)
        except Exception:  # the log cannot be written: the run itself will fail with that error
            return False
        return True


Counter = tuple[str, Callable[[], float]]


def _counters(folder: Path) -> Iterator[Counter]:
    """Yield the counters, each a name and a function that reads it and may raise."""
    process = psutil.Process()
    yield "system/cpu_percent", lambda: psutil.cpu_percent(None)  # of all cores together
    yield "system/process_cpu_percent", lambda: process.cpu_percent(None)  # of one core, so it may pass 100
    yield "system/memory_percent", lambda: psutil.virtual_memory().percent
    yield "system/process_memory_gib", lambda: process.memory_info().rss / GIB
    yield "system/disk_free_gib", lambda: psutil.disk_usage(str(_existing(folder))).free / GIB
    yield "system/device_memory_gib", _device_memory_gib
    yield "system/device_utilization_percent", _device_utilization_percent


def _sample(counters: list[Counter]) -> dict[str, float]:
    values = {}
    for name, read in counters:
        try:
            values[name] = float(read())
        except Exception:  # noqa: S112  a driver or container may lack one counter; the others go on
            continue
    return values


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


class _NotInUse(Exception):
    """Raised if this process uses no CUDA device."""


def _devices() -> tuple[ModuleType, list[int]]:
    """Return torch and the CUDA devices on which this process has memory; querying others would allocate there."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        raise _NotInUse
    used = [device for device in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(device)]
    if not used:
        raise _NotInUse
    return torch, used


def _device_memory_gib() -> float:
    """Return the memory in use on this process's devices, by all processes, in GiB."""
    torch, used = _devices()
    free_and_total = [torch.cuda.mem_get_info(device) for device in used]
    return float(sum(total - free for free, total in free_and_total)) / GIB


def _device_utilization_percent() -> float:
    """Return the utilization of this process's devices in percent, averaged over them."""
    torch, used = _devices()
    return float(sum(torch.cuda.utilization(device) for device in used)) / len(used)
