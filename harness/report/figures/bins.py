"""Where the hits of a method are: what head, torso and tail labels add to P@5 and PSP@5.

Bins hold a third of the train pairs each, so the head has few labels with many rows and the tail many labels with few.
What the bins add sums to the metric itself, which is the first column.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.report.evidence import Evidence, is_number
from harness.report.figures.chosen import (
    Group,
    bench_command,
    comparable,
    counted,
    grouped_defaults,
    remarks,
    titles,
)
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import SMALL, finished, looks, new_figure, shown, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

METRICS = ("P@5", "PSP@5")
_TITLE = "What head, torso and tail labels add"
_ROW_HEIGHT = 0.165
"""Inches for one method."""


@styled
def draw_bins(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """One column of bars for all labels and one for each bin, one row of panels per metric."""
    found = comparable(evidence, dataset)
    groups = _with_equal_bins(grouped_defaults(found.records, dataset))
    metrics = [metric for metric in METRICS if any(_shares(group, metric).size for group in groups)]
    if not metrics:
        why = f"no finished test run at default settings on {dataset} tells what head, torso and tail add to P@5"
        return Missing("bins", _TITLE, why, bench_command(dataset))
    whole = [group for group in groups if all(_shares(group, metric).size for metric in metrics)]
    metrics = metrics if whole else metrics[:1]
    groups = whole or [group for group in groups if _shares(group, metrics[0]).size]
    groups.sort(key=lambda group: (-_shares(group, metrics[0]).mean(0).sum(), group.method, group.encoder))
    bins = _bins_of(groups[0])
    height = len(metrics) * (len(groups) * _ROW_HEIGHT + 0.55) + 0.35
    figure, axes = new_figure(len(metrics), 1 + len(bins), height=height, sharey=True)
    for row, metric in zip(axes, metrics, strict=True):
        _fill_row(row, groups, metric)
        row[0].set_ylabel(f"{metric}, %", fontweight="bold")
    for axis, text in zip(axes[0], ["all labels", *map(_column_title, bins)], strict=True):
        axis.set_title(text, fontsize=SMALL, linespacing=1.25)
    listed = "; ".join(f"{entry['bin']} {counted(entry['labels'], 'label')}" for entry in bins)
    caption = (
        f"What labels of each frequency add to {' and '.join(metrics)}. The bins sum to the metric, and each holds "
        f"about as many train pairs as the others: {listed}; rows are train rows of a label, on average. Bars of one "
        f"colour are one family of methods; the best of each column is printed bold. {remarks(found, groups)}"
    )
    return Drawing("bins", _TITLE, caption, _told(groups, bins, metrics, dataset), *finished(figure))


def _with_equal_bins(groups: list[Group]) -> list[Group]:
    """The groups that have bins, and the same as the first of them."""
    known = [group for group in groups if _bins_of(group)]
    return [group for group in known if _names(_bins_of(group)) == _names(_bins_of(known[0]))]


def _bins_of(group: Group) -> list[dict[str, Any]]:
    """The bins of its first run, most frequent labels first; none where a bin does not say what it holds."""
    bins = next(iter(group.records.values())).contributions
    told = all(
        "bin" in entry and is_number(entry.get("labels")) and is_number(entry.get("train_pairs")) for entry in bins
    )
    return bins if told else []


def _names(bins: list[dict[str, Any]]) -> list[str]:
    return [str(entry.get("bin")) for entry in bins]


def _shares(group: Group, metric: str) -> Floats:
    """What each bin adds to a metric, percent, [seeds, bins]; no seeds where it was not measured."""
    names = _names(_bins_of(group))
    known = [record.contributions for record in group.records.values() if _names(record.contributions) == names]
    measured = [bins for bins in known if all(is_number(entry.get(metric)) for entry in bins)]
    return np.array([[entry[metric] for entry in bins] for bins in measured], np.float64)


def _column_title(entry: dict[str, Any]) -> str:
    each = entry["train_pairs"] / entry["labels"] if entry["labels"] else 0.0
    return f"{shown(str(entry['bin']), 12)}\n{entry['labels']:,} labels,\n{each:.1f} rows each"


def _fill_row(row: "NDArray[np.object_]", groups: list[Group], metric: str) -> None:
    """The panels of one metric: all labels, then each bin, these on one scale."""
    means, spreads = [], []
    for group in groups:
        shares = _shares(group, metric)
        columns = np.hstack([shares.sum(1, keepdims=True), shares])
        means.append(columns.mean(0))
        spreads.append(columns.std(0, ddof=1) if len(columns) > 1 else np.zeros(columns.shape[1]))
    heights, errors = np.array(means), np.array(spreads)
    largest = [heights[:, 0].max(), *[heights[:, 1:].max()] * (heights.shape[1] - 1)]
    styles = looks(group.method for group in groups)
    for column, axis in enumerate(row):
        _fill(axis, heights[:, column], errors[:, column], [styles[group.method].colour for group in groups])
        axis.set_xlim(0, max(largest[column], 1e-9) * 1.42)
    row[0].set_yticks(range(len(groups)), titles(groups))
    row[0].set_ylim(len(groups) - 0.4, -0.6)


def _fill(axis: "Axes", heights: Floats, errors: Floats, colours: list[str]) -> None:
    """One panel: a bar per method with its number behind it."""
    places = np.arange(len(heights))
    axis.barh(places, heights, height=0.68, color=colours, edgecolor="black", linewidth=0.5)
    if errors.any():
        axis.errorbar(heights, places, xerr=errors, fmt="none", ecolor="black", elinewidth=0.9, capsize=1.5)
    best = np.round(heights, 1) == np.round(heights, 1).max()
    for place, height, error, bold in zip(places, heights, errors, best, strict=True):
        number = axis.annotate(
            f"{height:.1f}",
            (height + error, float(place)),
            (3, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=SMALL,
            fontweight="bold" if bold and len(heights) > 1 else "normal",
        )
        # the axes leave room for numbers already, and the layout is slow with hundreds of texts
        number.set_in_layout(False)
    axis.grid(False)
    axis.xaxis.set_visible(False)
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _told(groups: list[Group], bins: list[dict[str, Any]], metrics: list[str], dataset: str) -> str:
    names = ", ".join(str(entry["bin"]) for entry in bins)
    parts = []
    for name, group in zip(titles(groups), groups, strict=True):
        numbers = [" ".join(f"{share:.1f}" for share in _shares(group, metric).mean(0)) for metric in metrics]
        parts.append(f"{name} {', '.join(numbers)}")
    what = f"what {names} add to {' and '.join(metrics)}"
    return f"Bars of {counted(len(groups), 'method')} on {dataset}: {what}. {'; '.join(parts)}."
