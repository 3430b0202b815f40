"""Draw figures from results: `draw_figure(name, results, dataset)` returns a `Drawing` or what is `Missing`.

Nothing here runs or trains anything, and matplotlib is imported only when something is drawn. A figure shows one
dataset, one version of its data and of the metrics; its caption says what was left out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from harness.report.figures import methods, neighbours, sweep, training
from harness.report.figures.drawing import Drawing, Missing, Sketch, Undrawable, as_words, data_digest
from harness.report.figures.style import as_png, in_style
from harness.report.results import Results
from harness.settings.published import MATRIX

__all__ = ["FIGURES", "Drawing", "Missing", "draw_figure"]


class Figure(NamedTuple):
    """An entry of `FIGURES`: title and drawing function."""

    title: str
    draw: Callable[[Results, str], Sketch]


FIGURES = {
    MATRIX: Figure("Every method with settings from the same small search", methods.draw_standing),
    "bins": Figure("What head, torso and tail labels add", methods.draw_bins),
    "tradeoff": Figure("Precision against propensity-scored precision", partial(methods.draw_plane, methods.TRADEOFF)),
    "cost-time": Figure("Precision against training time", partial(methods.draw_plane, methods.TIME)),
    "cost-memory": Figure("Precision against memory", partial(methods.draw_plane, methods.MEMORY)),
    "course": Figure("The course of the trainings", training.draw_course),
    "iterations": Figure("Scores over iterations, with and without gandalf", training.draw_iterations),
    "subsampling": Figure("Scores against the share of labels that gandalf uses", training.draw_subsampling),
    "positives": Figure("Positives per query over beta and eta", training.draw_positives),
    "sweep": Figure("What a sweep found", sweep.draw_sweep),
    "neighbours": Figure("Labels that occur together", neighbours.draw_neighbours),
}
"""All figures by name, in the order of a report."""


def draw_figure(name: str, results: Results, dataset: str) -> Drawing | Missing:
    """Draw one figure of a dataset; `Missing` if it lacks data, or its numbers cannot be drawn."""
    title, draw = FIGURES[name]
    try:
        with in_style(), np.errstate(over="ignore", invalid="ignore"):
            sketch = draw(results, dataset)
            png = as_png(sketch.figure, digest=data_digest(sketch.data))
    except Undrawable as missing:
        return Missing(name, title, missing.why, missing.command)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # values of a file may be of any kind
        if results == Results(()):
            raise
        missing_all = draw_figure(name, Results(()), dataset)  # has the command that makes new runs
        assert isinstance(missing_all, Missing)
        reason = " ".join(str(error).split()) or type(error).__name__
        why = f"the numbers of these runs on {dataset} cannot be drawn: {reason}"
        return Missing(name, title, why, missing_all.command)
    words = as_words(sketch.data if sketch.words is None else sketch.words)
    return Drawing(name, title, sketch.caption, f"{title}. {words}", png, sketch.data)
