"""Bytes as people write and read them, and how much memory this machine gives to a process.

Limits are read from files, never found out by allocating: on a machine that overcommits, memory that was granted can
still end the process that writes to it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError

GIB = 2**30
_UNITS = {"m": 2**20, "g": 2**30, "t": 2**40}
_NO_LIMIT = 2**60
"""A version 1 group without a limit says a number near 2^63."""


def parse_size(text: str) -> int:
    """Bytes of a size such as 24GB, 24 GiB or 512M; powers of 1024 in either spelling, as makers of memory count."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([mgt])(?:i?b)?\s*", text.lower())
    if not match or float(match[1]) <= 0:
        raise UserError(f"{text!r} is not a size of memory; write for example 24GB")
    return round(float(match[1]) * _UNITS[match[2]])


def show_size(size: float) -> str:
    """GiB with as many digits as matter, MiB below a tenth of one."""
    if size < GIB / 10:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"


@dataclass(frozen=True)
class HostMemory:
    """What a process can have on this machine."""

    total: int
    """Bytes, the smaller of what is installed and what the process's group may use."""
    available: int
    """Bytes that can be had now without pushing anything out."""
    limited_by: str
    """The file the total is from."""


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """Memory of this machine or of the group this process is in; None where the system does not say.

    Args:
        root: Where `proc` and `sys` are.
    """
    installed = _meminfo(root / "proc/meminfo")
    if installed is None:
        return None
    best = HostMemory(*installed, "/proc/meminfo")
    for limit_file, usage_file, stat_file in _group_files(root):
        limit, used = _number(limit_file), _number(usage_file)
        if limit is None or limit >= _NO_LIMIT or limit > best.total:
            continue
        reclaimable = _statistic(stat_file, "inactive_file") or 0
        free = max(0, limit - (used or 0) + reclaimable)
        best = HostMemory(limit, min(best.available, free), f"/{limit_file.relative_to(root)}")
    return best


def _group_files(root: Path) -> list[tuple[Path, Path, Path]]:
    """(limit, usage, statistics) of the process's control group and of every group above it, both versions."""
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


def _meminfo(path: Path) -> tuple[int, int] | None:
    values = dict(line.split(":", 1) for line in _lines(path) if ":" in line)
    try:
        return tuple(int(values[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
    except (KeyError, ValueError, IndexError):
        return None


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
