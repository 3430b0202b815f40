"""Published tables with our runs: which runs belong to which row, on any dataset, and the table they make.

A row is a method and settings. On a dataset of its table these are as printed, on others those that the table varies
(`harness.settings.published.settings_elsewhere`). A record belongs to a row if it agrees with it in everything the
table varies.
In everything else the runs of one `TableResult` agree with each other: same data, filter, propensity constants and
versions, same encoder, and per method the same changes from its defaults. Of several such choices the one with most
rows is taken, then the one nearest to the defaults, then the newest; the others are counted, never mixed in.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from harness.errors import DataError
from harness.io.yaml import format_flow
from harness.report.cells import Cell, Figure, Table, column_cells
from harness.report.results import ROWS, Floats, Results, conditions, warn
from harness.report.rows import Settings, better, changes, default_settings, digits, is_metric, settings, value
from harness.report.significance import LEVEL, Difference, difference_of, holm, p_value, scope
from harness.report.tables import render_template
from harness.runs.record import RunRecord, is_trial
from harness.settings.published import COLUMNS, PublishedRow, PublishedTable, settings_elsewhere, varied_keys

NOT_SETTINGS = ("scorer", "seed")
"""Keys of a row that no run is started with: a run measures every scorer, and the bench has the seeds."""


@dataclass(frozen=True)
class RowResult:
    """One or more rows of a table that the same runs measure, on one dataset."""

    table: PublishedTable
    declared: tuple[PublishedRow, ...]
    dataset: str
    settings: dict[str, Any]
    """Settings that a run must have to be this row."""
    variant: str = ""
    """Those of these settings that the table varies, as text."""
    records: tuple[RunRecord, ...] = ()
    """One record per seed, by seed."""
    wanted: int = 0
    """How many records there should be."""

    @property
    def label(self) -> str:
        """Label as printed; those of several rows are joined."""
        return " / ".join(dict.fromkeys(row.label for row in self.declared))

    @property
    def method(self) -> str | None:
        """Name of the method; None for a row that cannot be run."""
        return self.declared[0].method

    @property
    def scorer(self) -> str | None:
        """Name of the scorer; None for the method's own."""
        return self.declared[0].scorer

    @property
    def published(self) -> bool:
        """Whether the paper has figures for this dataset."""
        return self.dataset == self.declared[0].dataset

    @property
    def run(self) -> str:
        """Key that is equal for rows with the same run."""
        return json.dumps([self.method, self.dataset, self.settings], sort_keys=True)


