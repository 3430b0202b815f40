"""reports/FINDINGS.md: which claims of the papers hold on the data that was run, each with figures, test and verdict.

    claims.yaml -> rows of tables -> paired tests on test rows, Holm's correction within a claim -> verdict

No figure and no verdict is written by hand. The sentence that explains a verdict is; it is shown only while the runs
still give the verdict it was written for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError

from harness.config import Settings
from harness.data.card import describe_faults
from harness.errors import UserError
from harness.published import published_table, table_paths
from harness.report.cells import Cell, Figure, Table
from harness.report.comparing.paired import LEVEL, holm
from harness.report.evidence import Evidence
from harness.report.grids import Grid, Line, grids
from harness.report.grids.drawn import measured
from harness.report.grids.significance import mean_rows, p_value
from harness.report.marking import marked
from harness.report.tables import as_markdown, markdown_text
from harness.yaml import read_yaml

FINDINGS = "FINDINGS.md"
MATRIX = "benchmark"
"""The table that every method is in."""
CLAIMS = Path(__file__).with_name("claims.yaml")
Verdict = Literal["holds", "does not hold", "undecided", "not run"]
_SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5")


class Test(Settings):
    """Two rows, and in what one should be above the other."""

    table: str
    ahead: str
    behind: str
    metrics: list[str] = Field(default=[])
    cheaper: float | None = Field(default=None, gt=0, le=1)
    """Largest share of the other's training time."""
    level: bool = False
    """Being equal within chance is enough."""
    datasets: list[str] = Field(default=[])
    """Where the claim is made; empty for everywhere."""


class Claim(Settings):
    """A sentence of a paper."""

    claim: str
    source: str
    tests: list[Test] = Field(min_length=1)
    explains: Verdict | None = None
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    """One test in one metric on one dataset."""

    dataset: str
    ahead: Line
    behind: Line
    measure: str
    """A metric, or `training s`."""
    values: tuple[float, float]
    p: float
    """Corrected within the claim; 0 or 1 for a ratio of times, which is compared as it is."""
    sign: int
    """1: as claimed; -1: the reverse; 0: not told from chance."""
    level: bool = False


@dataclass(frozen=True)
class Finding:
    """A claim, and what the runs say."""

    claim: Claim
    outcomes: tuple[Outcome, ...]

    def count(self, sign: int) -> int:
        """How many tests came out so; where equal is enough, one that is not decided counts as claimed."""
        return sum((one.sign or int(one.level)) == sign for one in self.outcomes)

    @property
    def verdict(self) -> Verdict:
        """As claimed in most tests and reversed in none; reversed at least as often; neither."""
        if not self.outcomes:
            return "not run"
        if self.count(1) >= max(1, self.count(0)) and not self.count(-1):
            return "holds"
        if self.count(-1) >= max(1, self.count(1)):
            return "does not hold"
        return "undecided"

    @property
    def why(self) -> str:
        """The explanation, while it is one of this verdict."""
        return self.claim.why if self.claim.explains == self.verdict else ""


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """All claims; a fault in the file is a `UserError`."""
    entries = read_yaml(path).get("claims")
    try:
        return [Claim.model_validate(entry) for entry in entries or []]
    except (ValidationError, TypeError) as error:
        faults = (
            describe_faults(error, str(path), Claim) if isinstance(error, ValidationError) else [f"{path}: {error}"]
        )
        raise UserError("\n".join(faults)) from error


