"""The device of a plan: this machine's CPU, its CUDA device, or a CUDA device of a given memory.

Rates of GPUs are published peaks without sparsity. A CPU core is assumed to be one of a current server.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.errors import UserError
from harness.machine.memory import GIB, host_memory
from harness.machine.threads import available_cores

_UNITS = {"m": 2**20, "g": 2**30, "t": 2**40}
_FRAGMENTED = 0.06
"""Share of a CUDA device that its allocator loses between blocks of different sizes."""
_CORE_FLOPS, _CORE_BYTES = 80e9, 8e9
"""Assumed for one CPU core: float32 operations per second (AVX2 at 2.5 GHz), and bytes per second from memory."""


@dataclass(frozen=True)
class Rates:
    """Speed of a device."""

    name: str
    half: float
    """Operations per second of bfloat16 products."""
    full: float
    """Operations per second of float32 products."""
    bandwidth: float
    """Bytes per second from and to the device's memory."""
    share: float
    """Share of these peak rates that a training reaches."""
    origin: str


_GPUS = {
    24: Rates("NVIDIA A10", 125e12, 31.2e12, 600e9, 0.35, "published peaks"),
    48: Rates("NVIDIA RTX A6000", 154.8e12, 38.7e12, 768e9, 0.35, "published peaks"),
    80: Rates("NVIDIA A100 80GB", 312e12, 19.5e12, 2039e9, 0.35, "published peaks"),
}
"""Known GPUs by memory, GiB."""


@dataclass(frozen=True)
class Target:
    """The device that a run is planned for."""

    kind: str
    """Kind of device: cpu or cuda."""
    capacity: int | None
    """Memory of the device in bytes; None if not known."""
    usable: int | None
    """Bytes of it that a run can use."""
    rates: Rates
    source: str
    """Where the capacity was read from."""

    @property
    def cuda(self) -> bool:
        """Whether it is a CUDA device."""
        return self.kind == "cuda"


def cuda_target(capacity: int, source: str = "--device-memory") -> Target:
    """Return a CUDA device with `capacity` bytes of memory, as fast as the known GPU nearest in size."""
    nearest = min(_GPUS, key=lambda size: abs(size * GIB - capacity))
    return Target("cuda", capacity, round(capacity * (1 - _FRAGMENTED)), _GPUS[nearest], source)


def cpu_target(root: Path = Path("/")) -> Target:
    """Return this machine's CPU with the limit of its memory and how much of it is free now."""
    memory = host_memory(root)
    cores = available_cores()  # at an assumed speed: measured on a busy machine, it would vary by chance
    rates = Rates(f"{cores} CPU cores", cores * _CORE_FLOPS, cores * _CORE_FLOPS, cores * _CORE_BYTES, 0.5, "assumed")
    free = f"{format_size(memory.available)} of {format_size(memory.total)} free; limit: {memory.limited_by}"
    return Target("cpu", memory.total, memory.available, rates, free)


def chosen_target(device: str) -> Target:
    """Return the device that the setting `device` selects here; `auto` is CUDA if the driver reports a device."""
    if device in ("cpu", "mps"):
        return cpu_target()
    number = int(device.partition(":")[2] or 0)
    if number < torch.cuda.device_count():
        return cuda_target(torch.cuda.get_device_properties(number).total_memory, "the driver")
    return cpu_target() if device == "auto" else cuda_target(24 * GIB, "assumed, for the driver reports none")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 24GB, 24 GiB or 512M; units are powers of 1024 in either spelling."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([mgt])(?:i?b)?\s*", text.lower())
    if not match or float(match[1]) <= 0:
        raise UserError(f"{text!r} is not a size of memory; write for example 24GB")
    return round(float(match[1]) * _UNITS[match[2]])


def format_size(size: float) -> str:
    """Return a size as text: in GiB, or in MiB below 0.1 GiB."""
    if size < GIB / 10:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
