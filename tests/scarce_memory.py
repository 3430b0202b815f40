"""Memory that really runs out: a limit on what a process may map, for tests that fork one."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 2**20


@contextmanager
def memory_cap(more: int) -> Iterator[None]:
    """Lets this process have so many bytes more than it has now; whatever asks for more is refused by the system."""
    kept = _given_back()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        del kept


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _given_back() -> list[bytes]:
    """What earlier work has given back and the allocator holds: it could be had again without asking the system."""
    taken, mapped = [], _mapped()
    for size in (16 * MIB, MIB):
        while _mapped() == mapped:
            taken.append(bytes(size))
        taken.pop()
        mapped = _mapped()
    return taken


def hoard() -> list[bytes]:
    """All memory that a capped process can still get, down to the last kibibyte."""
    taken = []
    for size in (MIB, MIB // 16, 1024):
        try:
            while True:
                taken.append(bytes(size))
        except MemoryError:
            continue
    return taken
