"""`harness report --compare`: who is meant by a name, and which of them differ by more than chance.

The test is that of all reports, `harness.report.significance`. Nothing is run, and no torch is imported.
"""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from harness.errors import UserError, unknown_name
from harness.io.files import is_folder
from harness.report.cells import Cell, Figure, Table
from harness.report.results import (
    ROWS,
    Floats,
    Results,
    kept_columns,
    own_scorer,
    read_records,
    results_folder,
    stored_file,
    stored_ids,
)
from harness.report.rows import settings_of, value
from harness.report.significance import (
    DEFAULT_RESAMPLES,
    LEVEL,
    MANY_DIFFERENCES,
    MANY_ROWS,
    difference_of,
    holm,
    interval,
    p_value,
    scope,
)
from harness.runs.record import RunRecord, is_trial, read_record
from harness.settings.identity import varying

FEWEST_RESAMPLES = 100


# -- what is compared: names as typed -> the runs they stand for

NEWEST = "last"
_LIST = "`python -m harness ls runs` lists what there is"


@dataclass(frozen=True)
class Run:
    """A finished run, and the folder with its per-row scores."""

    folder: Path
    """The run's own folder, or that of the Parquet file that it is in."""
    record: RunRecord

    @property
    def columns(self) -> list[str]:
        """Metrics with per-row scores; a Parquet file keeps those of `ROWS` alone."""
        own = (self.folder / "record.json").is_file()
        return self.record.per_row if own else list(kept_columns(self.record))

    def scores(self, scorer: str | None, metric: str) -> Floats:
        """Return the scores of all test rows in one metric, percent, [M]."""
        found = Results((), folders=(self.folder,)).rows(self.record, scorer, metric)
        if found is None:
            whose = f" of {scorer!r}" if scorer else ""
            raise UserError(f"run {self.record.run_id} has no per-row scores{whose}; run it again to compare it")
        return found


@dataclass(frozen=True)
class Contender:
    """One side of a comparison: one run, or the runs of one method with the same settings and several seeds."""

    name: str
    runs: tuple[Run, ...]
    scorer: str | None = None
    """Name of the scorer; None for the one that a run reports as its own."""

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs, in their order."""
        return [run.record.config["seed"] for run in self.runs]

    @property
    def ids(self) -> list[str]:
        """Ids of the runs, in their order."""
        return [run.record.run_id for run in self.runs]

    def reported(self, metric: str) -> list[float]:
        """Return the metric as each run reports it."""
        return [value(run.record, metric, self.scorer) or 0.0 for run in self.runs]

    def scores(self, metric: str) -> Floats:
        """Return every test row's score in every run, [n, M]."""
        found = [run.scores(self.scorer, metric) for run in self.runs]
        _require_equal_lengths({run.record.run_id: len(rows) for run, rows in zip(self.runs, found, strict=True)})
        return np.stack(found)


def split_names(words: Iterable[str]) -> list[str]:
    """Split words of a command line into names: `A B`, `A,B` and mixtures; commas in brackets or paths stay."""
    names: list[str] = []
    for word in words:
        names += [word] if is_folder(word) else re.split(r",(?![^\[]*\])", word)
    return [name.strip() for name in names if name.strip()]


def find_contenders(names: list[str], folders: list[Path], dataset: str | None = None) -> list[Contender]:
    """Return the contender of every name, in the order given.

    Args:
        names: Runs or methods as typed; at least two.
        folders: Folders of run folders or of Parquet files.
        dataset: Dataset of the runs, needed if a method was run on several.
    """
    if len(names) < 2:
        raise UserError(f"comparing takes two or more runs or methods, not {len(names)}: --compare A B; {_LIST}")
    contenders = named_contenders(names, folders, dataset)
    _require_distinct(contenders)
    return contenders