class Findings:
    """All claims against one body of evidence."""

    def __init__(self, evidence: Evidence, claims: Sequence[Claim] | None = None) -> None:
        self._evidence = evidence
        self._claims = read_claims() if claims is None else list(claims)
        self._grids: dict[str, list[Grid]] = {}

    @cached_property
    def all(self) -> list[Finding]:
        """In the order of the claims."""
        return [self._finding(claim) for claim in self._claims]

    def grids(self, table: str) -> list[Grid]:
        """A table on every dataset with runs of it; each is looked for once."""
        if table not in self._grids:
            known = grids(self._evidence.records, published_table(table)) if table in table_paths() else []
            self._grids[table] = [grid for grid in known if grid.records]
        return self._grids[table]

    def _finding(self, claim: Claim) -> Finding:
        found = [outcome for test in claim.tests for outcome in self._outcomes(test)]
        tested = [place for place, one in enumerate(found) if one.measure in _metrics(claim)]
        for place, p in zip(tested, holm([found[place].p for place in tested]), strict=True):
            found[place] = replace(found[place], p=p, sign=found[place].sign if p < LEVEL else 0)
        return Finding(claim, tuple(found))

    def _outcomes(self, test: Test) -> Iterator[Outcome]:
        for grid in self.grids(test.table):
            if test.datasets and grid.dataset not in test.datasets:
                continue
            ahead, behind = (_row(grid, name) for name in (test.ahead, test.behind))
            if ahead is None or behind is None:
                continue
            if test.cheaper is not None:
                yield _costs(grid.dataset, ahead, behind, test.cheaper)
            for metric in test.metrics:
                if outcome := self._compared(grid.dataset, ahead, behind, metric, test.level):
                    yield outcome

    def _compared(self, dataset: str, ahead: Line, behind: Line, metric: str, level: bool) -> Outcome | None:
        rows = [mean_rows(line, metric, self._evidence) for line in (ahead, behind)]
        if rows[0] is None or rows[1] is None or len(rows[0]) != len(rows[1]):
            return None
        difference = rows[0] - rows[1]
        values = fmean(measured(ahead, metric)), fmean(measured(behind, metric))
        return Outcome(
            dataset, ahead, behind, metric, values, p_value(difference), int(np.sign(difference.sum())), level
        )


def _metrics(claim: Claim) -> set[str]:
    return {metric for test in claim.tests for metric in test.metrics}


def _row(grid: Grid, stem: str) -> Line | None:
    found = [line for line in grid.lines if line.records and any(row.stem == stem for row in line.rows)]
    return found[0] if found else None


def _costs(dataset: str, ahead: Line, behind: Line, share: float) -> Outcome:
    first, second = (fmean(float(one.training.get("seconds", 0.0)) for one in line.records) for line in (ahead, behind))
    return Outcome(dataset, ahead, behind, "training s", (first, second), 0.0, 1 if first <= share * second else -1)


def findings_page(evidence: Evidence) -> str | None:
    """The page as Markdown; None where the matrix was not run."""
    found = Findings(evidence)
    matrix = found.grids(MATRIX) if MATRIX in table_paths() else []
    if not matrix:
        return None
    parts = [
        _head(evidence, matrix),
        as_markdown(summary(found.all)),
        *_standings(matrix),
        as_markdown(details(found.all)),
    ]
    return "\n".join([*parts, _foot(matrix)])


def summary(findings: Sequence[Finding]) -> Table:
    """A line a claim."""
    rows = [
        (
            Cell(one.claim.claim),
            Cell(one.claim.source),
            Cell(one.verdict, best=one.verdict in ("holds", "does not hold")),
            Cell(", ".join(_told(one))),
            Cell(one.why),
        )
        for one in findings
    ]
    columns = ("claim", "where", "verdict", "tests", "why")
    caption = (
        f"A test: two rows, one metric, one dataset; paired on test rows, {100 * LEVEL:g} %, Holm's correction within "
        "a claim. A claim holds if no test says the reverse and at least as many say so as are undecided; it does not "
        "if the reverse is told at least as often."
    )
    return Table("Claims", columns, tuple(rows), caption, words=len(columns), id="findings")


def _told(finding: Finding) -> list[str]:
    words = {1: "as claimed", -1: "the reverse", 0: "undecided"}
    return [f"{finding.count(sign)} {word}" for sign, word in words.items() if finding.count(sign)] or ["none"]


