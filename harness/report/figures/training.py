"""Figures of trainings: losses and pools over epochs, and the effects of Gandalf, its share of labels, beta and eta."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.report.figures.drawing import Sketch, Undrawable
from harness.report.figures.runs import (
    Group,
    Varied,
    bench_command,
    comparable,
    default_runs,
    find_variants,
    remarks,
    summary,
    titles,
)
from harness.report.figures.style import BLACK, BLUE, GREEN, GREY, PURPLE, SMALL, VERMILION, Look, log_ticks, new_figure
from harness.report.results import Results
from harness.report.rows import settings
from harness.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

_LOSSES: "dict[str, tuple[str, str, LineStyleType]]" = {
    "train/loss": ("loss", BLACK, "-"),
    "train/loss_d": ("loss of the dual encoder", BLUE, "--"),
    "train/loss_c": ("loss of the classifier", VERMILION, "-."),
    "train/loss_bce": ("loss of the classifier, BCE", PURPLE, ":"),
}
_POOLS: "dict[str, tuple[str, str, LineStyleType]]" = {
    "train/pool": ("labels in a pool", GREEN, "-"),
    "train/positives": ("positives of a query", BLACK, "--"),
}
_LINES = _LOSSES | _POOLS
_COLUMNS = 4
_WIDE = 500.0
"""Ratio of the largest to the smallest loss above which an axis is logarithmic."""


def draw_course(results: Results, dataset: str) -> Sketch:
    """Draw a pair of panels per method over the epochs: the loss with its parts above, pools and positives below.

    Losses have a scale per method, because losses of different kinds cannot be compared; pools have one for all.
    """
    from matplotlib.lines import Line2D

    found = comparable(results, dataset)
    groups = default_runs(found)
    courses = {
        name: course for name, group in zip(titles(groups), groups, strict=True) if (course := course_of(group)).size
    }
    if not courses:
        why = f"no finished test run on {dataset} at default settings has the curves of its training in its record"
        if any("steps" in group.first.training for group in groups):
            why += "; runs of an older harness do not keep them"
        raise Undrawable(why, bench_command(dataset, seeds="0"))
    data = pd.concat([course.assign(method=name) for name, course in courses.items()], ignore_index=True)
    columns = min(_COLUMNS, len(courses))
    bands = -(-len(courses) // columns)
    figure, axes = new_figure(2 * bands, columns, height=0.45 + 1.75 * bands)
    counts = data[data["curve"].isin(_POOLS) & (data["mean"] > 0)]["mean"]
    limits = (counts.min() / 1.6, counts.max() * 1.9) if len(counts) else None
    pairs = zip(axes[::2].flat, axes[1::2].flat, strict=True)
    for at, ((upper, lower), (name, course)) in enumerate(zip(pairs, courses.items(), strict=False)):
        upper.set_title(name, fontsize=SMALL + 0.5)
        _fill_losses(upper, course[course["curve"].isin(_LOSSES)])
        _fill_pools(lower, course[course["curve"].isin(_POOLS)], limits, first=at % columns == 0)
        if at % columns == 0:
            upper.set_ylabel("loss")
    for axis in [*axes[::2].flat[len(courses) :], *axes[1::2].flat[len(courses) :]]:
        axis.remove()
    used = [_LINES[name] for name in _LINES if name in set(data["curve"])]
    handles = [Line2D([], [], color=colour, linestyle=style, linewidth=1.6, label=text) for text, colour, style in used]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(3, len(used)), handlelength=2.6)
    caption = (
        "The loss with its parts (above) and the mean number of labels in a pool and of positives of a query (below), "
        f"over the epochs of the training. A dotted line is where a new stage begins. {remarks(found, groups)}"
    )
    losses = data[data["curve"] == "train/loss"].groupby("method")["mean"].agg(["first", "last"]).reset_index()
    words = losses.rename(columns={"first": "first loss", "last": "last loss"})
    return Sketch(figure, data[["method", "curve", "stage", "epoch", "mean", "std"]], caption, words)


def course_of(group: Group) -> pd.DataFrame:
    """Return a group's curves at steps that all its runs have: curve, stage, epoch, mean, std; empty without a loss.

    Epochs, which each stage counts from 1, are counted on over all stages here.
    """
    runs = {
        seed: pd.DataFrame({name: pd.Series(values, dtype=float) for name, values in record.curves.items()})
        for seed, record in group.records.items()
        if {"step", "train/epoch"} <= record.curves.keys() and _LOSSES.keys() & record.curves.keys()
    }
    if not runs:
        return pd.DataFrame()
    usable = [run.dropna(subset=["step", "train/epoch"]).drop_duplicates("step") for run in runs.values()]
    whole = pd.concat(usable, join="inner")
    names = [name for name in _LINES if name in whole]
    by_step = whole[whole.groupby("step")["step"].transform("size") == len(runs)].groupby("step")
    if not by_step.ngroups or not names:
        return pd.DataFrame()
    epochs = by_step["train/epoch"].first().to_numpy()
    stage = stages(epochs)
    lengths = np.array([epochs[stage == one].max() for one in range(stage[-1] + 1)])
    through = epochs + np.append(0, lengths.cumsum())[stage]
    means, spreads = by_step[names].mean(), by_step[names].std().fillna(0.0)
    parts = [
        pd.DataFrame({"curve": name, "stage": stage, "epoch": through, "mean": means[name], "std": spreads[name]})
        for name in names
    ]
    return pd.concat(parts, ignore_index=True)


def stages(epochs: Sequence[float | None] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the stage of each of T steps from its epoch [T]: a new stage begins where the epoch does not grow."""
    series: pd.Series[float] = pd.Series(np.array(epochs, np.float64))
    known = series.dropna()
    numbers = (known.diff() <= 0).cumsum().reindex(series.index).ffill().fillna(0)
    return numbers.to_numpy().astype(np.int64)


