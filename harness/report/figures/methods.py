"""Figures that compare methods on one dataset: the benchmark, head and tail labels, metrics and costs."""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.report.figures.annotation import label_points
from harness.report.figures.drawing import Sketch, Undrawable
from harness.report.figures.runs import (
    Group,
    bench_command,
    comparable,
    default_runs,
    format_count,
    format_seeds,
    remarks,
    summary,
    titles,
)
from harness.report.figures.style import BLUE, GREY, SMALL, Floats, Look, format_name, looks, new_figure
from harness.report.published import measured, table_results
from harness.report.results import Results, is_number, machine_of
from harness.report.rows import peak_memory
from harness.runs.record import RunRecord
from harness.settings.published import JUDGED, MATRIX, SUBJECT, published_table, table_paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_standing(results: Results, dataset: str) -> Sketch:
    """Draw P@1 and PSP@5 of every method of the benchmark, the best first; each training once."""
    searched = MATRIX in table_paths()
    known = table_results(results.records, published_table(MATRIX), [dataset]) if searched else []
    found = [row for table in known if table.own for row in table.rows if row.records]
    first = {row.run: row for row in reversed(found)}
    rows = [
        {"method": format_name(row.label, 24), "subject": row.declared[0].stem == SUBJECT, "seeds": len(row.records)}
        | {
            f"{metric}{part}": value
            for metric in JUDGED
            for part, value in zip(("", " std"), summary(np.array(measured(row, metric))), strict=True)
        }
        for row in first.values()
        if all(measured(row, metric) for metric in JUDGED)
    ]
    if len(rows) < 2:
        command = f"python -m harness bench --table {MATRIX} --datasets {shlex.quote(dataset)}"
        why = f"fewer than two methods of the benchmark were run on {dataset}"
        if any(table.own and table.measured > 1 for table in known):
            why = f"the runs on {dataset} have no {JUDGED[1]}; it needs the propensity constants of the dataset's card"
        elif searched and dataset not in published_table(MATRIX).datasets:
            why = f"no settings were searched for {dataset}; without them, methods are compared at their defaults"
            command = bench_command(dataset)
        raise Undrawable(why, command)
    data = pd.DataFrame(rows).sort_values(JUDGED[0], ascending=False, kind="stable", ignore_index=True)
    figure, axes = new_figure(columns=len(JUDGED), height=0.75 + 0.21 * len(data))
    for axis, metric in zip(axes[0], JUDGED, strict=True):
        _fill_standing(axis, data, metric)
    axes[0, 0].set_yticks(range(len(data)), data["method"])
    for axis in axes[0, 1:]:
        axis.set_yticks(range(len(data)), [])
    caption = (
        f"{' and '.join(JUDGED)} in percent on the test rows of {format_name(dataset)}, "
        f"{format_seeds(list(data['seeds']))}. Methods are in the order of {JUDGED[0]}, each with the scorer that it "
        "reports; dashed lines mark the best of a metric, the filled dot is UniDEC (ours)."
    )
    return Sketch(figure, data, caption)


def _fill_standing(axis: "Axes", data: pd.DataFrame, metric: str) -> None:
    """Draw one metric: a dot, its spread and its value for every method."""
    means, spreads = data[metric].to_numpy(), data[f"{metric} std"].to_numpy()
    for row, (mean, spread, subject) in enumerate(zip(means, spreads, data["subject"], strict=True)):
        axis.plot([mean - spread, mean + spread], [row, row], color=BLUE, linewidth=1.4)
        axis.plot(mean, row, "o", color=BLUE, markerfacecolor=BLUE if subject else "white", zorder=4)
        place: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": SMALL}
        axis.annotate(f"{mean:.1f}", (mean - spread, row), (-6, 0), **place)
    axis.axvline(means.max(), color=GREY, linewidth=0.9, linestyle="--", zorder=1)
    low, high = float((means - spreads).min()), float((means + spreads).max())
    span = max(high - low, 1.0)
    # values stand left of their dots
    axis.set(title=f"{metric}, %", ylim=(len(data) - 0.3, -0.7), xlim=(low - 0.2 * span, high + 0.06 * span))
    axis.tick_params(axis="y", length=0)


