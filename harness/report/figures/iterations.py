"""Scores on held-out rows over the steps of a training, with and without gandalf (thesis, figure 1.4 a and b)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config import ValidationSettings
from harness.record import RunRecord
from harness.report.evidence import Evidence
from harness.report.figures.chosen import Group, comparable
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.labels import label_points
from harness.report.figures.style import BLUE, VERMILION, Look, finished, new_figure, styled
from harness.report.figures.varied import Varied, find_variants

ID = "iterations"
TITLE = "Scores over iterations, with and without gandalf"
METHOD = "renee"
KINDS = {"none": Look(VERMILION, "s", "--"), "gandalf": Look(BLUE, "o", "-")}
METRICS = ("P@1", "PSP@5")
HELD_OUT = 0.1
"""Share of the train rows that the commands hold out."""

Floats = NDArray[np.float64]
Course = tuple[Floats, Floats]
"""Steps [k] and values [seeds, k]."""


@styled
def draw_iterations(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """One panel a metric, one line a kind of augmentation; the steps are those of the last stage of the training."""
    found = comparable(evidence, dataset)
    runs = [record for record in found.records if any(name.startswith("validation/") for name in record.curves)]
    varied = _chosen(runs, dataset)
    if not all(varied.groups):
        why = f"no pair of {METHOD} runs on {dataset}, with and without gandalf, was measured on held-out train rows"
        return Missing(ID, TITLE, why, varied.commands)
    courses: dict[str, dict[str, Course]] = {
        metric: {kind: course(group, metric) for kind, group in zip(KINDS, varied.known, strict=True)}
        for metric in METRICS
    }
    shown = [metric for metric in METRICS if all(len(steps) for steps, _ in courses[metric].values())]
    if not shown:
        why = f"the {METHOD} runs on {dataset} have no scores on held-out rows in their records; runs of today have"
        return Missing(ID, TITLE, why, find_variants([], METHOD, dataset, varied.variants).commands)
    figure, axes = new_figure(1, len(shown), height=2.9)
    for axis, metric, letter in zip(axes[0], shown, "ab", strict=False):
        _fill(axis, courses[metric])
        axis.set(title=f"({letter}) {metric}", xlabel="training step", ylabel="% on held-out rows")
    size = varied.known[0].records[min(varied.known[0].records)].config["validation"]["size"]
    rows = f"{size:.0%} of the train rows, held out" if size < 1 else f"{size:.0f} held-out train rows"
    caption = (
        f"{' and '.join(shown)} on {rows}, after every epoch of {METHOD}, trained with the label texts and soft "
        f"targets of gandalf and without. Steps are those of the last stage; what comes before is a warm start of the "
        f"encoder on the same rows for both. With gandalf an epoch has more rows, and so more steps. "
        f"{varied.caption(found, 'Dataset')}"
    )
    return Drawing(ID, TITLE, caption, _told(courses, shown, dataset), *finished(figure))


def course(group: Group, metric: str) -> Course:
    """A metric on held-out rows over the steps of the last stage, of all seeds, at the steps that all of them have.

    A new stage begins where the number of the epoch does not grow; its steps count from there.
    """
    by_seed = [_of_run(record, metric) for record in group.records.values()]
    steps = sorted(set.intersection(*(set(values) for values in by_seed)))
    values = np.array([[values[step] for step in steps] for values in by_seed], np.float64)
    return np.array(steps, np.float64), values


def _of_run(record: RunRecord, metric: str) -> dict[float, float]:
    curves: dict[str, list[Any]] = record.curves
    steps, epochs = curves.get("step", []), curves.get("train/epoch", [])
    begun, last = 0.0, 0.0
    for before, epoch in zip([0.0, *steps], epochs, strict=False):
        if epoch is not None:
            begun, last = (before if epoch <= last else begun), epoch
    values = zip(steps, curves.get(f"validation/{metric}", []), strict=False)
    return {step - begun: value for step, value in values if value is not None and step > begun}


def _chosen(runs: list[RunRecord], dataset: str) -> Varied:
    """With and without gandalf; of several ways to hold rows out the one with most runs, the usual one on ties."""
    usual = {"size": HELD_OUT}
    ways = {str(way): way for way in (usual, *(_way(run) for run in runs if run.config["method"] == METHOD))}
    choices = [
        find_variants(runs, METHOD, dataset, [{"augment": kind, "validation": way} for kind in KINDS])
        for way in sorted(ways.values(), key=lambda way: (way != usual, str(way)))
    ]
    return max(choices, key=lambda choice: (len(choice.known), sum(len(group.records) for group in choice.known)))


def _way(record: RunRecord) -> dict[str, Any]:
    """How a run held rows out, as far as it is not the usual way."""
    usual = ValidationSettings().model_dump(mode="json")
    return {key: value for key, value in record.config.get("validation", {}).items() if value != usual.get(key)}


def _fill(axis: Any, courses: dict[str, Course]) -> None:
    ends, lines = [], []
    for kind, (steps, values) in courses.items():
        look, mean = KINDS[kind], values.mean(0)
        axis.plot(steps, mean, color=look.colour, linestyle=look.linestyle, marker=look.marker, markersize=4)
        if len(values) > 1:
            spread = values.std(0, ddof=1)
            axis.fill_between(steps, mean - spread, mean + spread, color=look.colour, alpha=0.25, linewidth=0)
        ends.append((steps[-1], mean[-1]))
        lines.append(np.column_stack([steps, mean]))
    axis.set_xlim(left=0)
    axis.margins(y=0.12)
    names = ["gandalf" if kind == "gandalf" else "without" for kind in courses]
    x, y = np.array(ends).T
    label_points(axis, x, y, names, lines)


def _told(courses: dict[str, dict[str, Course]], metrics: list[str], dataset: str) -> str:
    parts = []
    for metric in metrics:
        ends = [
            f"{kind} from {values[:, 0].mean():.1f} to {values[:, -1].mean():.1f} at step {steps[-1]:.0f}"
            for kind, (steps, values) in courses[metric].items()
        ]
        parts.append(f"{metric}: {', '.join(ends)}")
    return f"Line charts of {METHOD} on {dataset} over training steps, by augmentation. {'; '.join(parts)}."
