"""Run published tables as a bench: a row has one cell per seed, and then our figure beside the paper's.

`harness.report.published` says which run a row is on a dataset. A run measures all its scorers, so rows
that differ in the scorer alone share their cells. Rows that are the same run and the same scorer are one row.
"""

from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from harness import DEFAULT_DATASET
from harness.errors import UserError, unknown_name
from harness.experiments.bench import Cell, Request, State
from harness.experiments.bench.plan import (
    Faults,
    Wanted,
    chosen_methods,
    in_order,
    known_datasets,
    parsed_seeds,
    resolved,
    setting_layers,
)
from harness.report.cells import Table
from harness.report.published import (
    RowResult,
    TableResult,
    as_table,
    measured,
    printed,
    remarks,
    rows_on,
    shown_columns,
)
from harness.report.results import Results
from harness.runs.record import RunRecord
from harness.settings.layers import Layer, comma_list
from harness.settings.published import PublishedTable, published_table


@dataclass(frozen=True)
class Planned:
    """A row of a table, and the cells that measure it."""

    row: RowResult
    cells: tuple[Cell, ...] = ()
    """One per seed; none for a row that cannot be run."""

    def filled(self, records: dict[str, RunRecord]) -> RowResult:
        """Return the row with its runs from `records`, which are by key of a cell."""
        done = tuple(records[cell.key] for cell in self.cells if cell.key in records)
        return replace(self.row, records=done, wanted=len(self.cells))

    def as_dict(self, records: dict[str, RunRecord]) -> dict[str, Any]:
        """Return the row as plain values for `--json`; `records` are by key of a cell."""
        row = self.filled(records)
        ours = {column: measured(row, column) for column in shown_columns(TableResult(row.table, row.dataset, (row,)))}
        return {
            "table": row.table.table,
            "rows": [declared.row for declared in row.declared],
            "label": row.label,
            "dataset": row.dataset,
            "method": row.method,
            "variant": row.variant,
            "scorer": row.scorer,
            "cells": [cell.name for cell in self.cells],
            "run_ids": [record.run_id for record in row.records],
            "metrics": {column: mean(values) for column, values in ours.items() if values},
            "std": {column: stdev(values) for column, values in ours.items() if len(values) > 1},
            "published": {column: value for column in ours if (value := printed(row, column)) is not None},
            "absent": row.declared[0].absent or None,
        }


@dataclass(frozen=True)
class TablePlan:
    """Cells to run for published tables, and the rows that are made of them."""

    cells: list[Cell]
    rows: list[Planned]
    """Rows by dataset, in the papers' order."""
    left_out: list[str]
    """A sentence per dataset that is not on this machine."""


def plan_tables(request: Request) -> TablePlan:
    """Return cells and rows of published tables; raises one `UserError` with every fault, or if nothing can be run."""
    faults = Faults()
    tables = _named_tables(request.tables or "", faults)
    datasets = None if request.datasets is None else known_datasets(request.datasets, faults)
    given = None if request.seeds is None else parsed_seeds(request.seeds, faults)
    rows = _chosen_rows(tables, datasets, request, faults)
    runnable = [row for row in rows if row.method]
    layers = setting_layers(request, list(dict.fromkeys(str(row.method) for row in runnable)), faults)
    faults.refuse([], [])
    wanted: dict[str, Wanted] = {}
    for row in runnable:
        one = wanted.setdefault(row.run, _wanted(row, layers))
        own = row.table.seeds.get(row.dataset, [0]) if given is None else []
        wanted[row.run] = replace(one, seeds=tuple(dict.fromkeys([*one.seeds, *own])))  # of all tables with this run
    cells, missing = resolved(list(wanted.values()), given or [0], faults)
    by_run = dict(zip(wanted, cells, strict=True))
    if not any(cells):
        for sentence in missing.values():
            faults.add(UserError(sentence))
        if datasets is None:
            faults.hints.append(f"on other data, with what the table varies: --datasets {DEFAULT_DATASET}")
    faults.refuse([], [])
    found = [
        Planned(row, tuple(by_run[row.run])) if row.method else Planned(row)
        for row in rows
        if row.dataset not in missing
    ]
    return TablePlan(in_order(list(wanted.values()), cells), merged(found), list(missing.values()))