def draw_bins(results: Results, dataset: str) -> Sketch:
    """Draw what head, torso and tail labels add to P@5 and PSP@5; the bins sum to the metric, the first column.

    Bins hold a third of the train pairs each, so the head has few labels with many rows and the tail many with few.
    """
    found = comparable(results, dataset)
    for metrics in (["P@5", "PSP@5"], ["P@5"]):
        known = [(group, bins) for group in default_runs(found) if (bins := _bins(group, metrics))]
        if known:
            break
    else:
        why = f"no finished test run at default settings on {dataset} has what head, torso and tail add to P@5"
        raise Undrawable(why, bench_command(dataset))
    names = list(known[0][1][0]["bin"])
    known = [(group, [one for one in bins if list(one["bin"]) == names]) for group, bins in known]
    known = [(group, bins) for group, bins in known if bins]
    known.sort(key=lambda one: -np.mean([bins["P@5"].sum() for bins in one[1]]))
    groups = [group for group, _ in known]
    columns = ["all", *names]
    rows = []
    for metric in metrics:
        for name, (_, bins) in zip(titles(groups), known, strict=True):
            shares = pd.DataFrame([[one[metric].sum(), *one[metric]] for one in bins], columns=columns)
            spreads = shares.std().fillna(0.0).add_suffix(" std")
            rows.append({"method": name, "metric": metric, **shares.mean(), **spreads})
    data = pd.DataFrame(rows)
    height = len(metrics) * (len(groups) * 0.165 + 0.55) + 0.35
    figure, axes = new_figure(len(metrics), len(columns), height=height, sharey=True)
    styles = looks(group.method for group in groups)
    colours = [styles[group.method].colour for group in groups]
    for panels, metric in zip(axes, metrics, strict=True):
        part = data[data["metric"] == metric]
        largest = part[columns[1:]].to_numpy().max()
        for axis, column in zip(panels, columns, strict=True):
            _fill_bars(axis, part[column].to_numpy(), part[f"{column} std"].to_numpy(), colours)
            axis.set_xlim(0, max(part[column].max() if column == "all" else largest, 1e-9) * 1.42)
        panels[0].set_yticks(range(len(groups)), part["method"])
        panels[0].set(ylim=(len(groups) - 0.4, -0.6))
        panels[0].set_ylabel(f"{metric}, %", fontweight="bold")
    held = known[0][1][0]
    each = held["train_pairs"] / held["labels"].clip(lower=1)
    counted = zip(names, held["labels"], each, strict=True)
    headings = [f"{format_name(name, 12)}\n{labels:,} labels,\n{rows:.1f} rows each" for name, labels, rows in counted]
    for axis, text in zip(axes[0], ["all labels", *headings], strict=True):
        axis.set_title(text, fontsize=SMALL, linespacing=1.25)
    listed = "; ".join(
        f"{name} {format_count(count, 'label')}" for name, count in zip(names, held["labels"], strict=True)
    )
    caption = (
        f"What labels of each frequency add to {' and '.join(metrics)}. The bins sum to the metric, and each holds "
        f"about as many train pairs as the others: {listed}; rows are train rows of a label, on average. Bars of one "
        f"colour are one family of methods; the best of each column is printed bold. {remarks(found, groups)}"
    )
    return Sketch(figure, data, caption)


def _bins(group: Group, metrics: list[str]) -> list[pd.DataFrame]:
    """Return what each bin of labels holds and adds to the metrics: a frame per seed that recorded it."""
    needed = ("labels", "train_pairs", *metrics)
    return [
        pd.DataFrame(record.contributions).astype({"bin": str})
        for record in group.records.values()
        if record.contributions
        and all("bin" in one and all(is_number(one.get(key)) for key in needed) for one in record.contributions)
    ]


def _fill_bars(axis: "Axes", heights: Floats, errors: Floats, colours: list[str]) -> None:
    """Draw one panel: a bar per method with its value at the end."""
    places = np.arange(len(heights))
    axis.barh(places, heights, height=0.68, color=colours, edgecolor="black", linewidth=0.5)
    if errors.any():
        axis.errorbar(heights, places, xerr=errors, fmt="none", ecolor="black", elinewidth=0.9, capsize=1.5)
    best = np.round(heights, 1) == np.round(heights, 1).max()
    for place, height, error, bold in zip(places, heights, errors, best, strict=True):
        text: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "fontsize": SMALL}
        weight = "bold" if bold and len(heights) > 1 else "normal"
        number = axis.annotate(f"{height:.1f}", (height + error, float(place)), (3, 0), fontweight=weight, **text)
        # the axes have room for the numbers, and layout is slow with hundreds of texts
        number.set_in_layout(False)
    axis.grid(False)
    axis.xaxis.set_visible(False)
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)


class Plane(NamedTuple):
    """Two quantities drawn against each other; on the frontier are methods that no other beats in both."""

    x: str
    """Name of the axis, with its unit after a comma."""
    y: str
    x_value: Callable[[RunRecord], float | None]
    costs: bool
    """Whether x is a cost (less is better, depends on the machine); else it is a metric."""


def training_seconds(record: RunRecord) -> float | None:
    """Return the seconds of the training; 0 for a method without one."""
    seconds = record.training.get("seconds", None if record.training else 0.0)
    return None if seconds is None else float(seconds)


TRADEOFF = Plane("P@1, %", "PSP@1, %", lambda record: record.metrics.get("P@1"), costs=False)
TIME = Plane("training, seconds", "P@1, %", training_seconds, costs=True)
MEMORY = Plane("peak memory, GiB", "P@1, %", peak_memory, costs=True)


