"""What a plan is made for: this machine's CPU, its CUDA device, or a device of a given size.

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
"""float32 products of a core with AVX2 at 2.5 GHz, and its share of the memory's bandwidth."""


@dataclass(frozen=True)
class Rates:
    """How fast a device is."""

    name: str
    half: float
    """bfloat16 products, operations a second."""
    full: float
    """float32 products."""
    bandwidth: float
    """Bytes a second."""
    share: float
    """Of those peaks that a training reaches."""
    origin: str


_GPUS = {
    24: Rates("NVIDIA A10", 125e12, 31.2e12, 600e9, 0.35, "published peaks"),
    48: Rates("NVIDIA RTX A6000", 154.8e12, 38.7e12, 768e9, 0.35, "published peaks"),
    80: Rates("NVIDIA A100 80GB", 312e12, 19.5e12, 2039e9, 0.35, "published peaks"),
}
"""By GiB of memory."""


@dataclass(frozen=True)
class Target:
    """A device with its memory."""

    kind: str
    """cpu or cuda."""
    capacity: int | None
    """Bytes; None if not known."""
    usable: int | None
    """Bytes that a run can have of it."""
    rates: Rates
    source: str
    """Where the capacity is from."""

    @property
    def cuda(self) -> bool:
        """Whether it is a CUDA device."""
        return self.kind == "cuda"


def cuda_target(capacity: int, source: str = "--device-memory") -> Target:
    """A CUDA device of so many bytes, as fast as the known one of nearest size."""
    nearest = min(_GPUS, key=lambda size: abs(size * GIB - capacity))
    return Target("cuda", capacity, round(capacity * (1 - _FRAGMENTED)), _GPUS[nearest], source)


def cpu_target(root: Path = Path("/")) -> Target:
    """This machine: what its memory is limited to, and what of that is free now."""
    memory = host_memory(root)
    cores = available_cores()  # at an assumed speed: on a busy machine, the same core is fast or slow by chance
    rates = Rates(f"{cores} CPU cores", cores * _CORE_FLOPS, cores * _CORE_FLOPS, cores * _CORE_BYTES, 0.5, "assumed")
    free = f"{format_size(memory.available)} of {format_size(memory.total)} free, by {memory.limited_by}"
    return Target("cpu", memory.total, memory.available, rates, free)


def chosen_target(device: str) -> Target:
    """What `device` of a run would mean on this machine; `auto` takes a CUDA device where the driver reports one."""
    if device in ("cpu", "mps"):
        return cpu_target()
    number = int(device.partition(":")[2] or 0)
    if number < torch.cuda.device_count():
        return cuda_target(torch.cuda.get_device_properties(number).total_memory, "the driver")
    return cpu_target() if device == "auto" else cuda_target(24 * GIB, "assumed, for the driver reports none")


def parse_size(text: str) -> int:
    """Bytes of a size such as 24GB, 24 GiB or 512M; powers of 1024 in either spelling, as makers of memory count."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([mgt])(?:i?b)?\s*", text.lower())
    if not match or float(match[1]) <= 0:
        raise UserError(f"{text!r} is not a size of memory; write for example 24GB")
    return round(float(match[1]) * _UNITS[match[2]])


def format_size(size: float) -> str:
    """GiB with as many digits as matter, MiB below a tenth of one."""
    if size < GIB / 10:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
