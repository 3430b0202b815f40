"""Measured figures as people read them: base units of `harness.perf` -> 37.0 ms, 1.25 GiB, 98.4 GFLOP/s, 65 MB/s, 12 %.

Three digits count. A median, its smallest and its largest measurement stand in one unit, the one that suits the median.
"""

import math
from collections.abc import Sequence

from harness.perf import Sample

_Steps = Sequence[tuple[float, str]]
_SECONDS: _Steps = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_BYTES: _Steps = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))
_PREFIXES = {3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E", 21: "Z"}


def _decimal(unit: str, *powers: int) -> _Steps:
    return tuple((10.0**power, f"{_PREFIXES[power]}{unit}") for power in powers)


_SCALES: dict[str, _Steps] = {
    "s": _SECONDS,
    "B": _BYTES,
    "B/s": _decimal("B/s", 3, 6, 9),
    "FLOP/s": _decimal("FLOP/s", 6, 9, 12),
    "FLOP": _decimal("FLOP", 9, 12, 15, 18, 21),
    "%": ((0.01, "%"),),
}
"""Steps of each unit, smallest first, each from its own size on."""
_LONG = {"min": 2.0, "h": 2.0, "days": 2.0}
"""From how many of them on long durations are counted in them."""


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """What a value is divided by to be read, and the unit it is then in."""
    if unit not in _SCALES:
        return 1.0, unit
    steps = _SCALES[unit]
    fitting = [(size, name) for size, name in steps if abs(value) >= size * _LONG.get(name, 1.0)]
    return fitting[-1] if fitting else steps[0]


def number(value: float) -> str:
    """Three digits, whole numbers with all of theirs: 0.0123, 1.00, 37.0, 209, 12,345; beyond reading 1.23e+18."""
    if value == 0 or not 1e-9 <= abs(value) < 1e15:
        return f"{value:.3g}"
    before_point = math.floor(math.log10(abs(float(f"{value:.2e}")))) + 1
    return f"{value:,.{max(0, 3 - before_point)}f}"


def quantity(value: float, unit: str) -> str:
    """One value with its unit."""
    size, name = scale_of(value, unit)
    return f"{number(value / size)} {name}".rstrip()


def spread(sample: Sample) -> str:
    """The median with its unit and, where measurements differ, the smallest and the largest in brackets."""
    size, name = scale_of(sample.median, sample.unit)
    middle, low, high = (number(value / size) for value in (sample.median, sample.low, sample.high))
    around = "" if low == high else f" ({low} to {high})"
    return f"{middle} {name}".rstrip() + around


def times(sample: Sample) -> str:
    """A ratio, like `2.55x (2.31 to 2.80)`."""
    middle, low, high = number(sample.median), number(sample.low), number(sample.high)
    return f"{middle}x" + ("" if low == high else f" ({low} to {high})")


def wanted(way: str, value: float, unit: str | None) -> str:
    """A target in words: `at least 20x`, or of a figure in its own unit `at most 8 s`; no more digits than it has."""
    if unit is None:
        return f"{way} {value:,g}x"
    size, name = scale_of(value, unit)
    return f"{way} {value / size:,.4g} {name}".rstrip()
