"""Published tables as benches: a row is a cell per seed, and afterwards a line with our figure beside the paper's.

On a dataset of the table a row has the settings as printed. On another one it has its method and what the table varies
(`harness.published.settings_elsewhere`). Every way of scoring is measured in one run, so rows that differ in the scorer
alone share their cells. Rows that are the same run and the same scorer are one line.
"""

import json
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from harness import DEFAULT_DATASET, metrics
from harness.bench import Cell, Request, State
from harness.bench.plan import (
    Faults,
    Wanted,
    chosen_methods,
    in_order,
    known_datasets,
    listed,
    parsed_seeds,
    resolved,
    setting_layers,
)
from harness.config import Layer
from harness.errors import UserError
from harness.published import (
    PublishedRow,
    PublishedTable,
    published_table,
    settings_elsewhere,
    varied_keys,
)
from harness.record import RunRecord
from harness.report import Cell as Entry
from harness.report import Table

_SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
_NOT_SETTINGS = ("scorer", "seed")
"""A run measures every scorer; seeds are the bench's."""


@dataclass(frozen=True)
class Line:
    """Rows of a table that are one measurement, on one dataset."""

    table: PublishedTable
    rows: tuple[PublishedRow, ...]
    dataset: str
    variant: str = ""
    cells: tuple[Cell, ...] = ()
    """One per seed; none for a row that cannot be run."""

    @property
    def label(self) -> str:
        """As printed; several rows have all their labels."""
        return " / ".join(dict.fromkeys(row.label for row in self.rows))

    @property
    def view(self) -> str | None:
        """The scorer."""
        return self.rows[0].view

    @property
    def published(self) -> bool:
        """Whether the paper has figures for this dataset."""
        return self.dataset == self.rows[0].dataset

    def printed(self, column: str) -> float | None:
        """The paper's figure, if it is one."""
        value = self.rows[0].results.get(column) if self.published else None
        return value if isinstance(value, int | float) else None

    def measured(self, column: str, records: dict[str, RunRecord]) -> list[float]:
        """Ours, of every seed that is done; `records` go by the key of their cell."""
        done = [records[cell.key] for cell in self.cells if cell.key in records]
        scores = [one.views.get(self.view, {}) if one.views and self.view else one.metrics for one in done]
        return [values[column] for values in scores if column in values]

    def as_dict(self, records: dict[str, RunRecord]) -> dict[str, Any]:
        """For programs."""
        ours = {column: self.measured(column, records) for column in _columns([self], records)}
        return {
            "table": self.table.table,
            "rows": [row.row for row in self.rows],
            "label": self.label,
            "dataset": self.dataset,
            "method": self.rows[0].method,
            "variant": self.variant,
            "view": self.view,
            "cells": [cell.name for cell in self.cells],
            "run_ids": [records[cell.key].run_id for cell in self.cells if cell.key in records],
            "metrics": {column: mean(values) for column, values in ours.items() if values},
            "std": {column: stdev(values) for column, values in ours.items() if len(values) > 1},
            "published": {column: value for column in ours if (value := self.printed(column)) is not None},
            "absent": self.rows[0].absent or None,
        }


@dataclass(frozen=True)
class TablePlan:
    """What is to be run for the tables, and what becomes of it."""

    cells: list[Cell]
    lines: list[Line]
    """In the papers' order, dataset by dataset."""
    left_out: list[str]
    """A sentence per dataset that is not on this machine."""


def plan_tables(request: Request) -> TablePlan:
    """The cells of published tables; raises one `UserError` with every fault, or if nothing can be run."""
    faults = Faults()
    tables = _named_tables(request.tables or "", faults)
    datasets = None if request.datasets is None else known_datasets(request.datasets, faults)
    seeds = parsed_seeds(request.seeds, faults)
    lines = _chosen_lines(tables, datasets, request.methods, faults)
    runnable = [line for line in lines if line.rows[0].method]
    layers = setting_layers(request, list(dict.fromkeys(str(line.rows[0].method) for line in runnable)), faults)
    faults.refuse([], [])
    wanted: dict[str, Wanted] = {}
    for line in runnable:
        wanted.setdefault(*_wanted(line, layers))
    cells, missing = resolved(list(wanted.values()), seeds, faults)
    by_run = dict(zip(wanted, cells, strict=True))
    if not any(cells):
        for sentence in missing.values():
            faults.add(UserError(sentence))
        if datasets is None:
            faults.hints.append(f"on other data, with what the table varies: --datasets {DEFAULT_DATASET}")
    faults.refuse([], [])
    found = [
        replace(line, cells=tuple(by_run[_wanted(line, layers)[0]])) if line.rows[0].method else line
        for line in lines
        if line.dataset not in missing
    ]
    return TablePlan(in_order(list(wanted.values()), cells), merged(found), list(missing.values()))


def _named_tables(text: str, faults: Faults) -> list[PublishedTable]:
    tables = []
    for name in dict.fromkeys(listed(text)):
        try:
            tables.append(published_table(name))
        except UserError as error:
            faults.add(error)
    if not listed(text):
        faults.add(UserError("--table names none, for example thesis-2.5; `python -m harness ls published` lists them"))
    return tables


