"""Positive labels per query in the pool of a batch, over beta and eta (thesis, figure 2.2 b)."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from harness.record import RunRecord
from harness.report.evidence import Evidence
from harness.report.figures.chosen import Group, comparable
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.labels import label_points
from harness.report.figures.style import BLUE, GREEN, GREY, VERMILION, Look, finished, new_figure, styled
from harness.report.figures.varied import find_variants, mean_and_spread

ID = "positives"
TITLE = "Positives per query over beta and eta"
METHOD = "unidec"
BETAS = (1, 2, 3, 4)
ETAS = {0: Look(GREEN, "^", ":"), 3: Look(VERMILION, "s", "--"), 6: Look(BLUE, "o", "-")}
LAST = 5
"""Epochs at the end of a training over which the mean is taken: by default one period between two clusterings."""
_APART = 0.06
"""Share of the height of the panel by which lines must be apart for names beside their ends."""

Point = tuple[float, float, float]
"""Beta, mean, standard deviation."""


@styled
def draw_positives(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """One line an eta; the dashed line is as many as there can be, all labels of a query."""
    found = comparable(evidence, dataset)
    wanted = [(eta, beta) for eta in ETAS for beta in BETAS]
    runs = [record for record in found.records if mean_positives(record) is not None]
    varied = find_variants(runs, METHOD, dataset, [{"beta": beta, "eta": eta} for eta, beta in wanted])
    lines: dict[int, list[Point]] = {}
    for (eta, beta), group in zip(wanted, varied.groups, strict=True):
        if group is not None:
            lines.setdefault(eta, []).append((beta, *mean_and_spread(_values(group))))
    if not any(len(line) > 1 for line in lines.values()):
        why = f"too few runs of {METHOD} on {dataset} with different beta whose records have the course of the training"
        return Missing(ID, TITLE, why, varied.commands)
    most = varied.known[0].records[min(varied.known[0].records)].dataset.get("statistics", {}).get("labels_per_row")
    figure, axes = new_figure(width=4.6, height=3.2)
    _fill(axes[0, 0], lines, most)
    limit = "" if most is None else f" A train row has {most:.2f} labels on average, which is as many as there can be."
    caption = (
        f"How many labels of the pool of its batch are positives of a query, when beta positives and eta hard "
        f"negatives are picked for each query and all are shared in the batch: mean over the last {LAST} epochs of "
        f"{METHOD}.{limit} {varied.caption(found, 'Train rows of')}"
    )
    told = "; ".join(
        f"eta {eta}: " + ", ".join(f"{mean:.2f} at beta {beta:.0f}" for beta, mean, _ in line)
        for eta, line in lines.items()
    )
    alt = f"Line chart of the mean number of positives per query of {METHOD} on {dataset} over beta. {told}."
    return Drawing(ID, TITLE, caption, alt, *finished(figure))


def mean_positives(record: RunRecord) -> float | None:
    """The mean number of positives per query over the last epochs; None if the record has no course of it."""
    known = [value for value in record.curves.get("train/positives", []) if value is not None]
    return float(np.mean(known[-LAST:])) if known else None


def _values(group: Group) -> Any:
    return np.array([mean_positives(record) for record in group.records.values()], np.float64)


def _fill(axis: Any, lines: dict[int, list[Point]], most: float | None) -> None:
    ends: list[tuple[tuple[float, float], tuple[float, float]]] = []
    drawn = []
    for eta, line in lines.items():
        look, (betas, means, spreads) = ETAS[eta], np.array(line).T
        axis.errorbar(
            betas,
            means,
            yerr=spreads if spreads.any() else None,
            color=look.colour,
            linestyle=look.linestyle,
            marker=look.marker,
            capsize=3,
            elinewidth=1.1,
            zorder=3,
        )
        ends.append(((betas[0], means[0]), (betas[-1], means[-1])))
        drawn.append(np.column_stack([betas, means]))
    axis.set(xticks=BETAS, xlim=(0.5, 4.5), xlabel="β, positives picked per query", ylabel="positives per query")
    axis.margins(y=0.1)
    if most is not None:
        axis.axhline(most, color=GREY, linestyle=(0, (6, 3)), linewidth=1.2)
        axis.annotate(
            f"all labels of a row: {most:.2f}", (0.5, most), (2, 3), textcoords="offset points", fontsize=8, color=GREY
        )
        axis.set_ylim(top=max(axis.get_ylim()[1], most + 0.08 * (most - axis.get_ylim()[0])))
        drawn.append(np.array([[0.5, most], [4.5, most]]))
    left, right = (np.array(side) for side in zip(*ends, strict=True))
    low, high = axis.get_ylim()
    # names stand at the right, unless the lines meet there
    crowded = nearest(right[:, 1]) < min(_APART * (high - low), nearest(left[:, 1]))
    x, y = (left if crowded else right).T
    label_points(axis, x, y, [f"η = {eta}" for eta in lines], drawn)


def nearest(heights: Iterable[float]) -> float:
    """The least distance between two of them; infinite for fewer."""
    return min((second - first for first, second in pairwise(sorted(heights))), default=float("inf"))
