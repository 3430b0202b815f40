"""Table 2.1 of the thesis: statistics of the datasets by their cards, by the paper, and as measured by runs.

A cell is what runs on the dataset measured, or the card's figure where there was no run, and in brackets what the
paper prints. A measured figure that misses the card's by more than the card allows is marked `≠` and explained below.
`datasets/published/` holds the printed tables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.data.card import CARD_FOLDER, DatasetCard, read_card
from harness.errors import UserError
from harness.io.models import Strict, read_model
from harness.report.cells import Cell, Figure, Table
from harness.runs.record import RunRecord

PRINTED_FOLDER = CARD_FOLDER / "published"

Name = Literal["train", "test", "labels", "rows_per_label", "labels_per_row", "words_per_row"]
COLUMNS: dict[Name, tuple[str, int]] = {
    "train": ("N, train rows", 0),
    "test": ("M, test rows", 0),
    "labels": ("L, labels", 0),
    "rows_per_label": ("rows per label", 2),
    "labels_per_row": ("labels per row", 2),
    "words_per_row": ("words per row", 2),
}
"""Heading and number of decimals of every column."""


class PrintedRow(Strict):
    """One dataset in a printed table of a paper."""

    label: str
    dataset: str | None
    """Name of its card; None if there is no card."""
    results: dict[Name, float | None]
    """Figures as printed; None for a dash."""
    slips: dict[Name, str] = Field(default={})
    """Reasons why a printed figure is wrong, by its name."""


class PrintedTable(Strict):
    """A paper's table of datasets; `table` is the stem of its file."""

    table: str
    source: str
    rows: list[PrintedRow] = Field(min_length=1)


def read_printed(path: Path) -> PrintedTable:
    """Read one file of `datasets/published/`; all faults of its form are reported together."""
    table = read_model(path, PrintedTable)
    if table.table != path.stem:
        raise UserError(f"{path}: table is {table.table!r} but the file is called {path.stem!r}; make them equal")
    return table


def statistics_table(records: Sequence[RunRecord], cards: Sequence[DatasetCard] | None = None) -> Table:
    """Return a table of all datasets of the papers and of this harness, and of those that were run.

    Args:
        records: Records, oldest first; of several on a dataset, the newest with statistics counts.
        cards: Datasets to list; by default those of this repository. Generated ones are listed only if they were run.
    """
    if cards is None:
        cards = [read_card(path) for path in sorted(CARD_FOLDER.glob("*.yaml"))]
    known = {card.name: card for card in cards}
    measured = {record.dataset["name"]: record for record in records if record.dataset.get("statistics")}
    printed = [read_printed(PRINTED_FOLDER / f"{name}.yaml") for name in ("thesis-2.1", "thesis-1.1")]
    rows_in_print: dict[str, PrintedRow] = {}
    for row in (row for table in printed for row in table.rows):
        rows_in_print.setdefault(row.dataset or row.label, row)
    papers, ours, elsewhere = _order(known, set(measured), rows_in_print)
    sources = [printed[0].source, *(table.source.rpartition(", ")[2] for table in printed[1:])]
    names = [*papers, *ours, *elsewhere]
    found = [_describe(name, known.get(name), measured.get(name), rows_in_print.get(name)) for name in names]
    return Table(
        title="Datasets: train rows, test rows, labels, and averages over train",
        columns=("dataset", "figures", *(heading for heading, _ in COLUMNS.values())),
        rows=tuple(cells for cells, _ in found),
        caption=(
            "Measured by a run, or else the card's figure; X: no figure. In brackets: "
            f"{' or '.join(sources)}, with a question mark where it is, or likely is, wrong. "
            "≠: misses the card's figure by more than the card allows."
        ),
        words=2,
        id="thesis-2.1",
        breaks=(len(papers), len(papers) + len(ours)),
        notes=tuple(note for _, notes in found for note in notes),
    )


def _order(
    known: dict[str, DatasetCard], measured: set[str], printed: dict[str, PrintedRow]
) -> tuple[list[str], list[str], list[str]]:
    """Return the papers' datasets, printed ones first; those built or imported here; those that are only in print."""
    papers = [name for name in printed if name in known]
    papers += sorted(name for name, card in known.items() if name not in printed and not card.built_here)
    built = {name for name, card in known.items() if card.built_here and card.source != "synthetic"}
    ours = sorted(built | (measured - set(papers)))
    return papers, ours, [name for name in printed if name not in {*papers, *ours}]


def _describe(
    name: str, card: DatasetCard | None, record: RunRecord | None, printed: PrintedRow | None
) -> tuple[tuple[Cell, ...], list[str]]:
    """Return the row of a dataset, and a sentence for every figure of it that is wrong."""
    measured: dict[str, float] = record.dataset["statistics"] if record else {}
    own = record.dataset.get("title", name) if record else name
    title = card.title if card else printed.label if printed else own
    cells = [Cell(title), Cell("measured" if record else "card" if card else "not here")]
    notes = []
    for key, (heading, digits) in COLUMNS.items():
        found, expected = measured.get(key), getattr(card.statistics, key) if card else None
        slip = printed.slips.get(key) if printed else None
        figure = Figure(
            mean=expected if found is None else found,
            n=0 if found is None else 1,
            paper=printed.results.get(key) if printed else None,
            slip=slip is not None,
            digits=digits,
        )
        missed = False
        if card and found is not None and expected is not None:
            missed = abs(found / expected - 1) > card.statistics.slack(key)
        cells.append(Cell.of(figure, mark="≠" if missed else ""))
        if missed:
            on_card = Figure(expected, digits=digits)
            notes.append(f"{title} ({heading}): {figure.ours} measured, {on_card.ours} on the card.")
        if slip is not None:
            notes.append(f"{title} ({heading}), in the paper: {slip}.")
    return tuple(cells), notes
