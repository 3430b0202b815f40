"""Tune a table of our own: every row gets the same small search on validation rows, and the settings it found.

    methods/tuning/<table>.yaml -> a study per row and dataset -> methods/tuned/<table>.yaml -> `bench --table`

The table that comes out is like one of a paper, without printed figures: `run --published` takes its rows. It is a
function of the studies in reports/results, so that anybody can see where its settings come from.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness import metrics
from harness.errors import UserError, unknown_name
from harness.experiments.sweep import Request
from harness.experiments.sweep.space import Space, ends_of, parse_over, settings_of, to_json
from harness.io.files import write_text
from harness.io.models import read_model
from harness.io.yaml import format_flow
from harness.report.documents import COMPARISON, STATISTICS, TESTS
from harness.report.results import Study, read_studies, shown_space
from harness.report.rows import changes, default_settings
from harness.settings.identity import before, decisive, marked
from harness.settings.layers import Layer, flat, merge
from harness.settings.method import METHOD_FOLDER, load_method
from harness.settings.published import PUBLISHED_FOLDER, TUNED_FOLDER
from harness.settings.schema import NAME, ONCE, Settings

TUNING_FOLDER = METHOD_FOLDER / "tuning"
_TAKEN = ("all", "speed", COMPARISON, STATISTICS, TESTS)
"""Names that a table cannot have: words of `--table`, and tables without a file."""
_DIGITS = 3
"""Significant digits kept of a drawn number; more would be noise."""


class TuningRow(Settings):
    """One row of the table, on all its datasets."""

    row: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    label: str
    method: str
    scorer: Literal["concat", "de", "clf", "fused"] | None = None
    """Scorer whose figures the row shows; the method's own if None."""
    settings: dict[str, Any] = Field(default={})
    """Settings that all trials and runs of the row have."""
    over: str = ""
    """Ranges in the form of `sweep --over`; empty for a row without a search."""
    datasets: list[str] = Field(default=[])
    """Datasets that it is run on; empty for all."""
    shares: str = ""
    """Name of a row above with the same search and runs but another scorer."""
    untuned: str = ""
    """Why the row has no search."""