def _fill_course(axis: "Axes", course: pd.DataFrame) -> None:
    """Draw means over seeds with one standard deviation; lines are interrupted between stages."""
    from matplotlib.ticker import MaxNLocator

    for (name, _), part in course.groupby(["curve", "stage"], sort=False):
        _, colour, style = _LINES[str(name)]
        look = Look(colour, "o" if len(part) <= 2 else "", style)
        _line(axis, part["epoch"], part, look, band=True, markersize=3, linewidth=1.4)
    last = course.groupby("stage")["epoch"].max()
    for end in last.iloc[:-1]:
        axis.axvline(end + 0.5, color=GREY, linestyle=":", linewidth=1.0)
    axis.set_xlim(0, max(last.max() if len(last) else 1, 1) * 1.04)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axis.tick_params(labelsize=SMALL, length=2.5)


def _fill_losses(axis: "Axes", course: pd.DataFrame) -> None:
    """Draw losses on an axis from zero, or on a logarithmic one if they differ much in size."""
    _fill_course(axis, course)
    axis.tick_params(labelbottom=False)
    low, high = course["mean"].min(), course["mean"].max()
    if low > 0 and high / low > _WIDE:
        axis.set_yscale("log")
        log_ticks(axis.yaxis)
    else:
        axis.set_ylim(bottom=min(0.0, low))
        axis.locator_params(axis="y", nbins=3)


def _fill_pools(axis: "Axes", course: pd.DataFrame, limits: tuple[float, float] | None, first: bool) -> None:
    """Draw pool sizes on the logarithmic scale of all lower panels, with numbers in the first column only."""
    _fill_course(axis, course)
    axis.set_xlabel("epoch", fontsize=SMALL, labelpad=1)
    if limits is None:
        axis.set_yticks([])
        return
    axis.set(yscale="log", ylim=limits, ylabel="labels" if first else "")
    log_ticks(axis.yaxis, "{x:,.0f}" if first else "")
    axis.tick_params(axis="y", which="minor", length=0)


METRICS = ("P@1", "PSP@5")
SUBJECT = "renee"
"""The method on which Gandalf is measured."""
AUGMENTED = {"none": Look(VERMILION, "s", "--"), "gandalf": Look(BLUE, "o", "-")}
VALIDATION = 0.1
"""Share of the train rows that the commands split off for validation."""


