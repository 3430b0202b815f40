"""What the papers report, row by row, and the settings that come nearest to each row.

`methods/published/<table>.yaml` holds one printed table: its figures as printed (null for a dash), what the paper does
not say, and per row the method and settings of this harness. A row whose method is not implemented here keeps its
figures and says so under `absent`. A row of one dataset is named `<table>/<row>`, for example
`thesis-2.2/unidec/lf-amazon-131k`. As a layer of settings a row lies above the dataset's card and below the command
line.
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
"""Folder of the harness's own tables, in the same form but without printed figures; see `harness.experiments.tune`."""
MATRIX = "benchmark"
"""Name of the own table that has a row for every method."""
SUBJECT = "unidec"
"""Name of that table's row for our variant of UniDEC; the papers' own are rows beside it."""
JUDGED = ("P@1", "PSP@5")
"""Metrics used where methods are compared in two metrics only."""

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
"""Pretrained encoders that a user chooses by the memory of the machine; all others are part of a method."""

Figure = int | float | str | None
"""A printed cell; None for a dash or for digits that cannot be read."""


class PublishedRow(Strict):
    """One row of a printed table, for one dataset."""

    table: str
    """Name of the table; set by the reader."""
    row: str = Field(pattern=r"^[a-z0-9][a-z0-9./-]*$")
    """Name of the row, unique in the table; ends in the dataset's name."""
    label: str
    """Name of the method as printed."""
    dataset: str
    method: str | None
    """A method or preset of this harness; None if there is none, see `absent`."""
    scorer: Literal["concat", "de", "clf", "fused"] | None = None
    """Scorer of the method that the figures belong to; None for its first."""
    settings: dict[str, Any] = Field(default={})
    """Published settings of run and method; they override those of the method and the card."""
    elsewhere: dict[str, Any] | None = None
    """Settings of this row on a dataset that the table does not have; None for those that the table varies."""
    results: dict[str, Figure]
    unsaid: list[str] = Field(default=[])
    """What the paper does not say about this row."""
    slip: str = ""
    """Why these figures cannot be right as printed, or contradict others; such a row is never compared with."""
    unreadable: list[str] = Field(default=[])
    """Columns whose digits cannot be read in the copy at hand; their figure is null."""
    nearest: str = ""
    """How the settings differ from the paper's method, if they are only the nearest to it."""
    absent: str = ""
    """Why this harness has no method for this row."""
    chosen: str = ""
    """In a table of the harness's own: where the settings come from."""

    @property
    def name(self) -> str:
        """Full name `<table>/<row>`, as `--published` takes it."""
        return f"{self.table}/{self.row}"

    @property
    def stem(self) -> str:
        """Name of the row without its dataset; the same on all datasets of the table."""
        return self.row.removesuffix(f"/{self.dataset}")

    @model_validator(mode="after")
    def _holds_together(self) -> "PublishedRow":
        if not self.row.endswith(f"/{self.dataset}"):
            raise ValueError(f"row {self.row!r} must end in /{self.dataset}")
        if (self.method is None) != bool(self.absent):
            raise ValueError(f"row {self.row!r}: give either a method, or say under `absent` why there is none")
        if self.method is None and (self.settings or self.scorer or self.nearest or self.elsewhere is not None):
            raise ValueError(f"row {self.row!r} has no method, so it has no settings, scorer or nearest either")
        if self.scorer == "fused" and {**self.settings, **self.settings.get("params", {})}.get("scorer") != "fused":
            raise ValueError(f"row {self.row!r}: fused is measured only by a run that reports it; set scorer: fused")
        read = [column for column in self.unreadable if self.results.get(column) is not None]
        if read:
            raise ValueError(f"row {self.row!r}: {', '.join(read)}: a figure that cannot be read is null")
        return self


class PublishedTable(Strict):
    """One table of a paper; the file's stem is its name."""

    table: str
    source: str
    caption: str
    """What the table compares, in the harness's words."""
    metrics: list[str]
    """Names of the columns: metrics of `harness.metrics` or `COLUMNS`; `harness validate` checks them."""
    unsaid: list[str]
    """What the paper does not say about all rows."""
    seeds: dict[str, list[int]] = Field(default={})
    """In a table of the harness's own: default seeds of `bench --table`, by dataset."""
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
        """Whether this is a table of the harness's own, which has no printed figures."""
        return bool(self.seeds)

    @property
    def datasets(self) -> list[str]:
        """Names of the table's datasets, in order of appearance."""
        return list(dict.fromkeys(row.dataset for row in self.rows))


def read_table(path: Path) -> PublishedTable:
    """Read one table; `UserError` lists all faults of its form."""
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
    """Return the file of every table by name, the harness's own tables first."""
    folders = (TUNED_FOLDER, PUBLISHED_FOLDER)
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


@cache
def published_table(name: str) -> PublishedTable:
    """Return one table by name, a paper's or the harness's own; no other file is read."""
    paths = table_paths()
    if name not in paths:
        raise unknown_name("published table", name, paths)
    return read_table(paths[name])


def published_tables() -> dict[str, PublishedTable]:
    """Return all tables by name, the harness's own first."""
    return {name: published_table(name) for name in table_paths()}


def published_row(name: str) -> PublishedRow:
    """Return the row named `<table>/<row>`; the error for an unknown one names the nearest."""
    table, _, wanted = name.partition("/")
    rows = {row.row: row for row in published_table(table).rows}
    if wanted in rows:
        return rows[wanted]
    near = difflib.get_close_matches(wanted, rows, n=1) or list(rows)[:1]
    hint = f"did you mean {table}/{near[0]}?" if wanted else f"name a row of it, for example {table}/{near[0]};"
    raise UserError(f"table {table} has no row {wanted!r}; {hint} `harness ls published` lists all")


def results(table: str, dataset: str) -> dict[str, dict[str, Figure]]:
    """Return a table's printed figures for one dataset, by row without the dataset's name; empty if it has none."""
    rows = [row for row in published_table(table).rows if row.dataset == dataset]
    return {row.stem: dict(row.results) for row in rows}


def varied_keys(table: PublishedTable) -> list[str]:
    """Return the settings that a table varies: those that differ between rows of one method and dataset, sorted.

    Settings that differ only between methods are each method's recipe for its dataset, and are not counted.
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
    """Return the settings of a row on a dataset that the table does not have.

    These are the settings that the table varies, or those that the row lists under `elsewhere`. Settings that all rows
    share, that a row changes from dataset to dataset (batch sizes of the paper's GPU, for instance) and the pretrained
    encoder are left to the method and to the card of the other dataset.
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
    """Return the settings of a row as a layer for `harness.run.resolve_config`."""
    if row.method is None:
        raise UserError(f"{row.name} cannot be run: {row.absent}")
    return Layer(f"published {row.name}", {"method": row.method, "dataset": row.dataset, **row.settings})


def implausible(row: PublishedRow) -> list[str]:
    """Return what is wrong with the figures of a row; nothing for a row marked as a slip.

    Percentages lie between 0 and 100 and C@k cannot fall with k. P@k could rise with k, but does so in no table of
    these papers, so a rise is taken for a mistyped digit.
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
