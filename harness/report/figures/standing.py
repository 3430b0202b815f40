"""Every method of the benchmark on one dataset, a line each, the best first."""

import shlex
from typing import TYPE_CHECKING

import numpy as np

from harness.published import JUDGED, MATRIX, SUBJECT, published_table, table_paths
from harness.report.evidence import Evidence
from harness.report.figures.chosen import bench_command, counted
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import BLUE, GREY, SMALL, finished, new_figure, shown, styled
from harness.report.grids import Grid, Line, grids
from harness.report.grids.drawn import measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLE = "Every method with settings from the same small search"
_ROW = 0.21
"""Inches of a line."""


@styled
def draw_standing(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """P@1 and PSP@5 of every method, with the settings that were found for it; of a training its own scorer alone."""
    known = grids(evidence.records, published_table(MATRIX), [dataset]) if MATRIX in table_paths() else []
    lines = _trainings(known)
    if len(lines) < 2:
        return _missing(dataset, known)
    lines.sort(key=lambda line: float(np.mean(measured(line, JUDGED[0]))))
    figure, axes = new_figure(height=0.75 + _ROW * len(lines), columns=len(JUDGED))
    for place, metric in enumerate(JUDGED):
        _fill(axes[0, place], lines, metric, named=place == 0)
    seeds = sorted({len(line.records) for line in lines})
    many = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    how = f"means over {many} seeds with one standard deviation" if seeds[-1] > 1 else "one run each"
    caption = (
        f"{' and '.join(JUDGED)} in percent on the test rows of {shown(dataset)}, {how}. Methods are in the order of "
        f"{JUDGED[0]}, each with the scorer that it reports; dashed lines are the best of a metric, the filled dot is "
        "UniDEC."
    )
    told = "; ".join(
        f"{line.label} {', '.join(f'{np.mean(measured(line, metric)):.1f}' for metric in JUDGED)}"
        for line in reversed(lines)
    )
    alt = f"{' and '.join(JUDGED)} of {counted(len(lines), 'method')} on {dataset}: {told}."
    return Drawing(MATRIX, _TITLE, caption, alt, *finished(figure))


def _trainings(known: list[Grid]) -> list[Line]:
    """A line a training that has both metrics: the first of its rows."""
    lines = [line for grid in known if grid.own for line in grid.lines if line.records]
    first = {line.run: line for line in reversed(lines)}
    return [line for line in first.values() if all(measured(line, metric) for metric in JUDGED)]


def _missing(dataset: str, known: list[Grid]) -> Missing:
    command = f"python -m harness bench --table {MATRIX} --datasets {shlex.quote(dataset)}"
    why = f"fewer than two methods of the benchmark were run on {dataset}"
    if any(grid.own and grid.measured > 1 for grid in known):
        why = f"the runs on {dataset} have no {JUDGED[1]}; it needs the propensity constants of the dataset's card"
    elif MATRIX in table_paths() and dataset not in published_table(MATRIX).datasets:
        why = f"no settings were searched for {dataset}; without them, methods are compared as they are by default"
        command = bench_command(dataset)
    return Missing(MATRIX, _TITLE, why, command)


def _fill(axis: "Axes", lines: list[Line], metric: str, *, named: bool) -> None:
    """One metric: a dot, its spread and its figure for every line."""
    values = [np.array(measured(line, metric), np.float64) for line in lines]
    means = np.array([found.mean() for found in values])
    spreads = np.array([found.std(ddof=1) if found.size > 1 else 0.0 for found in values])
    for height, (line, mean, spread) in enumerate(zip(lines, means, spreads, strict=True)):
        ours = line.rows[0].stem == SUBJECT
        axis.plot([mean - spread, mean + spread], [height, height], color=BLUE, linewidth=1.4)
        axis.plot(mean, height, "o", color=BLUE, markerfacecolor=BLUE if ours else "white", zorder=4)
        corner = mean - spread, height
        axis.annotate(
            f"{mean:.1f}", corner, (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=SMALL
        )
    axis.axvline(means.max(), color=GREY, linewidth=0.9, linestyle="--", zorder=1)
    axis.set_title(f"{metric}, %")
    axis.set_ylim(-0.7, len(lines) - 0.3)
    low, high = float((means - spreads).min()), float((means + spreads).max())
    span = max(high - low, 1.0)
    axis.set_xlim(low - 0.2 * span, high + 0.06 * span)  # figures stand left of their dots
    axis.set_yticks(range(len(lines)), [shown(line.label, 24) for line in lines] if named else [])
    axis.tick_params(axis="y", length=0)
