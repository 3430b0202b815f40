"""Test claims of the papers on runs.

    claims.yaml -> rows of tables -> tests by rows and trainings, Holm's correction within a claim -> verdict

No figure and no verdict is written by hand. Sentences that explain a verdict are; each is shown only while the verdict
is the one that it was written for.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from harness.io.models import read_model
from harness.report.cells import Cell, Figure, Table
from harness.report.published import BETTER, WORSE, RowResult, TableResult, ahead_by, measured, table_results
from harness.report.results import ROWS, Results, machine_of
from harness.report.rows import trained
from harness.report.significance import LEVEL, holm, p_value, scope
from harness.runs.record import RunRecord
from harness.settings.published import MATRIX, published_table, table_paths
from harness.settings.schema import Settings

TRANSFORMER = "minilm"
"""Name of the table of a few methods with a transformer as their encoder."""
CLAIMS = Path(__file__).with_name("claims.yaml")
Verdict = Literal["holds", "does not hold", "mixed", "undecided", "not run"]
TIMES = {"processor_seconds": "training, CPU s", "seconds": "training s"}
"""Names of training times by key of the record; first the one that other load on the machine changes least."""
NAMED = re.compile(r"\{([^{}]*)\}")
"""A run named in a text, `{run id}`."""


class Test(Settings):
    """Two rows of a table, and the metrics or the time in which one should be ahead of the other."""

    table: str
    ahead: str
    behind: str
    metrics: list[str] = Field(default=[])
    cheaper: float | None = Field(default=None, gt=0, le=1)
    """Largest training time of `ahead`, as a share of that of `behind`; None to compare no time."""
    margin: float = Field(default=0.0, ge=0)
    """Percentage points that `ahead` may be behind: the claim is that it is not worse by more."""
    datasets: list[str] = Field(default=[])
    """Datasets that the claim is about; empty for all."""
    pair: str = ""
    """Short name that tells it from the other tests of its claim; may be empty for all of them."""

    @model_validator(mode="after")
    def _tests_something(self) -> "Test":
        if not self.metrics and self.cheaper is None:
            raise ValueError("give metrics or cheaper")
        if strange := [name for name in self.metrics if name not in ROWS]:
            raise ValueError(f"no rows are kept of {', '.join(strange)}; known: {', '.join(ROWS)}")
        return self


class Claim(Settings):
    """A claim of a paper, with its tests."""

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


class Claims(Settings):
    """The content of claims.yaml."""

    claims: list[Claim] = Field(min_length=1)
    by_hand: str = ""
    """What was chosen by hand and not by the benchmark's search; stands beside the results."""
    accounts: dict[str, str] = Field(default={})
    """Why UniDEC is not first, by dataset, or by name for the table with a transformer; shown while it is not first."""
    reruns: dict[str, str] = Field(default={})
    """Texts by dataset: which rows were run again after a first result on test rows, and why; `{run id}` stands for the
    figures of a run. A text is shown only where all runs that it names are there."""


def read_claims(path: Path = CLAIMS) -> Claims:
    """Read all claims and accounts; raises `UserError` on a fault in the file."""
    return read_model(path, Claims)


@dataclass(frozen=True)
class Outcome:
    """Result of one test in one metric or time on one dataset."""

    dataset: str
    ahead: RowResult
    behind: RowResult
    measure: str
    """A metric, or one of `TIMES`."""
    values: tuple[float, float]
    p: float | None
    """p value, corrected within the claim; None for times, which are compared without a test."""
    sign: int
    """1: as claimed; -1: the reverse; 0: not significant."""
    margin: float = 0.0
    pair: str = ""
    trained_again: bool = True
    """Whether p holds for other trainings, too; else a row was trained once, and it is of test rows alone."""


