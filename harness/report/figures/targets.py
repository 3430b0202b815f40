"""Every target of the speed suites in one picture: how many times better than wanted each figure is.

One axis holds them all: r / t for a figure r that should be at least t, t / r for one that should be at most t. Whether
a target is met can be told without colours.
"""

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from harness.perf import Row, Sample
from harness.perf.saved import Speed
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import BLUE, SMALL, VERMILION, finished, new_figure, shown, styled
from harness.report.units import number, quantity, wanted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _ROW_HEIGHT = 7.6, 0.2
"""Inches, of the picture and of one bar."""
_FARTHEST = 1e3
"""Times better or worse than its target at which a bar ends."""
_NAME = 58
"""Characters of a row's name."""


def judged(row: Row) -> Sample | None:
    """The measurements that the target is about; None without one, or where they cannot be on a logarithmic axis."""
    sample = row.ours if row.target and row.target.of == "ours" else row.ratio
    if row.target is None or sample is None or sample.low <= 0 or row.target.value <= 0:
        return None
    return sample


def advantage(row: Row) -> tuple[float, float, float]:
    """How many times better than the target the median, the worst and the best measurement are."""
    sample, target = judged(row), row.target
    assert sample is not None
    assert target is not None
    if target.way == "at least":
        return sample.median / target.value, sample.low / target.value, sample.high / target.value
    return target.value / sample.median, target.value / sample.high, target.value / sample.low


@styled
def draw_ratios(speed: Speed) -> Drawing | Missing:
    """A bar for every target, from the target to what was measured: right of it is better, hatched is missed."""
    title, rows = "Every target, and what was measured", [row for row in speed.rows if judged(row) is not None]
    if not rows:
        return Missing("ratios", title, "no suite with a target is measured", "python -m harness perf --write")
    suites = [(name, list(found)) for name, found in groupby(rows, key=lambda row: row.suite)]
    lines = len(rows) + len(suites)
    figure, axes = new_figure(width=_WIDTH, height=lines * _ROW_HEIGHT + 0.9)
    axis = axes[0, 0]
    place, names, places = 0, [], []
    for name, found in suites:
        names.append((name, True))
        places.append(place)
        for row in found:
            place += 1
            _bar(axis, place, row)
            twice = sum(other.what == row.what for other in found) > 1
            names.append((shown(f"{row.what}, {row.size}" if twice else row.what, _NAME), False))
            places.append(place)
        place += 1
    _finish(axis, names, places, rows)
    missed = [row for row in rows if row.met is False]
    caption = (
        f"{len(rows)} targets, {len(rows) - len(missed)} met and {len(missed)} missed. A bar reaches from its target, "
        "the line at 1, to the median that was measured, as times better (right) or worse (left) than wanted; whiskers "
        "go from the worst to the best measurement. Hatched bars with the word MISSED are missed targets."
    )
    told = "; ".join(f"{row.what} {_value(row)}{' (missed)' if row.met is False else ''}" for row in rows)
    return Drawing("ratios", title, caption, f"Bars of {len(rows)} targets: {told}.", *finished(figure))


def _value(row: Row) -> str:
    """The figure and its target in words."""
    sample, target = judged(row), row.target
    assert sample is not None
    assert target is not None
    own = target.of == "ours"
    figure = quantity(sample.median, sample.unit) if own else f"{number(sample.median)}x"
    return f"{figure}, {wanted(target.way, target.value, sample.unit if own else None)}"


def _bar(axis: "Axes", place: int, row: Row) -> None:
    middle, worst, best = (float(np.clip(value, 1 / _FARTHEST, _FARTHEST)) for value in advantage(row))
    met = bool(row.met)
    axis.barh(
        place,
        middle - 1,
        left=1,
        height=0.66,
        color=BLUE if met else "white",
        edgecolor="black" if met else VERMILION,
        hatch=None if met else "////",
        linewidth=0.6 if met else 1.1,
        zorder=3,
    )
    axis.plot([worst, best], [place, place], color="black", linewidth=1.0, zorder=4)
    end = max(1.0, best)
    text = axis.annotate(
        f"{'' if met else 'MISSED  '}{_value(row)}",
        (end, place),
        (4, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=SMALL,
        fontweight="normal" if met else "bold",
    )
    text.set_in_layout(False)


def _finish(axis: "Axes", names: list[tuple[str, bool]], places: list[int], rows: list[Row]) -> None:
    """Names of the bars, suites in bold, and an axis that leaves room for the figures."""
    every = np.array([advantage(row) for row in rows]).clip(1 / _FARTHEST, _FARTHEST)
    low, high = min(0.8, every.min() / 1.15), max(1.5, every.max())
    axis.set_xscale("log")
    axis.set_xlim(low, high * (high / low) ** 0.75)
    axis.set_ylim(places[-1] + 0.8, -0.8)
    axis.axvline(1, color="black", linewidth=1.2, zorder=5)
    axis.set_yticks(places, [name for name, _ in names])
    for text, (_, suite) in zip(axis.get_yticklabels(), names, strict=True):
        text.set_fontweight("bold" if suite else "normal")
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    axis.set_xlabel("times better than wanted (logarithmic)")
    steps = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
    ticks = [step * 10.0**power for power in range(-4, 4) for step in steps if low <= step * 10.0**power <= high]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