def _chosen_lines(tables: list[PublishedTable], datasets: list[str] | None, methods: str, faults: Faults) -> list[Line]:
    """The rows of the tables that the methods select; one that cannot be run is told unless methods are named."""
    chosen, every = chosen_methods(methods, faults), "all" in listed(methods)
    every_line = [
        line
        for table in tables
        for dataset in (table.datasets if datasets is None else datasets)
        for line in _rows_on(table, dataset)
    ]
    lines = [line for line in every_line if line.rows[0].method in chosen or (every and line.rows[0].absent)]
    if every_line and not any(line.rows[0].method for line in lines):
        known = dict.fromkeys(row.method for table in tables for row in table.rows if row.method)
        why = f"their methods are {', '.join(map(str, known))}" if known else every_line[0].rows[0].absent
        names = ", ".join(table.table for table in tables)
        faults.add(UserError(f"no row of {names} can be run with --methods {methods}: {why}"))
    return lines


def _rows_on(table: PublishedTable, dataset: str) -> list[Line]:
    """The rows for a dataset: its own, or on one that the table does not have, every row once."""
    if dataset in table.datasets:
        rows = [row for row in table.rows if row.dataset == dataset]
    else:
        runnable_first = sorted(table.rows, key=lambda row: row.method is None)
        by_stem = {row.stem: row for row in reversed(runnable_first)}
        rows = [by_stem[stem] for stem in dict.fromkeys(row.stem for row in table.rows)]
    varied = [key for key in varied_keys(table) if key not in _NOT_SETTINGS]
    return [Line(table, (row,), dataset, _variant(_settings(table, row, dataset), varied)) for row in rows]


def _settings(table: PublishedTable, row: PublishedRow, dataset: str) -> dict[str, Any]:
    if row.method is None:
        return {}
    settings = row.settings if row.dataset == dataset else settings_elsewhere(table, row.stem)
    return {key: value for key, value in settings.items() if key not in _NOT_SETTINGS}


def _variant(settings: dict[str, Any], varied: list[str]) -> str:
    return ", ".join(f"{key}={settings[key]}" for key in varied if key in settings)


def _wanted(line: Line, layers: dict[str, list[Layer]]) -> tuple[str, Wanted]:
    """What a row asks to be run, and a text that is equal for equal runs."""
    row, method = line.rows[0], str(line.rows[0].method)
    settings = _settings(line.table, row, line.dataset)
    own = Layer(f"published {row.table}/{row.stem}", settings)
    run = json.dumps([method, line.dataset, settings], sort_keys=True)
    return run, Wanted(f"{row.table}/{row.stem}", method, line.dataset, [own, *layers[method]], line.variant)


def merged(lines: list[Line]) -> list[Line]:
    """Rows that became the same run and the same scorer as one line, in the place of the first."""
    found: dict[Any, Line] = {}
    for line in lines:
        keys = tuple(cell.key for cell in line.cells)
        same = (line.table.table, line.dataset, line.view, keys) if keys else line.rows[0].name + line.dataset
        first = found.get(same)
        found[same] = replace(first, rows=first.rows + line.rows) if first else line
    return list(found.values())


def _columns(lines: list[Line], records: dict[str, RunRecord]) -> list[str]:
    """Metrics of which there is a figure, ours or the paper's."""
    own = [name for name in lines[0].table.metrics if name in metrics.names(metrics.DEFAULT_KS, weighted=True)]
    names = dict.fromkeys([*_SHOWN, *own])
    return [
        name for name in names if any(line.measured(name, records) or line.printed(name) is not None for line in lines)
    ]


def as_tables(lines: list[Line], states: list[State]) -> list[Table]:
    """One table per published table and dataset, with the rows in the paper's order."""
    records = {state.cell.key: state.record for state in states if state.record}
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.cells or line.published:
            groups.setdefault((line.table.table, line.dataset), []).append(line)
    return [_table(group, records) for group in groups.values()]


def _table(lines: list[Line], records: dict[str, RunRecord]) -> Table:
    table, dataset, columns = lines[0].table, lines[0].dataset, _columns(lines, records)
    rows = []
    for line in lines:
        done = sum(cell.key in records for cell in line.cells)
        seeds = "" if not line.cells else str(done) if done == len(line.cells) else f"{done} of {len(line.cells)}"
        words = [line.label, line.rows[0].method or "", line.view or "", line.variant, seeds]
        rows.append(tuple(Entry(text) for text in [*words, *(_figure(line, name, records) for name in columns)]))
    caption = "Mean ± standard deviation over seeds; X: nothing measured."
    if lines[0].published:
        caption += f" In brackets: {table.source}."
    else:
        caption += f" Not a dataset of {table.source}: a row is its method and what that table varies."
    return Table(
        title=f"{table.table} on {dataset}: {table.caption}",
        columns=("row", "method", "scorer", "settings", "seeds", *columns),
        rows=tuple(rows),
        caption=caption,
        words=4,
    )


def _figure(line: Line, column: str, records: dict[str, RunRecord]) -> str:
    """Ours, then the paper's in brackets; a question mark where that is known to be a slip."""
    values, printed = line.measured(column, records), line.printed(column)
    ours = "X" if line.cells else ""
    if values:
        ours = f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
    theirs = "" if printed is None else f"({printed:.2f}{'?' if line.rows[0].slip else ''})"
    return f"{ours} {theirs}".strip()


def remarks(lines: list[Line]) -> list[str]:
    """What a reader should know about rows: those that cannot be run, slips, and where settings are only near."""
    told: dict[str, dict[str, None]] = {}
    for line in lines:
        for row in line.rows:
            slip = f"slip in the paper: {row.slip}" if row.slip and line.published else ""
            nearest = f"not exactly the paper's: {row.nearest}" if row.nearest else ""
            for text in (row.absent and f"cannot be run: {row.absent}", slip, nearest):
                if text:
                    told.setdefault(text, {})[f"{row.table} {row.label}"] = None
    return [f"{', '.join(rows)}: {text}" for text, rows in told.items()]
