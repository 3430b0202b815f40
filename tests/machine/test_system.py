"""Load and memory of the machine, sampled beside a run."""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from harness.machine import usage as system
from harness.machine.usage import SystemMetrics

ALWAYS = {
    "system/cpu_percent",
    "system/process_cpu_percent",
    "system/memory_percent",
    "system/process_memory_gib",
    "system/disk_free_gib",
}
DEVICE = {"system/device_memory_gib", "system/device_utilization_percent"}


@pytest.fixture
def samples() -> list[dict[str, float]]:
    return []


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "system-metrics"]


def wait_for(samples: list[dict[str, float]], count: int) -> None:
    limit = time.monotonic() + 20
    while len(samples) < count and time.monotonic() < limit:
        time.sleep(0.01)


@pytest.mark.usefixtures("no_device")
def test_figures_are_those_of_this_machine(samples: list[dict[str, float]]) -> None:
    with SystemMetrics(samples.append, Path(), every=3600):
        wait_for(samples, 1)
    (sample,) = samples
    assert sample.keys() == ALWAYS
    assert 0 <= sample["system/cpu_percent"] <= 100
    assert sample["system/process_cpu_percent"] >= 0
    assert 0 < sample["system/memory_percent"] < 100
    rss = psutil.Process().memory_info().rss / 2**30
    assert sample["system/process_memory_gib"] == pytest.approx(rss, rel=0.2)
    assert sample["system/disk_free_gib"] > 0
    assert "torch" not in sys.modules
    assert not workers()


def test_samples_go_on(samples: list[dict[str, float]]) -> None:
    with SystemMetrics(samples.append, Path(), every=0.02):
        wait_for(samples, 4)
    count = len(samples)
    assert count >= 4
    time.sleep(0.1)
    assert len(samples) == count


@pytest.mark.usefixtures("no_device")
def test_a_counter_that_fails_is_left_out_alone(
    samples: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no such counter in this container")

    monkeypatch.setattr(system.psutil, "virtual_memory", broken)
    with SystemMetrics(samples.append, Path(), every=3600):
        wait_for(samples, 1)
    assert samples[0].keys() == ALWAYS - {"system/memory_percent"}


def test_a_log_that_cannot_be_written_ends_the_thread_and_nothing_else() -> None:
    calls = []

    def full(values: dict[str, float]) -> None:
        calls.append(values)
        raise OSError("no space left on device")

    with SystemMetrics(full, Path(), every=0.01):
        limit = time.monotonic() + 20
        while workers() and time.monotonic() < limit:
            time.sleep(0.01)
        assert not workers()
    assert len(calls) == 1


class Cuda:
    """Three devices, of which this process uses the first and the last; it counts what was asked of which."""

    def __init__(self, driver: bool = True) -> None:
        self.asked: set[int] = set()
        self.driver = driver

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 3

    def memory_reserved(self, device: int) -> int:
        return 0 if device == 1 else 2**20

    def mem_get_info(self, device: int) -> tuple[int, int]:
        self.asked.add(device)
        return (6 + device) * 2**30, 16 * 2**30

    def utilization(self, device: int) -> int:
        if not self.driver:
            raise ModuleNotFoundError("pynvml")
        self.asked.add(device)
        return 40 + 10 * device


@pytest.mark.parametrize("driver", [True, False])
def test_only_devices_in_use_are_asked(
    driver: bool, samples: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(driver)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with SystemMetrics(samples.append, Path(), every=3600):
        wait_for(samples, 1)
    assert cuda.asked == {0, 2}
    assert samples[0]["system/device_memory_gib"] == (16 - 6) + (16 - 8)
    assert samples[0].get("system/device_utilization_percent") == (50 if driver else None)
    assert samples[0].keys() == ALWAYS | DEVICE if driver else ALWAYS | {"system/device_memory_gib"}
