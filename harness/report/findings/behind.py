"""Where UniDEC is not first: by how much, on which labels, whether by chance, and what was tried against it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.report.cells import Cell, Figure, Table
from harness.report.comparing.paired import LEVEL, holm
from harness.report.evidence import Evidence, Study
from harness.report.findings.claims import row_of
from harness.report.grids import Grid, Line
from harness.report.grids.drawn import measured
from harness.report.grids.significance import ahead_of, mean_rows, p_value

SUBJECT = "unidec"
JUDGED = ("P@1", "PSP@5")
TRIED = "tried-"
"""Studies that were made to find out why it is behind begin with this."""
_BINS = ("head", "torso", "tail")


@dataclass(frozen=True)
class Gap:
    """Another method that is above UniDEC, in one metric on one dataset."""

    dataset: str
    metric: str
    other: Line
    values: tuple[float, float]
    """UniDEC's and the other's."""
    bins: tuple[float | None, ...]
    """UniDEC's contribution minus the other's by bin of labels; they sum to the difference. None: not recorded."""
    p: float | None
    """Not corrected; None where rows are missing."""


def gaps(matrix: Sequence[Grid], evidence: Evidence) -> list[Gap]:
    """Every method above UniDEC, other ways of scoring the same training aside."""
    found = []
    for grid in matrix:
        subject = row_of(grid, SUBJECT)
        if subject is None:
            continue
        others = [line for line in grid.lines if line.records and line.run != subject.run]
        for metric in JUDGED:
            own = measured(subject, metric)
            for other in others:
                theirs = measured(other, metric)
                if own and theirs and fmean(theirs) > fmean(own):
                    bins = tuple(_in_bin(subject, other, metric, name) for name in _BINS)
                    p = _told_apart(subject, other, metric, evidence)
                    found.append(Gap(grid.dataset, metric, other, (fmean(own), fmean(theirs)), bins, p))
    return found


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
                *map(Cell, (gap.dataset, gap.metric, gap.other.label)),
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


def tried_table(studies: Sequence[Study]) -> Table | None:
    """What was tried, on held-out train rows: the settings as they stand against the best found."""
    rows = []
    for study in studies:
        ended = [trial for trial in study.trials if trial.state == "COMPLETE"]
        if not study.name.startswith(TRIED) or not ended or ended[0].number:
            continue
        best = max(ended, key=lambda trial: sum(trial.values.values()))
        point = ", ".join(f"{name} {_short(value)}" for name, value in best.params.items())
        values = [trial.values[name] for name in study.objectives for trial in (ended[0], best)]
        words = (study.dataset, study.method, ", ".join(study.space), str(len(ended)), point)
        rows.append((*map(Cell, words), *(Cell.of(Figure(value, n=1)) for value in values)))
        objectives = study.objectives
    if not rows:
        return None
    shown = [f"{name}, {which}" for name in objectives for which in ("as it stands", "best")]
    columns = ("dataset", "method", "searched", "trials", "best", *shown)
    return Table("What was tried", columns, tuple(rows), "Percent on held-out train rows.", words=5)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _in_bin(subject: Line, other: Line, metric: str, name: str) -> float | None:
    means = []
    for line in (subject, other):
        found = [one.get(metric) for run in line.records for one in run.contributions if one.get("bin") == name]
        values = [float(value) for value in found if isinstance(value, int | float)]
        if len(values) != len(line.records):
            return None
        means.append(fmean(values))
    return means[0] - means[1]


def _told_apart(subject: Line, other: Line, metric: str, evidence: Evidence) -> float | None:
    rows = [mean_rows(line, metric, evidence) for line in (subject, other)]
    if rows[0] is None or rows[1] is None or len(rows[0]) != len(rows[1]):
        return None
    return p_value(ahead_of(rows[0], rows[1]))
