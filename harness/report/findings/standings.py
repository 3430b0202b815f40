"""Every method on every dataset: all of them in one table for the findings, each dataset by itself on its own page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

from harness.published import JUDGED, MATRIX
from harness.report.cells import Cell, Figure, Table
from harness.report.figures.drawing import figure_stem
from harness.report.findings.behind import gap_table, gaps, tried_tables
from harness.report.findings.claims import TRANSFORMER, Findings, title
from harness.report.grids import Grid, Line
from harness.report.grids.drawn import measured
from harness.report.grids.quantities import trained
from harness.report.marking import marked
from harness.report.tables import as_markdown, markdown_text

STANDINGS = "STANDINGS.md"
_SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5")


def standings_page(found: Findings, drawn: Sequence[str] = ()) -> str | None:
    """The page as Markdown; None where the matrix was not run.

    Args:
        found: Claims and the matrix.
        drawn: Datasets whose picture of all methods lies beside the page.
    """
    if not found.matrix:
        return None
    parts = {
        "where UniDEC is not first": [*_behind(found)],
        "what was run again": [*_rerun(found)],
        "what was tried": [*map(as_markdown, tried_tables(found.evidence.studies))],
    }
    there = [name for name, part in parts.items() if part]
    ending = f"At the end: {', '.join(there)}.\n" if there else ""
    return "\n".join([_HEAD + ending, *standings(found.compared, drawn), *chain(*parts.values())])


def _behind(found: Findings) -> Iterator[str]:
    """Where UniDEC is not first, by how much, and why."""
    above = gaps(found.compared, found.evidence)
    if table := gap_table(above):
        yield as_markdown(table)
    for grid in found.compared:
        if any(gap.where == title(grid) for gap in above):
            name = TRANSFORMER if grid.table.table == TRANSFORMER else grid.dataset
            yield _told(title(grid), found.accounts.get(name, "Not looked into yet."))


def _rerun(found: Findings) -> Iterator[str]:
    """Rows of which test rows were looked at twice: a reader who knows can discount them."""
    if found.rerun:
        yield "### What was run again after a first result\n"
    for dataset, account in found.rerun.items():
        yield _told(dataset, account)


def _told(dataset: str, account: str) -> str:
    return f"**{markdown_text(dataset)}.** {' '.join(account.split())}\n"


_HEAD = """# Standings

Every method of the [findings](FINDINGS.md) on every dataset, with what repeats it: `python -m harness run --published`
and the name beside it. Settings, all metrics and tests: [tables/benchmark.md](tables/benchmark.md).
"""


def picture(dataset: str) -> str:
    """All methods on one dataset, as Markdown."""
    return f"![{' and '.join(JUDGED)} of every method]({figure_stem(dataset, MATRIX)}.png)"


def standings(compared: Sequence[Grid], drawn: Sequence[str] = ()) -> Iterator[str]:
    """A table a dataset, the best method first, and its picture."""
    columns = ("method", "harness run --published ...", "seeds", *_SHOWN, "epochs", "training s")
    for grid in compared:
        lines = sorted((line for line in grid.lines if line.records), key=lambda line: -_mean(line, "P@1"))
        figures = {name: [Figure.of(measured(line, name)) for line in lines] for name in _SHOWN}
        flags = {name: marked(figures[name], "up") for name in _SHOWN}
        rows = []
        for place, line in enumerate(lines):
            words = [line.label, line.rows[0].name, str(len(line.records))]
            best, second = ([flags[name][which][place] for name in _SHOWN] for which in (0, 1))
            scores = [
                Cell.of(figures[name][place], best=first, second=next_)
                for name, first, next_ in zip(_SHOWN, best, second, strict=True)
            ]
            costs = [
                Figure.of([value for one in line.records if (value := trained(one, key))], digits=0)
                for key in ("epochs", "seconds")
            ]
            spent = [Cell.of(replace(cost, std=None)) if cost.n else Cell("") for cost in costs]
            rows.append((*map(Cell, words), *scores, *spent))
        caption = (
            "Percent on test rows, mean ± standard deviation over seeds. Epochs are those of the method or of the "
            "dataset's card; seconds are of runs that may have shared the machine, or had different ones."
        )
        yield as_markdown(Table(title(grid), columns, tuple(rows), caption, words=2))
        if grid.table.table == MATRIX and grid.dataset in drawn:
            yield f"{picture(grid.dataset)}\n"


def matrix_table(compared: Sequence[Grid]) -> Table:
    """All methods on all datasets in the two metrics that count, in the order of P@1 where most of them were run.

    Of several such, on the one with the most labels.
    """
    lines: dict[str, dict[str, Line]] = {}
    labels: dict[str, str] = {}
    for grid in compared:
        for line in grid.lines:
            for row in line.rows if line.records else ():
                lines.setdefault(row.stem, {})[title(grid)] = line
                labels.setdefault(row.stem, row.label)
    main = title(max(compared, key=lambda grid: (grid.measured, labels_of(grid))))
    stems = sorted(lines, key=lambda stem: -_mean(lines[stem].get(main), "P@1"))
    columns = [(grid, metric) for grid in compared for metric in JUDGED]
    cells: dict[str, list[Cell]] = {stem: [Cell(labels[stem])] for stem in stems}
    for grid, metric in columns:
        found = {stem: lines[stem][title(grid)] for stem in stems if title(grid) in lines[stem]}
        there = {stem: values for stem, line in found.items() if (values := measured(line, metric))}
        wanted = len(grid.table.seeds.get(grid.dataset, ()))
        figures = [Figure.of(values, wanted=wanted) for values in there.values()]
        shown = dict(zip(there, zip(figures, *marked(figures, "up"), strict=True), strict=True))
        for stem in stems:
            figure, best, second = shown.get(stem, (None, False, False))
            plain = None if figure is None else replace(figure, std=None)
            cells[stem].append(Cell("") if plain is None else Cell.of(plain, best=best, second=second))
    absent = "" if all(main in lines[stem] for stem in stems) else ", rows that were not run there last"
    caption = f"Percent on test rows, mean over seeds, best and second marked; in the order of P@1 on {main}{absent}."
    large = [grid for grid in compared if grid.table.table == TRANSFORMER]
    names = (
        metric if metric != JUDGED[0] else f"{TRANSFORMER if large == [grid] else title(grid)} {metric}"
        for grid, metric in columns
    )
    return Table("Every method", ("method", *names), tuple(map(tuple, cells.values())), caption, words=1)


def digest_of(grid: Grid) -> str | None:
    """Of the data that the runs of a table saw."""
    return grid.records[0].dataset.get("digest") if grid.records else None


def labels_of(grid: Grid) -> float:
    """How many labels the dataset has."""
    return max(float(one.dataset.get("statistics", {}).get("labels", 0.0)) for one in grid.records)


def _mean(line: Line | None, metric: str) -> float:
    found = measured(line, metric) if line else []
    return fmean(found) if found else 0.0
