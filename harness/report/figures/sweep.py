"""What a sweep found: value of its trials against each setting that it searched, one panel each."""

import shlex
from typing import TYPE_CHECKING

from harness.errors import UserError
from harness.report.evidence import Evidence, Study, shown_value
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import finished, shown, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ID = "sweep"
TITLE = "What a sweep found"
SYMBOLS = {"lambda": "λ", "beta": "β", "eta": "η", "tau": "τ"}
ORDER = ("lambda", "beta", "eta", "tau")
"""The papers' settings come first, in their order; the others by name."""
FEWEST_TRIALS = 3
"""Two points in every panel show nothing that their numbers do not."""
MOST_POINTS = 2_000
"""Of all panels together; more make a picture that is slow to open and shows no more."""


@styled
def draw_sweep(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """The study with most complete trials on the dataset; later trials are darker, a star is the best one."""
    studies = [study for study in evidence.studies if study.dataset == dataset and complete(study)]
    if max(map(complete, studies), default=0) < FEWEST_TRIALS:
        return Missing(ID, TITLE, f"no sweep on {dataset} has {FEWEST_TRIALS} complete trials", _command(dataset))
    study = min(studies, key=lambda study: (-complete(study), study.name))
    figure = _slices(study)
    if figure is None:
        why = f"the study {shown(study.name)} does not say what it searched, or its trials do not say what they tried"
        return Missing(ID, TITLE, why, _command(dataset))
    return Drawing(ID, TITLE, _caption(study, len(studies) - 1), _told(study), *finished(figure))


def complete(study: Study) -> int:
    """Trials with a value for every objective."""
    return sum(trial.state == "COMPLETE" and trial.values.keys() >= set(study.objectives) for trial in study.trials)


def frame_of(study: Study) -> "pd.DataFrame":
    """One row per trial that is drawn: number, state, its objectives and its settings; None for what it has not."""
    import pandas as pd

    names = ordered(study)
    drawn = set(sample_of(study))
    rows = [
        {"number": trial.number, "state": trial.state}
        | {objective: trial.values.get(objective) for objective in study.objectives}
        | {name: trial.params.get(name) for name in names}
        for place, trial in enumerate(study.trials)
        if place in drawn
    ]
    return pd.DataFrame(rows, columns=["number", "state", *study.objectives, *names])


def sample_of(study: Study) -> list[int]:
    """Places of the trials that are drawn: all, or of too many the best and an even sample of those with values."""
    panels = max(len(study.space), 1) * max(len(study.objectives), 1)
    most = max(MOST_POINTS // panels, 2)
    points = [place for place, trial in enumerate(study.trials) if trial.values]
    if len(points) <= most:
        return list(range(len(study.trials)))
    best = {
        max(having, key=lambda place: study.trials[place].values[objective])
        for objective in study.objectives
        if (having := [place for place in points if objective in study.trials[place].values])
    }
    return sorted(best | {points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)})


def ordered(study: Study) -> list[str]:
    """What was searched, in the order of the panels."""
    return sorted(study.space, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def _slices(study: Study) -> "Figure | None":
    """The panels; None if the study has nothing to put on an axis."""
    from harness.sweep.plots.slicing import draw_slices
    from harness.sweep.space import from_json

    try:
        space = from_json({name: study.space[name] for name in ordered(study)})
    except UserError:
        return None
    figure = draw_slices(frame_of(study), {"objectives": study.objectives, "space": space})
    if figure is not None:
        figure.suptitle("")  # titles stand beside figures
        for axis in figure.axes:
            if name := axis.get_xlabel():
                axis.set_xlabel(f"{SYMBOLS[name]} ({name})" if name in SYMBOLS else shown(name))
    return figure


def _command(dataset: str) -> str:
    over = ",".join(ORDER)
    return f"python -m harness sweep --method unidec --dataset {shlex.quote(dataset)} --over {over} --trials 40"


def _caption(study: Study, others: int) -> str:
    states = [trial.state for trial in study.trials]
    ended = [
        f"{states.count(state)} {word}"
        for state, word in (("PRUNED", "were ended early"), ("FAIL", "failed"))
        if state in states
    ]
    untold = f" Not shown: {', '.join(ended)}." if ended else ""
    size, sampler = study.settings.get("validation"), shown(str(study.settings.get("sampler")))
    rows = f"{size:.0%} of the train rows" if isinstance(size, float) and size < 1 else "train rows"
    drawn = [study.trials[place] for place in sample_of(study)]
    few = "" if len(drawn) == len(study.trials) else f" Drawn are {len(drawn):,} of them, the best and an even sample."
    more = "" if not others else f" {others} more {'study' if others == 1 else 'studies'} on this dataset."
    return (
        f"{' and '.join(study.objectives)} on held-out rows ({rows}) of the {complete(study):,} complete trials of the "
        f"study {shown(study.name)}, {shown(study.method)} on {shown(study.dataset)}, against each setting; all were "
        f"varied together. Darker is later, the star is the best.{few}{untold} Sampler {sampler}, seed "
        f"{study.settings.get('seed')}; data {study.digest[:12]}.{more}"
    )


def _told(study: Study) -> str:
    """The best trial of the first objective in words."""
    objective = study.objectives[0]
    done = [trial for trial in study.trials if objective in trial.values]
    best = max(done, key=lambda trial: (trial.values[objective], -trial.number))
    params = ", ".join(f"{name} {shown_value(best.params.get(name))}" for name in ordered(study))
    least = min(trial.values[objective] for trial in done)
    return (
        f"Scatter plots of {objective} against {', '.join(ordered(study))} for {len(done)} trials of {study.method} on "
        f"{study.dataset}: from {least:.2f} to {best.values[objective]:.2f}, the best at {params}."
    )
