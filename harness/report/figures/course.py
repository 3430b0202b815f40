"""How trainings went: parts of the loss, and what was in the pools, over the epochs; a pair of panels per method.

The upper panel has the loss and its parts, on a scale of its own because losses of different kinds cannot be compared.
The lower one has the labels of a pool and the positives of a query among them, on one scale for all methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.report.evidence import Evidence
from harness.report.figures.chosen import Group, bench_command, comparable, counted, grouped_defaults, remarks, titles
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    SMALL,
    VERMILION,
    finished,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

Floats = NDArray[np.float64]

_TITLE = "The course of the trainings"
_LINES: "dict[str, tuple[str, str, LineStyleType]]" = {
    "train/loss": ("loss", BLACK, "-"),
    "train/loss_d": ("loss of the dual encoder", BLUE, "--"),
    "train/loss_c": ("loss of the classifier", VERMILION, "-."),
    "train/loss_bce": ("loss of the classifier, BCE", PURPLE, ":"),
    "train/pool": ("labels in a pool", GREEN, "-"),
    "train/positives": ("positives of a query", BLACK, "--"),
}
_LOSSES = tuple(name for name in _LINES if "loss" in name)
_POOLS = ("train/pool", "train/positives")
_COLUMNS = 4
_FEW = 2
"""Points up to which a curve is marked, for want of a line."""
_WIDE = 500.0
"""Ratio of the largest to the smallest loss from which on an axis is logarithmic."""


@dataclass(frozen=True)
class _Course:
    """The curves of a group at the epochs that all its runs have."""

    epochs: Floats
    """Of all stages, counted through, [T]."""
    curves: dict[str, Floats]
    """By name, [seeds, T]; NaN where there is none."""
    stages: list[float]
    """Epochs after which a new stage began."""


@styled
def draw_course(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """Small multiples by method; needs runs whose records keep their curves."""
    found = comparable(evidence, dataset)
    groups = grouped_defaults(found.records, dataset)
    courses = {place: course for place, group in enumerate(groups) if (course := _course(group)) is not None}
    if not courses:
        trained = [group.method for group in groups if "steps" in group.records[min(group.records)].training]
        why = f"no finished test run on {dataset} at default settings has the curves of its training in its record"
        if trained:
            why += "; runs of an older harness do not keep them"
        return Missing("course", _TITLE, why, bench_command(dataset, seeds="0"))
    names = titles(groups)
    columns = min(_COLUMNS, len(courses))
    bands = -(-len(courses) // columns)
    figure, axes = new_figure(2 * bands, columns, height=0.45 + 1.75 * bands)
    for at in range(len(courses), bands * columns):
        for axis in axes[2 * (at // columns) :, at % columns]:
            axis.remove()
    heights = _pool_limits(list(courses.values()))
    for at, (place, course) in enumerate(courses.items()):
        band, column = divmod(at, columns)
        upper, lower = axes[2 * band, column], axes[2 * band + 1, column]
        upper.set_title(names[place], fontsize=SMALL + 0.5)
        _fill(upper, course, _LOSSES)
        _as_losses(upper, course)
        _fill(lower, course, _POOLS)
        _as_pools(lower, heights, first=column == 0)
        if column == 0:
            upper.set_ylabel("loss")
    _legend(figure, list(courses.values()))
    caption = (
        "The loss with its parts (above) and the mean number of labels in a pool and of positives of a query (below), "
        f"over the epochs of the training. A dotted line is where a new stage begins. {remarks(found, groups)}"
    )
    return Drawing("course", _TITLE, caption, _told(courses, names, dataset), *finished(figure))


def _course(group: Group) -> _Course | None:
    """The curves of a group; None where there is no loss over epochs."""
    runs = [record.curves for record in group.records.values() if record.curves.get("step")]
    runs = [curves for curves in runs if "train/epoch" in curves and any(name in curves for name in _LOSSES)]
    if not runs:
        return None
    told = [dict(zip(curves["step"], curves["train/epoch"], strict=False)) for curves in runs]
    common = set.intersection(*({step for step, epoch in epochs.items() if epoch is not None} for epochs in told))
    steps = sorted(step for step in common if step is not None)
    if not steps:
        return None
    epochs, stages = _counted_through(_at(runs[0]["step"], runs[0]["train/epoch"], steps))
    names = [name for name in _LINES if all(name in curves for curves in runs)]
    found = {name: np.array([_at(curves["step"], curves[name], steps) for curves in runs]) for name in names}
    return _Course(epochs, found, stages) if found else None


def _counted_through(epochs: list[float]) -> tuple[Floats, list[float]]:
    """Epochs of all stages counted through, [T], and those after which a new stage began, which counts from 1 again."""
    before, counted, stages = 0.0, [epochs[0]], []
    for last, epoch in pairwise(epochs):
        if epoch <= last:
            before = counted[-1]
            stages.append(before)
        counted.append(before + epoch)
    return np.array(counted, np.float64), stages


def _at(steps: Sequence[float | None], values: Sequence[float | None], wanted: Sequence[float]) -> list[float]:
    known = dict(zip(steps, values, strict=False))
    return [np.nan if (value := known.get(step)) is None else float(value) for step in wanted]


def _fill(axis: "Axes", course: _Course, names: Sequence[str]) -> None:
    """Means over the seeds, with one standard deviation where there are several."""
    from matplotlib.ticker import MaxNLocator

    for name in names:
        if name not in course.curves:
            continue
        _, colour, style = _LINES[name]
        # the loss of another stage is another quantity: no line leads from one to the other
        epochs = np.append(course.epochs, np.array(course.stages) + 0.01)
        order = np.argsort(epochs, kind="stable")
        curves = np.hstack([course.curves[name], np.full((len(course.curves[name]), len(course.stages)), np.nan)])
        curves = curves[:, order]
        marker = "o" if len(course.epochs) <= _FEW else None
        axis.plot(
            epochs[order], curves.mean(0), color=colour, linestyle=style, linewidth=1.4, marker=marker, markersize=3
        )
        if len(curves) > 1:
            mean, spread = curves.mean(0), curves.std(0, ddof=1)
            axis.fill_between(epochs[order], mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    for stage in course.stages:
        axis.axvline(stage + 0.5, color=GREY, linestyle=":", linewidth=1.0)
    last = float(course.epochs[-1])
    axis.set_xlim(0, max(last, 1) * 1.04)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axis.tick_params(labelsize=SMALL, length=2.5)


def _as_losses(axis: "Axes", course: _Course) -> None:
    """Makes an upper panel: from zero, or logarithmic where stages have losses of very different sizes."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    axis.tick_params(labelbottom=False)
    values = np.concatenate([curve.ravel() for name, curve in course.curves.items() if name in _LOSSES])
    values = values[np.isfinite(values)]
    if values.size and values.min() > 0 and values.max() / values.min() > _WIDE:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(numticks=5))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        return
    axis.set_ylim(bottom=min(0.0, float(values.min(initial=0.0))))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=3))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _pool_limits(courses: list[_Course]) -> tuple[float, float] | None:
    """Least and largest number of labels in any pool, for one scale; None where nothing was counted."""
    counts = [course.curves[name] for course in courses for name in _POOLS if name in course.curves]
    known = np.concatenate([count[np.isfinite(count) & (count > 0)] for count in counts]) if counts else np.empty(0)
    return (float(known.min()), float(known.max())) if known.size else None


