"""What the papers report, row by row, and the settings that come nearest to each row.

`methods/published/<table>.yaml` holds one printed table: its figures as printed (null for a dash), what the paper left
unsaid, and per row the method and settings of this harness. A row whose method is not here keeps its figures and says
so under `absent`. A row of one dataset is named `<table>/<row>`, for example `thesis-2.2/unidec/lf-amazon-131k`.
As a config layer a row lies above the dataset's card and below the command line.
"""

import difflib
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from harness.errors import UserError, unknown_name
from harness.io.models import Strict, describe_faults
from harness.io.yaml import read_yaml
from harness.settings.layers import Layer
from harness.settings.method import METHOD_FOLDER

PUBLISHED_FOLDER = METHOD_FOLDER / "published"
TUNED_FOLDER = METHOD_FOLDER / "tuned"
"""Tables of our own, in the same form but without printed figures; see `harness.experiments.tune`."""
MATRIX = "benchmark"
"""The one of these that has every method."""
SUBJECT = "unidec"
"""The row of it that the papers are about."""
JUDGED = ("P@1", "PSP@5")
"""Metrics in which methods are compared where two have to do."""

COLUMNS = {
    "d": "size of the vectors that are searched",
    "|Q_B|": "queries in a batch",
    "|L_B|": "labels in the pool of a batch",
    "positives": "mean number of positives of a query in the pool",
    "memory GB": "memory of all GPUs together",
    "hours": "training time",
    "GPU": "number and kind of GPUs",
}
"""Columns of the papers' tables beside the metrics of `harness.metrics`."""

PRETRAINED = ("distilbert", "msmarco-distilbert", "minilm")
"""Encoders that a user chooses by what the machine can carry; the others are part of a method."""

Figure = int | float | str | None
"""A cell as printed; None for a dash or for digits that cannot be read."""


class PublishedRow(Strict):
    """One printed row for one dataset."""

    table: str
    """Filled in on reading."""
    row: str = Field(pattern=r"^[a-z0-9][a-z0-9./-]*$")
    """Unique in the table; ends in the dataset's name."""
    label: str
    """The method as printed."""
    dataset: str
    method: str | None
    """A method or preset of this harness."""
    scorer: Literal["concat", "de", "clf"] | None = None
    """Which scorer of the method the figures belong to."""
    settings: dict[str, Any] = Field(default={})
    """Published settings, over the method's and the card's: of the run and of the method."""
    elsewhere: dict[str, Any] | None = None
    """What makes it this row on another dataset, where that is not simply what the table varies."""
    results: dict[str, Figure]
    unsaid: list[str] = Field(default=[])
    """What the paper left open about this row."""
    slip: str = ""
    """Why these figures cannot be right as printed, or contradict others; such a row is never a target."""
    unreadable: list[str] = Field(default=[])
    """Columns whose digits cannot be read in the source at hand; their figure is null."""
    nearest: str = ""
    """In what respect the settings are not the paper's method but the nearest thing here."""
    absent: str = ""
    """Why there is no method for this row."""
    chosen: str = ""
    """Of a table of our own: where the settings come from."""

    @property
    def name(self) -> str:
        """What `--published` takes."""
        return f"{self.table}/{self.row}"

    @property
    def stem(self) -> str:
        """The row without its dataset; the same on all datasets of the table."""
        return self.row.removesuffix(f"/{self.dataset}")

    @model_validator(mode="after")
    def _holds_together(self) -> "PublishedRow":
        if not self.row.endswith(f"/{self.dataset}"):
            raise ValueError(f"row {self.row!r} must end in /{self.dataset}")
        if (self.method is None) != bool(self.absent):
            raise ValueError(f"row {self.row!r}: give either a method, or say under `absent` why there is none")
        if self.method is None and (self.settings or self.scorer or self.nearest or self.elsewhere is not None):
            raise ValueError(f"row {self.row!r} has no method, so it has no settings, scorer or nearest either")
        read = [column for column in self.unreadable if self.results.get(column) is not None]
        if read:
            raise ValueError(f"row {self.row!r}: {', '.join(read)}: a figure that cannot be read is null")
        return self


class PublishedTable(Strict):
    """One table of a paper; the file's stem is its name."""

    table: str
    source: str
    caption: str
    """What it compares, in our words."""
    metrics: list[str]
    """Its columns: metrics of `harness.metrics` or `COLUMNS`; `harness validate` checks the names."""
    unsaid: list[str]
    """What the paper left open about all rows."""
    seeds: dict[str, list[int]] = Field(default={})
    """Of a table of our own, by dataset: what `bench --table` runs unless it is given others."""
    rows: list[PublishedRow] = Field(min_length=1)

    @model_validator(mode="after")
    def _rows_fit(self) -> "PublishedTable":
        twice = [row for row, count in Counter(row.row for row in self.rows).items() if count > 1]
        if twice:
            raise ValueError(f"rows named twice: {', '.join(twice)}")
        for row in self.rows:
            if list(row.results) != self.metrics:
                raise ValueError(f"row {row.row!r}: results must have the columns {', '.join(self.metrics)}, in order")
        return self

    @property
    def own(self) -> bool:
        """Whether it is a table of ours, so that no figures are printed beside those that are measured."""
        return bool(self.seeds)

    @property
    def datasets(self) -> list[str]:
        """Datasets of the table, in order of appearance."""
        return list(dict.fromkeys(row.dataset for row in self.rows))


