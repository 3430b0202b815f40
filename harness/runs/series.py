"""Curves of a training for its record: figures over steps, from the event log."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

Curves = dict[str, list[float | None]]
"""`step`, and for each figure one value per step; None if a step has none."""

_KEPT = ("train/", "validation/", "lr/")
"""Prefixes of the figures that are kept; those of the machine, by the second, stay in the log."""
_LEFT_OUT = ("train/rows_per_second",)
_DIGITS = 6


def curves(events: Iterable[Mapping[str, Any]]) -> Curves:
    """Return one list per figure, all at the same steps; empty without training. Of a repeated step the last counts."""
    found: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") == "metrics":
            for name, value in event["values"].items():
                if name.startswith(_KEPT) and name not in _LEFT_OUT:
                    found.setdefault(name, {})[int(event["step"])] = float(value)
    steps = sorted({step for points in found.values() for step in points})
    if not steps:
        return {}
    kept: Curves = {"step": [float(step) for step in steps]}
    return kept | {name: [_short(found[name].get(step)) for step in steps] for name in sorted(found)}


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
