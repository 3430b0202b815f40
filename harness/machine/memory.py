"""How much memory this process has used, and how much it can have.

Limits are read from files, never found out by allocating: on a machine that overcommits, memory that was granted can
still end the process that writes to it.
"""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 2**30
_NO_LIMIT = 2**60
"""Larger values mean no limit: a version 1 control group without one says a number near 2^63."""


def peak_memory_gib() -> float:
    """Return the largest resident set of this process so far, in GiB."""
    try:  # on Linux getrusage includes the peak of the process that started this one
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) / 2**20
    except (OSError, KeyError, ValueError):
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, kibibytes on Linux


def device_memory() -> dict[str, float]:
    """Return the peak memory of torch on the CUDA device, in GiB; empty if CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {"peak_device_memory_gib": torch.cuda.max_memory_allocated() / 2**30}


@dataclass(frozen=True)
class HostMemory:
    """Memory that a process can have on this machine."""

    total: int
    """Bytes, the smaller of the installed memory and the limit of the process's control group."""
    available: int
    """Bytes that can be allocated now without swapping."""
    limited_by: str
    """Source of `total`: the installed memory, or the limit file of a control group."""


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return the memory of this machine, or of this process's control group if its limit is lower.

    Args:
        root: Folder that holds `proc` and `sys`.
    """
    installed = psutil.virtual_memory()
    best = HostMemory(installed.total, installed.available, "the installed memory")
    for limit_file, usage_file, stat_file in _group_files(root):
        limit, used = _number(limit_file), _number(usage_file)
        if limit is None or limit >= _NO_LIMIT or limit > best.total:
            continue
        reclaimable = _statistic(stat_file, "inactive_file") or 0
        free = max(0, limit - (used or 0) + reclaimable)
        best = HostMemory(limit, min(best.available, free), f"/{limit_file.relative_to(root)}")
    return best


def free_memory() -> int:
    """Return the bytes that this process can allocate without swapping, within its control group's limit."""
    return host_memory().available


def _group_files(root: Path) -> list[tuple[Path, Path, Path]]:
    """Return the (limit, usage, statistics) files of the process's control group and its parents, versions 1 and 2."""
    files = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # inside a container the group's own path is often not visible, and its root is the container's group
        place = base / group.lstrip("/")
        for folder in [place, *place.parents]:
            if folder == base or base in folder.parents:
                files.append((folder / names[0], folder / names[1], folder / "memory.stat"))
    return files


def _statistic(path: Path, name: str) -> int | None:
    found = [line.split()[1] for line in _lines(path) if line.startswith(f"{name} ")]
    return int(found[0]) if found and found[0].isdigit() else None


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


# A training step allocates and frees the same arrays of some megabytes again and again. glibc returns such memory to
# the system at once and asks for it anew, and the system clears every page: a tenth to a fifth of a step on a CPU.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 32 << 20
"""Bytes; larger blocks are still mapped one by one and returned when freed. It is the most that glibc allows."""
_KEPT = 256 << 20
"""Bytes of free memory that may stay at the end of the heap."""


def keep_freed_memory() -> bool:
    """Let this process keep up to 256 MiB of freed memory for its next arrays; return whether the C library agreed.

    Only glibc is asked; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))
