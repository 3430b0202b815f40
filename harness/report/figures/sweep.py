"""A study in a report, drawn from what is stored of it, and Optuna's own plots of a live study."""

import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from harness.report.figures.drawing import Sketch, Undrawable
from harness.report.figures.style import DOTS_PER_INCH, SMALL, WIDTH, format_name, log_ticks, new_figure
from harness.report.results import Results, Study

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

FEWEST_TRIALS = 3
"""Fewest complete trials of a study that is drawn."""


def draw_sweep(results: Results, dataset: str) -> Sketch:
    """Draw the study with most complete trials on the dataset: its objectives against each parameter."""
    where = shlex.quote(dataset)
    command = f"python -m harness sweep --method unidec --dataset {where} --over lambda,beta,eta,tau --trials 40"
    studies = [study for study in results.studies if study.dataset == dataset and study.ended]
    if max((len(study.ended) for study in studies), default=0) < FEWEST_TRIALS:
        raise Undrawable(f"no sweep on {dataset} has {FEWEST_TRIALS} complete trials", command)
    study = min(studies, key=lambda study: (-len(study.ended), study.name))
    names = sorted(study.space)
    data = pd.DataFrame(
        [
            {"trial": trial.number, **{name: trial.params.get(name) for name in names}, **trial.values}
            for trial in study.ended
        ]
    )
    searched = [name for name in names if data[name].notna().any()]
    if not searched:
        why = f"the study {format_name(study.name)} has no search space, or its trials have no parameters"
        raise Undrawable(why, command)
    height = 0.6 + 1.7 * len(study.objectives)
    size = {"width": max(WIDTH, 1.5 * len(searched)), "height": height}
    figure, axes = new_figure(len(study.objectives), len(searched), sharex="col", sharey="row", **size)
    for row, objective in zip(axes, study.objectives, strict=True):
        row[0].set_ylabel(f"{objective}, %")
        for axis, name in zip(row, searched, strict=True):
            tried = data[data[name].notna()]
            values = tried[name].map(str) if "choices" in study.space[name] else tried[name]
            dots = axis.scatter(values, tried[objective], c=tried["trial"], cmap="Blues", edgecolors="0.4", s=26)
            if study.space[name].get("log"):
                axis.set_xscale("log")
                log_ticks(axis.xaxis, steps=(1.0, 3.0))
            axis.tick_params(axis="x", labelrotation=30)
    for axis, name in zip(axes[-1], searched, strict=True):
        axis.set_xlabel(format_name(name))
    figure.colorbar(dots, ax=axes, label="trial", pad=0.01)
    return Sketch(figure, data, _caption(study, len(studies) - 1))