def draw_iterations(results: Results, dataset: str) -> Sketch:
    """Draw validation scores over the steps of the last stage, with and without Gandalf (thesis, figure 1.4 a, b)."""
    found = comparable(results, dataset)
    runs = [record for record in found.records if any(name.startswith("validation/") for name in record.curves)]
    varied = _validated_pair(runs, dataset)
    if varied.missing:
        why = f"no pair of {SUBJECT} runs on {dataset}, with and without gandalf, was measured on validation rows"
        raise Undrawable(why, varied.commands())
    parts = [
        last_stage(group, metric).assign(augment=kind, metric=metric)
        for metric in METRICS
        for kind, group in zip(AUGMENTED, varied.known, strict=True)
    ]
    data = pd.concat(parts, ignore_index=True)[["metric", "augment", "step", "mean", "std"]]
    shown = [metric for metric in METRICS if set(data[data["metric"] == metric]["augment"]) == set(AUGMENTED)]
    if not shown:
        why = f"the {SUBJECT} runs on {dataset} have no validation scores in their records; newer runs have"
        raise Undrawable(why, varied.commands(varied.variants))
    data = data[data["metric"].isin(shown)]
    figure = _draw_metrics(
        data, "augment", "step", AUGMENTED, xlabel="training step", ylabel="% on validation rows", xlim=(0, None)
    )
    size = varied.known[0].first.config["validation"]["size"]
    rows = f"{size:.0%} of the train rows" if size < 1 else f"{size:.0f} train rows"
    caption = (
        f"{' and '.join(shown)} on the validation split, {rows}, after every epoch of {SUBJECT}, trained with the "
        f"label texts and soft targets of gandalf and without. Steps are those of the last stage; what comes before is "
        f"a warm start of the encoder on the same rows for both. With gandalf an epoch has more rows, and so more "
        f"steps. {varied.caption(found, 'Dataset')}"
    )
    return Sketch(figure, data, caption)


def last_stage(group: Group, metric: str) -> pd.DataFrame:
    """Return a validation metric over the steps of the last stage that all seeds have: step, mean, std."""
    by_seed = []
    for record in group.records.values():
        steps = record.curves.get("step", [])
        numbers = stages(record.curves.get("train/epoch", [])[: len(steps)])
        first = int(numbers.argmax()) if len(numbers) else 0
        begun = (steps[first - 1] if first else None) or 0.0
        scores = zip(steps, record.curves.get(f"validation/{metric}", []), strict=False)
        known = [(step, score) for step, score in scores if step is not None and score is not None]
        by_seed.append({step - begun: score for step, score in known if step > begun})
    common = sorted(set.intersection(*map(set, by_seed)))
    rows = [(step, *summary(np.array([one[step] for one in by_seed]))) for step in common]
    return pd.DataFrame(rows, columns=["step", "mean", "std"]).astype(float)


def _validated_pair(runs: list[RunRecord], dataset: str) -> Varied:
    """Find runs with and without Gandalf on the validation split with most runs; on ties, the default split first."""
    usual: dict[str, Any] = {"size": VALIDATION}
    own = [settings(run.config).items() for run in runs if run.config["method"] == SUBJECT]
    prefix = "validation."
    splits = [{key.removeprefix(prefix): value for key, value in one if key.startswith(prefix)} for one in own]
    choices = [
        find_variants(runs, SUBJECT, dataset, [{"augment": kind, "validation": split} for kind in AUGMENTED])
        for split in {str(split): split for split in (usual, *splits)}.values()
    ]
    return max(choices, key=lambda choice: (len(choice.known), sum(len(group.records) for group in choice.known)))


SHARES = (0.25, 0.5, 0.75)
ORDERS = {"random": Look(VERMILION, "s", "--"), "tail-first": Look(BLUE, "o", "-")}


def draw_subsampling(results: Results, dataset: str) -> Sketch:
    """Draw test scores against the share of labels that Gandalf makes rows of (thesis, figure 1.4 c, d).

    A line is a way to choose the labels; the lines share both ends, where there is nothing to choose.
    """
    found = comparable(results, dataset)
    places = [("", 0.0), *((order, share) for order in ORDERS for share in SHARES), ("", 1.0)]
    variants: list[dict[str, Any]] = [
        {"augment": "gandalf", "augment_options": {"labels": share, "order": order}}
        if order
        else {"augment": "gandalf" if share else "none"}
        for order, share in places
    ]
    varied = find_variants(found.records, SUBJECT, dataset, variants)
    known = [(order, share, group) for (order, share), group in zip(places, varied.groups, strict=True) if group]
    metrics = [metric for metric in METRICS if all(group.values(metric).size for *_, group in known)]
    drawn = [line for line in ORDERS if any(order == line for order, *_ in known)]
    if not drawn or len(known) < 3 or not metrics:
        why = f"too few runs of {SUBJECT} on {dataset} in which gandalf makes rows of a part of the labels"
        raise Undrawable(why, varied.commands() or varied.commands(varied.variants))
    data = pd.DataFrame(
        [
            (metric, line, share, *summary(group.values(metric)))
            for metric in metrics
            for line in drawn
            for order, share, group in known  # shares of an order ascend
            if order in ("", line)
        ],
        columns=["metric", "order", "share", "mean", "std"],
    )
    figure = _draw_metrics(
        data.assign(percent=100 * data["share"]), "order", "percent", ORDERS,
        xlabel="labels that become rows, %", ylabel="% on test rows", xticks=[0, 25, 50, 75, 100],
    )  # fmt: skip
    caption = (
        f"{' and '.join(metrics)} of {SUBJECT} when gandalf makes rows of a part of the labels: a random draw, or "
        f"those with the fewest train rows first. 0 is training without gandalf. {varied.caption(found)}"
    )
    return Sketch(figure, data, caption)