class Tuning(Settings):
    """A table that is yet to be run, and how its settings are searched."""

    table: str
    caption: str
    metrics: list[str]
    objectives: list[str] = Field(min_length=1, max_length=2)
    """Metrics whose sum on validation rows picks the trial."""
    trials: int | dict[str, int]
    """Trials per row; by dataset if one number would take days on one and minutes on another."""
    validation: float = Field(gt=0, lt=1)
    """Share of the train rows that trials are judged on."""
    seeds: dict[str, list[int]] = Field(min_length=1)
    """Seeds of the final runs, by dataset."""
    begins: dict[str, str] = Field(default={})
    """By dataset: another one above it whose best settings its searches try after those of the row."""
    rows: list[TuningRow] = Field(min_length=1)

    @field_validator("metrics", "objectives")
    @classmethod
    def _are_metrics(cls, names: list[str]) -> list[str]:
        known = metrics.names(metrics.DEFAULT_KS, weighted=True)
        for name in names:
            if name not in known:
                raise ValueError(str(unknown_name("metric", name, known)))
        return names

    @model_validator(mode="after")
    def _datasets_fit(self) -> Self:
        datasets, budgets = list(self.seeds), self.trials if isinstance(self.trials, dict) else {}
        for dataset, seeds in self.seeds.items():
            if self.budget(dataset) < 1:
                raise ValueError(f"trials: {dataset} takes a number from 1")
            if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
                raise ValueError(f"seeds: {dataset} takes different whole numbers from 0")
        for dataset, found_on in self.begins.items():
            if found_on not in datasets[: datasets.index(dataset) if dataset in datasets else 0]:
                raise ValueError(f"begins: {dataset} and {found_on} need seeds, {found_on} before {dataset}")
        named = dict.fromkeys([*budgets, *(name for row in self.rows for name in row.datasets)])
        if strange := [name for name in named if name not in datasets]:
            raise ValueError(f"{', '.join(strange)} has no seeds")
        return self

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        names = [row.row for row in self.rows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"rows named twice: {', '.join(sorted(twice))}")
        for place, row in enumerate(self.rows):
            if "validation" in row.settings:
                raise ValueError(f"row {row.row!r}: the validation split is the same for all rows")
            same = [(one.method, one.settings, one.datasets) for one in self.rows[:place] if one.row == row.shares]
            if row.shares and (same != [(row.method, row.settings, row.datasets)] or row.over):
                raise ValueError(f"row {row.row!r}: shares a row above of the same method, settings and datasets")
            for dataset, elsewhere in self.begins.items():
                if row.over and dataset in row.datasets and elsewhere not in row.datasets:
                    raise ValueError(f"row {row.row!r}: begins on {dataset} with a search on {elsewhere} that it lacks")
        return self

    def cells(self) -> Iterator[tuple[str, TuningRow]]:
        """Yield dataset and row in the order of the table."""
        for dataset in self.seeds:
            for row in self.rows:
                if not row.datasets or dataset in row.datasets:
                    yield dataset, row

    def budget(self, dataset: str) -> int:
        """Return the trials per row on a dataset; 0 if the file does not say."""
        return self.trials if isinstance(self.trials, int) else self.trials.get(dataset, 0)

    def study(self, row: TuningRow, dataset: str) -> str:
        """Return the name of a row's study on a dataset."""
        return f"{self.table}-{row.shares or row.row}-{dataset}"

    def searches(self) -> Iterator[tuple[str, TuningRow]]:
        """Yield dataset and row of every row with a search."""
        return ((dataset, row) for dataset, row in self.cells() if row.over)

    def request(self, row: TuningRow, dataset: str, track: str, studies: Mapping[str, Study]) -> Request:
        """Return the sweep of a row; its trials are validated once, after the last epoch, as a final run does.

        `studies` are by name; one whose best settings this search begins with has to be among them.
        """
        own = {key: value for key, value in row.settings.items() if key != "encoder"}
        fixed = {**own, "validation": {"size": self.validation, "every_epochs": ONCE}}
        return Request(
            method=row.method,
            dataset=dataset,
            trials=self.budget(dataset),
            encoder=row.settings.get("encoder"),
            over=row.over,
            objective=",".join(self.objectives),
            settings=tuple(f"{key}={format_flow(value)}" for key, value in flat(fixed).items()),
            study=self.study(row, dataset),
            track=track,
            points=self.found_elsewhere(row, dataset, studies),
        )

    def found_elsewhere(
        self, row: TuningRow, dataset: str, studies: Mapping[str, Study]
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the point, if any, that a search tries after the row's settings: the best of another dataset.

        Raises:
            UserError: The search on the other dataset is missing or is another one.
        """
        if dataset not in self.begins:
            return ()
        elsewhere = self.begins[dataset]
        study = ended(self, row, elsewhere, studies)
        if study is None:
            raise UserError(
                f"{row.row} on {dataset} begins with what was found on {elsewhere}, which was not searched yet; first "
                f"run: python -m harness tune {self.table} --datasets {elsewhere} --rows {row.row}"
            )
        # trial 0 has the row's own settings, which are tried here anyway
        best = study.chosen
        return (_rounded(best.params, _ranges(row.over, row.method)),) if best and best.number else ()


def tunings() -> dict[str, Path]:
    """Return the tuning files by name of their table."""
    return {path.stem: path for path in sorted(TUNING_FOLDER.glob("*.yaml"))}


def read_tuning(name: str) -> Tuning:
    """Read a tuning file by name; all faults of its form are reported together."""
    if name not in tunings():
        raise unknown_name("table to tune", name, tunings())
    path = tunings()[name]
    tuning = read_model(path, Tuning)
    if tuning.table != path.stem:
        raise UserError(f"{path}: table is {tuning.table!r} but the file is called {path.stem!r}; make them equal")
    if tuning.table in _TAKEN or (PUBLISHED_FOLDER / path.name).exists():
        raise UserError(f"{path}: another table is called {path.stem!r}; take a name of its own")
    return tuning


def table_text(tuning: Tuning, studies: Mapping[str, Study]) -> str | None:
    """Return the table's file as text, with every row whose search is among `studies` (by name); None if no row is."""
    lines = [
        f"# Made from reports/results by `python -m harness tune {tuning.table}`; change methods/tuning instead.",
        f"# Numbers that were drawn have {_DIGITS} digits.",
        f"table: {tuning.table}",
        "source: This repository",
        f"caption: {format_flow(tuning.caption)}",
        f"metrics: {format_flow(tuning.metrics)}",
        f"seeds: {format_flow(tuning.seeds)}",
        "unsaid: []",
        "rows:",
    ]
    nothing: dict[str, None] = dict.fromkeys(tuning.metrics)
    rows: list[str] = []
    for dataset, row in tuning.cells():
        found = _found(tuning, row, dataset, studies)
        if found is None:
            continue
        settings, chosen = found
        reported = {"scorer": row.scorer} if row.shares else {}  # what `run --published` shows as the row's own
        rows += [
            f"  - row: {row.row}/{dataset}",
            f"    label: {format_flow(row.label)}",
            f"    dataset: {dataset}",
            f"    method: {row.method}",
            *([f"    scorer: {row.scorer}"] if row.scorer else []),
            f"    settings: {format_flow(settings | reported)}",
            f"    elsewhere: {format_flow(row.settings)}",
            f"    results: {format_flow(nothing)}",
            f"    chosen: {format_flow(chosen)}",
        ]
    return "".join(f"{line}\n" for line in (*lines, *rows)) if rows else None


def kept_studies(folder: Path) -> dict[str, Study]:
    """Return the studies in a folder of reports, by name."""
    return {study.name: study for study in read_studies(folder)}


def write_table(tuning: Tuning, reports: Path) -> list[Path]:
    """Write the table's file from the studies in a folder of reports; returns its path if it changed."""
    path, text = TUNED_FOLDER / f"{tuning.table}.yaml", table_text(tuning, kept_studies(reports))
    if text is None or (path.is_file() and path.read_text(encoding="utf-8") == text):
        return []
    write_text(path, text)
    return [path]


def _found(
    tuning: Tuning, row: TuningRow, dataset: str, studies: Mapping[str, Study]
) -> tuple[dict[str, Any], str] | None:
    """Return the settings of a row and where they come from; None while its search has not ended."""
    row = next((one for one in tuning.rows if one.row == row.shares), row)
    # the weight of scorer fused is chosen on validation rows in the final run, too
    judged = {"validation": {"metric": tuning.objectives[0]}} if row.settings.get("scorer") == "fused" else {}
    if not row.over:
        return {**row.settings, **judged}, row.untuned or "nothing to search"
    study = ended(tuning, row, dataset, studies)
    best = study.chosen if study else None
    if study is None or best is None:
        return None
    drawn = _rounded(best.params, _ranges(row.over, row.method))
    values = ", ".join(f"{name} {value:.2f}" for name, value in best.values.items())
    chosen = f"trial {best.number + 1} of {tuning.budget(dataset)}; on validation rows {values}"
    layers = (
        Layer("row", {**row.settings, **judged}),
        Layer("drawn", settings_of(drawn, _ranges(row.over, row.method))),
    )
    return merge(layers)[0], chosen


def ended(tuning: Tuning, row: TuningRow, dataset: str, studies: Mapping[str, Study]) -> Study | None:
    """Return the study of a row, if it has all its trials and is the search that the file asks for; else None.

    One of other ranges, objectives, validation rows, another budget or another beginning is left over from an earlier
    version of the file; one whose trials shared other settings, from an earlier version of the method or of the card.
    """
    study, space = studies.get(tuning.study(row, dataset)), shown_space(to_json(_ranges(row.over, row.method)))
    if study is None:
        return None
    try:
        points = tuning.found_elsewhere(row, dataset, studies)
    except UserError:
        return None
    if not all(any(point.items() <= trial.params.items() for trial in study.trials) for point in points):
        return None
    shared = study.base or {}
    counts = decisive({"method": row.method, **shared})  # a study may hold settings that change no result
    base = {key: value for key, value in shared.items() if key in counts or key in marked(NAME)}
    older = flat(before({"method": row.method, "encoder": study.settings.get("encoder")}))
    older = {key: value for key, value in older.items() if key in counts and key not in shared}
    if changes(older | base, default_settings(row.method, dataset, row.settings) or {}):
        return None
    asked = (row.method, dataset, tuning.objectives, space, tuning.validation, tuning.budget(dataset))
    validation = study.settings.get("validation")
    there = (study.method, study.dataset, study.objectives, study.space, validation, len(study.trials))
    return study if asked == there else None


@cache
def _ranges(over: str, method: str) -> Space:
    return parse_over(over, method, load_method(method).params)


def _rounded(point: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return a point with floats rounded; choices and steps are kept, and values stay inside their range."""
    found = {name: value for name, value in point.items() if name in space}
    for name, value in found.items():
        if isinstance(value, float) and space[name].choices is None and space[name].step is None:
            low, high = ends_of(space[name])
            found[name] = min(max(float(f"{value:.{_DIGITS}g}"), low), high)
    return found