def _caption(study: Study, others: int) -> str:
    states = [trial.state for trial in study.trials]
    ended = [
        f"{states.count(state)} {word}"
        for state, word in (("PRUNED", "were ended early"), ("FAIL", "failed"))
        if state in states
    ]
    size, sampler = study.settings.get("validation"), format_name(str(study.settings.get("sampler")))
    rows = f"{size:.0%} of the train rows" if isinstance(size, float) and size < 1 else "train rows"
    chosen = study.chosen
    best = f" The best is trial {chosen.number}." if chosen else ""
    hidden = f" Not shown: {', '.join(ended)}." if ended else ""
    more = "" if not others else f" {others} more {'study' if others == 1 else 'studies'} on this dataset."
    name, method, dataset = map(format_name, (study.name, study.method, study.dataset))
    return (
        f"{' and '.join(study.objectives)} on validation rows ({rows}) of the {len(study.ended):,} complete trials of "
        f"the study {name}, {method} on {dataset}, against each parameter; all were varied together. Darker is later."
        f"{best}{hidden} Sampler {sampler}, seed {study.settings.get('seed')}; data {study.digest[:12]}.{more}"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Optuna neither log nor warn that its plots are experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def study_plots(study: "optuna.Study", objectives: list[str]) -> "dict[str, Figure]":
    """Return every plot of a study that it has data for, by file stem; those of a second objective end in -2."""
    import optuna
    from optuna.visualization import matplotlib as plots

    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state == optuna.trial.TrialState.COMPLETE]
    varied = max((len(trial.params) for trial in complete), default=0)
    found: dict[str, Figure] = {}
    if any(trial.intermediate_values for trial in trials) and len(objectives) == 1:
        found["intermediate"] = _plot(plots.plot_intermediate_values, study)
    for at, name in enumerate(objectives if complete else ()):
        # without a target Optuna knows that larger is better, and shows the best so far
        target = _target(at) if len(objectives) > 1 else None
        about: dict[str, Any] = {"target": target, "target_name": f"validation {name}, %"}
        last = f"-{at + 1}" if at else ""
        found[f"history{last}"] = _plot(plots.plot_optimization_history, study, **about)
        if varied:
            # a colour bar needs the constrained layout, which fails with a single axis
            layout = "constrained" if varied > 1 else "tight"
            given: dict[str, Any] = {"target": _target(at), "target_name": f"{name}, %", "layout": layout}
            figure = _plot(plots.plot_slice, study, **given)
            figure.set_size_inches(max(WIDTH, 1.5 * (varied + 1)), 2.3)
            found[f"slice{last}"] = figure
        if varied and len(complete) > 1:
            found[f"parallel{last}"] = _plot(plots.plot_parallel_coordinate, study, **about)
        if importances(study, at):
            about |= {"target": _target(at, -1), "evaluator": optuna.importance.PedAnovaImportanceEvaluator()}
            found[f"importance{last}"] = _plot(plots.plot_param_importances, study, **about)
    if complete and len(objectives) == 2:
        found["pareto"] = _plot(plots.plot_pareto_front, study, target_names=objectives)
    return found


def importances(study: "optuna.Study", objective: int = 0) -> dict[str, float]:
    """Return the importance of each parameter for an objective: shares that sum to 1, largest first (PED-ANOVA).

    Empty if there are too few complete trials, or all have the same value.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < 4 or len({trial.values[objective] for trial in complete}) < 2:
        return {}
    try:
        with _quiet():
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), target=_target(objective, -1))
    except (ValueError, RuntimeError):  # ranges that differ between trials, or a single value of a range
        return {}
    return {name: share for name, share in found.items() if share == share}


def _target(objective: int, sign: int = 1) -> "Callable[[optuna.trial.FrozenTrial], float]":
    """Return a function that reads one objective; with a target, PED-ANOVA minimises, hence the sign."""
    return lambda trial: sign * float(trial.values[objective])


def _plot(
    draw: Callable[..., Any], *given: Any, layout: Literal["tight", "constrained"] = "tight", **options: Any
) -> "Figure":
    """Call one of Optuna's plots and give its figure our look.

    Optuna draws with pyplot and its "ggplot" style; pyplot's state and the user's backend stay as they were.
    """
    import matplotlib
    import numpy as np
    from matplotlib import pyplot

    backend = matplotlib.get_backend(auto_select=False)
    pyplot.switch_backend("agg")
    try:
        with matplotlib.rc_context(), _quiet():
            axes = draw(*given, **options)
            figure: Figure = np.ravel(axes)[0].figure
            pyplot.close(figure)
    finally:
        if backend is not None:
            pyplot.switch_backend(backend)
    figure.set_dpi(DOTS_PER_INCH)
    figure.set_layout_engine(layout)
    figure.suptitle("")
    for axis in figure.axes:
        axis.set_title("")
        axis.set_facecolor("white")
        axis.grid(True, color="0.88")
        axis.tick_params(labelsize=SMALL, colors="0.2")
        for side in (axis.xaxis, axis.yaxis):
            side.label.set(size=9, color="black")
            if side.get_scale() == "log":
                log_ticks(side, steps=(1.0, 3.0))
        axis.tick_params(axis="x", labelrotation=30)
        if legend := axis.get_legend():
            legend.remove()
            axis.legend(loc="best", fontsize=SMALL)
    return figure
