"""Methods as points in a plane: one metric against another, against training time, against memory; with the frontier.

A method is on the frontier when no other is at least as good in both directions and better in one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.record import RunRecord
from harness.report.evidence import Evidence, machine_of
from harness.report.figures.chosen import Group, bench_command, comparable, counted, grouped_defaults, remarks, titles
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.labels import label_points
from harness.report.figures.style import GREY, Look, finished, looks, new_figure, styled
from harness.report.grids.quantities import peak_memory
from harness.sweep.results import pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

_HEIGHT = 4.2
_WIDE = 8.0
"""Ratio of the largest to the smallest cost from which on an axis is logarithmic."""
_EDGE, SPREAD = "edge-of-nothing", "spread"
"""Ids of lines in the figure."""


@dataclass(frozen=True)
class _Plane:
    """What is drawn against what."""

    id: str
    title: str
    x_name: str
    y_name: str
    x: Callable[[Group], Floats]
    y: Callable[[Group], Floats]
    costs: bool
    """Whether x is a cost, of which less is better and which depends on the machine."""


@dataclass(frozen=True)
class _Point:
    """A method in the plane: means over its seeds, and their spread, 0 for a single run."""

    name: str
    look: Look
    at: tuple[float, float]
    spread: tuple[float, float]


def frontier(x: Sequence[float] | Floats, y: Sequence[float] | Floats, lower_x: bool) -> NDArray[np.bool_]:
    """Which of n points no other one beats, [n]; more y is better, and less x if `lower_x`, else more x."""
    across = np.asarray(x, np.float64)
    return pareto_front(np.column_stack([-across if lower_x else across, np.asarray(y, np.float64)]))


def draw_tradeoff(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """PSP@1 against P@1: what a method pays on frequent labels for what it gains on rare ones."""
    plane = _Plane(
        "tradeoff",
        "Precision against propensity-scored precision",
        "P@1, %",
        "PSP@1, %",
        lambda group: group.values("P@1"),
        lambda group: group.values("PSP@1"),
        costs=False,
    )
    return _draw(plane, evidence, dataset)


def draw_time(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """P@1 against the seconds of the training."""
    return _draw(
        _cost_plane("cost-time", "Precision against training time", "training, seconds", training_seconds),
        evidence,
        dataset,
    )


def draw_memory(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """P@1 against the largest memory of the run."""
    return _draw(
        _cost_plane("cost-memory", "Precision against memory", "peak memory, GiB", peak_memory), evidence, dataset
    )


def training_seconds(record: RunRecord) -> float | None:
    """Seconds of the training; 0 for a method that trains nothing."""
    seconds = record.training.get("seconds", None if record.training else 0.0)
    return None if seconds is None else float(seconds)


def _cost_plane(name: str, title: str, unit: str, cost: Callable[[RunRecord], float | None]) -> _Plane:
    def costs(group: Group) -> Floats:
        known = [value for record in group.records.values() if (value := cost(record)) is not None]
        return np.array(known, np.float64)

    return _Plane(name, title, unit, "P@1, %", costs, lambda group: group.values("P@1"), costs=True)


@styled
def _draw(plane: _Plane, evidence: Evidence, dataset: str) -> Drawing | Missing:
    found = comparable(evidence, dataset)
    groups = [
        group for group in grouped_defaults(found.records, dataset) if plane.x(group).size and plane.y(group).size
    ]
    if not groups:
        wanted = f"{plane.x_name.split(',')[0]} and {plane.y_name.split(',')[0]}"
        why = f"no finished test run at default settings on {dataset} has {wanted}"
        if found.records and plane.id == "tradeoff":
            why += "; PSP needs the propensity constants of the dataset's card"
        return Missing(plane.id, plane.title, why, bench_command(dataset))
    styles = looks(group.method for group in groups)
    points = [
        _Point(name, styles[group.method], *zip(_summary(plane.x(group)), _summary(plane.y(group)), strict=True))
        for name, group in zip(titles(groups), groups, strict=True)
    ]
    at = np.array([point.at for point in points])
    best = frontier(at[:, 0], at[:, 1], lower_x=plane.costs)
    figure, axes = new_figure(height=_HEIGHT)
    _fill(axes[0, 0], plane, points, best)
    on_front = ", ".join(point.name for point, good in _by_x(points, best) if good)
    better = "left and up" if plane.costs else "right and up"
    caption = (
        f"{plane.y_name.split(',')[0]} against {plane.x_name.replace(',', ' in')}; {better} is better. "
        "The line and the filled points are the frontier, the methods that no other one beats in both directions: "
        f"{on_front}. {remarks(found, groups)}"
    )
    if plane.costs:
        caption += f" {_machines(groups)}"
    told = "; ".join(f"{point.name} {point.at[0]:.3g}, {point.at[1]:.1f}" for point, _ in _by_x(points, best))
    alt = (
        f"Scatter plot of {counted(len(points), 'method')} on {dataset}: {plane.x_name.split(',')[0]} and "
        f"{plane.y_name.split(',')[0]} of each. {told}."
    )
    return Drawing(plane.id, plane.title, caption, alt, *finished(figure))


def _summary(values: Floats) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0


def _by_x(points: list[_Point], best: NDArray[np.bool_]) -> list[tuple[_Point, bool]]:
    return sorted(zip(points, best.tolist(), strict=True), key=lambda pair: (pair[0].at, pair[0].name))


def _fill(axis: "Axes", plane: _Plane, points: list[_Point], best: NDArray[np.bool_]) -> None:
    """Everything inside the axes."""
    at = np.array([point.at for point in points])
    x, y = at[:, 0], at[:, 1]
    axis.set_xlabel(plane.x_name)
    axis.set_ylabel(plane.y_name)
    x = _scaled(axis, x) if plane.costs else x
    bars = []
    for point, across, good in zip(points, x, best, strict=True):
        axis.plot(
            across,
            point.at[1],
            linestyle="none",
            marker=point.look.marker,
            color=point.look.colour,
            markerfacecolor=point.look.colour if good else "white",
            markeredgewidth=1.4,
            zorder=4,
        )
        for bar in _bars(point, float(across)):
            bars.append(bar)
            axis.plot(*bar.T, color=point.look.colour, linewidth=1.1, zorder=3, gid=SPREAD)
    axis.margins(x=0.11, y=0.1)
    axis.autoscale_view()
    line = _staircase(axis, x[best], y[best], plane.costs)
    axis.plot(*line.T, color=GREY, linewidth=1.2, linestyle="--", zorder=2, scalex=False, scaley=False)
    uprights = [np.asarray(other.get_xydata(), np.float64) for other in axis.lines if other.get_gid() == _EDGE]
    edges = [np.column_stack([edge[:, 0], axis.get_ylim()]) for edge in uprights]
    label_points(axis, x, y, [point.name for point in points], [line, *edges, *bars])


def _bars(point: _Point, x: float) -> list[Floats]:
    """One standard deviation to either side, as lines [2, 2]; on a logarithmic axis none reaches nothing."""
    (across, up), y = point.spread, point.at[1]
    sideways = [np.array([[max(x - across, 0.1 * x), y], [x + across, y]])] if across else []
    return sideways + ([np.array([[x, y - up], [x, y + up]])] if up else [])


def _staircase(axis: "Axes", x: Floats, y: Floats, costs: bool) -> Floats:
    """The edge of what the points on the frontier reach, out to the sides of the axes, [k, 2]."""
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    (left, right), (bottom, _) = axis.get_xlim(), axis.get_ylim()
    if costs:
        # from a point to the right as far as nothing is better, then up to the next
        return np.column_stack([np.append(np.repeat(x, 2), right), np.append(bottom, np.repeat(y, 2))])
    return np.column_stack([np.append(left, np.repeat(x, 2)), np.append(np.repeat(y, 2), bottom)])


def _scaled(axis: "Axes", costs: Floats) -> Floats:
    """Puts costs on the x axis, logarithmic where they are far apart; returns where each is drawn.

    Nothing has no place on a logarithmic axis: what costs nothing stands left of a line, above the word "none".
    """
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    paid = costs[costs > 0]
    if not paid.size or paid.max() / paid.min() < _WIDE:
        return costs
    axis.set_xscale("log")
    axis.set_xlabel(f"{axis.get_xlabel()} (logarithmic)")
    decades = np.log10(paid.max() / paid.min())
    ticks = [
        float(tick)
        for tick in LogLocator(subs=(1.0,) if decades > 2.5 else (1.0, 2.0, 5.0)).tick_values(paid.min(), paid.max())
        if paid.min() / 1.5 <= tick <= paid.max() * 1.5
    ]
    free = paid.min() / 10 ** (0.2 * decades)
    if (costs == 0).any():
        edge = np.sqrt(free * paid.min())
        axis.axvline(edge, color=GREY, linewidth=0.9, linestyle=":", gid=_EDGE)
        ticks = [free, *(tick for tick in ticks if tick > edge)]
    axis.set_xticks(ticks, ["none" if tick == free else f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    return np.where(costs > 0, costs, free)


def _machines(groups: list[Group]) -> str:
    """What the runs were measured on, for captions of costs."""
    found = sorted({machine_of(record) for group in groups for record in group.records.values()})
    return f"Measured on {found[0]}." if len(found) == 1 else f"Measured on different machines: {'; '.join(found)}."
