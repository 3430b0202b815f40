"""Test scores against the share of the labels that gandalf makes rows of (thesis, figure 1.4 c and d)."""

from typing import Any

import numpy as np

from harness.report.evidence import Evidence
from harness.report.figures.chosen import Group, comparable
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.labels import label_points
from harness.report.figures.style import BLACK, BLUE, VERMILION, Look, finished, new_figure, styled
from harness.report.figures.varied import Variant, find_variants, mean_and_spread

ID = "subsampling"
TITLE = "Scores against the share of labels that gandalf uses"
METHOD = "renee"
SHARES = (0.25, 0.5, 0.75)
ORDERS = {"random": Look(VERMILION, "s", "--"), "tail-first": Look(BLUE, "o", "-")}
METRICS = ("P@1", "PSP@5")

NONE: Variant = {"augment": "none"}
ALL: Variant = {"augment": "gandalf"}
Point = tuple[float, float, float]
"""Share, mean, standard deviation."""


def _variants() -> list[tuple[str, float, Variant]]:
    """Order, share and settings; without rows and with all of them there is no order."""
    some = [
        (order, share, {"augment": "gandalf", "augment_options": {"labels": share, "order": order}})
        for order in ORDERS
        for share in SHARES
    ]
    return [("", 0.0, NONE), *some, ("", 1.0, ALL)]


@styled
def draw_subsampling(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """One panel a metric, one line a way to choose the labels; the lines share both ends."""
    found = comparable(evidence, dataset)
    wanted = _variants()
    varied = find_variants(found.records, METHOD, dataset, [variant for *_, variant in wanted])
    places = [
        (order, share, group)
        for (order, share, _), group in zip(wanted, varied.groups, strict=True)
        if group is not None
    ]
    metrics = [metric for metric in METRICS if all(group.values(metric).size for *_, group in places)]
    if not any(order for order, *_ in places) or len(places) < 3 or not metrics:
        why = f"too few runs of {METHOD} on {dataset} in which gandalf makes rows of a part of the labels"
        return Missing(ID, TITLE, why, varied.commands or find_variants([], METHOD, dataset, varied.variants).commands)
    figure, axes = new_figure(1, len(metrics), height=2.9)
    for axis, metric, letter in zip(axes[0], metrics, "ab", strict=False):
        _fill(axis, lines_of(places, metric))
        axis.set(title=f"({letter}) {metric}", xlabel="labels that become rows, %", ylabel="% on test rows")
    caption = (
        f"{' and '.join(metrics)} of {METHOD} when gandalf makes rows of a part of the labels: a random draw, or those "
        f"with the fewest train rows first. 0 is training without gandalf. {varied.caption(found)}"
    )
    told = "; ".join(
        f"{metric}, {order}: " + ", ".join(f"{share:.0%} {mean:.1f}" for share, mean, _ in line)
        for metric in metrics
        for order, line in lines_of(places, metric).items()
    )
    alt = f"Line charts of {METHOD} on {dataset} against the share of labels that gandalf uses. {told}."
    return Drawing(ID, TITLE, caption, alt, *finished(figure))


def lines_of(places: list[tuple[str, float, Group]], metric: str) -> dict[str, list[Point]]:
    """The points of each order by share, those that all orders share among them."""
    lines: dict[str, list[Point]] = {}
    for wanted in ORDERS:
        if any(order == wanted for order, *_ in places):
            own = {share: group for order, share, group in places if order in ("", wanted)}
            lines[wanted] = [(share, *mean_and_spread(own[share].values(metric))) for share in sorted(own)]
    return lines


def _fill(axis: Any, lines: dict[str, list[Point]]) -> None:
    named: list[tuple[float, float]] = []
    drawn = []
    for order, line in lines.items():
        look, (shares, means, spreads) = ORDERS[order], np.array(line).T
        axis.plot(100 * shares, means, color=look.colour, linestyle=look.linestyle, zorder=3)
        for share, mean, spread in zip(100 * shares, means, spreads, strict=True):
            shared = share in (0, 100)
            axis.errorbar(
                share,
                mean,
                yerr=spread or None,
                color=BLACK if shared else look.colour,
                marker="D" if shared else look.marker,
                capsize=3,
                elinewidth=1.1,
                zorder=4,
            )
        inner = [at for at, share in enumerate(shares) if share not in (0, 1)]
        middle = inner[len(inner) // 2]
        named.append((100 * shares[middle], means[middle]))
        drawn.append(np.column_stack([100 * shares, means]))
    axis.set_xticks([0, 25, 50, 75, 100])
    axis.margins(x=0.06, y=0.14)
    x, y = np.array(named).T
    label_points(axis, x, y, list(lines), drawn)
