"""Runs against a reference, row by row: contenders -> per-row scores -> intervals and tests -> `Table`.

The first contender is the reference. The score of a row is its mean over a contender's seeds, so the mean over rows
is the mean of the reported metrics. The draws of the bootstrap are of test rows: what is decided is whether a
difference would hold on other rows of the kind, with these trained models. Nothing is run, and no torch is imported.
"""

from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from harness import metrics
from harness.errors import UserError, unknown_name
from harness.report import Cell, Table
from harness.report.comparing.contenders import Contender
from harness.report.comparing.paired import LEVEL, bootstrap_interval, holm, sign_flip_p
from harness.report.comparing.row_scores import RATIOS, Floats, RowScores, ideal_scores, mean_scores

DEFAULT_METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
DEFAULT_RESAMPLES = 10_000
_FEWEST_RESAMPLES = 100
_SAME = 1e-6
"""Two float32 scores of a row that differ by less, relatively, are a tie."""


@dataclass(frozen=True)
class Outcome:
    """One contender against the reference in one metric; percent."""

    name: str
    metric: str
    difference: float
    """Of the reported metrics, positive where the contender is ahead."""
    low: float
    high: float
    p: float
    holm: float
    """p corrected for the number of contenders."""
    won: int
    """Rows in which the contender is ahead."""
    lost: int
    tied: int

    @property
    def verdict(self) -> str:
        """better, worse or undecided."""
        return "undecided" if self.holm >= LEVEL else "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison found."""

    contenders: tuple[Contender, ...]
    metrics: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    """By metric, then by contender, both in the order given."""
    rows: int
    resamples: int
    seed: int
    fixed: tuple[str, ...]
    """Metrics whose denominator was held fixed, because the prepared data is not at hand."""
    mixed: tuple[str, ...]
    """What differs between the contenders and should not."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        data = self.contenders[0].runs[0].record.dataset
        return {
            "dataset": data["name"],
            "digest": data.get("digest"),
            "rows": self.rows,
            "resamples": self.resamples,
            "seed": self.seed,
            "level": LEVEL,
            "fixed_denominator": list(self.fixed),
            "mixed": list(self.mixed),
            "reference": self.contenders[0].name,
            "contenders": [
                {
                    "name": contender.name,
                    "method": contender.runs[0].record.config["method"],
                    "runs": [run.record.run_id for run in contender.runs],
                    "seeds": contender.seeds,
                    "mean": {metric: fmean(reported(contender, metric)) for metric in self.metrics},
                    "std": {metric: _std(contender, metric) for metric in self.metrics},
                }
                for contender in self.contenders
            ],
            "outcomes": [{**asdict(outcome), "verdict": outcome.verdict} for outcome in self.outcomes],
        }

    def as_table(self) -> Table:
        """For people: the reference first, then every other contender, metric by metric."""
        found = {(outcome.metric, outcome.name): outcome for outcome in self.outcomes}
        rows = [
            _row(contender, metric, found.get((metric, contender.name)))
            for metric in self.metrics
            for contender in self.contenders
        ]
        columns = ("metric", "run", "verdict", "seeds", "value", "difference", "95 % interval", "p", "Holm p")
        title = f"{self.contenders[0].runs[0].record.dataset['name']}: compared with {self.contenders[0].name}"
        return Table(title, (*columns, "won", "lost", "tied"), tuple(rows), self._caption(), words=3)

    def _caption(self) -> str:
        data = self.contenders[0].runs[0].record
        seeds = "; ".join(f"{one.name}: {', '.join(map(str, one.seeds))}" for one in self.contenders)
        others = len(self.contenders) - 1
        family = f"; Holm's correction over {others} comparisons per metric" if others > 1 else ""
        parts = [
            f"Percent on {self.rows:,} test rows, paired, mean over seeds ({seeds}).",
            f"Percentile bootstrap and sign-flip permutation test, {self.resamples:,} resamples of rows (not of "
            f"trainings), seed {self.seed}{family}; verdict at {100 * LEVEL:g} %.",
            f"Data {str(data.dataset.get('digest', ''))[:12]}, metrics v{data.metric_version}.",
        ]
        if self.fixed:
            parts.append(f"Intervals of {', '.join(self.fixed)} hold the denominator fixed: the data is not prepared.")
        if self.mixed:
            parts.append(f"MIXED: {'; '.join(self.mixed)}.")
        return " ".join(parts)


def compare(
    contenders: list[Contender],
    wanted: tuple[str, ...] = (),
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
    allow_mixed: bool = False,
) -> Comparison:
    """Every contender against the first, in every metric.

    Args:
        contenders: From `find_contenders`, the reference first.
        wanted: Metrics; `DEFAULT_METRICS`, as far as all runs have them, if left out.
        resamples: Draws of the bootstrap and of the permutation test.
        seed: Same seed, same result.
        allow_mixed: Also compare runs that differ in data, filter, propensity constants, metric or harness version, as
            long as their rows are equal in number.
    """
    if resamples < _FEWEST_RESAMPLES:
        raise UserError(f"{resamples} resamples are too few to decide anything; take {_FEWEST_RESAMPLES} or more")
    mixed = _mixture(contenders)
    if mixed and not allow_mixed:
        raise UserError(f"these runs do not belong in one comparison: {'; '.join(mixed)}; --allow-mixed compares them")
    names = _metric_names(contenders, wanted)
    opened = {run.record.run_id: RowScores(run) for contender in contenders for run in contender.runs}
    rows = _common_rows(opened)
    ideals = {} if mixed else ideal_scores(contenders[0].runs[0], names)
    outcomes: list[Outcome] = []
    for name in names:
        reference = mean_scores(contenders[0], opened, name)
        family = []
        for other in contenders[1:]:
            rows_ahead = _ahead(mean_scores(other, opened, name), reference)
            low, high = bootstrap_interval(rows_ahead, ideals.get(name), resamples=resamples, seed=seed)
            p = sign_flip_p(rows_ahead, resamples=resamples, seed=seed)
            won, lost = int(np.count_nonzero(rows_ahead > 0)), int(np.count_nonzero(rows_ahead < 0))
            difference = fmean(reported(other, name)) - fmean(reported(contenders[0], name))
            family.append(Outcome(other.name, name, difference, low, high, p, p, won, lost, rows - won - lost))
        corrected = holm([outcome.p for outcome in family])
        outcomes += [replace(outcome, holm=value) for outcome, value in zip(family, corrected, strict=True)]
    fixed = tuple(name for name in names if name.partition("@")[0] in RATIOS and name not in ideals)
    return Comparison(tuple(contenders), names, tuple(outcomes), rows, resamples, seed, fixed, mixed)


def reported(contender: Contender, metric: str) -> list[float]:
    """The metric as every run of a contender reports it."""
    return [run.record.metrics[metric] for run in contender.runs]


def _std(contender: Contender, metric: str) -> float | None:
    """Sample standard deviation over seeds; None for a single one."""
    return stdev(reported(contender, metric)) if len(contender.runs) > 1 else None


def _ahead(scores: Floats, reference: Floats) -> Floats:
    """By how much each row [M] is ahead of the reference; scores that differ by rounding alone are a tie."""
    ahead = scores - reference
    ahead[np.abs(ahead) <= _SAME * np.maximum(np.abs(scores), np.abs(reference))] = 0.0
    return ahead


def _mixture(contenders: list[Contender]) -> tuple[str, ...]:
    """What is not the same in all runs though it decides what their figures mean."""
    records = [run.record for contender in contenders for run in contender.runs]
    facts = {
        "data": [f"{record.dataset['name']} {str(record.dataset.get('digest', ''))[:12]}" for record in records],
        "filter": [str(record.dataset.get("filter")) for record in records],
        "propensity constants": [str(record.dataset.get("propensity")) for record in records],
        "metric version": [str(record.metric_version) for record in records],
        "harness version": [str(record.environment.get("harness", "unknown")) for record in records],
    }
    distinct = {what: list(dict.fromkeys(values)) for what, values in facts.items()}
    return tuple(f"{what} {' and '.join(values)}" for what, values in distinct.items() if len(values) > 1)


def _metric_names(contenders: list[Contender], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The metrics asked for, or the usual ones; all of them have scores per row in every run."""
    columns = [run.record.per_row for contender in contenders for run in contender.runs]
    common = [name for name in columns[0] if all(name in names for names in columns)]
    if not common:
        raise UserError("these runs have no per-row metric in common; were they evaluated with the same `ks`?")
    for name in wanted:
        if name not in common and name.startswith("C@"):
            raise UserError(
                f"{name} belongs to the whole test set and has no rows: {metrics.describe(name).definition}"
            )
        if name not in common:
            raise unknown_name("metric", name, common)
    return tuple(dict.fromkeys(wanted)) or tuple(name for name in DEFAULT_METRICS if name in common) or tuple(common)


