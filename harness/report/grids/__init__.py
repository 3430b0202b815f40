"""Published tables as declarations over records: which runs are which row, on any dataset.

A row is a method and settings. On a dataset of its table these are as printed, on another one what the table varies
(`harness.published.settings_elsewhere`). A record belongs to a row if it agrees with it in everything the table varies.
In everything else the runs of one `Grid` agree with each other: same data, filter, propensity constants and versions,
same encoder, and per method the same changes from its defaults. Of several such choices the one with most rows is
taken, then the one nearest to the defaults, then the newest; the others are counted, never mixed in.
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from harness.published import PublishedRow, PublishedTable, settings_elsewhere, varied_keys
from harness.record import RunRecord
from harness.report import is_trial
from harness.report.evidence import conditions
from harness.report.grids.defaults import Settings, changes, default_settings, settings
from harness.yaml import format_flow

NOT_SETTINGS = ("scorer", "seed")
"""A run measures every scorer; seeds are the bench's."""


@dataclass(frozen=True)
class Line:
    """Rows of a table that are one measurement, on one dataset."""

    table: PublishedTable
    rows: tuple[PublishedRow, ...]
    dataset: str
    settings: dict[str, Any]
    """What makes it this row here."""
    variant: str = ""
    """Of these, what the table varies, for people."""
    records: tuple[RunRecord, ...] = ()
    """One per seed, by seed."""
    wanted: int = 0
    """How many there should be."""

    @property
    def label(self) -> str:
        """As printed; several rows have all their labels."""
        return " / ".join(dict.fromkeys(row.label for row in self.rows))

    @property
    def method(self) -> str | None:
        """None for a row that cannot be run."""
        return self.rows[0].method

    @property
    def view(self) -> str | None:
        """The scorer."""
        return self.rows[0].view

    @property
    def published(self) -> bool:
        """Whether the paper has figures for this dataset."""
        return self.dataset == self.rows[0].dataset

    @property
    def run(self) -> str:
        """Equal for lines that are the same run."""
        return json.dumps([self.method, self.dataset, self.settings], sort_keys=True)


