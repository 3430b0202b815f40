"""Every method of the benchmark on one dataset, a line each, the best first."""

import shlex
from typing import TYPE_CHECKING

import numpy as np

from harness.published import MATRIX, published_table, table_paths
from harness.report.evidence import Evidence
from harness.report.figures.chosen import counted
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import BLUE, GREY, SMALL, finished, new_figure, shown, styled
from harness.report.grids import Line, grids
from harness.report.grids.drawn import measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("P@1", "PSP@5")
_TITLE = "Every method with settings from the same small search"
_ROW = 0.21
"""Inches of a line."""


@styled
def draw_standing(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """P@1 and PSP@5 of every method, with the settings that were found for it; of a training its own scorer alone."""
    lines = _lines(evidence, dataset)
    if not lines:
        why = f"no two methods of the benchmark were run on {dataset}, or it has no propensity constants"
        return Missing(
            MATRIX, _TITLE, why, f"python -m harness bench --table {MATRIX} --datasets {shlex.quote(dataset)}"
        )
    lines.sort(key=lambda line: float(np.mean(measured(line, METRICS[0]))))
    figure, axes = new_figure(height=0.75 + _ROW * len(lines), columns=len(METRICS))
    for place, metric in enumerate(METRICS):
        _fill(axes[0, place], lines, metric, named=place == 0)
    seeds = sorted({len(line.records) for line in lines})
    many = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    how = f"means over {many} seeds with one standard deviation" if seeds[-1] > 1 else "one run each"
    caption = (
        f"{' and '.join(METRICS)} in percent on the test rows of {shown(dataset)}, {how}. Methods are in the order of "
        f"{METRICS[0]}, the dashed lines are the best of each."
    )
    told = "; ".join(
        f"{line.label} {', '.join(f'{np.mean(measured(line, metric)):.1f}' for metric in METRICS)}"
        for line in reversed(lines)
    )
    alt = f"{' and '.join(METRICS)} of {counted(len(lines), 'method')} on {dataset}: {told}."
    return Drawing(MATRIX, _TITLE, caption, alt, *finished(figure))


def _lines(evidence: Evidence, dataset: str) -> list[Line]:
    """A line a training, the first of the table."""
    found = grids(evidence.records, published_table(MATRIX), [dataset]) if MATRIX in table_paths() else []
    lines = [line for grid in found if grid.own for line in grid.lines if all(measured(line, one) for one in METRICS)]
    first = list({line.run: line for line in reversed(lines)}.values())[::-1]
    return first if len(first) > 1 else []


def _fill(axis: "Axes", lines: list[Line], metric: str, *, named: bool) -> None:
    """One metric: a dot, its spread and its figure for every line."""
    values = [np.array(measured(line, metric), np.float64) for line in lines]
    means = np.array([found.mean() for found in values])
    for height, (line, found, mean) in enumerate(zip(lines, values, means, strict=True)):
        ours = line.rows[0].stem == "unidec"
        spread = float(found.std(ddof=1)) if found.size > 1 else 0.0
        axis.plot([mean - spread, mean + spread], [height, height], color=BLUE, linewidth=1.4)
        axis.plot(mean, height, "o", color=BLUE, markerfacecolor=BLUE if ours else "white", zorder=4)
        corner = mean - spread, height
        axis.annotate(
            f"{mean:.1f}", corner, (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=SMALL
        )
    axis.axvline(means.max(), color=GREY, linewidth=0.9, linestyle="--", zorder=1)
    axis.set_title(f"{metric}, %")
    axis.set_ylim(-0.7, len(lines) - 0.3)
    span = max(float(np.ptp(means)), 1.0)
    axis.set_xlim(means.min() - 0.2 * span, means.max() + 0.06 * span)  # figures stand left of their dots
    axis.set_yticks(range(len(lines)), [shown(line.label, 24) for line in lines] if named else [])
    axis.tick_params(axis="y", length=0)
