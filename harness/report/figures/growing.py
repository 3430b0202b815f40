"""How cost grows with the number of labels L, as measured: time of a step, and peak memory beside table and moments.

A row with `at = {"method", "labels", "quantity": "step" or "memory"}` is a point of a curve. Growth is the exponent p
of y ~ L^p: 0 for a cost that does not depend on the number of labels, 1 for one proportional to it.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.perf import Row
from harness.perf.saved import Speed
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.labels import label_points
from harness.report.figures.style import GREY, finished, looks, new_figure, shown, styled
from harness.report.units import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

SUITE = "scaling"
_COMMAND = f"python -m harness perf {SUITE} --write"


@dataclass(frozen=True)
class Curve:
    """What was measured of one method, by ascending number of labels."""

    method: str
    rows: tuple[Row, ...]

    @property
    def labels(self) -> Floats:
        """[n]."""
        return np.array([float(row.at["labels"]) for row in self.rows])

    @property
    def ours(self) -> Floats:
        """Median, smallest and largest measurement, [n, 3]."""
        return np.array([[row.ours.median, row.ours.low, row.ours.high] for row in self.rows])

    @property
    def theirs(self) -> Floats:
        """Median of the reference, [n]; NaN where there is none."""
        return np.array([np.nan if row.theirs is None else row.theirs.median for row in self.rows])


def curves(rows: list[Row], kind: str) -> list[Curve]:
    """The curves of a quantity, `step` or `memory`, by method.

    Rows of other suites may lie on curves of their own: their batches are others. Of equal sizes the last row counts.
    """
    unit = {"step": "s", "memory": "B"}[kind]
    found: dict[str, dict[float, Row]] = {}
    for row in rows:
        method, labels = row.at.get("method"), row.at.get("labels")
        if row.suite != SUITE or row.at.get("quantity") != kind or row.ours.unit != unit:
            continue
        if isinstance(method, str) and isinstance(labels, int | float) and labels >= 1 and row.ours.low > 0:
            found.setdefault(method, {})[float(labels)] = row
    return [Curve(name, tuple(points[at] for at in sorted(points))) for name, points in sorted(found.items())]


@styled
def draw_step(speed: Speed) -> Drawing | Missing:
    """Step time over the number of labels, both logarithmic, with what would be flat and what would be proportional."""
    title, found = "Time of a step over the number of labels", curves(speed.rows, "step")
    if not any(len(curve.rows) > 1 for curve in found):
        return Missing("step", title, "the times of a step at several numbers of labels are not measured", _COMMAND)
    figure, axes = new_figure(height=3.9)
    axis = axes[0, 0]
    _prepare(axis, found, "s", "time of a step")
    lines = [_line(axis, curve) for curve in found]
    _name(axis, found, lines, _guides(axis, found))
    caption = (
        "Medians of the time of one training step over the number of labels, bars from the smallest "
        "to the largest measurement. The dashed grey line is a time that does not depend on the number of labels, the "
        f"dotted one a time proportional to it. {_growth(found)}"
    )
    return Drawing("step", title, caption, _told("time of a step", found), *finished(figure))


@styled
def draw_peak(speed: Speed) -> Drawing | Missing:
    """Peak memory over the number of labels beside what table and moments take."""
    title, found = "Peak memory over the number of labels", curves(speed.rows, "memory")
    if not any(len(curve.rows) > 1 for curve in found):
        return Missing("memory", title, "peak memory at several numbers of labels is not measured", _COMMAND)
    figure, axes = new_figure(height=3.9)
    axis = axes[0, 0]
    _prepare(axis, found, "B", "peak memory")
    lines = [_line(axis, curve) for curve in found]
    under: dict[str, Floats] = {}
    for curve in sorted(found, key=lambda curve: float(np.nan_to_num(curve.theirs[0]))):
        known = np.isfinite(curve.theirs) & (curve.theirs > 0)
        below = np.column_stack([curve.labels[known], curve.theirs[known]])
        if len(below):
            colour = looks([curve.method])[curve.method].colour
            axis.plot(*below.T, color=colour, linestyle=":", marker="_", linewidth=1.3, zorder=2)
            # one of them is named, the lowest, at the left, where there is room
            under = under or {"parameters + moments": below[::-1]}
            lines.append(below)
    _name(axis, found, lines, under)
    caption = (
        "Peak memory of the process over the number of labels. The dotted line of the same colour is what parameters "
        "take, the table among them, with the moments of their optimiser."
    )
    return Drawing("memory", title, caption, _told("peak memory", found), *finished(figure))


def _prepare(axis: "Axes", found: list[Curve], unit: str, name: str) -> None:
    """Logarithmic axes in units that people read, with room for names at the right."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("labels (logarithmic)")
    axis.set_ylabel(f"{name} (logarithmic)")
    axis.minorticks_off()
    places = sorted({float(at) for curve in found for at in curve.labels})
    marked = [place for at, place in enumerate(places) if at == 0 or place > 1.7 * places[at - 1]]
    axis.set_xticks(marked, [_count(place) for place in marked])
    every = np.concatenate([np.concatenate([curve.ours.ravel(), curve.theirs]) for curve in found])
    known = every[np.isfinite(every) & (every > 0)]
    low, high = known.min() / 1.8, known.max() * 1.8
    axis.set_ylim(low, high)
    axis.set_xlim(places[0] / 1.25, places[-1] * (places[-1] / places[0]) ** 0.28 * 1.25)
    heights = _ticks(low, high, unit)
    axis.set_yticks(heights, [_tick(height, unit) for height in heights])


