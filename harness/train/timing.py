"""Measure how the time of an epoch is spent."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """Seconds by part (encode, pool, loss, optimiser ...); on CUDA a part is charged when its result is waited for."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._started, self._computed = time.perf_counter(), time.process_time()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to the named part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    @property
    def total(self) -> float:
        """Seconds since the timer was made."""
        return time.perf_counter() - self._started

    @property
    def processor(self) -> float:
        """Seconds of processor time of all threads since the timer was made; time of other processes is not counted."""
        return time.process_time() - self._computed

    def shares(self) -> dict[str, float]:
        """Return the share of every part in the total; time outside all parts is `rest`."""
        total = max(self.total, 1e-9)
        shares = {name: spent / total for name, spent in self.seconds.items()}
        return {**shares, "rest": max(0.0, 1 - sum(shares.values()))}
