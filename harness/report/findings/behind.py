"""Where UniDEC is not first: by how much, on which labels, whether by chance, and what was tried against it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from harness.published import JUDGED, SUBJECT
from harness.report.cells import Cell, Figure, Table
from harness.report.comparing.paired import LEVEL, holm
from harness.report.evidence import Evidence, Study, is_number, own_view, shown_value
from harness.report.findings.claims import row_of, title
from harness.report.grids import Grid, Line
from harness.report.grids.drawn import measured
from harness.report.grids.significance import ahead_of, mean_rows, p_value

_LEVEL = 1e-9
"""Percent; means that differ by less are of equal hits, added up in another order."""
TRIED = "tried-"
"""Studies that were made to find out why it is behind begin with this."""
_BINS = ("head", "torso", "tail")
_SEARCHED = ("dataset", "method", "searched", "trials", "best trial")


@dataclass(frozen=True)
class Gap:
    """Another method that is above UniDEC, in one metric."""

    where: str
    """Title of the comparison: a dataset of the matrix, or the table with a transformer."""
    metric: str
    other: Line
    values: tuple[float, float]
    """UniDEC's and the other's."""
    bins: tuple[float | None, ...]
    """UniDEC's contribution minus the other's by bin of labels; they sum to the difference. None: not recorded."""
    p: float | None
    """Not corrected; None where rows are missing."""


def compares(grid: Grid, metric: str) -> bool:
    """Whether UniDEC and another method have this metric."""
    subject = row_of(grid, SUBJECT)
    return bool(subject and measured(subject, metric)) and any(measured(one, metric) for one in _others(grid, subject))


def gaps(matrix: Sequence[Grid], evidence: Evidence) -> list[Gap]:
    """Every method above UniDEC, other ways of scoring the same training aside."""
    found = []
    for grid in matrix:
        subject = row_of(grid, SUBJECT)
        if subject is None:
            continue
        for metric in JUDGED:
            own = measured(subject, metric)
            for other in _others(grid, subject):
                theirs = measured(other, metric)
                if own and theirs and fmean(theirs) > fmean(own) + _LEVEL:
                    bins = tuple(_in_bin(subject, other, metric, name) for name in _BINS)
                    p = _told_apart(subject, other, metric, evidence)
                    found.append(Gap(title(grid), metric, other, (fmean(own), fmean(theirs)), bins, p))
    return found


def level_with(grid: Grid, metric: str) -> list[str]:
    """Labels of the methods that have exactly what UniDEC has."""
    subject = row_of(grid, SUBJECT)
    own = measured(subject, metric) if subject else []
    others = [(one.label, measured(one, metric)) for one in _others(grid, subject)]
    return [label for label, theirs in others if own and theirs and abs(fmean(theirs) - fmean(own)) <= _LEVEL]


def _others(grid: Grid, subject: Line | None) -> list[Line]:
    """Rows of other trainings; another way of scoring the same one is none."""
    return [line for line in grid.lines if subject and line.records and line.run != subject.run]


def gap_table(found: Sequence[Gap]) -> Table | None:
    """A line for each; None if there is nothing to explain."""
    if not found:
        return None
    tested = [gap.p for gap in found if gap.p is not None]
    corrected = iter(holm(tested))
    rows = []
    for gap in found:
        p = None if gap.p is None else next(corrected)
        figures = (*gap.values, gap.values[0] - gap.values[1], *gap.bins)
        rows.append(
            (
                *map(Cell, (gap.where, gap.metric, gap.other.label)),
                *(Cell("") if one is None else Cell.of(Figure(one, n=1)) for one in figures),
                Cell("" if p is None else f"{p:.4f}", best=p is not None and p < LEVEL),
            )
        )
    columns = ("dataset", "in", "above UniDEC", "UniDEC's", "other's", "difference", *_BINS, "p")
    caption = (
        "Every method above UniDEC in the mean over seeds, and what labels of each third of the train pairs add to the "
        "difference; p of the paired test, Holm's correction over the table."
    )
    return Table(f"Where UniDEC is not first in {' or '.join(JUDGED)}", columns, tuple(rows), caption, words=3)


def tried_tables(studies: Sequence[Study]) -> list[Table]:
    """What was tried, on held-out train rows: the first trial of a study against its best; one table per objectives."""
    rows: dict[tuple[str, ...], list[tuple[Cell, ...]]] = {}
    for study in studies:
        first, best = next((one for one in study.ended if one.number == 0), None), study.chosen
        if not study.name.startswith(TRIED) or first is None or best is None:
            continue
        point = ", ".join(f"{name} {shown_value(value)}" for name, value in best.params.items())
        words = (study.dataset, study.method, ", ".join(study.space), str(len(study.ended)), point)
        values = [trial.values[name] for name in study.objectives for trial in (first, best)]
        cells = (*map(Cell, words), *(Cell.of(Figure(value, n=1)) for value in values))
        rows.setdefault(tuple(study.objectives), []).append(cells)
    caption = (
        "Percent on held-out train rows. In what is searched, the first trial has the method's own settings where the "
        "range has them, not those that the benchmark's search chose."
    )
    return [
        Table("What was tried", (*_SEARCHED, *_shown(objectives)), tuple(found), caption, words=len(_SEARCHED))
        for objectives, found in rows.items()
    ]


def _shown(objectives: Sequence[str]) -> list[str]:
    return [f"{name}, {which}" for name in objectives for which in ("first", "best")]


def _in_bin(subject: Line, other: Line, metric: str, name: str) -> float | None:
    means = []
    for line in (subject, other):
        own = [run for run in line.records if line.view in (None, own_view(run))]  # of its own scorer alone
        found: list[Any] = [one.get(metric) for run in own for one in run.contributions if one.get("bin") == name]
        values = [float(value) for value in found if is_number(value)]
        if not values or len(values) != len(line.records):
            return None
        means.append(fmean(values))
    return means[0] - means[1]


def _told_apart(subject: Line, other: Line, metric: str, evidence: Evidence) -> float | None:
    rows = [mean_rows(line, metric, evidence) for line in (subject, other)]
    if rows[0] is None or rows[1] is None or len(rows[0]) != len(rows[1]):
        return None
    return p_value(ahead_of(rows[0], rows[1]))