@dataclass(frozen=True)
class Change:
    """A setting that differs in runs of a table from the defaults of their methods."""

    key: str
    value: Any
    methods: tuple[str, ...] = ()
    """Methods that it differs in; empty if in all."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}" + (f" ({', '.join(self.methods)})" if self.methods else "")

    @property
    def options(self) -> list[str]:
        """The options with which `bench` sets it."""
        setting = f"{self.key}={format_flow(self.value)}"
        settings = [f"{method}:{setting}" for method in self.methods] or [setting]
        return [word for one in settings for word in ("--set", one)]


@dataclass(frozen=True)
class TableResult:
    """One published table on one dataset, with the runs there are."""

    declared: PublishedTable
    dataset: str
    rows: tuple[RowResult, ...]
    base: tuple[Change, ...] = ()
    """Settings, other than those the table varies, that differ from the defaults of the methods."""
    left_out: int = 0
    """Number of runs that fit a row, but have other data or versions than those shown."""

    @property
    def published(self) -> bool:
        """Whether the paper has figures for this dataset."""
        return self.dataset in self.declared.datasets

    @property
    def own(self) -> bool:
        """Whether it is a table of ours on a dataset that its settings were chosen for."""
        return self.declared.own and self.published

    @property
    def measured(self) -> int:
        """Number of different runs of its rows, not counting seeds."""
        return len({row.run for row in self.rows if row.records})

    @property
    def compares(self) -> bool:
        """Whether there are rows to compare: a single row of an ablation is not enough."""
        return self.measured >= min(2, len({row.run for row in self.rows if row.method}))

    @property
    def command(self) -> str:
        """Command that repeats it: all rows with runs, each with all seeds of any of them.

        Empty if a folder of data or weights was used: a record does not have its path.
        """
        data = {str(one.config.get("dataset") or "./") for one in self.records}
        values = (*data, *(change.value for change in self.base))
        if len(data) != 1 or any(isinstance(value, str) and value.startswith(("./", "/")) for value in values):
            return ""
        seeds = sorted({one.config["seed"] for one in self.records})
        ran = [row.declared[0].stem for row in self.rows if row.records]
        every = {row.declared[0].stem for row in self.rows if row.method}
        words = ["python", "-m", "harness", "bench", "--table", self.declared.table, "--datasets", *data]
        words += ["--seeds", ",".join(map(str, seeds)), *(["--rows", ",".join(ran)] if every - {*ran} else [])]
        return shlex.join([*words, *(word for change in self.base for word in change.options)])

    @property
    def records(self) -> list[RunRecord]:
        """All records in it, each once."""
        return list({one.run_id: one for row in self.rows for one in row.records}.values())


def rows_on(table: PublishedTable, dataset: str) -> list[RowResult]:
    """Return the rows for a dataset: its own, or every row once if the table does not have the dataset."""
    if dataset in table.datasets:
        rows = [row for row in table.rows if row.dataset == dataset]
    else:
        runnable_first = sorted(table.rows, key=lambda row: row.method is None)
        by_stem = {row.stem: row for row in reversed(runnable_first)}
        rows = [by_stem[stem] for stem in dict.fromkeys(row.stem for row in table.rows)]
    varied = varied_keys(table)
    return [_row_result(table, row, dataset, varied) for row in rows]


def _row_result(table: PublishedTable, row: PublishedRow, dataset: str, varied: list[str]) -> RowResult:
    if row.method is None:
        return RowResult(table, (row,), dataset, {})
    own = row.settings if row.dataset == dataset else settings_elsewhere(table, row.stem)
    own = {key: value for key, value in own.items() if key not in NOT_SETTINGS}
    shown = [key for key in {**dict.fromkeys(varied), **dict.fromkeys(own)} if key in own]
    if row.dataset == dataset and not table.own:
        shown = [key for key in shown if key in varied]
    return RowResult(table, (row,), dataset, own, ", ".join(_format_setting(key, own[key]) for key in shown))


def _format_setting(key: str, value: Any) -> str:
    """Format a setting; of a group of settings, those that are given."""
    if isinstance(value, dict):
        return ", ".join(_format_setting(name, one) for name, one in value.items())
    return f"{key}={value}"


def merged(rows: list[RowResult]) -> list[RowResult]:
    """Join rows with the same run and scorer into one, in the place of the first."""
    found: dict[Any, RowResult] = {}
    for row in rows:
        same = (row.scorer, row.run) if row.method else row.declared[0].name
        first = found.get(same)
        found[same] = replace(first, declared=first.declared + row.declared) if first else row
    return list(found.values())


def table_results(
    records: Iterable[RunRecord], declared: PublishedTable, datasets: Iterable[str] | None = None
) -> list[TableResult]:
    """Return a table on every dataset with runs to compare, most rows first, then on the datasets of the paper.

    Args:
        records: Any records; trials, failed runs and those of other methods are skipped.
        declared: The table.
        datasets: Datasets to show; None for all.
    """
    usable = [one for one in records if one.status == "finished" and not is_trial(one.config)]
    measured = sorted({one.dataset["name"] for one in usable} - set(declared.datasets))
    chosen = [*measured, *declared.datasets] if datasets is None else list(dict.fromkeys(datasets))
    by_place: dict[tuple[str, str], list[RunRecord]] = {}
    for one in usable:
        by_place.setdefault((one.dataset["name"], one.config["method"]), []).append(one)
    found = [table_result(declared, dataset, by_place) for dataset in chosen]
    if datasets is not None:
        return [table for table in found if table.published or table.records]
    elsewhere = [table for table in found if not table.published and table.compares]
    return [*sorted(elsewhere, key=lambda table: -table.measured), *(table for table in found if table.published)]


@dataclass(frozen=True)
class _Fit:
    """A record that fits a row, and how it differs from the settings of that row."""

    place: int
    """Index of the row in its table."""
    record: RunRecord
    changes: Settings

    @property
    def method(self) -> str:
        return str(self.record.config["method"])

    @property
    def shared(self) -> str:
        """Key that all rows of a table must share: data, versions, and changed settings that are not of the method."""
        common = {key: value for key, value in self.changes.items() if not key.startswith("params.")}
        return json.dumps([_versions(self.record), common], sort_keys=True)

    @property
    def own(self) -> str:
        """Key that all runs of a method must share besides: its changed parameters."""
        params = {key: value for key, value in self.changes.items() if key.startswith("params.")}
        return json.dumps(params, sort_keys=True)


def table_result(
    declared: PublishedTable, dataset: str, by_place: dict[tuple[str, str], list[RunRecord]]
) -> TableResult:
    """Return the table on one dataset; `by_place` has the usable records by dataset and method."""
    rows = merged(rows_on(declared, dataset))
    pinned = {*varied_keys(declared), *(key for row in rows for key in row.settings)} - {*NOT_SETTINGS}
    fits = [
        _Fit(place, record, differing)
        for place, row in enumerate(rows)
        for record, differing in _fitting(row, by_place.get((dataset, str(row.method)), []), pinned)
    ]
    if not fits:
        return TableResult(declared, dataset, tuple(rows))
    choices = []
    for alike in _grouped(fits, lambda fit: fit.shared):
        of_methods = _grouped(alike, lambda fit: fit.method)
        groups = (max(_grouped(one, lambda fit: fit.own), key=_worth) for one in of_methods)
        choices.append([fit for group in groups for fit in group])
    chosen = max(choices, key=_worth)
    records = [_by_seed(fit.record for fit in chosen if fit.place == place) for place in range(len(rows))]
    most = max(map(len, records))
    filled = [
        replace(row, records=own, wanted=most if row.method else 0) for row, own in zip(rows, records, strict=True)
    ]
    versions = _versions(chosen[0].record)
    left_out = {fit.record.run_id for fit in fits if _versions(fit.record) != versions}
    return TableResult(declared, dataset, tuple(filled), _base(chosen), len(left_out))


def _grouped(fits: list[_Fit], key: Callable[[_Fit], str]) -> list[list[_Fit]]:
    """Group fits by key, in the order of the first of each group."""
    groups: dict[str, list[_Fit]] = {}
    for fit in fits:
        groups.setdefault(key(fit), []).append(fit)
    return list(groups.values())


def _worth(fits: list[_Fit]) -> tuple[int, int, int, str]:
    """Return a sort key: more rows, then nearer to the defaults, then more runs, then newer."""
    changed = max(len(fit.changes) for fit in fits)
    runs = {fit.record.run_id for fit in fits}
    return len({fit.place for fit in fits}), -changed, len(runs), max(fit.record.started for fit in fits)


def _base(chosen: list[_Fit]) -> tuple[Change, ...]:
    """Return what differs from the defaults in the chosen runs, with the methods if not in all."""
    methods = {fit.method for fit in chosen}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for fit in chosen:
        for key, changed in fit.changes.items():
            found.setdefault((key.removeprefix("params."), json.dumps(changed)), {})[fit.method] = changed
    return tuple(
        Change(key, next(iter(of.values())), () if len(of) == len(methods) else tuple(of))
        for (key, _), of in found.items()
    )


def _fitting(row: RowResult, records: list[RunRecord], pinned: set[str]) -> Iterator[tuple[RunRecord, Settings]]:
    """Yield records that have the row's values of the pinned keys, and the settings in which they differ otherwise."""
    expected = default_settings(row.method, row.dataset, row.settings) if row.method and records else None
    if expected is None:
        return
    for record in records:
        differing = changes(settings(record.config), expected)
        bare = [key.removeprefix("params.") for key in differing]
        if not any(key == name or key.startswith(f"{name}.") for key in bare for name in pinned):
            yield record, differing