def details(findings: Sequence[Finding]) -> Table:
    """Every test."""
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    for finding in findings:
        breaks.append(len(rows))
        for one in finding.outcomes:
            words = "as claimed" if one.sign > 0 else "reverse" if one.sign < 0 else "undecided"
            digits = 2 if one.measure != "training s" else 1
            rows.append(
                (
                    *(Cell(text) for text in (finding.claim.claim, one.dataset, one.ahead.label, one.behind.label)),
                    *(Cell(one.measure), Cell(words, best=one.sign != 0)),
                    *(Cell.of(Figure(value, n=1, digits=digits)) for value in one.values),
                    Cell.of(Figure(one.values[0] - one.values[1], n=1, digits=digits)),
                    Cell(f"{one.p:.4f}" if one.measure != "training s" else ""),
                )
            )
    columns = ("claim", "dataset", "row", "against", "in", "outcome", "row's", "other's", "difference", "p")
    return Table(
        "Every test", columns, tuple(rows), "Means over seeds; p after Holm.", words=6, breaks=tuple(breaks[1:])
    )


def _standings(matrix: Sequence[Grid]) -> Iterator[str]:
    """Every method on every dataset of the matrix, the best first."""
    for grid in matrix:
        lines = [line for line in grid.lines if line.records]
        lines.sort(key=lambda line: -fmean(measured(line, _SHOWN[0])))
        figures = {name: [Figure.of(measured(line, name)) for line in lines] for name in _SHOWN}
        flags = {name: marked(figures[name], "up") for name in _SHOWN}
        rows = []
        for place, line in enumerate(lines):
            seconds = Figure.of([float(one.training.get("seconds", 0.0)) for one in line.records], digits=0)
            cells = [
                Cell.of(figures[name][place], best=flags[name][0][place], second=flags[name][1][place])
                for name in _SHOWN
            ]
            rows.append(
                (Cell(line.label), Cell(line.rows[0].name), Cell(str(len(line.records))), *cells, Cell.of(seconds))
            )
        columns = ("method", "harness run --published ...", "seeds", *_SHOWN, "training s")
        yield as_markdown(
            Table(grid.dataset, columns, tuple(rows), "Percent on test rows, mean ± sd over seeds.", words=2)
        )


def _head(evidence: Evidence, matrix: Sequence[Grid]) -> str:
    records = [record for grid in matrix for record in grid.records]
    machines = sorted({f"{one.environment.get('cpu')}, {one.environment.get('cores')} cores" for one in records})
    names = {study.name for study in evidence.studies if study.name.startswith(f"{MATRIX}-")}
    trials = [trial for study in evidence.studies if study.name in names for trial in study.trials]
    ran, searched = (sum(one.seconds for one in some) / 3600 for some in (records, trials))
    datasets = markdown_text(", ".join(grid.dataset for grid in matrix))
    encoders = markdown_text(", ".join(sorted({str(one.config["encoder"]) for one in records})))
    return f"""# Findings

Do the papers' claims hold on data that needs no download? {len(records):,} runs on {datasets}; encoder {encoders}.
Settings come from {len(trials):,} trials in {len(names)} searches, one budget for every method, judged on held-out
train rows; test rows were looked at once a run. The runs took {ran:.1f} hours and the searches {searched:.1f}, added up
over processes, on {markdown_text("; ".join(machines))}. Everything here is made from [runs/](runs) and
[studies/](studies) by `python -m harness report --write`.
"""


def _foot(matrix: Sequence[Grid]) -> str:
    first = matrix[0].lines[0].rows[0].name
    return f"""## Repeat it

```
python -m harness tune {MATRIX} --workers 2     # settings, on held-out rows
python -m harness bench --table {MATRIX} --workers 2     # every row, every seed
python -m harness report --collect && python -m harness report --write
python -m harness run --published {first} --seed 0     # one cell
```
"""
