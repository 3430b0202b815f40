"""Figures as functions of evidence: `FIGURES[id](evidence, dataset)` is a `Drawing`, or says what is `Missing`.

Nothing here runs or trains anything, and matplotlib is imported only when something is drawn. A figure shows one
dataset, one version of its data and of the metrics; what that left out is in its caption.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from harness.errors import unknown_name
from harness.published import MATRIX
from harness.report.evidence import Evidence
from harness.report.figures.bins import draw_bins
from harness.report.figures.course import draw_course
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.iterations import draw_iterations
from harness.report.figures.neighbours import draw_neighbours
from harness.report.figures.positives import draw_positives
from harness.report.figures.scatter import draw_memory, draw_time, draw_tradeoff
from harness.report.figures.standing import draw_standing
from harness.report.figures.subsampling import draw_subsampling
from harness.report.figures.sweep import draw_sweep

__all__ = ["FIGURES", "Drawing", "Missing", "draw_all"]

Draw = Callable[[Evidence, str], Drawing | Missing]

FIGURES: dict[str, Draw] = {
    MATRIX: draw_standing,
    "bins": draw_bins,
    "tradeoff": draw_tradeoff,
    "cost-time": draw_time,
    "cost-memory": draw_memory,
    "course": draw_course,
    "iterations": draw_iterations,
    "subsampling": draw_subsampling,
    "positives": draw_positives,
    "sweep": draw_sweep,
    "neighbours": draw_neighbours,
}
"""In the order in which a report shows them."""


def draw_all(evidence: Evidence, dataset: str, only: Collection[str] | None = None) -> Iterator[Drawing | Missing]:
    """All figures of a dataset, in the order of `FIGURES`; one whose numbers no axis can hold is missing, and says so.

    Args:
        evidence: What is drawn.
        dataset: Its name.
        only: Ids of the wanted figures; None for all.
    """
    for name in only or ():
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES)
    for name, draw in FIGURES.items():
        if only is None or name in only:
            yield _drawn(draw, evidence, dataset)


def _drawn(draw: Draw, evidence: Evidence, dataset: str) -> Drawing | Missing:
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what that gives is told below, or is not drawn
            return draw(evidence, dataset)
    except (ValueError, OverflowError, FloatingPointError) as error:
        # what the figure says when there is nothing to draw has its title, and the command that measures anew
        missing = draw(Evidence(()), dataset)
        if isinstance(missing, Drawing):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        return replace(missing, why=f"the numbers of these runs on {dataset} cannot be drawn: {reason}")
