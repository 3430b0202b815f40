"""Claims of the papers as tests over records.

claims.yaml -> rows of tables -> paired tests on test rows, Holm's correction within a claim -> verdict
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from harness.config import Settings
from harness.data.card import read_model
from harness.published import JUDGED, MATRIX, published_table, table_paths
from harness.record import RunRecord
from harness.report.comparing.paired import LEVEL, holm
from harness.report.evidence import ROWS, Evidence, machine_of
from harness.report.grids import Grid, Line, grids
from harness.report.grids.drawn import measured
from harness.report.grids.quantities import trained
from harness.report.grids.significance import ahead_of, mean_rows, p_value

TRANSFORMER = "minilm"
"""The one of a few methods with a transformer as their encoder."""
CLAIMS = Path(__file__).with_name("claims.yaml")
Verdict = Literal["holds", "does not hold", "undecided", "not run"]
TIMES = {"processor_seconds": "training, CPU s", "seconds": "training s"}
"""What a training cost, by the name in its record: what other work on the machine changes least first."""
NAMED = re.compile(r"\{([^{}]*)\}")
"""A run, by its id."""


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
    pair: str = ""
    """What tells it from the other tests of the claim, in a word."""

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

    @model_validator(mode="after")
    def _tells_tests_apart(self) -> "Claim":
        pairs = [test.pair for test in self.tests]
        if any(pairs) and (not all(pairs) or len({*pairs}) < len(pairs)):
            raise ValueError("give every test of the claim a pair of its own, or none")
        return self


@dataclass(frozen=True)
class Outcome:
    """One test in one metric on one dataset."""

    dataset: str
    ahead: Line
    behind: Line
    measure: str
    """A metric, or one of `TIMES`."""
    values: tuple[float, float]
    p: float
    """Corrected within the claim; of a ratio of times, which is compared as it is, 0."""
    sign: int
    """1: as claimed; -1: the reverse; 0: not told from chance."""
    margin: float = 0.0
    pair: str = ""


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


class Claims(Settings):
    """The whole file."""

    claims: list[Claim] = Field(min_length=1)
    accounts: dict[str, str] = Field(default={})
    """By dataset, and for the table with a transformer by its name: why UniDEC is not first; shown while it is not."""
    reruns: dict[str, str] = Field(default={})
    """By dataset: which rows were run again after a first result on test rows, and why; `{run id}` stands for the
    figures of a run, and what names a run that is not there is not shown: it tells of the runs of one folder."""


def read_claims(path: Path = CLAIMS) -> Claims:
    """All claims and accounts; a fault in the file is a `UserError`."""
    return read_model(path, Claims)


class Findings:
    """All claims against one body of evidence."""

    def __init__(self, evidence: Evidence, claims: Sequence[Claim] | None = None) -> None:
        self.evidence = evidence
        known = read_claims()
        self._claims = known.claims if claims is None else list(claims)
        self.accounts, self.reruns = known.accounts, known.reruns
        self._grids: dict[str, list[Grid]] = {}

    @cached_property
    def rerun(self) -> dict[str, str]:
        """By dataset of the matrix: what was run again, with the figures of the runs that are named."""
        there = {one.run_id: one for one in self.evidence.records}
        told = {grid.dataset: self.reruns.get(grid.dataset, "") for grid in self.matrix}
        return {
            dataset: NAMED.sub(lambda name: _figures(there[name[1]]), text)
            for dataset, text in told.items()
            if text and all(name in there for name in NAMED.findall(text))
        }

    @cached_property
    def all(self) -> list[Finding]:
        """In the order of the claims."""
        return [self._finding(claim) for claim in self._claims]

    @property
    def matrix(self) -> list[Grid]:
        """Every method with the frugal encoder; empty if it was not run."""
        return self.own(MATRIX)

    @property
    def compared(self) -> list[Grid]:
        """The matrix, and the few methods with a transformer."""
        return [*self.matrix, *self.own(TRANSFORMER)]

    @property
    def missing(self) -> list[str]:
        """What the matrix lacks, in words: datasets, seeds and rows."""
        if MATRIX not in table_paths():
            return []
        table, there = published_table(MATRIX), {grid.dataset: grid for grid in self.matrix}
        labels = {row.stem: row.label for row in table.rows}
        found = []
        for dataset, seeds in table.seeds.items():
            lines = [line for line in there[dataset].lines if line.records] if dataset in there else []
            run = {row.stem: len(line.records) for line in lines for row in line.rows}
            if not run:
                found.append(dataset)
                continue
            lacking = {stem: len(seeds) - run.get(stem, 0) for stem in labels}
            words = []
            for count in sorted({one for one in lacking.values() if one > 0}):
                stems = [stem for stem in labels if lacking[stem] == count]
                some = f"{count} of {len(seeds)} seeds" if count < len(seeds) else ""
                whose = "" if some and len(stems) == len(run) else " / ".join(labels[stem] for stem in stems)
                words.append(" of ".join(filter(None, (some, whose))))
            found += [f"{' and '.join(words)} on {dataset}"] if words else []
        return found

    def own(self, table: str) -> list[Grid]:
        """A table of ours on every dataset that it was tuned for, where methods can be compared."""
        return [grid for grid in self.grids(table) if grid.own and grid.measured > 1]

    @property
    def records(self) -> Iterator[RunRecord]:
        """Those that tests were made with, some of them several times."""
        outcomes = (outcome for one in self.all for outcome in one.outcomes)
        return (record for one in outcomes for line in (one.ahead, one.behind) for record in line.records)

    def grids(self, table: str) -> list[Grid]:
        """A table on every dataset with runs of it; each is looked for once."""
        if table not in self._grids:
            known = grids(self.evidence.records, published_table(table)) if table in table_paths() else []
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
            ahead, behind = (row_of(grid, name) for name in (test.ahead, test.behind))
            if ahead is None or behind is None:
                continue
            found = [self._compared(grid.dataset, ahead, behind, metric, test.margin) for metric in test.metrics]
            if test.cheaper is not None:
                found.append(_costs(grid.dataset, ahead, behind, test.cheaper))
            yield from (replace(outcome, pair=test.pair) for outcome in found if outcome)

    def _compared(self, dataset: str, ahead: Line, behind: Line, metric: str, margin: float) -> Outcome | None:
        rows = [mean_rows(line, metric, self.evidence) for line in (ahead, behind)]
        if rows[0] is None or rows[1] is None or len(rows[0]) != len(rows[1]):
            return None
        difference = ahead_of(rows[0], rows[1]) + margin
        values = fmean(measured(ahead, metric)), fmean(measured(behind, metric))
        sign = int(np.sign(difference.sum()))
        return Outcome(dataset, ahead, behind, metric, values, p_value(difference), sign, margin)


def _metrics(claim: Claim) -> set[str]:
    return {metric for test in claim.tests for metric in test.metrics}


def _figures(record: RunRecord) -> str:
    """What a run measured, with a link to its record."""
    told = ", ".join(f"{name} {record.metrics[name]:.2f}" for name in JUDGED if name in record.metrics)
    return f"[{told or record.run_id}](runs/{record.run_id}.json)"


def title(grid: Grid) -> str:
    """What was compared: a dataset, and with a transformer its table."""
    return f"{grid.dataset}, {TRANSFORMER}" if grid.table.table == TRANSFORMER else grid.dataset


def row_of(grid: Grid, stem: str) -> Line | None:
    """The row of that name, if it was run."""
    found = [line for line in grid.lines if line.records and any(row.stem == stem for row in line.rows)]
    return found[0] if found else None


def _costs(dataset: str, ahead: Line, behind: Line, share: float) -> Outcome | None:
    """Compares trainings on the kind of machine on which both were run most often; None if there is none.

    Two runs that do not say on which processor may have had different ones.
    """
    known = [Counter(machine_of(one) for one in line.records if one.environment.get("cpu")) for line in (ahead, behind)]
    often = known[0] & known[1]
    if not often:
        return None
    newest = {
        machine_of(one): one.started for one in sorted((*ahead.records, *behind.records), key=attrgetter("started"))
    }
    machine = max(often, key=lambda name: (often[name], newest[name]))
    ahead, behind = (
        replace(line, records=tuple(one for one in line.records if machine_of(one) == machine))
        for line in (ahead, behind)
    )
    # beside a GPU the processor only waits
    on_cpu = all(one.environment.get("device") == "cpu" for one in (*ahead.records, *behind.records))
    for key in TIMES if on_cpu else ("seconds",):
        spent = [[trained(one, key) or 0.0 for one in line.records] for line in (ahead, behind)]
        if all(all(seconds) for seconds in spent):
            first, second = map(fmean, spent)
            sign = 1 if first <= share * second else -1
            return Outcome(dataset, ahead, behind, TIMES[key], (first, second), 0.0, sign)
    return None