def draw_plane(plane: Plane, results: Results, dataset: str) -> Sketch:
    """Draw methods as points in a plane, with their spread over seeds and the frontier."""
    found = comparable(results, dataset)
    x_name, y_name = plane.x.split(",")[0], plane.y.split(",")[0]
    groups = [one for one in default_runs(found) if one.values(plane.x_value).size and one.values(y_name).size]
    if not groups:
        why = f"no finished test run at default settings on {dataset} has {x_name} and {y_name}"
        if found.records and not plane.costs:
            why += "; PSP needs the propensity constants of the dataset's card"
        raise Undrawable(why, bench_command(dataset))
    x, y = ([summary(group.values(of)) for group in groups] for of in (plane.x_value, y_name))
    data = pd.DataFrame({"method": titles(groups), x_name: [m for m, _ in x], y_name: [m for m, _ in y]})
    data["frontier"] = frontier(data[x_name].to_numpy(), data[y_name].to_numpy(), plane.costs)
    data[f"{x_name} std"], data[f"{y_name} std"] = [s for _, s in x], [s for _, s in y]
    styles = looks(group.method for group in groups)
    data = data.sort_values([x_name, y_name, "method"])
    figure, axes = new_figure(height=4.2)
    _fill_plane(axes[0, 0], plane, data, [styles[groups[at].method] for at in data.index])
    caption = (
        f"{y_name} against {plane.x.replace(',', ' in')}; {'left' if plane.costs else 'right'} and up is better. The "
        "line and the filled points are the frontier, the methods that no other one beats in both directions: "
        f"{', '.join(data['method'][data['frontier']])}. {remarks(found, groups)}"
    )
    if plane.costs:
        machines = sorted({machine_of(record) for group in groups for record in group.records.values()})
        different = "" if len(machines) == 1 else "different machines: "
        caption += f" Measured on {different}{'; '.join(machines)}."
    return Sketch(figure, data, caption)


def frontier(x: Floats, y: Floats, lower_x: bool) -> NDArray[np.bool_]:
    """Return which of n points no other one beats, [n]; larger y is better, and smaller x if `lower_x`, else larger."""
    across = -x if lower_x else x
    as_good = (across[None] >= across[:, None]) & (y[None] >= y[:, None])
    better = (across[None] > across[:, None]) | (y[None] > y[:, None])
    return np.logical_not((as_good & better).any(1))


def _fill_plane(axis: "Axes", plane: Plane, data: pd.DataFrame, styles: list[Look]) -> None:
    """Draw everything inside the axes; `styles` are one per row of the data."""
    x_name, y_name = plane.x.split(",")[0], plane.y.split(",")[0]
    x, y, best = data[x_name].to_numpy(), data[y_name].to_numpy(), data["frontier"].to_numpy()
    axis.set(xlabel=plane.x, ylabel=plane.y)
    if plane.costs:
        _log_costs(axis, x)
    keep_clear = []
    spreads = data[f"{x_name} std"], data[f"{y_name} std"]
    for look, at, height, filled, across, up in zip(styles, x, y, best, *spreads, strict=True):
        fill = look.colour if filled else "white"
        marker: dict[str, Any] = {"marker": look.marker, "color": look.colour, "markerfacecolor": fill}
        axis.plot(at, height, linestyle="none", markeredgewidth=1.4, zorder=4, **marker)
        for bar in ([(at - across, height), (at + across, height)], [(at, height - up), (at, height + up)]):
            keep_clear.append(np.array(bar))
            axis.plot(*keep_clear[-1].T, color=look.colour, linewidth=1.1, zorder=3)
    axis.margins(x=0.11, y=0.1)
    axis.autoscale_view()
    (left, right), (bottom, _) = axis.get_xlim(), axis.get_ylim()
    order = np.lexsort((y[best], x[best]))
    xs, ys = np.repeat(x[best][order], 2), np.repeat(y[best][order], 2)
    if plane.costs:  # steps: from each point to the right, then up to the next one
        line = np.column_stack([np.append(xs, right), np.append(bottom, ys)])
    else:
        line = np.column_stack([np.append(left, xs), np.append(ys, bottom)])
    axis.plot(*line.T, color=GREY, linewidth=1.2, linestyle="--", zorder=2, scalex=False, scaley=False)
    label_points(axis, x, y, list(data["method"]), [line, *keep_clear])


def _log_costs(axis: "Axes", costs: Floats) -> None:
    """Make the x axis logarithmic if costs differ much; a cost of zero is left of all others."""
    from matplotlib.ticker import LogLocator, NullLocator

    paid = costs[costs > 0]
    if not paid.size or paid.max() / paid.min() < 8:
        return
    axis.set_xscale("symlog", linthresh=paid.min(), linscale=0.4)
    axis.set_xlabel(f"{axis.get_xlabel()} (logarithmic)")
    steps = (1.0,) if paid.max() / paid.min() > 300 else (1.0, 2.0, 5.0)
    ticks = [tick for tick in LogLocator(subs=steps).tick_values(paid.min(), paid.max()) if tick > paid.min() / 1.5]
    free = ["none"] if (costs == 0).any() else []
    axis.set_xticks([0.0] * len(free) + ticks, free + [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
