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
"""What the first figures of processor load are taken over: they are differences, and there is no sample before."""
_PATIENCE_SECONDS = 5.0
"""How long the end of a run waits for a sample that is being recorded."""

Record = Callable[[dict[str, float]], None]


class SystemMetrics:
    """Hands samples to `record` while its block runs; at least one, and none at all with `every=0`."""

    def __init__(self, record: Record, folder: Path, every: float) -> None:
        """Prepare to sample.

        Args:
            record: Takes one sample, figures by name; called from another thread.
            folder: Whose disk is looked at; need not exist yet.
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
        except Exception:  # the log cannot be written: the run itself will find out, and say so
            return False
        return True


Counter = tuple[str, Callable[[], float]]


def _counters(folder: Path) -> Iterator[Counter]:
    """What is measured, by name; reading one may fail."""
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
        except Exception:  # noqa: S112  whatever a driver or a container lacks, the other counters count on
            continue
    return values


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.exists())


class _NotInUse(Exception):
    """This process uses no device."""


def _devices() -> tuple[ModuleType, list[int]]:
    """torch, and the devices this process holds memory of; asking any other one would take memory there."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        raise _NotInUse
    used = [device for device in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(device)]
    if not used:
        raise _NotInUse
    return torch, used


def _device_memory_gib() -> float:
    """Memory in use on the devices of this process, by whomever."""
    torch, used = _devices()
    free_and_total = [torch.cuda.mem_get_info(device) for device in used]
    return float(sum(total - free for free, total in free_and_total)) / GIB


def _device_utilization_percent() -> float:
    """Share of time in which the devices of this process were busy, on average over them."""
    torch, used = _devices()
    return float(sum(torch.cuda.utilization(device) for device in used)) / len(used)
