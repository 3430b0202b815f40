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
from pydantic import Field, model_validator

from harness.config import Settings
from harness.data.card import read_model
from harness.published import published_table, table_paths
from harness.record import RunRecord
from harness.report.cells import Cell, Figure, Table
from harness.report.comparing.paired import LEVEL, holm
from harness.report.evidence import ROWS, Evidence
from harness.report.grids import Grid, Line, grids
from harness.report.grids.drawn import measured
from harness.report.grids.significance import ahead_of, mean_rows, p_value
from harness.report.marking import marked
from harness.report.tables import as_markdown, markdown_text

FINDINGS = "FINDINGS.md"
MATRIX = "benchmark"
"""The table that every method is in."""
CLAIMS = Path(__file__).with_name("claims.yaml")
Verdict = Literal["holds", "does not hold", "undecided", "not run"]
_SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5")
_TIME = "training s"
_WORDS = {1: "as claimed", -1: "the reverse", 0: "undecided"}


class Test(Settings):
    """Two rows, and in what one should be above the other."""

    table: str
    ahead: str
    behind: str
    metrics: list[str] = Field(default=[])
    cheaper: float | None = Field(default=None, gt=0, le=1)
    """Largest share of the other's training time."""
    margin: float = Field(default=0.0, ge=0)
    """Percent by which it may be behind: the claim is that it is not worse by more."""
    datasets: list[str] = Field(default=[])
    """Where the claim is made; empty for everywhere."""

    @model_validator(mode="after")
    def _tests_something(self) -> "Test":
        if not self.metrics and self.cheaper is None:
            raise ValueError("give metrics or cheaper")
        if strange := [name for name in self.metrics if name not in ROWS]:
            raise ValueError(f"no rows are kept of {', '.join(strange)}; known: {', '.join(ROWS)}")
        return self


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
    """Corrected within the claim; of a ratio of times, which is compared as it is, 0."""
    sign: int
    """1: as claimed; -1: the reverse; 0: not told from chance."""
    margin: float = 0.0


@dataclass(frozen=True)
class Finding:
    """A claim, and what the runs say."""

    claim: Claim
    outcomes: tuple[Outcome, ...]

    def count(self, sign: int) -> int:
        """How many tests came out so."""
        return sum(one.sign == sign for one in self.outcomes)

    @property
    def verdict(self) -> Verdict:
        """For or against: where no decided test says otherwise, and no fewer are decided than are not."""
        if not self.outcomes:
            return "not run"
        decided = self.count(1) + self.count(-1)
        if self.count(1) * self.count(-1) or decided < max(1, self.count(0)):
            return "undecided"
        return "holds" if self.count(1) else "does not hold"

    @property
    def why(self) -> str:
        """The explanation, while it is one of this verdict."""
        return self.claim.why if self.claim.explains == self.verdict else ""


class _Claims(Settings):
    claims: list[Claim] = Field(min_length=1)


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """All claims; a fault in the file is a `UserError`."""
    return read_model(path, _Claims).claims


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

    @cached_property
    def matrix(self) -> list[Grid]:
        """The matrix on every dataset that it was tuned for, where methods can be compared; empty if it was not run."""
        return [grid for grid in self.grids(MATRIX) if grid.own and grid.measured > 1]

    @property
    def records(self) -> Iterator[RunRecord]:
        """Those that tests were made with, some of them several times."""
        outcomes = (outcome for one in self.all for outcome in one.outcomes)
        return (record for one in outcomes for line in (one.ahead, one.behind) for record in line.records)

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
            found = [self._compared(grid.dataset, ahead, behind, metric, test.margin) for metric in test.metrics]
            if test.cheaper is not None:
                found.append(_costs(grid.dataset, ahead, behind, test.cheaper))
            yield from (outcome for outcome in found if outcome)

    def _compared(self, dataset: str, ahead: Line, behind: Line, metric: str, margin: float) -> Outcome | None:
        rows = [mean_rows(line, metric, self._evidence) for line in (ahead, behind)]
        if rows[0] is None or rows[1] is None or len(rows[0]) != len(rows[1]):
            return None
        difference = ahead_of(rows[0], rows[1]) + margin
        values = fmean(measured(ahead, metric)), fmean(measured(behind, metric))
        sign = int(np.sign(difference.sum()))
        return Outcome(dataset, ahead, behind, metric, values, p_value(difference), sign, margin)


def _metrics(claim: Claim) -> set[str]:
    return {metric for test in claim.tests for metric in test.metrics}


def _row(grid: Grid, stem: str) -> Line | None:
    found = [line for line in grid.lines if line.records and any(row.stem == stem for row in line.rows)]
    return found[0] if found else None


def _costs(dataset: str, ahead: Line, behind: Line, share: float) -> Outcome | None:
    spent = [[float(one.training.get("seconds") or 0.0) for one in line.records] for line in (ahead, behind)]
    if not all(seconds for line in spent for seconds in line):
        return None
    first, second = (fmean(line) for line in spent)
    return Outcome(dataset, ahead, behind, _TIME, (first, second), 0.0, 1 if first <= share * second else -1)


def findings_page(evidence: Evidence) -> str | None:
    """The page as Markdown; None where the matrix was not run."""
    found = Findings(evidence)
    if not found.matrix:
        return None
    parts = [_head(evidence, found), as_markdown(summary(found.all)), *_standings(found.matrix)]
    return "\n".join([*parts, as_markdown(details(found.all)), _foot(found)])


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
        "a claim. It tells whether a difference would hold on other rows, with these trainings. A claim is decided if "
        "no two decided tests disagree and no fewer are decided than are not."
    )
    return Table("Claims", columns, tuple(rows), caption, words=len(columns), id="findings")