def _named_tables(text: str, faults: Faults) -> list[PublishedTable]:
    tables = []
    for name in dict.fromkeys(comma_list(text)):
        try:
            tables.append(published_table(name))
        except UserError as error:
            faults.add(error)
    if not comma_list(text):
        faults.add(UserError("--table names none, for example thesis-2.5; `python -m harness ls published` lists them"))
    return tables


def _chosen_rows(
    tables: list[PublishedTable], datasets: list[str] | None, request: Request, faults: Faults
) -> list[RowResult]:
    """Return the rows asked for; one that cannot be run is left out if methods or rows are named."""
    methods = request.methods
    chosen, every = chosen_methods(methods, faults), "all" in comma_list(methods) and request.rows is None
    stems = _named_rows(request.rows, tables, faults)
    every_row = [
        row
        for table in tables
        for dataset in (table.datasets if datasets is None else datasets)
        for row in rows_on(table, dataset)
        if row.declared[0].stem in stems
    ]
    rows = [row for row in every_row if row.method in chosen or (every and row.declared[0].absent)]
    if every_row and not any(row.method for row in rows):
        known = dict.fromkeys(row.method for table in tables for row in table.rows if row.method)
        why = f"their methods are {', '.join(map(str, known))}" if known else every_row[0].declared[0].absent
        names = ", ".join(table.table for table in tables)
        faults.add(UserError(f"no row of {names} can be run with --methods {methods}: {why}"))
    return rows


def _named_rows(text: str | None, tables: list[PublishedTable], faults: Faults) -> list[str]:
    """Return the names of rows, without table and dataset, in `--rows`; all of them if it is None."""
    known = list(dict.fromkeys(row.stem for table in tables for row in table.rows))
    if text is None:
        return known
    for name in comma_list(text):
        if tables and name not in known:
            faults.add(unknown_name(f"row of {', '.join(table.table for table in tables)}", name, known))
    if not comma_list(text):
        faults.add(UserError("--rows names none; leave it out for all rows of the table"))
    return comma_list(text)


def _wanted(row: RowResult, layers: dict[str, list[Layer]]) -> Wanted:
    """Return the run that a row asks for."""
    name, method = f"{row.table.table}/{row.declared[0].stem}", str(row.method)
    own = Layer(f"published {name}", row.settings)
    return Wanted(name, method, row.dataset, [own, *layers[method]], row.variant)


def merged(rows: list[Planned]) -> list[Planned]:
    """Join rows with the same runs and scorer into one, in the place of the first."""
    found: dict[Any, Planned] = {}
    for planned in rows:
        row, keys = planned.row, tuple(cell.key for cell in planned.cells)
        same = (row.table.table, row.dataset, row.scorer, keys) if keys else row.declared[0].name + row.dataset
        first = found.get(same)
        both = replace(first.row, declared=first.row.declared + row.declared) if first else row
        found[same] = replace(planned, row=both)
    return list(found.values())


def as_results(rows: list[Planned], states: list[State]) -> list[TableResult]:
    """Return one result per published table and dataset, with the rows in the paper's order."""
    records = {state.cell.key: state.record for state in states if state.record}
    groups: dict[tuple[str, str], list[RowResult]] = {}
    for planned in rows:
        if planned.cells or planned.row.published:
            row = planned.filled(records)
            groups.setdefault((row.table.table, row.dataset), []).append(row)
    return [TableResult(group[0].table, group[0].dataset, tuple(group)) for group in groups.values()]


def as_tables(rows: list[Planned], states: list[State]) -> list[Table]:
    """Return tables of the figures there are, with the papers' beside them."""
    return [as_table(table, Results(())) for table in as_results(rows, states)]


def remarks_on(rows: list[Planned]) -> list[str]:
    """Return remarks about rows, such as slips of the paper, each once."""
    found = {f"{table.declared.table} {remark}": None for table in as_results(rows, []) for remark in remarks(table)}
    return list(found)