@dataclass(frozen=True)
class Finding:
    """A claim with the results of its tests."""

    claim: Claim
    outcomes: tuple[Outcome, ...]

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim: mixed if decided tests disagree; undecided if fewer are decided than are not."""
        if not self.outcomes:
            return "not run"
        count = Counter(one.sign for one in self.outcomes)
        if count[1] and count[-1]:
            return "mixed"
        if count[1] + count[-1] < max(1, count[0]):
            return "undecided"
        return "holds" if count[1] else "does not hold"

    @property
    def why(self) -> str:
        """The explanation of the verdict; empty if it was written for another verdict."""
        return self.claim.why if self.claim.explains == self.verdict else ""


class Findings:
    """All claims tested on the same results."""

    def __init__(self, results: Results, claims: Sequence[Claim] | None = None) -> None:
        self.results = results
        known = read_claims()
        self._claims = known.claims if claims is None else list(claims)
        self.accounts, self.reruns, self.by_hand = known.accounts, known.reruns, known.by_hand
        self._tables: dict[str, list[TableResult]] = {}

    @cached_property
    def all(self) -> list[Finding]:
        """The finding of every claim, in their order."""
        return [self._finding(claim) for claim in self._claims]

    @property
    def outcomes(self) -> Iterator[Outcome]:
        """Outcomes of the tests of all claims."""
        return (outcome for one in self.all for outcome in one.outcomes)

    @property
    def records(self) -> Iterator[RunRecord]:
        """Records that tests were made with, some of them several times."""
        return (record for one in self.outcomes for row in (one.ahead, one.behind) for record in row.records)

    @property
    def matrix(self) -> list[TableResult]:
        """The table of every method with the encoder `static`, on each dataset; empty if it was not run."""
        return self.own(MATRIX)

    @property
    def compared(self) -> list[TableResult]:
        """The matrix, then the table of a few methods with a transformer."""
        return [*self.matrix, *self.own(TRANSFORMER)]

    def own(self, name: str) -> list[TableResult]:
        """Return a table of ours on every dataset that it was tuned for and has two or more runs on."""
        return [table for table in self.tables(name) if table.own and table.measured > 1]

    def tables(self, name: str) -> list[TableResult]:
        """Return a published table on every dataset with runs of it; cached by name."""
        if name not in self._tables:
            known = table_results(self.results.records, published_table(name)) if name in table_paths() else []
            self._tables[name] = [table for table in known if table.records]
        return self._tables[name]

    def _finding(self, claim: Claim) -> Finding:
        found = [outcome for test in claim.tests for outcome in self._outcomes(test)]
        corrected = iter(holm([one.p for one in found if one.p is not None]))
        for place, one in enumerate(found):
            if one.p is not None:
                p = next(corrected)
                found[place] = replace(one, p=p, sign=one.sign if p < LEVEL else 0)
        return Finding(claim, tuple(found))

    def _outcomes(self, test: Test) -> Iterator[Outcome]:
        for table in self.tables(test.table):
            if test.datasets and table.dataset not in test.datasets:
                continue
            ahead, behind = (row_of(table, name) for name in (test.ahead, test.behind))
            if ahead is None or behind is None:
                continue
            found = [self._compared(ahead, behind, metric, test.margin) for metric in test.metrics]
            if test.cheaper is not None:
                found.append(_costs(ahead, behind, test.cheaper))
            yield from (replace(outcome, pair=test.pair) for outcome in found if outcome)

    def _compared(self, ahead: RowResult, behind: RowResult, metric: str, margin: float) -> Outcome | None:
        found = ahead_by(ahead, behind, metric, self.results)
        if found is None:
            return None
        found = found.shifted(margin)
        values = fmean(measured(ahead, metric)), fmean(measured(behind, metric))
        sign, again = int(np.sign(found.rows.sum())), found.trained_again
        return Outcome(ahead.dataset, ahead, behind, metric, values, p_value(found), sign, margin, trained_again=again)


def row_of(table: TableResult, stem: str) -> RowResult | None:
    """Return the row of that name; None if it was not run."""
    found = (row for row in table.rows if row.records and any(one.stem == stem for one in row.declared))
    return next(found, None)


def _costs(ahead: RowResult, behind: RowResult, share: float) -> Outcome | None:
    """Compare training times on the machine type that ran both most often; None if there is none.

    Runs whose record has no processor are left out, as they may have had different ones.
    """
    known = [Counter(machine_of(one) for one in row.records if one.environment.get("cpu")) for row in (ahead, behind)]
    often = known[0] & known[1]
    if not often:
        return None
    runs = sorted((*ahead.records, *behind.records), key=lambda one: one.started)
    newest = {machine_of(one): one.started for one in runs}
    machine = max(often, key=lambda name: (often[name], newest[name]))
    ahead, behind = (
        replace(row, records=tuple(one for one in row.records if machine_of(one) == machine)) for row in (ahead, behind)
    )
    # with a GPU, processor time says little: the processor mostly waits
    on_cpu = all(one.environment.get("device") == "cpu" for one in (*ahead.records, *behind.records))
    for key in TIMES if on_cpu else ("seconds",):
        spent = [[trained(one, key) or 0.0 for one in row.records] for row in (ahead, behind)]
        if all(map(all, spent)):
            first, second = map(fmean, spent)
            sign = 1 if first <= share * second else -1
            return Outcome(ahead.dataset, ahead, behind, TIMES[key], (first, second), None, sign)
    return None


# -- the tables of claims

_MARKS = {1: BETTER, -1: WORSE, 0: ""}
_WORDS = {1: "as claimed", -1: "the reverse", 0: "undecided"}


def summary(findings: Sequence[Finding]) -> Table:
    """Return a table with a row per claim and what its tests measured on every dataset."""
    datasets = sorted({outcome.dataset for one in findings for outcome in one.outcomes})
    rows = [
        (
            Cell(f"{one.claim.claim} ({one.claim.source})"),
            Cell(one.verdict, best=one.verdict in ("holds", "does not hold")),
            *(Cell(_differences(one, dataset)) for dataset in datasets),
            Cell(one.why),
        )
        for one in findings
    ]
    columns = ("claim", "verdict", *datasets, "why")
    caption = (
        "Each figure is a test: by how many points the row that should be above is above the other; of times the "
        f"ratio, without a test. {BETTER} as claimed, {WORSE} the reverse: by chance alone, a difference as large is "
        f"met in fewer than {100 * LEVEL:g} % of repetitions {_scope(findings)} (Holm's correction within a claim). "
        "A claim holds, or does not, if the marked figures agree and are no fewer than the others; it is mixed if they "
        "disagree."
    )
    return Table("Claims", columns, tuple(rows), caption, words=len(columns), id="findings")


def _scope(findings: Sequence[Finding]) -> str:
    """Say for what the results of tests hold."""
    tests = [(finding, one) for finding in findings for one in finding.outcomes if one.p is not None]
    alone = dict.fromkeys(
        f"{one.pair or finding.claim.source} on {one.dataset}" for finding, one in tests if not one.trained_again
    )
    return scope(list(alone), any(one.trained_again for _, one in tests))


def _differences(finding: Finding, dataset: str) -> str:
    """Format the difference of every pair by metric, marked if it is significant."""
    found: dict[str, list[str]] = {}
    for one in finding.outcomes:
        if one.dataset == dataset:
            first, second = one.values
            figure = f"{first / second:.2f} of it" if one.p is None else f"{first - second:+.2f}{_MARKS[one.sign]}"
            found.setdefault(one.measure, []).append(f"{one.pair} {figure}".strip())
    return "; ".join(f"{measure} {', '.join(figures)}" for measure, figures in found.items())


def details(findings: Sequence[Finding], datasets: Sequence[str] | None = None) -> Table:
    """Return a table of every test, or of those on `datasets`."""
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    for finding in findings:
        outcomes = [one for one in finding.outcomes if datasets is None or one.dataset in datasets]
        breaks += [len(rows)] if outcomes else []
        for one in outcomes:
            both = (one.ahead, one.behind)
            words = (
                finding.claim.claim,
                one.dataset,
                *(f"{row.table.table}: {row.label}" for row in both),
                f"{one.measure}, {one.margin:g} behind allowed" if one.margin else one.measure,
                " and ".join(dict.fromkeys(str(len(row.records)) for row in both)),
            )
            figures = (*one.values, one.values[0] - one.values[1])
            rows.append(
                (
                    *map(Cell, words),
                    Cell(_WORDS[one.sign], best=one.sign != 0),
                    *(Cell.of(Figure(value, n=1, digits=1 if one.p is None else 2)) for value in figures),
                    Cell("" if one.p is None else f"{one.p:.4f}"),
                )
            )
    columns = ("claim", "dataset", "row", "against", "in", "seeds", "outcome", "row's", "other's", "difference", "p")
    caption = (
        "Means over seeds; p after Holm's correction, for other test rows and other trainings, or where a row has "
        "one seed, for these trainings. Times are compared as they are."
    )
    return Table("Every test", columns, tuple(rows), caption, words=7, breaks=tuple(breaks[1:]), id="claims")
