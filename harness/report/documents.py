"""All tables as documents: published tables on all their datasets, the comparison, and the datasets."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.errors import UserError, unknown_name
from harness.io.progress import progress
from harness.report.cells import Cell, Figure, Table, column_cells
from harness.report.published import as_table, table_results
from harness.report.results import Results
from harness.report.rows import GROUP, TABLE_KEYS, changed_settings, differences, tidy
from harness.runs.record import RunRecord, is_trial
from harness.settings.published import published_tables

if TYPE_CHECKING:
    from harness.report.claims import Findings

COMPARISON, STATISTICS, TESTS = "comparison", "thesis-2.1", "claims"
_SIZES = "The datasets: how large, how dense and how long they are, in print, in the card and as measured."

_EVERY_TEST = "What the papers claim: every test behind the verdicts of the findings."
_DEFAULTS = "A method that was run at its default settings is shown at these alone."


@dataclass(frozen=True)
class Document:
    """Tables that share a file: a published table on all its datasets, the comparison, or the statistics."""

    id: str
    title: str
    tables: tuple[Table, ...]
    measured: bool
    """Whether any figure in it was measured here."""


def table_titles() -> dict[str, str]:
    """Return a title for every table, by its name."""
    published = {name: table.caption for name, table in published_tables().items()}
    own = {COMPARISON: "Every method at its own settings, dataset by dataset.", TESTS: _EVERY_TEST, STATISTICS: _SIZES}
    return {**own, **published}


def documents(
    results: Results,
    only: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    findings: "Findings | None" = None,
) -> list[Document]:
    """Return the tables of the given names, or all, in the order of `table_titles`.

    Args:
        results: Runs and studies that they are made from.
        only: Names of tables; an unknown one raises `UserError` with the nearest one.
        datasets: Names of the datasets to show, with runs or in a table; None for all.
        findings: Findings of these results, if they have been computed.
    """
    titles = table_titles()
    for name in only or ():
        if name not in titles:
            raise unknown_name("table", name, titles)
    ran = {str(one.dataset["name"]) for one in results.records}
    known = ran.union(*(table.datasets for table in published_tables().values()))
    for name in datasets or ():
        if name not in known:
            raise unknown_name("dataset", name, known)
    wanted, places = [name for name in titles if only is None or name in set(only)], list(datasets or []) or None
    made = []
    with progress("tables", len(wanted), "tables") as advance:
        for name in wanted:
            made.append(_document(results, findings, name, titles[name], places))
            advance(1)
    found = [document for document in made if document.tables]
    if not found:
        where = f" on {', '.join(places)}" if places else ""
        raise UserError(f"no finished run{where} is of {', '.join(wanted)}; `python -m harness bench` makes some")
    return found


def _document(
    results: Results, findings: "Findings | None", name: str, title: str, datasets: list[str] | None
) -> Document:
    if name == TESTS:
        from harness.report.claims import Findings, details

        every = details((findings or Findings(results)).all, datasets)
        return Document(name, title, (every,) if every.rows else (), True)
    if name == STATISTICS:
        from harness.report.statistics import statistics_table

        return Document(name, title, (statistics_table(list(results.records)),), True)
    if name == COMPARISON:
        records = representative(results.records)
        chosen = [one for one in records if datasets is None or one.dataset["name"] in datasets]
        tables = comparison(chosen) if chosen else []
        return Document(name, title, tuple(replace(one, caption=f"{one.caption} {_DEFAULTS}") for one in tables), True)
    found = table_results(results.records, published_tables()[name], datasets)
    # rows of a table of ours have commands of their own
    tables = [replace(as_table(table, results), command="" if table.own else table.command) for table in found]
    return Document(name, title, tuple(tables), any(table.records for table in found))


def representative(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return, per method, encoder and dataset, the runs at default settings, or all runs if there are none.

    Runs that vary a setting are in the tables that vary it.
    """
    found = [
        (record, (record.dataset["name"], record.config["method"], record.config["encoder"]), changed_settings(record))
        for record in records
        if record.status == "finished" and not is_trial(record.config)
    ]
    at_default = {place for _, place, changed in found if changed == {}}
    return [record for record, place, changed in found if changed == {} or place not in at_default]


def as_dict(table: Table) -> dict[str, Any]:
    """Return a table as plain values for `--json`: text and figures by column."""
    rows = []
    for cells in table.rows:
        row: dict[str, Any] = {}
        for column, cell in zip(table.columns, cells, strict=True):
            signs = {"best": cell.best, "second": cell.second, "mark": cell.mark}
            row[column] = cell.text if cell.figure is None else {**asdict(cell.figure), **signs}
        rows.append(row)
    about = {"caption": table.caption, "notes": list(table.notes), "command": table.command}
    return {"id": table.id, "title": table.title, **about, "rows": rows}


# -- the comparison: a row per method, a column per metric

_SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@5", "C@5")


def comparison(records: list[RunRecord], dataset: str | None = None) -> list[Table]:
    """Return a table per dataset: a row per method, a column per metric; mean over seeds, the best two marked.

    Runs whose data, filter setting, propensity constants, metric or harness version differ never share a table.
    """
    frame = tidy(records, dataset)
    groups = frame.groupby(TABLE_KEYS, sort=True, dropna=False)
    tables = [_table(dict(zip(TABLE_KEYS, key, strict=True)), part) for key, part in groups]
    earlier = [[one.title for one in tables[:place]].count(table.title) for place, table in enumerate(tables)]
    return [
        replace(table, id=f"{table.id}-{count + 1}" if count else table.id)
        for table, count in zip(tables, earlier, strict=True)
    ]


def _table(about: dict[str, Any], part: pd.DataFrame) -> Table:
    measured = [str(name) for name in part if "@" in str(name) and part[str(name)].notna().any()]
    shown = [name for name in _SHOWN if name in measured] or measured
    groups = [(dict(zip(GROUP, map(str, key), strict=True)), runs) for key, runs in part.groupby(GROUP, sort=True)]
    changed = {str(method): differences(list(runs["settings"])) for method, runs in part.groupby("method")}
    words = [
        [
            names["method"],
            names["encoder"],
            names["scorer"],
            changed[names["method"]][names["settings"]],
            str(len(runs)),
        ]
        for names, runs in groups
    ]
    metrics = [
        column_cells([Figure.of(list(runs[name].dropna()), wanted=len(runs)) for _, runs in groups]) for name in shown
    ]
    seconds = [Cell.of(Figure.of(list(runs["seconds"]), digits=1)) for _, runs in groups]
    return Table(
        title=about["dataset"],
        columns=("method", "encoder", "scorer", "settings", "seeds", *shown, "seconds"),
        rows=tuple(
            (*(Cell(text) for text in texts), *figures)
            for texts, *figures in zip(words, *metrics, seconds, strict=True)
        ),
        caption=_caption(about),
        words=len(GROUP),
        id=f"comparison-{about['dataset']}",
    )


def _caption(about: dict[str, Any]) -> str:
    masked = "filter pairs masked" if about["filter"] else "no filter"
    weighted = f", propensity {about['propensity']}" if about["propensity"] else ""
    return (
        f"Percent on test rows, mean ± standard deviation over seeds, {masked}{weighted}; data {about['digest']}, "
        f"metrics v{about['metric_version']}{f', harness {version}' if (version := about['harness']) else ''}."
    )
