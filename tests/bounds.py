"""What something may cost at most, measured."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Cost:
    """Of a block."""

    seconds: float = 0.0
    peak_bytes: int = 0

    def __str__(self) -> str:
        return f"{1000 * self.seconds:.0f} ms and {self.peak_bytes / 1e6:.1f} MB"


@contextmanager
def bounded(seconds: float, megabytes: float) -> Iterator[Cost]:
    """Fails if the block takes longer of a processor, or has more of Python's memory at once."""
    cost = Cost()
    tracemalloc.start()
    began = time.process_time()
    try:
        yield cost
    finally:
        cost.seconds, cost.peak_bytes = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert cost.seconds < seconds, cost
    assert cost.peak_bytes < megabytes * 1e6, cost
