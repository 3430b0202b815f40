"""The images of a study, one function each: frame of trials [n] -> figure, or None where there is nothing to show.

Every kind of trial has a marker of its own, so a grey print is as good as a coloured one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from harness.sweep.plots.panels import (
    COLOURS,
    Floats,
    axis_name,
    legend_below,
    limits_of,
    new_figure,
    title_of,
    values_of,
    whole_numbers,
)
from harness.sweep.results import pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 6.4


def draw_history(frame: pd.DataFrame, facts: Mapping[str, Any]) -> "Figure":
    """Value of every trial in order, and the best so far; one panel per objective."""
    objectives = list(facts["objectives"])
    figure = new_figure(_WIDTH, 2.9 * len(objectives) + 0.3)
    panels = figure.subplots(len(objectives), 1, squeeze=False, sharex=True)[:, 0]
    numbers = frame["number"].to_numpy(np.float64)
    for panel, metric in zip(panels, objectives, strict=True):
        values, ended = values_of(frame, metric), _last_values(frame, metric, objectives)
        low, high = limits_of(values, ended)
        _points(panel, numbers, values, low, marker="o", color=COLOURS["blue"], label="complete")
        _points(panel, numbers, ended, low, marker="s", facecolors="white", color=COLOURS["grey"], label="pruned")
        under = np.fmin(values, ended) < low
        panel.scatter(
            numbers[under],
            np.full(under.sum(), low),
            s=30,
            marker="v",
            color=COLOURS["grey"],
            clip_on=False,
            zorder=3,
            label="below the axis" if under.any() else None,
        )
        failed = (frame["state"] == "FAIL").to_numpy()
        edge = panel.get_xaxis_transform()
        panel.scatter(
            numbers[failed],
            np.full(failed.sum(), 0.02),
            s=30,
            marker="x",
            color=COLOURS["black"],
            transform=edge,
            label="failed" if failed.any() else None,
            clip_on=False,
        )
        _running_best(panel, numbers, values)
        panel.set_ylim(low, high)
        panel.set_ylabel(axis_name(metric))
    panels[-1].set_xlabel("trial")
    whole_numbers(panels[-1])
    panels[-1].set_xlim(numbers.min() - 0.8, numbers.max() + 0.8)
    panels[0].set_title(title_of("Value of every trial", facts), loc="left")
    legend_below(figure, panels[0])
    return figure


def _running_best(panel: "Axes", numbers: Floats, values: Floats) -> None:
    if not np.isfinite(values).any():
        panel.text(0.5, 0.5, "no trial is complete", transform=panel.transAxes, ha="center", color=COLOURS["grey"])
        return
    best = np.fmax.accumulate(values)
    top = int(np.nanargmax(values))
    panel.step(numbers, best, where="post", color=COLOURS["orange"], linewidth=1.4, zorder=1.5, label="best so far")
    panel.scatter(
        numbers[top],
        values[top],
        s=110,
        marker="*",
        color=COLOURS["orange"],
        edgecolors="white",
        linewidths=0.6,
        zorder=4,
    )
    across = (numbers[top] - numbers[0]) / max(numbers[-1] - numbers[0], 1)
    side = "left" if across < 0.2 else "right" if across > 0.8 else "center"
    panel.annotate(
        f"trial {numbers[top]:.0f}: {values[top]:.2f}",
        (numbers[top], values[top]),
        (0, 7),
        fontsize=8,
        textcoords="offset points",
        ha=side,
        color=COLOURS["orange"],
    )


def draw_importance(facts: Mapping[str, Any]) -> "Figure | None":
    """Share of every range in what decides about the first objective."""
    shares = {name: float(share) for name, share in (facts.get("importance") or {}).items() if np.isfinite(share)}
    if not shares:
        return None
    names = sorted(shares, key=lambda name: (shares[name], name))
    metric = facts["objectives"][0]
    figure = new_figure(_WIDTH, 0.34 * len(names) + 1.25)
    panel = figure.subplots()
    panel.barh(names, [shares[name] for name in names], color=COLOURS["blue"], height=0.62)
    for row, name in enumerate(names):
        panel.annotate(
            f"{shares[name]:.2f}", (shares[name], row), (3, 0), textcoords="offset points", va="center", fontsize=8
        )
    panel.set_xlim(0, max(max(shares.values()) * 1.12, 0.05))
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.grid(False, axis="y")
    panel.tick_params(axis="y", length=0, labelsize=9, labelcolor=COLOURS["black"])
    panel.set_xlabel(f"importance for validation {metric}, shares of 1")
    panel.set_title(title_of("Importance of each range", facts), loc="left")
    return figure


def draw_curves(frame: pd.DataFrame, facts: Mapping[str, Any]) -> "Figure | None":
    """First objective over the epochs of every trial; pruned ones are faint, the best stands out."""
    curves = [_curve(curve) for curve in frame["intermediate"]] if "intermediate" in frame else []
    if not any(len(epochs) for epochs, _ in curves):
        return None
    metric = facts["objectives"][0]
    values = values_of(frame, metric)
    best = int(np.nanargmax(values)) if np.isfinite(values).any() else None
    figure = new_figure(_WIDTH, 3.4)
    panel = figure.subplots()
    seen: set[str] = set()
    for row, (epochs, scores) in enumerate(curves):
        if len(epochs):
            kind = "best" if row == best else "complete" if frame["state"][row] == "COMPLETE" else "not complete"
            _draw_curve(panel, epochs, scores, kind, seen, f"best: trial {frame['number'][row]}")
    ends = np.array([scores[-1] if len(scores) else np.nan for _, scores in curves])
    starts = np.array([np.nanmin(scores) if np.isfinite(scores).any() else np.nan for _, scores in curves])
    _, high = limits_of(ends, np.array([np.nanmax(s) if np.isfinite(s).any() else np.nan for _, s in curves]))
    low, _ = limits_of(starts, ends)
    panel.set_ylim(low, high)
    whole_numbers(panel)
    panel.set_xlabel("epoch")
    panel.set_ylabel(axis_name(metric))
    panel.set_title(title_of("Learning curves of the trials", facts), loc="left")
    legend_below(figure, panel)
    return figure


def _draw_curve(panel: "Axes", epochs: Floats, scores: Floats, kind: str, seen: set[str], best_name: str) -> None:
    looks: dict[str, dict[str, Any]] = {
        "best": {"color": COLOURS["orange"], "linewidth": 2.0, "zorder": 4, "label": best_name},
        "complete": {"color": COLOURS["blue"], "linewidth": 0.9, "alpha": 0.55, "zorder": 3, "label": "complete"},
        "not complete": {
            "color": COLOURS["grey"],
            "linewidth": 0.8,
            "alpha": 0.5,
            "linestyle": (0, (4, 2)),
            "zorder": 2,
            "label": "pruned or failed",
        },
    }
    look = looks[kind]
    label = None if kind in seen else look.pop("label")
    look.pop("label", None)
    seen.add(kind)
    panel.plot(epochs, scores, label=label, **look)
    end = {"best": "*", "complete": "o", "not complete": "s"}[kind]
    size = 9 if kind == "best" else 3
    panel.plot(
        epochs[-1:],
        scores[-1:],
        marker=end,
        markersize=size,
        color=look["color"],
        zorder=look["zorder"] + 1,
        markerfacecolor="white" if kind == "not complete" else look["color"],
        markeredgecolor="white" if kind == "best" else look["color"],
        markeredgewidth=0.6,
    )


def _curve(curve: Any) -> tuple[Floats, Floats]:
    """Epochs and values, in order of the epochs."""
    pairs = sorted(curve.items() if isinstance(curve, Mapping) else curve if isinstance(curve, list) else [])
    table = np.array([(float(epoch), float(value)) for epoch, value in pairs], dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def draw_front(frame: pd.DataFrame, facts: Mapping[str, Any]) -> "Figure | None":
    """Two objectives against each other: all trials, and those that no other one beats, joined and numbered."""
    objectives = list(facts["objectives"])
    if len(objectives) != 2:
        return None
    points = np.stack([values_of(frame, metric) for metric in objectives], axis=1)
    first, second = points.T
    front = pareto_front(points)
    if not front.any():
        return None
    figure = new_figure(4.8, 4.2)
    panel = figure.subplots()
    others = np.isfinite(points).all(1) & ~front
    (left, right), (low, high) = (limits_of(column, np.full(len(column), np.nan)) for column in points.T)
    beyond = others & (points < [left, low]).any(1)
    panel.scatter(
        first[others & ~beyond],
        second[others & ~beyond],
        s=24,
        color=COLOURS["blue"],
        alpha=0.65,
        linewidths=0,
        label="beaten by another trial" if others.any() else None,
    )
    panel.scatter(
        np.fmax(first[beyond], left),
        np.fmax(second[beyond], low),
        s=24,
        facecolors="white",
        edgecolors=COLOURS["grey"],
        clip_on=False,
        label="beyond the axes" if beyond.any() else None,
    )
    order = np.flatnonzero(front)[np.lexsort((-points[front, 1], points[front, 0]))]
    panel.step(first[order], second[order], where="pre", color=COLOURS["orange"], linewidth=1.2, zorder=2)
    panel.scatter(
        first[order],
        second[order],
        s=44,
        marker="D",
        color=COLOURS["orange"],
        edgecolors="white",
        linewidths=0.6,
        zorder=3,
        label="Pareto front (trial)",
    )
    for row in order:
        panel.annotate(
            str(frame["number"][row]), (first[row], second[row]), (5, 5), textcoords="offset points", fontsize=8
        )
    panel.set_xlim(left, right)
    panel.set_ylim(low, high)
    panel.set_xlabel(axis_name(objectives[0]))
    panel.set_ylabel(axis_name(objectives[1]))
    panel.set_title(title_of("Trials and Pareto front", facts), loc="left")
    legend_below(figure, panel)
    return figure


def _points(panel: "Axes", numbers: Floats, values: Floats, low: float, label: str, **look: Any) -> None:
    """A cloud of points, without those below the axis."""
    shown = values >= low
    if shown.any():
        panel.scatter(numbers[shown], values[shown], s=24, label=label, zorder=3, linewidths=0.9, **look)


def _last_values(frame: pd.DataFrame, metric: str, objectives: list[str]) -> Floats:
    """What pruned trials reached [n], NaN for others; known of the first objective alone."""
    values = np.full(len(frame), np.nan)
    if metric == objectives[0] and "intermediate" in frame:
        for row in np.flatnonzero((frame["state"] == "PRUNED").to_numpy()):
            _, scores = _curve(frame["intermediate"][row])
            values[row] = scores[-1] if len(scores) and np.isfinite(scores[-1]) else np.nan
    return values