@dataclass(frozen=True)
class Change:
    """A setting in which runs of a grid differ from the defaults of their methods."""

    key: str
    value: Any
    methods: tuple[str, ...] = ()
    """Of which alone; empty if of all."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}" + (f" ({', '.join(self.methods)})" if self.methods else "")

    @property
    def options(self) -> list[str]:
        """The words with which `bench` sets it."""
        setting = f"{self.key}={format_flow(self.value)}"
        told = [f"{method}:{setting}" for method in self.methods] or [setting]
        return [word for one in told for word in ("--set", one)]


@dataclass(frozen=True)
class Grid:
    """One published table on one dataset, with the runs there are."""

    table: PublishedTable
    dataset: str
    lines: tuple[Line, ...]
    base: tuple[Change, ...] = ()
    """In what its runs differ from the defaults of their methods, but for what the table varies."""
    left_out: int = 0
    """Runs that fit a row, but are of other data or other versions than those shown."""

    @property
    def published(self) -> bool:
        """Whether the paper has figures for this dataset."""
        return self.dataset in self.table.datasets

    @property
    def own(self) -> bool:
        """Whether it is a table of ours on a dataset that its settings were chosen for."""
        return self.table.own and self.published

    @property
    def measured(self) -> int:
        """How many different runs its rows have, seeds aside."""
        return len({line.run for line in self.lines if line.records})

    @property
    def compares(self) -> bool:
        """Whether there is anything to compare: a single row of an ablation is none."""
        return self.measured >= min(2, len({line.run for line in self.lines if line.method}))

    @property
    def command(self) -> str:
        """What runs it: the rows that it has runs of, each with every seed that one of them has.

        Empty where a folder of data or weights was used: a record does not tell where it lies.
        """
        data = {str(one.config.get("dataset") or "./") for one in self.records}
        if len(data) != 1 or any(map(_is_folder, (*data, *(change.value for change in self.base)))):
            return ""
        seeds = sorted({one.config["seed"] for one in self.records})
        ran = [line.rows[0].stem for line in self.lines if line.records]
        every = {line.rows[0].stem for line in self.lines if line.method}
        words = ["python", "-m", "harness", "bench", "--table", self.table.table, "--datasets", *data]
        words += ["--seeds", ",".join(map(str, seeds)), *(["--rows", ",".join(ran)] if every - {*ran} else [])]
        return shlex.join([*words, *(word for change in self.base for word in change.options)])

    @property
    def records(self) -> list[RunRecord]:
        """All runs in it, each once."""
        return list({one.run_id: one for line in self.lines for one in line.records}.values())


def lines_on(table: PublishedTable, dataset: str) -> list[Line]:
    """The rows for a dataset: its own, or on one that the table does not have, every row once."""
    if dataset in table.datasets:
        rows = [row for row in table.rows if row.dataset == dataset]
    else:
        runnable_first = sorted(table.rows, key=lambda row: row.method is None)
        by_stem = {row.stem: row for row in reversed(runnable_first)}
        rows = [by_stem[stem] for stem in dict.fromkeys(row.stem for row in table.rows)]
    varied = varied_keys(table)
    return [_line(table, row, dataset, varied) for row in rows]


def _line(table: PublishedTable, row: PublishedRow, dataset: str, varied: list[str]) -> Line:
    if row.method is None:
        return Line(table, (row,), dataset, {})
    own = row.settings if row.dataset == dataset else settings_elsewhere(table, row.stem)
    own = {key: value for key, value in own.items() if key not in NOT_SETTINGS}
    shown = [key for key in {**dict.fromkeys(varied), **dict.fromkeys(own)} if key in own]
    if row.dataset == dataset and not table.own:
        shown = [key for key in shown if key in varied]
    return Line(table, (row,), dataset, own, ", ".join(_told(key, own[key]) for key in shown))


def _told(key: str, value: Any) -> str:
    """A setting for people; of a group of settings those that are given."""
    return ", ".join(_told(name, one) for name, one in value.items()) if isinstance(value, dict) else f"{key}={value}"


def merged(lines: list[Line]) -> list[Line]:
    """Rows that are the same run and the same scorer as one line, in the place of the first."""
    found: dict[Any, Line] = {}
    for line in lines:
        same = (line.view, line.run) if line.method else line.rows[0].name
        first = found.get(same)
        found[same] = replace(first, rows=first.rows + line.rows) if first else line
    return list(found.values())


def grids(records: Iterable[RunRecord], table: PublishedTable, datasets: Iterable[str] | None = None) -> list[Grid]:
    """A table on every dataset that has runs to compare, those with most rows first, then on those of the paper.

    Args:
        records: Any; trials, failed runs and those of other methods are passed over.
        table: The declaration.
        datasets: Only these.
    """
    usable = [one for one in records if one.status == "finished" and not is_trial(one.config)]
    measured = sorted({one.dataset["name"] for one in usable} - set(table.datasets))
    chosen = [*measured, *table.datasets] if datasets is None else list(dict.fromkeys(datasets))
    by_place: dict[tuple[str, str], list[RunRecord]] = {}
    for one in usable:
        by_place.setdefault((one.dataset["name"], one.config["method"]), []).append(one)
    found = [grid_of(table, dataset, by_place) for dataset in chosen]
    if datasets is not None:
        return [grid for grid in found if grid.published or grid.records]
    elsewhere = [grid for grid in found if not grid.published and grid.compares]
    return [*sorted(elsewhere, key=lambda grid: -grid.measured), *(grid for grid in found if grid.published)]


Fit = tuple[int, RunRecord, Settings]
"""A line by its place, a record that fits it, and how that differs from the defaults."""


def grid_of(table: PublishedTable, dataset: str, by_place: dict[tuple[str, str], list[RunRecord]]) -> Grid:
    """The table on one dataset; `by_place` are the usable records by dataset and method."""
    lines = merged(lines_on(table, dataset))
    pinned = tuple(dict.fromkeys([*varied_keys(table), *(key for line in lines for key in line.settings)]))
    fits: dict[str, dict[str, dict[str, list[Fit]]]] = {}
    for place, line in enumerate(lines):
        for record, differing in _fitting(line, by_place.get((dataset, str(line.method)), []), pinned):
            own = {key: value for key, value in differing.items() if key.startswith("params.")}
            shared = {key: value for key, value in differing.items() if key not in own}
            common = json.dumps([_versions(record), shared], sort_keys=True)
            of_method = fits.setdefault(common, {}).setdefault(str(line.method), {})
            of_method.setdefault(json.dumps(own, sort_keys=True), []).append((place, record, differing))
    choices = [[max(of_method.values(), key=_worth) for of_method in methods.values()] for methods in fits.values()]
    if not choices:
        return Grid(table, dataset, tuple(lines))
    chosen = [
        fit
        for group in max(choices, key=lambda groups: _worth([fit for one in groups for fit in one]))
        for fit in group
    ]
    filled = [
        replace(line, records=_by_seed(one for at, one, _ in chosen if at == place)) for place, line in enumerate(lines)
    ]
    most = max(len(line.records) for line in filled)
    lines = [replace(line, wanted=most if line.method else 0) for line in filled]
    return Grid(table, dataset, tuple(lines), _base(chosen), _others(fits, chosen[0][1]))


def _is_folder(value: Any) -> bool:
    """Whether a setting is a folder, which records name without where it lies."""
    return isinstance(value, str) and value.startswith(("./", "/"))


def _base(chosen: list[Fit]) -> tuple[Change, ...]:
    """What was changed from the defaults in all runs, or in all of some methods."""
    methods = list(dict.fromkeys(str(one.config["method"]) for _, one, _ in chosen))
    found: dict[tuple[str, str], tuple[Any, dict[str, None]]] = {}
    for _, one, differing in chosen:
        for key, value in differing.items():
            _, of = found.setdefault((key.removeprefix("params."), json.dumps(value)), (value, {}))
            of[str(one.config["method"])] = None
    return tuple(
        Change(key, value, () if len(of) == len(methods) else tuple(of)) for (key, _), (value, of) in found.items()
    )


def _others(fits: dict[str, dict[str, dict[str, list[Fit]]]], chosen: RunRecord) -> int:
    """How many runs fit a row, but are of other data or other versions than the chosen ones."""
    every = [
        one for methods in fits.values() for own in methods.values() for group in own.values() for _, one, _ in group
    ]
    return len({one.run_id for one in every if _versions(one) != _versions(chosen)})


def _fitting(line: Line, records: list[RunRecord], pinned: tuple[str, ...]) -> list[tuple[RunRecord, Settings]]:
    """Records that agree with a line in the pinned keys, and in what else they differ from its settings."""
    expected = default_settings(line.method, line.dataset, line.settings) if line.method and records else None
    if expected is None:
        return []
    found = []
    for record in records:
        differing = changes(settings(record.config), expected)
        if not any(_pinned(key, pinned) for key in differing):
            found.append((record, differing))
    return found


def _pinned(key: str, pinned: tuple[str, ...]) -> bool:
    bare = key.removeprefix("params.")
    return any(bare == name or bare.startswith(f"{name}.") for name in pinned if name not in NOT_SETTINGS)


def _versions(record: RunRecord) -> list[Any]:
    return [*conditions(record), record.environment.get("harness")]


def _worth(fits: list[Fit]) -> tuple[int, int, int, str]:
    """More rows first, then nearer to the defaults, then more runs, then newer."""
    rows = len({place for place, _, _ in fits})
    changed = max(len(differing) for _, _, differing in fits)
    return rows, -changed, len({one.run_id for _, one, _ in fits}), max(one.started for _, one, _ in fits)


def _by_seed(records: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """The newest of every seed."""
    newest = {one.config["seed"]: one for one in sorted(records, key=lambda one: (one.started, one.run_id))}
    return tuple(newest[seed] for seed in sorted(newest))