def _common_rows(opened: dict[str, RowScores]) -> int:
    """The number of rows, the same in all."""
    counts = {run_id: scores.rows for run_id, scores in opened.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{run_id} has {rows:,}" for run_id, rows in counts.items())
        raise UserError(f"rows cannot be paired, there are not equally many: {told}")
    return next(iter(counts.values()))


def _row(contender: Contender, metric: str, outcome: Outcome | None) -> tuple[Cell, ...]:
    spread = _std(contender, metric)
    value = f"{fmean(reported(contender, metric)):.2f}" + ("" if spread is None else f" ± {spread:.2f}")
    about = [str(len(contender.runs)), value]
    if outcome is None:
        return tuple(Cell(text) for text in (metric, contender.name, "reference", *about, *[""] * 7))
    decided = outcome.verdict != "undecided"
    return (
        *(Cell(text) for text in (metric, contender.name)),
        Cell(outcome.verdict, best=decided),
        *(Cell(text) for text in about),
        Cell(f"{outcome.difference:.2f}"),
        Cell(f"[{outcome.low:.2f}, {outcome.high:.2f}]"),
        *(Cell(f"{value:.4f}") for value in (outcome.p, outcome.holm)),
        *(Cell(str(count)) for count in (outcome.won, outcome.lost, outcome.tied)),
    )
