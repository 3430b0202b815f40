"""Figures over the steps of a training, from the event log: what curves.png draws and what a record keeps."""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

Series = dict[str, tuple[list[int], list[float]]]
"""Steps and values by name."""
Curves = dict[str, list[float | None]]
"""`step`, and for every name a value at each of those steps; None where there is none."""

KEPT = ("train/", "validation/", "lr/")
"""What a record keeps; figures about the machine are by the second and stay in the log."""
_LEFT_OUT = ("train/rows_per_second",)
_DIGITS = 6


def collected(events: Iterable[Mapping[str, Any]]) -> tuple[Series, list[int]]:
    """Everything logged over steps, and the steps after which a new stage began; a step logged again counts anew."""
    found: dict[str, dict[int, float]] = {}
    epochs: dict[int, float] = {}
    for event in events:
        if event.get("event") != "metrics":
            continue
        step = int(event.get("step", 0))
        for name, value in event.get("values", {}).items():
            found.setdefault(name, {})[step] = float(value)
        if "train/epoch" in event.get("values", {}):
            epochs[step] = float(event["values"]["train/epoch"])
    series = {name: (sorted(points), [points[step] for step in sorted(points)]) for name, points in found.items()}
    steps = sorted(epochs)
    begins = [before for before, step in pairwise(steps) if epochs[step] <= epochs[before]]
    return series, begins


def curves(events: Iterable[Mapping[str, Any]]) -> Curves:
    """The course of a training for the record: one list per figure, all at the same steps; empty without training."""
    series, _ = collected(events)
    kept = {name: points for name, points in series.items() if name.startswith(KEPT) and name not in _LEFT_OUT}
    steps = sorted({step for at, _ in kept.values() for step in at})
    if not steps:
        return {}
    found: Curves = {"step": [float(step) for step in steps]}
    for name in sorted(kept):
        values = dict(zip(*kept[name], strict=True))
        found[name] = [_short(values.get(step)) for step in steps]
    return found


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