def _ticks(low: float, high: float, unit: str) -> list[float]:
    """Round numbers between two bounds, few enough to be read: powers of two of bytes, else 1, 2 and 5 times powers."""
    if unit == "B":
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        return [2.0**power for power in powers if power % (1 + len(powers) // 7) == 0]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = range(first, last + 1, 1 + (last - first) // 8)
    steps = (1.0, 2.0, 5.0) if len(decades) <= 4 else (1.0,)
    return [step * 10.0**power for power in decades for step in steps if low <= step * 10.0**power <= high]


def _tick(value: float, unit: str) -> str:
    figure, name = quantity(value, unit).rsplit(" ", 1)
    return f"{float(figure.replace(',', '')):,g} {name}"


def _count(labels: float) -> str:
    """A number of labels: 13K, 131K, 1.3M."""
    if labels >= 1e6:
        return f"{labels / 1e6:.3g}M"
    return f"{labels / 1e3:.3g}K" if labels >= 1e3 else f"{labels:g}"


def _line(axis: "Axes", curve: Curve) -> Floats:
    look = looks([curve.method])[curve.method]
    middle, low, high = curve.ours.T
    axis.errorbar(
        curve.labels,
        middle,
        yerr=np.array([middle - low, high - middle]),
        color=look.colour,
        marker=look.marker,
        linestyle=look.linestyle,
        elinewidth=1.1,
        capsize=2.5,
        zorder=4,
    )
    return np.column_stack([curve.labels, middle])


def _guides(axis: "Axes", found: list[Curve]) -> dict[str, Floats]:
    """A flat line and one proportional to the labels, from below the lowest first point of a curve on."""
    start = min(found, key=lambda curve: float(curve.ours[0, 0]))
    top = axis.get_ylim()[1]
    first, height = float(start.labels[0]), float(start.ours[0, 0]) / 1.35
    last = max(float(curve.labels[-1]) for curve in found)
    end = min(last, first * top / 1.1 / height)
    flat = np.array([[first, height], [last, height]])
    steep = np.array([[first, height], [end, height * end / first]])
    for line, style in ((flat, "--"), (steep, ":")):
        axis.plot(*line.T, color=GREY, linestyle=style, linewidth=1.2, zorder=1)
    return {"flat": flat, "proportional": steep}


def _name(axis: "Axes", found: list[Curve], lines: list[Floats], others: dict[str, Floats]) -> None:
    """The name of each curve beside its last point; `others` are lines with names of their own."""
    ends = [(curve.labels[-1], curve.ours[-1, 0]) for curve in found] + [tuple(line[-1]) for line in others.values()]
    x, y = np.array(ends, np.float64).T
    names = [*(shown(curve.method) for curve in found), *others]
    label_points(axis, x, y, names, [*lines, *others.values()])


def growth(curve: Curve) -> float | None:
    """The exponent p of y ~ L^p, by least squares of the logarithms; None for fewer than two points."""
    if len(curve.rows) < 2:
        return None
    power = float(np.polyfit(np.log(curve.labels), np.log(curve.ours[:, 0]), 1)[0])
    return round(power, 4) + 0.0  # no -0.00


def _growth(found: list[Curve]) -> str:
    parts = [f"{shown(curve.method)} {power:.2f}" for curve in found if (power := growth(curve)) is not None]
    return f"Fitted exponents of the number of labels: {', '.join(parts)}."


def _told(what: str, found: list[Curve]) -> str:
    parts = []
    for curve in found:
        points = (
            f"{quantity(row.ours.median, row.ours.unit)} at {_count(float(row.at['labels']))}" for row in curve.rows
        )
        parts.append(f"{curve.method} {', '.join(points)}")
    return f"Lines of the {what} of {len(found)} methods over the number of labels: {'; '.join(parts)}."