def _versions(record: RunRecord) -> list[Any]:
    return [*conditions(record), record.environment.get("harness")]


def _by_seed(records: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the newest record of every seed, by seed."""
    newest = {one.config["seed"]: one for one in sorted(records, key=lambda one: (one.started, one.run_id))}
    return tuple(newest[seed] for seed in sorted(newest))


# -- which rows are significantly better or worse than the best baseline

BETTER, WORSE = "†", "‡"
_OWN = ("unidec", "depsl")
"""Prefixes of methods that the papers propose; the other methods of a table are the baselines."""


@dataclass(frozen=True)
class Tested:
    """Outcome of the tests of one column."""

    baseline: int
    """Index of the best baseline."""
    marks: dict[int, str]
    """Mark by index of the row."""
    alone: dict[int, bool]
    """By index of every tested row: whether it or the baseline was trained once, so that rows alone were tested."""


def baselines(table: TableResult) -> list[int]:
    """Return the indices of the rows that others are compared with.

    These are the rows of others' methods, if the table has some beside the papers' own; else its first row.
    """
    runnable = [place for place, row in enumerate(table.rows) if row.records]
    others = [place for place in runnable if not str(table.rows[place].method).startswith(_OWN)]
    return others if 0 < len(others) < len(runnable) else runnable[:1]


def tested(table: TableResult, column: str, figures: Sequence[Figure], results: Results) -> Tested | None:
    """Test every row against the best baseline in one column; None if there is no test or no per-row scores."""
    held = [place for place in baselines(table) if figures[place].mean is not None]
    if column not in ROWS or not held:
        return None
    best = max(held, key=lambda place: (figures[place].mean or 0.0, -place))
    ahead = {
        place: lead
        for place, row in enumerate(table.rows)
        if place not in baselines(table) and (lead := ahead_by(row, table.rows[best], column, results)) is not None
    }
    decided = [p < LEVEL for p in holm([p_value(lead) for lead in ahead.values()])]
    marks = {
        place: BETTER if lead.rows.sum() > 0 else WORSE
        for (place, lead), sure in zip(ahead.items(), decided, strict=True)
        if sure
    }
    return Tested(best, marks, {place: not lead.trained_again for place, lead in ahead.items()}) if ahead else None


def ahead_by(row: RowResult, other: RowResult, column: str, results: Results) -> Difference | None:
    """Return by how much `row` is ahead of `other`; None if per-row scores are missing."""
    scores, reference = (row_scores(one, column, results) for one in (row, other))
    if scores is None or reference is None or scores.shape[1] != reference.shape[1]:
        return None
    same = [one.run_id for one in row.records] == [one.run_id for one in other.records]
    return difference_of(scores, reference, paired=same)


def row_scores(row: RowResult, column: str, results: Results) -> Floats | None:
    """Return every test row's score after every training of a row of a table, [n, M]; None if a run lacks them."""
    try:
        found = [results.rows(record, row.scorer, column) for record in row.records]
    except DataError as error:  # the figures are valid; only the test cannot be made
        _warn_once(str(error))
        return None
    kept = [rows for rows in found if rows is not None]
    if not kept or len(kept) != len(found) or len({len(rows) for rows in kept}) > 1:
        return None
    return np.stack(kept)


@cache
def _warn_once(fault: str) -> None:
    """Warn of damaged per-row scores once, however many tables they are in."""
    warn(f"no test of significance with these rows. {fault}")


# -- the table

_WORDS = ("row", "method", "scorer", "settings", "seeds")
_OWN_WORDS = ("row", "settings", "harness run --published ...", "seeds")
"""Headings of a table of ours, whose rows can be run one by one."""


def as_table(table: TableResult, results: Results) -> Table:
    """Return a published table on one dataset; rows that cannot be run are shown only on datasets of the paper."""
    notes, words = tuple(remarks(table)), _OWN_WORDS if table.own else _WORDS
    table = replace(table, rows=tuple(row for row in table.rows if row.method or table.published))
    columns = shown_columns(table)
    tests: dict[str, Tested | None] = {}
    cells = []
    for column in columns:
        figures = _figures(table.rows, column)
        tests[column] = test = tested(table, column, figures, results)
        shown = [
            figure if row.method or figure.paper is not None else None
            for row, figure in zip(table.rows, figures, strict=True)
        ]
        marks = test.marks if test else {}
        found = column_cells(shown, better(column))
        cells.append([replace(cell, mark=marks.get(place, "")) for place, cell in enumerate(found)])
    texts = [[Cell(text) for text in _words(row)] for row in table.rows]
    blocks = [row.declared[0].stem.rpartition("/")[0] for row in table.rows]  # rows are named `block/row`
    return Table(
        title=f"{table.declared.table} on {table.dataset}: {table.declared.caption}",
        columns=(*words, *columns),
        rows=tuple((*text, *of_row) for text, *of_row in zip(texts, *cells, strict=True)),
        caption=caption(table, tests),
        words=len(words) - 1,
        id=f"{table.declared.table}-{table.dataset}",
        breaks=tuple(place for place in range(1, len(blocks)) if blocks[place] != blocks[place - 1]),
        notes=notes,
    )


def shown_columns(table: TableResult) -> list[str]:
    """Return the columns of the paper, on other data also those of `ROWS`, that have a figure, ours or the paper's."""
    extra = [name for name in ROWS if name not in table.declared.metrics] if not table.published else []
    usual = [name for name in [*table.declared.metrics, *extra] if is_metric(name)]
    ordered = [*sorted(usual, key=_place), *(name for name in table.declared.metrics if name not in usual)]
    return [
        name for name in ordered if any(printed(row, name) is not None or measured(row, name) for row in table.rows)
    ]


def _place(name: str) -> tuple[int, int]:
    """Return a sort key for metrics: family, then k."""
    family, _, k = name.partition("@")
    known = ("P", "nDCG", "PSP", "PSnDCG", "R", "C")
    return known.index(family), int(k)


def measured(row: RowResult, column: str) -> list[float]:
    """Return our values of a column, one per seed."""
    found = [value(record, column, row.scorer) for record in row.records]
    return [one for one in found if one is not None]


def printed(row: RowResult, column: str) -> float | None:
    """Return the paper's figure; None if it has no number for this dataset."""
    one = row.declared[0].results.get(column) if row.published else None
    return float(one) if isinstance(one, int | float) else None


def _figures(rows: Sequence[RowResult], column: str) -> list[Figure]:
    """Return a figure per row, with our values and the paper's."""
    values, papers = [measured(row, column) for row in rows], [printed(row, column) for row in rows]
    known = [*(one for found in values for one in found), *(one for one in papers if one is not None)]
    decimals = digits(column, max(known, default=None))
    return [
        Figure.of(
            found,
            paper=paper,
            slip=bool(row.declared[0].slip) and row.published,
            wanted=len(row.records),
            digits=decimals,
        )
        for row, found, paper in zip(rows, values, papers, strict=True)
    ]


def _words(row: RowResult) -> list[str]:
    done = len(row.records)
    seeds = "" if not row.method else str(done) if done >= row.wanted else f"{done} of {row.wanted}"
    if row.table.own and row.published:
        return [row.label, row.variant, row.declared[0].name, seeds]
    return [row.label, row.method or "", row.scorer or "", row.variant, seeds]


def caption(table: TableResult, tests: dict[str, Tested | None]) -> str:
    """Return the caption: what all runs of the table share or differ in, such as seeds, filter, versions, tests."""
    records = table.records
    touched = {name for change in table.base for name in change.methods}
    others = {one.config["method"] for one in records} - touched
    text = render_template(
        "caption.txt.j2",
        table=table,
        data=records[0].dataset if records else {},
        metric_version=records[0].metric_version if records else 0,
        validated=sorted({bool((one.config.get("validation") or {}).get("size")) for one in records}),
        seeds=sorted({one.config["seed"] for one in records}),
        encoders=sorted({one.config["encoder"] for one in records}),
        harnesses=sorted({str(one.environment.get("harness", "?")) for one in records}),
        torches=sorted({str(one.environment.get("packages", {}).get("torch", "?")) for one in records}),
        apart=all(change.methods for change in table.base) and bool(others),
        against=list(dict.fromkeys(table.rows[test.baseline].label for test in tests.values() if test)),
        several=len(baselines(table)) > 1,
        scope=_scope(table, [test for test in tests.values() if test]),
        better=BETTER,
        worse=WORSE,
        level=f"{100 * LEVEL:g}",
    )
    return " ".join(text.split())


def _scope(table: TableResult, tests: Sequence[Tested]) -> str:
    """Say for what the marks of a table hold."""
    alone = {place: only for test in tests for place, only in test.alone.items()}
    labels = dict.fromkeys(table.rows[place].label for place, only in sorted(alone.items()) if only)
    return scope(list(labels), not all(alone.values()))


def remarks(table: TableResult) -> list[str]:
    """Return remarks on rows: those that cannot be run, slips, and settings that are not exactly the paper's."""
    found: dict[str, dict[str, None]] = {}
    for declared in (declared for row in table.rows for declared in row.declared):
        slip = f"slip in the paper: {declared.slip}" if declared.slip and table.published else ""
        nearest = f"not exactly the paper's: {declared.nearest}" if declared.nearest else ""
        for text in (declared.absent and f"cannot be run: {declared.absent}", slip, nearest):
            if text:
                found.setdefault(text, {})[declared.label] = None
    if table.published and table.records and "memory GB" in table.declared.metrics:
        found["our memory is that of one process, the paper's that of all its GPUs"] = {"memory GB": None}
    unknown = [name for name in table.declared.metrics if name in COLUMNS and name not in shown_columns(table)]
    more = [f"No figure of ours for {', '.join(unknown)}."] if unknown and table.records else []
    return [*(f"{', '.join(rows)}: {text}" for text, rows in found.items()), *more]
