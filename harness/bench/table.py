"""Published tables as benches: a row is a cell per seed, and afterwards a line with our figure beside the paper's.

Which run a row is on which dataset: `harness.report.grids`. Every way of scoring is measured in one run, so rows
that differ in the scorer alone share their cells. Rows that are the same run and the same scorer are one line.
"""

from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from harness import DEFAULT_DATASET
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
from harness.errors import UserError, unknown_name
from harness.published import PublishedTable, published_table
from harness.record import RunRecord
from harness.report import Table
from harness.report.evidence import Evidence
from harness.report.grids import Grid, Line, lines_on
from harness.report.grids.drawn import grid_table, measured, printed, remarks, shown_columns


@dataclass(frozen=True)
class Planned:
    """A line of a table, and the cells that measure it."""

    line: Line
    cells: tuple[Cell, ...] = ()
    """One per seed; none for a row that cannot be run."""

    def filled(self, records: dict[str, RunRecord]) -> Line:
        """The line with its runs; `records` go by the key of their cell."""
        done = tuple(records[cell.key] for cell in self.cells if cell.key in records)
        return replace(self.line, records=done, wanted=len(self.cells))

    def as_dict(self, records: dict[str, RunRecord]) -> dict[str, Any]:
        """For programs."""
        line = self.filled(records)
        ours = {column: measured(line, column) for column in shown_columns(Grid(line.table, line.dataset, (line,)))}
        return {
            "table": line.table.table,
            "rows": [row.row for row in line.rows],
            "label": line.label,
            "dataset": line.dataset,
            "method": line.method,
            "variant": line.variant,
            "view": line.view,
            "cells": [cell.name for cell in self.cells],
            "run_ids": [record.run_id for record in line.records],
            "metrics": {column: mean(values) for column, values in ours.items() if values},
            "std": {column: stdev(values) for column, values in ours.items() if len(values) > 1},
            "published": {column: value for column in ours if (value := printed(line, column)) is not None},
            "absent": line.rows[0].absent or None,
        }


@dataclass(frozen=True)
class TablePlan:
    """What is to be run for the tables, and what becomes of it."""

    cells: list[Cell]
    lines: list[Planned]
    """In the papers' order, dataset by dataset."""
    left_out: list[str]
    """A sentence per dataset that is not on this machine."""


def plan_tables(request: Request) -> TablePlan:
    """The cells of published tables; raises one `UserError` with every fault, or if nothing can be run."""
    faults = Faults()
    tables = _named_tables(request.tables or "", faults)
    datasets = None if request.datasets is None else known_datasets(request.datasets, faults)
    given = None if request.seeds is None else parsed_seeds(request.seeds, faults)
    lines = _chosen_lines(tables, datasets, request, faults)
    runnable = [line for line in lines if line.method]
    layers = setting_layers(request, list(dict.fromkeys(str(line.method) for line in runnable)), faults)
    faults.refuse([], [])
    wanted: dict[str, Wanted] = {}
    for line in runnable:
        one = wanted.setdefault(line.run, _wanted(line, layers))
        own = line.table.seeds.get(line.dataset, [0]) if given is None else []
        wanted[line.run] = replace(one, seeds=tuple(dict.fromkeys([*one.seeds, *own])))  # of all tables that have it
    cells, missing = resolved(list(wanted.values()), given or [0], faults)
    by_run = dict(zip(wanted, cells, strict=True))
    if not any(cells):
        for sentence in missing.values():
            faults.add(UserError(sentence))
        if datasets is None:
            faults.hints.append(f"on other data, with what the table varies: --datasets {DEFAULT_DATASET}")
    faults.refuse([], [])
    found = [
        Planned(line, tuple(by_run[line.run])) if line.method else Planned(line)
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


def _chosen_lines(
    tables: list[PublishedTable], datasets: list[str] | None, request: Request, faults: Faults
) -> list[Line]:
    """The rows of the tables that are asked for; one that cannot be run is told unless methods or rows are named."""
    methods = request.methods
    chosen, every = chosen_methods(methods, faults), "all" in listed(methods) and request.rows is None
    stems = _named_rows(request.rows, tables, faults)
    every_line = [
        line
        for table in tables
        for dataset in (table.datasets if datasets is None else datasets)
        for line in lines_on(table, dataset)
        if line.rows[0].stem in stems
    ]
    lines = [line for line in every_line if line.method in chosen or (every and line.rows[0].absent)]
    if every_line and not any(line.method for line in lines):
        known = dict.fromkeys(row.method for table in tables for row in table.rows if row.method)
        why = f"their methods are {', '.join(map(str, known))}" if known else every_line[0].rows[0].absent
        names = ", ".join(table.table for table in tables)
        faults.add(UserError(f"no row of {names} can be run with --methods {methods}: {why}"))
    return lines


def _named_rows(text: str | None, tables: list[PublishedTable], faults: Faults) -> list[str]:
    """Rows by their names without table and dataset; all of them if none are named."""
    known = list(dict.fromkeys(row.stem for table in tables for row in table.rows))
    if text is None:
        return known
    for name in listed(text):
        if tables and name not in known:
            faults.add(unknown_name(f"row of {', '.join(table.table for table in tables)}", name, known))
    if not listed(text):
        faults.add(UserError("--rows names none; leave it out for all rows of the table"))
    return listed(text)


def _wanted(line: Line, layers: dict[str, list[Layer]]) -> Wanted:
    """What a row asks to be run."""
    row, method = line.rows[0], str(line.method)
    own = Layer(f"published {row.table}/{row.stem}", line.settings)
    return Wanted(f"{row.table}/{row.stem}", method, line.dataset, [own, *layers[method]], line.variant)


def merged(lines: list[Planned]) -> list[Planned]:
    """Rows that became the same run and the same scorer as one line, in the place of the first."""
    found: dict[Any, Planned] = {}
    for planned in lines:
        line, keys = planned.line, tuple(cell.key for cell in planned.cells)
        same = (line.table.table, line.dataset, line.view, keys) if keys else line.rows[0].name + line.dataset
        first = found.get(same)
        both = replace(first.line, rows=first.line.rows + line.rows) if first else line
        found[same] = replace(planned, line=both)
    return list(found.values())


def as_grids(lines: list[Planned], states: list[State]) -> list[Grid]:
    """One grid per published table and dataset, with the rows in the paper's order."""
    records = {state.cell.key: state.record for state in states if state.record}
    groups: dict[tuple[str, str], list[Line]] = {}
    for planned in lines:
        if planned.cells or planned.line.published:
            line = planned.filled(records)
            groups.setdefault((line.table.table, line.dataset), []).append(line)
    return [Grid(group[0].table, group[0].dataset, tuple(group)) for group in groups.values()]


def as_tables(lines: list[Planned], states: list[State]) -> list[Table]:
    """The figures there are, with the papers' beside them."""
    return [grid_table(grid, Evidence(())) for grid in as_grids(lines, states)]


def told(lines: list[Planned]) -> list[str]:
    """What a reader should know about rows, each sentence once."""
    found = {f"{grid.table.table} {remark}": None for grid in as_grids(lines, []) for remark in remarks(grid)}
    return list(found)