def _as_pools(axis: "Axes", heights: tuple[float, float] | None, first: bool) -> None:
    """Makes a lower panel: one logarithmic scale for all, its numbers in the first column alone."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_xlabel("epoch", fontsize=SMALL, labelpad=1)
    if heights is None:
        axis.set_yticks([])
        return
    axis.set_yscale("log")
    axis.set_ylim(heights[0] / 1.6, heights[1] * 1.9)
    axis.yaxis.set_major_locator(LogLocator(numticks=5))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}") if first else NullFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="y", which="minor", length=0)
    if first:
        axis.set_ylabel("labels")


def _legend(figure: "Figure", courses: list[_Course]) -> None:
    """One legend for all panels, above them."""
    from matplotlib.lines import Line2D

    used = [name for name in _LINES if any(name in course.curves for course in courses)]
    handles = [Line2D([], [], color=_LINES[name][1], linestyle=_LINES[name][2], linewidth=1.6) for name in used]
    words = [_LINES[name][0] for name in used]
    figure.legend(handles, words, loc="outside upper center", ncols=min(3, len(used)), handlelength=2.6)


def _told(courses: dict[int, _Course], names: list[str], dataset: str) -> str:
    """The first and the last loss of every method."""
    parts = []
    for place, course in courses.items():
        losses = course.curves.get("train/loss")
        known = np.empty(0) if losses is None else losses.mean(0)[np.isfinite(losses.mean(0))]
        if known.size:
            parts.append(f"{names[place]} from {known[0]:.3g} to {known[-1]:.3g}")
    return f"Curves of {counted(len(courses), 'training')} on {dataset}. Loss: {'; '.join(parts)}."