POOLED = "unidec"
"""The method whose pools are counted."""
BETAS = (1, 2, 3, 4)
ETAS = {0: Look(GREEN, "^", ":"), 3: Look(VERMILION, "s", "--"), 6: Look(BLUE, "o", "-")}
LAST = 5
"""Epochs at the end of a training over which the mean is taken: by default one period between two clusterings."""


def draw_positives(results: Results, dataset: str) -> Sketch:
    """Draw positives per query in the pool of a batch, over beta and eta (thesis, figure 2.2 b)."""
    found = comparable(results, dataset)
    places = [(eta, beta) for eta in ETAS for beta in BETAS]
    runs = [record for record in found.records if mean_positives(record) is not None]
    varied = find_variants(runs, POOLED, dataset, [{"beta": beta, "eta": eta} for eta, beta in places])
    rows = [
        (eta, beta, *summary(np.array([mean_positives(record) for record in group.records.values()], np.float64)))
        for (eta, beta), group in zip(places, varied.groups, strict=True)
        if group is not None
    ]
    data = pd.DataFrame(rows, columns=["eta", "beta", "mean", "std"])
    if data.empty or data["eta"].value_counts().max() < 2:
        why = f"too few runs of {POOLED} on {dataset} with different beta whose records have the course of the training"
        raise Undrawable(why, varied.commands())
    figure, axes = new_figure(width=4.6, height=3.2)
    axis = axes[0, 0]
    for eta, part in data.groupby("eta", sort=False):
        _line(axis, part["beta"], part, ETAS[int(str(eta))], label=f"η = {eta}")
    axis.set(xticks=BETAS, xlim=(0.5, 4.5), xlabel="β, positives picked per query", ylabel="positives per query")
    most = varied.known[0].first.dataset.get("statistics", {}).get("labels_per_row")
    limit = ""
    if most is not None:
        limit = f" A train row has {most:.2f} labels on average, which is as many as there can be."
        axis.axhline(most, color=GREY, linestyle=(0, (6, 3)), linewidth=1.2, label=f"all labels of a row: {most:.2f}")
    axis.legend(loc="best")
    caption = (
        f"How many labels of the pool of its batch are positives of a query, when beta positives and eta hard "
        f"negatives are picked for each query and all are shared in the batch: mean over the last {LAST} epochs of "
        f"{POOLED}.{limit} {varied.caption(found, 'Train rows of')}"
    )
    return Sketch(figure, data, caption)


def mean_positives(record: RunRecord) -> float | None:
    """Return the mean number of positives per query over the last epochs; None if it was not recorded."""
    known = [value for value in record.curves.get("train/positives", []) if value is not None]
    return float(np.mean(known[-LAST:])) if known else None


def _draw_metrics(data: pd.DataFrame, line: str, x: str, looks: Mapping[str, Look], **axes_settings: Any) -> "Figure":
    """Draw a panel per metric of the data, with a line for every value of the column `line` over the column `x`."""
    metrics = data["metric"].unique()
    figure, axes = new_figure(1, len(metrics), height=2.9)
    for axis, metric, letter in zip(axes[0], metrics, "abcd", strict=False):
        for name, part in data[data["metric"] == metric].groupby(line, sort=False):
            label = "without" if name == "none" else str(name)
            _line(axis, part[x], part, looks[str(name)], band=x == "step", label=label)
        axis.set(title=f"({letter}) {metric}", **axes_settings)
        axis.legend(loc="best")
    return figure


def _line(
    axis: "Axes", x: "pd.Series[Any]", part: pd.DataFrame, look: Look, *, band: bool = False, **style: Any
) -> None:
    """Draw means with one standard deviation, as a band or as bars."""
    style = {"linestyle": look.linestyle, "marker": look.marker, "markersize": 4.5, **style}
    axis.plot(x, part["mean"], color=look.colour, zorder=3, **style)
    if part["std"].any() and band:
        low, high = part["mean"] - part["std"], part["mean"] + part["std"]
        axis.fill_between(x, low, high, color=look.colour, alpha=0.25, linewidth=0)
    elif part["std"].any():
        axis.errorbar(x, part["mean"], yerr=part["std"], fmt="none", ecolor=look.colour, elinewidth=1.1, capsize=3)
    axis.margins(x=0.06, y=0.14)