def _told(finding: Finding) -> list[str]:
    return [f"{finding.count(sign)} {word}" for sign, word in _WORDS.items() if finding.count(sign)] or ["none"]


def details(findings: Sequence[Finding]) -> Table:
    """Every test."""
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    for finding in findings:
        breaks.append(len(rows))
        for one in finding.outcomes:
            lines, digits = (one.ahead, one.behind), 1 if one.measure == _TIME else 2
            measure = f"{one.measure}, {one.margin:g} behind allowed" if one.margin else one.measure
            seeds = " and ".join(dict.fromkeys(str(len(line.records)) for line in lines))
            words = (finding.claim.claim, one.dataset, *(f"{_name(line)}" for line in lines), measure, seeds)
            figures = (*one.values, one.values[0] - one.values[1])
            rows.append(
                (
                    *(Cell(text) for text in words),
                    Cell(_WORDS[one.sign], best=one.sign != 0),
                    *(Cell.of(Figure(value, n=1, digits=digits)) for value in figures),
                    Cell("" if one.measure == _TIME else f"{one.p:.4f}"),
                )
            )
    columns = ("claim", "dataset", "row", "against", "in", "seeds", "outcome", "row's", "other's", "difference", "p")
    caption = "Means over seeds; p after Holm's correction. Times are compared as they are."
    return Table("Every test", columns, tuple(rows), caption, words=7, breaks=tuple(breaks[1:]))


def _name(line: Line) -> str:
    return f"{line.table.table}: {line.label}"


def _standings(matrix: Sequence[Grid]) -> Iterator[str]:
    """Every method on every dataset of the matrix, the best first."""
    columns = ("method", "harness run --published ...", "seeds", *_SHOWN, "epochs", "training s")
    for grid in matrix:
        lines = sorted((line for line in grid.lines if line.records), key=lambda line: -fmean(measured(line, "P@1")))
        figures = {name: [Figure.of(measured(line, name)) for line in lines] for name in _SHOWN}
        flags = {name: marked(figures[name], "up") for name in _SHOWN}
        rows = []
        for place, line in enumerate(lines):
            words = [line.label, line.rows[0].name, str(len(line.records))]
            best, second = ([flags[name][which][place] for name in _SHOWN] for which in (0, 1))
            scores = [
                Cell.of(figures[name][place], best=first, second=next_)
                for name, first, next_ in zip(_SHOWN, best, second, strict=True)
            ]
            costs = [
                Figure.of([float(one.training[key]) for one in line.records if one.training.get(key)], digits=0)
                for key in ("epochs", "seconds")
            ]
            trained = [Cell.of(replace(cost, std=None)) if cost.n else Cell("") for cost in costs]
            rows.append((*map(Cell, words), *scores, *trained))
        caption = (
            "Percent on test rows, mean ± standard deviation over seeds. Epochs are those of the method or of the "
            "dataset's card; seconds are of runs that may have shared the machine."
        )
        yield as_markdown(Table(grid.dataset, columns, tuple(rows), caption, words=2))


def _head(evidence: Evidence, findings: Findings) -> str:
    records = [record for grid in findings.matrix for record in grid.records]
    others = {one.run_id for one in findings.records} - {one.run_id for one in records}
    machines = sorted({f"{one.environment.get('cpu')}, {one.environment.get('cores')} cores" for one in records})
    names = {study.name for study in evidence.studies if study.name.startswith(f"{MATRIX}-")}
    trials = [trial for study in evidence.studies if study.name in names for trial in study.trials]
    ran, searched = (sum(one.seconds for one in some) / 3600 for some in (records, trials))
    datasets = markdown_text(", ".join(grid.dataset for grid in findings.matrix))
    encoders = markdown_text(", ".join(sorted({str(one.config["encoder"]) for one in records})))
    ablations = f"\nClaims about parts of a method rest on {len(others):,} more runs, not tuned." if others else ""
    return f"""# Findings

Do the papers' claims hold on data that needs no download? {len(records):,} runs on {datasets}; encoder {encoders}.
Settings of the benchmark come from {len(trials):,} trials in {len(names)} searches, on a dataset as many for every
method, judged on held-out train rows; test rows were looked at once a run. The runs took {ran:.1f} hours and the
searches {searched:.1f}, added up over processes, on {markdown_text("; ".join(machines))}.{ablations}
Everything here is made from [runs/](runs) and [studies/](studies) by `python -m harness report --write`.
"""


def _foot(findings: Findings) -> str:
    first = findings.matrix[0].lines[0].rows[0].name
    ablations: dict[str, dict[str, None]] = {}
    seeds: dict[str, set[int]] = {}
    for outcome in (outcome for one in findings.all for outcome in one.outcomes):
        if not outcome.ahead.table.own:
            ablations.setdefault(outcome.dataset, {})[outcome.ahead.table.table] = None
            seeds.setdefault(outcome.dataset, set()).update(int(one.config["seed"]) for one in outcome.ahead.records)
    others = "".join(
        f"python -m harness bench --table {','.join(tables)} --datasets {dataset} "
        f"--seeds {','.join(map(str, sorted(seeds[dataset])))}     # ablations\n"
        for dataset, tables in ablations.items()
    )
    return f"""## Repeat it

```
python -m harness tune {MATRIX}     # settings, on held-out rows
python -m harness bench --table {MATRIX}     # every row, every seed
{others}python -m harness report --collect && python -m harness report --write
python -m harness run --published {first} --seed 0     # one cell
```
"""
