"""The course of a training in one picture: curves.png, drawn from the event log alone.

Small multiples over the steps of the training, one panel for each group of figures that the log has: parts of the loss,
scores on held-out rows, learning rates, and what was in the pools. A dotted line is where a new stage begins. Equal
logs give equal bytes: the picture holds no clock and no version.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.tracking.series import Series, collected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = "curves.png"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which stay apart for every kind of colour blindness; lines differ in style too."""
STYLES = ("-", "--", "-.", ":")
MARKED_BELOW = 30
"""Points up to which each is marked: a curve of one point has no line to be seen by."""

SHAPES = {1: (1, 1), 2: (1, 2), 3: (2, 2), 4: (2, 2)}
"""Rows and columns of the picture by number of panels."""

LOSS_NAMES = {"loss": "total", "loss_d": "dual encoder", "loss_c": "classifier", "loss_bce": "classifier, BCE"}
VALIDATED = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
POOL_NAMES = {"pool": "labels in a pool", "positives": "positives of a query", "negatives": "negatives of a query"}


def draw_curves(events: Iterable[Mapping[str, Any]], out: Path) -> list[Path]:
    """Draws curves.png into the folder `out`; returns what was written, nothing if there is nothing to draw.

    Args:
        events: Of the log, in its order; NaN and infinity may be strings, as the log has them.
        out: An existing folder.
    """
    events = list(events)
    series, stages = collected(events)
    panels = {title: chosen for title, chosen in _panels(series).items() if chosen}
    if not panels:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = SHAPES[len(panels)]
    figure = Figure(figsize=(4.6 * columns, 0.3 + 3.1 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    if name := next((str(event["run_id"]) for event in events if "run_id" in event), None):
        figure.suptitle(name, fontsize=10, x=0.01, ha="left", color="0.35")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (title, chosen) in zip(axes, panels.items(), strict=False):
        _draw(axis, title, chosen, stages)
    for axis in axes[len(panels) :]:
        axis.remove()
    file = out / CURVES
    figure.savefig(file, metadata={"Software": None})
    return [file]


def _panels(series: Series) -> dict[str, Series]:
    """Titles and their curves under the names a reader sees."""

    def under(prefix: str) -> Series:
        known = {name.removeprefix(prefix): points for name, points in series.items() if name.startswith(prefix)}
        return {name: points for name, points in known.items() if any(map(math.isfinite, points[1]))}

    trained, scores = under("train/"), under("validation/")
    losses = {name: points for name, points in trained.items() if name == "loss" or name.startswith("loss_")}
    first = [name for name in VALIDATED if name in scores] or list(scores)[: len(COLOURS)]
    pools = {POOL_NAMES[name]: trained[name] for name in POOL_NAMES if name in trained}
    return {
        "Loss": {LOSS_NAMES.get(name, name.removeprefix("loss_")): points for name, points in losses.items()},
        "Held-out rows, %": {name: scores[name] for name in first},
        "Learning rates": under("lr/"),
        "Pools (mean)": pools,
    }


def _draw(axis: "Axes", title: str, chosen: Series, stages: list[int]) -> None:
    """One panel."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    for place, (name, (steps, values)) in enumerate(chosen.items()):
        axis.plot(
            *_broken(steps, values, stages),
            label=name,
            color=COLOURS[place % len(COLOURS)],
            linestyle=STYLES[place % len(STYLES)],
            linewidth=1.8,
            marker="o" if len(steps) <= MARKED_BELOW else None,
            markersize=3.5,
        )
    for step in stages:
        axis.axvline(step, color="0.35", linestyle=":", linewidth=1.2)
    if _wide(chosen):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_title(title, fontsize=11, loc="left", fontweight="bold")
    axis.set_xlabel("step", fontsize=9)
    axis.set_xlim(0, max(1, *(steps[-1] for steps, _ in chosen.values())) * 1.03)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axis.tick_params(labelsize=9)
    axis.grid(True, color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, framealpha=0.8, edgecolor="none", loc="best")


def _broken(steps: list[int], values: list[float], stages: list[int]) -> tuple[list[float], list[float]]:
    """A curve with gaps where it is not finite and between stages, whose losses are not the same quantity."""
    curve = [
        (float(step), value if math.isfinite(value) else math.nan) for step, value in zip(steps, values, strict=True)
    ]
    curve = sorted([*curve, *((step + 0.5, math.nan) for step in stages)], key=lambda point: point[0])
    return [step for step, _ in curve], [value for _, value in curve]


def _wide(chosen: Series) -> bool:
    """Whether curves differ so much in size that a linear axis would flatten one of them."""
    peaks = [max(filter(math.isfinite, values)) for _, values in chosen.values()]
    lowest = min(value for _, values in chosen.values() for value in values if math.isfinite(value))
    return lowest > 0 and max(peaks) / min(peaks) > 50
