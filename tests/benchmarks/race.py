"""Fixtures that measure two sides in turns and keep every measurement in pytest-benchmark's JSON."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

FULL = "HARNESS_BENCH"
"""Environment variable that `python -m tests.benchmarks` sets; without it inputs are small and nothing is timed."""
Result = TypeVar("Result")


def size(full: int, small: int) -> int:
    """How large an input is: `full` when measuring, `small` when only checking that a benchmark runs."""
    return full if os.environ.get(FULL) else small


def in_child(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a process of its own: the peak of a process's memory cannot be reset."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True)
class Race:
    """One row of the table: our code and a reference."""

    benchmark: BenchmarkFixture

    def __call__(
        self,
        what: str,
        inputs: str,
        reference: str,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        rounds: int = 5,
        warmup: int = 1,
        prepare: Callable[[], object] | None = None,
        times: float = 1.0,
    ) -> None:
        """Time both sides in turns.

        Args:
            what: What is measured.
            inputs: On how much.
            reference: What the other side is.
            ours: Our side.
            theirs: The other side.
            at_least: How many times faster we should be, theirs / ours.
            at_most: The largest share of the reference's time that we should take, ours / theirs.
            rounds: Measurements of each side.
            warmup: Rounds before them that do not count.
            prepare: Called before our side, not timed.
            times: What the reference's time is multiplied by, where it works on a part of the input.
        """
        seconds: list[float] = []

        def reference_turn() -> None:
            started = time.perf_counter()
            theirs()
            seconds.append(times * (time.perf_counter() - started))
            if prepare is not None:
                prepare()

        self.benchmark.pedantic(ours, setup=reference_turn, rounds=rounds, warmup_rounds=warmup)
        self._note(what, inputs, reference, at_least, at_most, theirs=seconds[warmup:])

    def alone(self, what: str, inputs: str, ours: Callable[[], object], *, at_most: float, rounds: int = 5) -> None:
        """Time our side against a fixed number of seconds."""
        self.benchmark.pedantic(ours, rounds=rounds, warmup_rounds=1)
        self._note(what, inputs, "fixed bound", None, at_most, theirs=None)

    def values(
        self,
        what: str,
        inputs: str,
        reference: str,
        measure: Callable[[], tuple[float, float | None]],
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Compare two numbers that are not times: bytes (unit `B`), shares (`%`, 0 to 1) or plain numbers.

        `measure` returns ours and the reference's; without the latter the target is one of our own figure.
        """
        own, other = self.benchmark.pedantic(measure, rounds=1)
        theirs = None if other is None else [other]
        self._note(what, inputs, reference, at_least, at_most, theirs=theirs, ours=[own], unit=unit)

    def _note(
        self, what: str, inputs: str, reference: str, at_least: float | None, at_most: float | None, **more: Any
    ) -> None:
        words = {"what": what, "inputs": inputs, "reference": reference}
        self.benchmark.extra_info.update(words | {"at_least": at_least, "at_most": at_most} | more)


@pytest.fixture
def race(benchmark: BenchmarkFixture) -> Race:
    """Measures ours against a reference; one row a test."""
    return Race(benchmark)
