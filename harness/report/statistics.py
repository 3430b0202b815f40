"""Table 2.1 of the thesis: how large the datasets are, by their cards, by the paper, and as runs measured them.

A cell is what runs on the dataset measured, or the card's figure where there was no run, and in brackets what the
paper prints. A measured figure that misses the card's by more than the card allows is marked `≠` and told below.
`datasets/published/` holds the printed tables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.data.card import CARD_FOLDER, DatasetCard, read_card
from harness.errors import UserError
from harness.io.models import read_model
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
"""Heading and decimals of every figure."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PrintedRow(_Frozen):
    """One dataset in a table of a paper."""

    label: str
    dataset: str | None
    """Name of its card; None if the data is not here."""
    results: dict[Name, float | None]
    """As printed; None for a dash."""
    slips: dict[Name, str] = {}
    """Figures that are wrong, and why."""


class PrintedTable(_Frozen):
    """A paper's table of datasets; the file's stem is its name."""

    table: str
    source: str
    rows: list[PrintedRow] = Field(min_length=1)


def read_printed(path: Path) -> PrintedTable:
    """Parses one file of `datasets/published/`; all faults of its form are reported together."""
    table = read_model(path, PrintedTable)
    if table.table != path.stem:
        raise UserError(f"{path}: table is {table.table!r} but the file is called {path.stem!r}; make them equal")
    return table


def statistics_table(records: Sequence[RunRecord], cards: Sequence[DatasetCard] | None = None) -> Table:
    """All datasets of the papers and of this harness, and those that were run.

    Args:
        records: Oldest first; of several runs on a dataset the newest that has statistics counts.
        cards: Datasets to list; by default those of this repository. Generated ones are listed only if they were run.
    """
    known = {card.name: card for card in (_shipped() if cards is None else cards)}
    measured = {record.dataset["name"]: record for record in records if record.dataset.get("statistics")}
    printed = [read_printed(PRINTED_FOLDER / f"{name}.yaml") for name in ("thesis-2.1", "thesis-1.1")]
    rows_in_print: dict[str, PrintedRow] = {}
    for row in (row for table in printed for row in table.rows):
        rows_in_print.setdefault(row.dataset or row.label, row)
    papers, ours, elsewhere = _order(known, set(measured), rows_in_print)
    sources = [printed[0].source, *(table.source.rpartition(", ")[2] for table in printed[1:])]
    names = [*papers, *ours, *elsewhere]
    found = [_Dataset(name, known.get(name), measured.get(name), rows_in_print.get(name)) for name in names]
    return Table(
        title="Datasets: train rows, test rows, labels, and averages over train",
        columns=("dataset", "figures", *(heading for heading, _ in COLUMNS.values())),
        rows=tuple(dataset.cells() for dataset in found),
        caption=(
            "Measured by a run, or else the card's figure; X: no figure. In brackets: "
            f"{' or '.join(sources)}, with a question mark where it is, or likely is, wrong. "
            "≠: misses the card's figure by more than the card allows."
        ),
        words=2,
        id="thesis-2.1",
        breaks=(len(papers), len(papers) + len(ours)),
        notes=tuple(note for dataset in found for note in dataset.notes()),
    )


def _order(
    known: dict[str, DatasetCard], measured: set[str], printed: dict[str, PrintedRow]
) -> tuple[list[str], list[str], list[str]]:
    """The papers' datasets, those in print first; what is built or brought here; what is only in print."""
    papers = [name for name in printed if name in known]
    papers += sorted(name for name, card in known.items() if name not in printed and not card.built_here)
    built = {name for name, card in known.items() if card.built_here and card.source != "synthetic"}
    ours = sorted(built | (measured - set(papers)))
    return papers, ours, [name for name in printed if name not in {*papers, *ours}]


def _shipped() -> list[DatasetCard]:
    return [read_card(path) for path in sorted(CARD_FOLDER.glob("*.yaml"))]


class _Dataset:
    """One row: everything that is known about a dataset."""

    def __init__(
        self, name: str, card: DatasetCard | None, record: RunRecord | None, printed: PrintedRow | None
    ) -> None:
        own = record.dataset.get("title", name) if record else name
        self.title: str = card.title if card else printed.label if printed else own
        self._card, self._printed = card, printed
        self._measured: dict[str, float] = record.dataset["statistics"] if record else {}

    def cells(self) -> tuple[Cell, ...]:
        origin = "measured" if self._measured else "card" if self._card else "not here"
        return (Cell(self.title), Cell(origin), *(self._cell(name) for name in COLUMNS))

    def notes(self) -> list[str]:
        """What is wrong with figures of this dataset, one sentence each."""
        told = []
        for name, (heading, digits) in COLUMNS.items():
            if self._misses(name):
                ours, card = Figure(self._measured[name], digits=digits), Figure(self._expected(name), digits=digits)
                told.append(f"{self.title} ({heading}): {ours.ours} measured, {card.ours} on the card.")
            if self._printed and name in self._printed.slips:
                told.append(f"{self.title} ({heading}), in the paper: {self._printed.slips[name]}.")
        return told

    def _cell(self, name: Name) -> Cell:
        measured = self._measured.get(name)
        printed = self._printed.results.get(name) if self._printed else None
        figure = Figure(
            mean=self._expected(name) if measured is None else measured,
            n=0 if measured is None else 1,
            paper=printed,
            slip=bool(self._printed and name in self._printed.slips),
            digits=COLUMNS[name][1],
        )
        return Cell.of(figure, mark="≠" if self._misses(name) else "")

    def _expected(self, name: Name) -> float | None:
        value: float | None = getattr(self._card.statistics, name) if self._card else None
        return value

    def _misses(self, name: Name) -> bool:
        expected, measured = self._expected(name), self._measured.get(name)
        if self._card is None or expected is None or measured is None:
            return False
        return abs(measured / expected - 1) > self._card.statistics.slack(name)