def named_contenders(names: list[str], folders: list[Path], dataset: str | None = None) -> list[Contender]:
    """Return the contender of every name as `find_contenders` does, of any number of names, also equal ones."""
    found = _Found(folders, read_records(folders))
    direct = {name: run for name in names if (run := found.run(name, dataset)) is not None}
    of_methods = {name: found.of_method(name, dataset) for name in names if name not in direct}
    common = _one_dataset([run.record.dataset["name"] for run in direct.values()], of_methods)
    contenders = []
    for name in names:
        if name in direct:
            contenders.append(Contender(direct[name].record.run_id, (direct[name],)))
        else:
            scorers = [choice for choice in name.split(":")[1:] if "=" not in choice]
            if len(scorers) > 1:
                raise UserError(f"{name}: one scorer at a time, not {' and '.join(scorers)}")
            runs = found.one_setting(name, of_methods[name], common)
            contenders.append(Contender(name, runs, scorers[0] if scorers else None))
    return contenders


class _Found:
    """Finds the runs that a name stands for in folders of runs."""

    def __init__(self, folders: list[Path], records: list[RunRecord]) -> None:
        self.folders = folders
        self.records = records

    def run(self, name: str, dataset: str | None) -> Run | None:
        """Return the run that a name stands for; None if it may be the name of a method."""
        if name == NEWEST:
            usable = [one for one in self.records if not _fault(one) and dataset in (None, one.dataset["name"])]
            if not usable:
                raise UserError("there is no finished run to compare; make one with `python -m harness run`")
            return self._placed(usable[-1])
        for place in [Path(name)] if "/" in name else [Path(name), *(folder / name for folder in self.folders)]:
            if is_folder(place) and any((place / file).is_file() for file in ("record.json", "events.jsonl")):
                return _finished(place)
        if "/" in name:
            raise UserError(f"{name} is not the folder of a run; {_LIST}")
        return next((self._placed(record) for record in self.records if record.run_id == name), None)

    def of_method(self, name: str, dataset: str | None) -> list[RunRecord]:
        """Return the usable records of a method, narrowed by `:key=value` and `:scorer`."""
        method, *choices = name.split(":")
        known = [record for record in self.records if record.config["method"] == method]
        if not known:
            methods = sorted({record.config["method"] for record in self.records})
            near = difflib.get_close_matches(method, [*methods, *(record.run_id for record in self.records)], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            listed = f"methods with runs: {', '.join(methods) or 'none'}; {_LIST}"
            raise UserError(f"unknown run or method {name!r}{hint} {listed}")
        there = [record for record in known if dataset in (None, record.dataset["name"])]
        usable = [record for record in there if not _fault(record)]
        if not usable:
            where = "" if dataset is None else f" on {dataset!r}"
            reason = f"; {_fault(there[-1])}" if there else ""
            raise UserError(f"no finished run of {method!r}{where} to compare{reason}")
        for choice in choices:
            key, equals, wanted = choice.partition("=")
            if not equals:
                for record in usable:
                    if choice not in record.scorers:
                        raise unknown_name(f"scorer of run {record.run_id}", choice, record.scorers)
                continue
            values = [_metadata(record).get(key) for record in usable]
            if wanted not in values:
                have = [f"{key}={value}" for value in sorted({value for value in values if value is not None})]
                raise UserError(
                    f"no finished run of {method!r} with {choice}; there is {', '.join(have) or 'no such key'}"
                )
            usable = [record for record, value in zip(usable, values, strict=True) if value == wanted]
        return usable

    def one_setting(self, name: str, records: list[RunRecord], dataset: str) -> tuple[Run, ...]:
        """Return the newest run of every seed; raises `UserError` if the runs differ in their settings."""
        records = [record for record in records if record.dataset["name"] == dataset]
        keys = varying(map(_metadata, records))
        groups: dict[str, RunRecord] = {}
        for record in records:
            own = _metadata(record)
            groups[":".join([name, *(f"{key}={own[key]}" for key in keys if key in own)])] = record
        if len(groups) > 1:
            lines = "".join(f"\n  {group!r}, newest run {record.run_id}" for group, record in groups.items())
            raise UserError(
                f"{name!r} was run with {len(groups)} different settings on {dataset}; "
                f"name one of these, or a run:{lines}"
            )
        newest = {record.config["seed"]: record for record in records}
        return tuple(self._placed(newest[seed]) for seed in sorted(newest))

    def _placed(self, record: RunRecord) -> Run:
        for folder in self.folders:
            if (folder / record.run_id).is_dir():
                return _finished(folder / record.run_id)
            stored = stored_file(results_folder(folder), record)
            if record.run_id in stored_ids(stored):
                return Run(stored.parent, record)
        raise UserError(
            f"of run {record.run_id} there is a record alone; per-row scores are in the run's folder: "
            "copy that here and name its path, or run it again"
        )


def _finished(folder: Path) -> Run:
    """Return the run of a folder; raises `UserError` if it was not measured on test rows."""
    if not (folder / "record.json").is_file():
        raise UserError(
            f"run {folder.name} is unfinished: it is still running, or it was killed; "
            f"if so, take it up with `python -m harness run --resume {folder.name}`"
        )
    record = read_record(folder)
    if fault := _fault(record):
        raise UserError(fault)
    return Run(folder, record)


def _fault(record: RunRecord) -> str:
    """Return why a run cannot be compared; empty if it can."""
    if record.status != "finished":
        return f"run {record.run_id} did not finish: {record.status}{f' ({record.error})' if record.error else ''}"
    if is_trial(record.config):
        return f"run {record.run_id} was measured on validation rows (evaluate=validation), not on test rows"
    return ""


def _metadata(record: RunRecord) -> dict[str, str]:
    """Return what all runs of a contender must have in common, as text; the seed may differ."""
    data, encoder = record.dataset, record.config["encoder"]
    settings = json.loads(settings_of(record.config))
    metadata = {key.removeprefix("params."): str(value) for key, value in settings.items()}
    metadata |= {"encoder": encoder, "data": str(data.get("digest", ""))[:12], "metrics": str(record.metric_version)}
    metadata["propensity"] = json.dumps(data.get("propensity"), sort_keys=True)
    if encoder.startswith("./"):  # a folder is recorded by its last name, and other weights may lie in another one
        metadata["weights"] = str(record.encoder.get("identity", ""))[:12]
    return metadata


def _one_dataset(of_runs: list[str], of_methods: dict[str, list[RunRecord]]) -> str:
    """Return the dataset of the named runs, or else the only one that all methods were run on."""
    sets = {name: {record.dataset["name"] for record in records} for name, records in of_methods.items()}
    shared = of_runs[:1] or sorted(set.intersection(*sets.values()))
    if len(shared) > 1:
        raise UserError(f"all of these were run on {', '.join(shared)}; say which: --dataset {shared[0]}")
    if not shared or any(shared[0] not in on for on in sets.values()):
        listed = "; ".join(f"{name} on {', '.join(sorted(on))}" for name, on in sets.items())
        where = f"{shared[0]}, as the run that is named" if shared else "one dataset"
        raise UserError(f"these were not run on {where}: {listed}; compare methods on one")
    return shared[0]


def _require_distinct(contenders: list[Contender]) -> None:
    taken: set[tuple[str, str]] = set()
    for contender in contenders:
        runs = {(run.record.run_id, contender.scorer or own_scorer(run.record)) for run in contender.runs}
        if twice := sorted(runs & taken):
            raise UserError(f"run {twice[0][0]} would be compared with itself; name every run once")
        taken |= runs


RATIOS = ("PSP", "PSnDCG")
"""Families of metrics that are ratios of averages."""


def ideal_scores(run: Run, names: Sequence[str]) -> dict[str, Floats]:
    """Return the oracle's score of every test row, [M] of mean 100, in those of `names` that are ratios of averages.

    They need the prepared data of the run. It is looked for in the workspace by its digest, and never built for this;
    where it is not there, the result is empty.
    """
    ratios = [name for name in names if name.partition("@")[0] in RATIOS]
    digest, constants = run.record.dataset.get("digest"), run.record.dataset.get("propensity")
    if not ratios or not digest or not constants:
        return {}
    from harness import metrics
    from harness.data.prepare import load_matrix, prepared_folders
    from harness.data.ragged import Texts

    folder = prepared_folders().get(digest)
    if folder is None:
        return {}
    labels = len(Texts.load(folder, "labels.id"))
    train, test = (load_matrix(folder, f"{split}.labels", labels) for split in ("train", "test"))
    weights = metrics.inverse_propensity(train, constants["a"], constants["b"])
    ks = sorted({int(name.partition("@")[2]) for name in ratios})
    oracle = metrics.per_row(metrics.oracle_topk(test, ks[-1], weights), test, weights, ks)
    return {name: oracle[name] for name in ratios}


# -- the comparison


@dataclass(frozen=True)
class Outcome:
    """Result of one contender against the reference in one metric, in percent."""

    name: str
    metric: str
    difference: float
    """Difference of the reported metrics, positive if the contender is ahead."""
    low: float
    high: float
    p: float
    holm: float
    """p after Holm's correction over the contenders."""
    won: int
    """Number of rows in which the contender is ahead."""
    lost: int
    tied: int
    trained_again: bool
    """Whether interval and p hold for other trainings, too; else one side was trained once, and they are of rows."""

    @property
    def verdict(self) -> str:
        """better, worse or undecided."""
        return "undecided" if self.holm >= LEVEL else "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison."""

    contenders: tuple[Contender, ...]
    metrics: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    """Outcomes by metric, then by contender, both in the order given."""
    rows: int
    resamples: int
    seed: int
    fixed: tuple[str, ...]
    """Metrics whose denominator was held fixed, because the prepared data is not at hand."""
    mixed: tuple[str, ...]
    """What differs between the runs though it should not, such as the data."""

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values for `--json`."""
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
                    "runs": contender.ids,
                    "seeds": contender.seeds,
                    "mean": {metric: fmean(contender.reported(metric)) for metric in self.metrics},
                    "std": {metric: Figure.of(contender.reported(metric)).std for metric in self.metrics},
                }
                for contender in self.contenders
            ],
            "outcomes": [{**asdict(outcome), "verdict": outcome.verdict} for outcome in self.outcomes],
        }

    def as_table(self) -> Table:
        """Return the comparison as a table: per metric the reference, then every other contender."""
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
        alone = dict.fromkeys(one.name for one in self.outcomes if not one.trained_again)
        parts = [
            f"Percent on {self.rows:,} test rows, mean over seeds ({seeds}).",
            f"Interval and p: what there would be {scope(list(alone), len(alone) < others)}{family}; verdict at "
            f"{100 * LEVEL:g} %.",
            f"{self.resamples:,} draws, seed {self.seed}: of rows for the interval where there are {MANY_ROWS:,} or "
            f"fewer, of signs for p where fewer than {MANY_DIFFERENCES} rows differ.",
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
    """Compare every contender with the first, in every metric.

    Args:
        contenders: From `find_contenders`, the reference first.
        wanted: Metrics; `ROWS`, as far as all runs have them, if left out.
        resamples: Number of draws of the bootstrap and of the sign-flip test.
        seed: Seed of the draws; the same seed gives the same result.
        allow_mixed: Also compare runs that differ in data, filter, propensity constants, metric or harness version, as
            long as their rows are equal in number.
    """
    if resamples < FEWEST_RESAMPLES:
        raise UserError(f"{resamples} resamples are too few to decide anything; take {FEWEST_RESAMPLES} or more")
    mixed = _mixture(contenders)
    if mixed and not allow_mixed:
        raise UserError(f"these runs do not belong in one comparison: {'; '.join(mixed)}; --allow-mixed compares them")
    names = _metric_names(contenders, wanted)
    ideals = {} if mixed else ideal_scores(contenders[0].runs[0], names)
    outcomes: list[Outcome] = []
    rows = 0
    for name in names:
        scores = [contender.scores(name) for contender in contenders]
        _require_equal_lengths({one.name: own.shape[1] for one, own in zip(contenders, scores, strict=True)})
        rows, family = scores[0].shape[1], []
        for other, own in zip(contenders[1:], scores[1:], strict=True):
            ahead = difference_of(own, scores[0], paired=other.ids == contenders[0].ids)
            low, high = interval(ahead, ideals.get(name), resamples=resamples, seed=seed)
            p = p_value(ahead, resamples=resamples, seed=seed)
            won, lost = int(np.count_nonzero(ahead.rows > 0)), int(np.count_nonzero(ahead.rows < 0))
            counts = (won, lost, rows - won - lost)
            difference = fmean(other.reported(name)) - fmean(contenders[0].reported(name))
            family.append(Outcome(other.name, name, difference, low, high, p, p, *counts, ahead.trained_again))
        corrected = holm([outcome.p for outcome in family])
        outcomes += [replace(outcome, holm=value) for outcome, value in zip(family, corrected, strict=True)]
    fixed = tuple(name for name in names if name.partition("@")[0] in RATIOS and name not in ideals)
    return Comparison(tuple(contenders), names, tuple(outcomes), rows, resamples, seed, fixed, mixed)


def _mixture(contenders: list[Contender]) -> tuple[str, ...]:
    """Return what differs between runs though it decides what their figures mean."""
    records = [run.record for contender in contenders for run in contender.runs]
    metadata = {
        "data": [f"{record.dataset['name']} {str(record.dataset.get('digest', ''))[:12]}" for record in records],
        "filter": [str(record.dataset.get("filter")) for record in records],
        "propensity constants": [str(record.dataset.get("propensity")) for record in records],
        "metric version": [str(record.metric_version) for record in records],
        "harness version": [str(record.environment.get("harness", "unknown")) for record in records],
    }
    distinct = {what: list(dict.fromkeys(values)) for what, values in metadata.items()}
    return tuple(f"{what} {' and '.join(values)}" for what, values in distinct.items() if len(values) > 1)


def _metric_names(contenders: list[Contender], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the metrics asked for, or those of `ROWS`; all have per-row scores in every run."""
    columns = [run.columns for contender in contenders for run in contender.runs]
    common = [name for name in columns[0] if all(name in names for names in columns)]
    if not common:
        raise UserError("these runs have no per-row metric in common; were they evaluated with the same `ks`?")
    for name in wanted:
        if name not in common and name.startswith("C@"):
            from harness import metrics

            raise UserError(
                f"{name} belongs to the whole test set and has no rows: {metrics.describe(name).definition}"
            )
        if name not in common:
            raise unknown_name("metric", name, common)
    return tuple(dict.fromkeys(wanted)) or tuple(name for name in ROWS if name in common) or tuple(common)


def _require_equal_lengths(counts: dict[str, int]) -> None:
    """Raise if there are not equally many rows everywhere: they are paired by index."""
    if len({*counts.values()}) > 1:
        listed = ", ".join(f"{name} has {rows:,}" for name, rows in counts.items())
        raise UserError(f"rows cannot be paired, there are not equally many: {listed}")


def _row(contender: Contender, metric: str, outcome: Outcome | None) -> tuple[Cell, ...]:
    verdict, found = Cell("reference"), [""] * 7
    if outcome is not None:
        verdict = Cell(outcome.verdict, best=outcome.verdict != "undecided")
        found = [f"{outcome.difference:.2f}", f"[{outcome.low:.2f}, {outcome.high:.2f}]"]
        found += [f"{value:.4f}" for value in (outcome.p, outcome.holm)]
        found += [str(count) for count in (outcome.won, outcome.lost, outcome.tied)]
    value = Figure.of(contender.reported(metric)).ours
    return (Cell(metric), Cell(contender.name), verdict, *map(Cell, (str(len(contender.runs)), value, *found)))
