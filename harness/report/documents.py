"""Every table there is, as documents: published tables on all their datasets, the comparison, the datasets."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.errors import UserError, unknown_name
from harness.progress import progress
from harness.published import published_tables
from harness.record import RunRecord
from harness.report import Table, comparison, is_trial
from harness.report.evidence import Evidence
from harness.report.findings import Findings, details
from harness.report.grids import Grid, grids
from harness.report.grids.defaults import changed_settings
from harness.report.grids.drawn import grid_table
from harness.report.statistics import statistics_table

COMPARISON, STATISTICS, TESTS = "comparison", "thesis-2.1", "claims"
_SIZES = "The datasets: how large, how dense and how long they are, in print, in the card and as measured."

_EVERY_TEST = "What the papers claim: every test behind the verdicts of the findings."
_DEFAULTS = "A method that was run at its default settings is shown at these alone."


@dataclass(frozen=True)
class Document:
    """One file stem of tables: a published table on all its datasets, the comparison, or the statistics."""

    id: str
    title: str
    tables: tuple[Table, ...]
    measured: bool
    """Whether any figure in it is ours."""


def table_titles() -> dict[str, str]:
    """Every table there is, by name, with what it compares."""
    published = {name: table.caption for name, table in published_tables().items()}
    own = {COMPARISON: "Every method at its own settings, dataset by dataset.", TESTS: _EVERY_TEST, STATISTICS: _SIZES}
    return {**own, **published}


def documents(
    evidence: Evidence,
    only: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    findings: Findings | None = None,
) -> list[Document]:
    """Tables of the given names, or all, in the order of `table_titles`.

    Args:
        evidence: What they are made from.
        only: Names of tables; one that is none raises `UserError` with the nearest one.
        datasets: Names, where not all are wanted.
        findings: Those of the evidence, if they are at hand.
    """
    titles = table_titles()
    for name in only or ():
        if name not in titles:
            raise unknown_name("table", name, titles)
    wanted, places = [name for name in titles if only is None or name in set(only)], list(datasets or []) or None
    found_out = findings or Findings(evidence)
    made = []
    with progress("tables", len(wanted), "tables") as advance:
        for name in wanted:
            made.append(_document(found_out, name, titles[name], places))
            advance(1)
    found = [document for document in made if document.tables]
    if not found:
        where = f" on {', '.join(places)}" if places else ""
        raise UserError(f"no finished run{where} is of {', '.join(wanted)}; `python -m harness bench` makes some")
    return found


def _document(findings: Findings, name: str, title: str, datasets: list[str] | None) -> Document:
    evidence = findings.evidence
    if name == TESTS:
        every = details(findings.all, datasets)
        return Document(name, title, (every,) if every.rows else (), True)
    if name == STATISTICS:
        return Document(name, title, (statistics_table(list(evidence.records)),), True)
    if name == COMPARISON:
        records = representative(evidence.records)
        chosen = [one for one in records if datasets is None or one.dataset["name"] in datasets]
        tables = comparison(chosen) if chosen else []
        return Document(name, title, tuple(replace(one, caption=f"{one.caption} {_DEFAULTS}") for one in tables), True)
    found = grids(evidence.records, published_tables()[name], datasets)
    return Document(name, title, tuple(_repeatable(grid, evidence) for grid in found), any(g.records for g in found))


def representative(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Of each method, encoder and dataset the runs at default settings; where there are none, all of them.

    Runs that vary a setting are in the tables that vary it.
    """
    groups: dict[tuple[str, str, str], list[tuple[bool, RunRecord]]] = {}
    for record in records:
        if record.status != "finished" or is_trial(record.config):
            continue
        place = (record.dataset["name"], record.config["method"], record.config["encoder"])
        groups.setdefault(place, []).append((changed_settings(record) == {}, record))
    return [
        record for group in groups.values() for plain, record in group if plain or not any(other for other, _ in group)
    ]


def as_dict(table: Table) -> dict[str, Any]:
    """A table for programs: words and figures by column."""
    rows = []
    for cells in table.rows:
        row: dict[str, Any] = {}
        for column, cell in zip(table.columns, cells, strict=True):
            signs = {"best": cell.best, "second": cell.second, "mark": cell.mark}
            row[column] = cell.text if cell.figure is None else {**asdict(cell.figure), **signs}
        rows.append(row)
    said = {"caption": table.caption, "notes": list(table.notes), "command": table.command}
    return {"id": table.id, "title": table.title, **said, "rows": rows}


def _repeatable(grid: Grid, evidence: Evidence) -> Table:
    """The table of a grid with the command that runs it; rows of ours have their own."""
    command = "" if grid.own else grid.command
    return replace(grid_table(grid, evidence), command=command)