def read_table(path: Path) -> PublishedTable:
    """Parses one file; all faults of its form are reported together."""
    values = read_yaml(path)
    rows = values.get("rows")
    if isinstance(rows, list):
        values["rows"] = [{**row, "table": path.stem} if isinstance(row, dict) else row for row in rows]
    try:
        table = PublishedTable.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, str(path), PublishedTable))) from error
    if table.table != path.stem:
        raise UserError(f"{path}: table is {table.table!r} but the file is called {path.stem!r}; make them equal")
    return table


def table_paths() -> dict[str, Path]:
    """Every table's file by name, our own first."""
    folders = (TUNED_FOLDER, PUBLISHED_FOLDER)
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


@cache
def published_table(name: str) -> PublishedTable:
    """One table by name, a paper's or our own; nothing else is read."""
    paths = table_paths()
    if name not in paths:
        raise unknown_name("published table", name, paths)
    return read_table(paths[name])


def published_tables() -> dict[str, PublishedTable]:
    """All tables by name, our own first."""
    return {name: published_table(name) for name in table_paths()}


def published_row(name: str) -> PublishedRow:
    """A row by `<table>/<row>`, or an error that names the nearest one."""
    table, _, wanted = name.partition("/")
    rows = {row.row: row for row in published_table(table).rows}
    if wanted in rows:
        return rows[wanted]
    near = difflib.get_close_matches(wanted, rows, n=1) or list(rows)[:1]
    hint = f"did you mean {table}/{near[0]}?" if wanted else f"name a row of it, for example {table}/{near[0]};"
    raise UserError(f"table {table} has no row {wanted!r}; {hint} `harness ls published` lists all")


def results(table: str, dataset: str) -> dict[str, dict[str, Figure]]:
    """Printed figures of a table for one dataset, by row without the dataset's name; empty where it has none."""
    rows = [row for row in published_table(table).rows if row.dataset == dataset]
    return {row.stem: dict(row.results) for row in rows}


def varied_keys(table: PublishedTable) -> list[str]:
    """The settings that a table is about: those that differ between its rows of one method and one dataset, sorted.

    What differs between methods alone is the recipe of each, and belongs to the dataset it was published for.
    """
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.rows:
        if row.method:
            rows.setdefault((row.dataset, row.method), []).append(row.settings)
    return sorted(
        {
            key
            for group in rows.values()
            for settings in group
            for key in settings
            if any(_differ(settings, other, key) for other in group)
        }
    )


def settings_elsewhere(table: PublishedTable, stem: str) -> dict[str, Any]:
    """What makes a row that row on a dataset which the table does not have.

    That is what the table varies, or what the row says under `elsewhere`. What all rows share, what a row changes from
    dataset to dataset (batch sizes of the paper's GPU, for instance) and which pretrained encoder it starts from is
    left to the method and to the card of the other dataset.
    """
    rows = [row for row in table.rows if row.stem == stem and row.method]
    own = next((row.elsewhere for row in rows if row.elsewhere is not None), None)
    if own is not None:
        return dict(own)
    first, *others = [row.settings for row in rows]
    pretrained = {"encoder", "encoder_options"} if first.get("encoder") in PRETRAINED else set()
    return {
        key: first[key]
        for key in varied_keys(table)
        if key in first and key not in pretrained and not any(_differ(first, other, key) for other in others)
    }


def _differ(first: dict[str, Any], second: dict[str, Any], key: str) -> bool:
    return (key in first) != (key in second) or first.get(key) != second.get(key)


def layer(row: PublishedRow) -> Layer:
    """The settings of a row, for `harness.run.resolve_config`."""
    if row.method is None:
        raise UserError(f"{row.name} cannot be run: {row.absent}")
    return Layer(f"published {row.name}", {"method": row.method, "dataset": row.dataset, **row.settings})


def implausible(row: PublishedRow) -> list[str]:
    """What is wrong with the figures of a row; a row marked as a slip is let through.

    Percentages lie between 0 and 100 and C@k cannot fall with k. P@k could rise with k, but does so in no table of
    these papers, so that a rise is a mistyped digit.
    """
    if row.slip:
        return []
    faults = []
    percentages = {column: value for column, value in row.results.items() if column not in COLUMNS}
    for column, value in percentages.items():
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 100):
            faults.append(f"{row.name}: {column} is {value!r}; expected a percentage")
    for family, rising in (("P", False), ("C", True)):
        known = [(c, v) for c, v in percentages.items() if c.startswith(f"{family}@") and isinstance(v, int | float)]
        for (first, before), (second, after) in pairwise(known):
            if (after < before) if rising else (after > before):
                faults.append(f"{row.name}: {second} {after} after {first} {before}; mistyped?")
    return faults
