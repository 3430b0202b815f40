"""Published tables as declarations: which records are which row, and that nothing is mixed."""

from typing import Any

import pytest

from harness.published import PublishedTable
from harness.record import RunRecord
from harness.report.evidence import Evidence
from harness.report.grids import Change, Grid, grids
from harness.report.grids.defaults import default_settings
from harness.report.grids.drawn import grid_table
from tests.setting_runs import nested

DATASET = "lf-pydocstitles"


def row(stem: str, dataset: str = "lf-amazon-131k", **changes: Any) -> dict[str, Any]:
    return {
        "table": "demo",
        "row": f"{stem}/{dataset}",
        "label": stem.upper(),
        "dataset": dataset,
        "method": "unidec",
        "view": "concat",
        "settings": {"eta": 6, "batch_size": 575},
        "results": {"P@1": 40.0, "hours": 24},
        **changes,
    }


def table(*rows: dict[str, Any]) -> PublishedTable:
    facts = {"table": "demo", "source": "a paper", "caption": "things", "metrics": ["P@1", "hours"], "unsaid": []}
    return PublishedTable.model_validate({**facts, "rows": list(rows)})


ETA = table(
    row("full"),
    row("easy", settings={"eta": 0, "batch_size": 575}),
    row("full-de", view="de", settings={"eta": 6, "batch_size": 575, "scorer": "de"}),
    row("other", method=None, view=None, settings={}, absent="not here"),
)


def record(
    name: str, *, method: str = "unidec", dataset: str = DATASET, seed: int = 0, p1: float = 50.0, **changes: Any
) -> RunRecord:
    """A finished run at default settings but for `changes`: knobs by their bare names, `encoder`, or facts."""
    facts = {key: changes.pop(key) for key in ("status", "metric_version", "environment") if key in changes}
    data = {"name": dataset, "digest": changes.pop("digest", "abc"), "filter": True}
    data["propensity"] = changes.pop("propensity", None)
    config = nested(default_settings(method, dataset, changes) or {})
    config |= {"method": method, "dataset": dataset, "seed": seed, "evaluate": "test"}
    views = {view: {"P@1": p1 - place} for place, view in enumerate(("concat", "de", "clf"))}
    values = {
        "run_id": name,
        "status": "finished",
        "started": f"2026-01-01T00:00:{len(name):02}",
        "seconds": 2.0,
        "config": config,
        "dataset": data,
        "metrics": views["concat"],
        "views": views,
        "metric_version": 1,
        "environment": {"harness": "0.1.0"},
        "training": {"seconds": 7200.0},
    }
    return RunRecord.model_validate(values | facts)


def only(records: list[RunRecord], declared: PublishedTable = ETA, dataset: str = DATASET) -> Grid:
    (grid,) = grids(records, declared, [dataset])
    return grid


def found(grid: Grid) -> dict[str, list[str]]:
    return {line.label: [one.run_id for one in line.records] for line in grid.lines}


def test_a_row_takes_the_runs_that_agree_in_what_the_table_varies() -> None:
    runs = [record("a"), record("b", eta=0), record("c", seed=1), record("d", eta=3), record("e", method="dpr")]
    grid = only(runs)
    assert found(grid) == {"FULL": ["a", "c"], "EASY": ["b"], "FULL-DE": ["a", "c"], "OTHER": []}
    assert [line.wanted for line in grid.lines] == [2, 2, 2, 0]
    assert (grid.base, grid.left_out) == ((), 0)


def test_on_its_own_dataset_a_row_has_all_its_settings() -> None:
    printed = record("a", dataset="lf-amazon-131k", batch_size=575)
    own = record("b", dataset="lf-amazon-131k", batch_size=64)
    assert found(only([printed], dataset="lf-amazon-131k"))["FULL"] == ["a"]
    assert found(only([own], dataset="lf-amazon-131k"))["FULL"] == []


def test_the_newest_run_of_a_seed_counts() -> None:
    assert found(only([record("old"), record("newer", p1=60.0)]))["FULL"] == ["newer"]


def test_all_rows_share_what_is_not_varied() -> None:
    """The base with most rows wins, and is told; a lone run at the defaults is not mixed in."""
    runs = [record("a", encoder="minilm"), record("b", eta=0, encoder="minilm"), record("c")]
    grid = only(runs)
    assert found(grid) == {"FULL": ["a"], "EASY": ["b"], "FULL-DE": ["a"], "OTHER": []}
    assert grid.base == (Change("encoder", "minilm"),)
    assert found(only([*runs, record("d", eta=0)]))["EASY"] == ["d"]  # as many rows: the defaults win


def test_a_change_for_one_method_does_not_part_it_from_the_others() -> None:
    both = table(row("unidec", settings={}), row("dpr", method="dpr", view="de", settings={}))
    runs = [record("a", epochs=3), record("b", method="dpr")]
    grid = only(runs, both)
    assert found(grid) == {"UNIDEC": ["a"], "DPR": ["b"]}
    assert grid.base == (Change("epochs", 3, ("unidec",)),)
    told = "a difference may be one of settings, not of methods"
    assert told in grid_table(grid, Evidence(())).caption
    for runs in (
        [record("a", epochs=3), record("b", method="dpr", epochs=3)],
        [record("a", epochs=3), record("b", method="dpr", epochs=4)],
    ):
        assert told not in grid_table(only(runs, both), Evidence(())).caption
    assert only([record("a", epochs=3), record("b", method="dpr", epochs=3)], both).base == (Change("epochs", 3),)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "xyz"},
        {"propensity": {"a": 0.5, "b": 0.4}},
        {"metric_version": 2},
        {"environment": {"harness": "0.2.0"}},
        {"encoder": "minilm"},
    ],
)
def test_versions_are_never_mixed_in_one_table(change: dict[str, Any]) -> None:
    """fault 62"""
    runs = [record("a"), record("b", seed=1), record("c", eta=0), record("d", eta=0, seed=1, **change)]
    grid = only(runs)
    assert found(grid) == {"FULL": ["a", "b"], "EASY": ["c"], "FULL-DE": ["a", "b"], "OTHER": []}
    assert grid.left_out == (0 if "encoder" in change else 1)


def test_failed_runs_and_trials_fill_no_row() -> None:
    """fault 61"""
    trial = record("b")
    trial.config["evaluate"] = "validation"
    assert grids([record("a", status="failed"), trial], ETA, [DATASET]) == []


def test_a_paper_is_shown_without_runs_and_other_data_only_with_them() -> None:
    assert [grid.dataset for grid in grids([], ETA)] == ["lf-amazon-131k"]
    assert [grid.dataset for grid in grids([record("a")], ETA)] == ["lf-amazon-131k"]  # one row compares nothing
    assert [grid.dataset for grid in grids([record("a")], ETA, [DATASET])] == [DATASET]
    full = [record("a"), record("b", eta=0)]
    assert [grid.dataset for grid in grids(full, ETA)] == [DATASET, "lf-amazon-131k"]


def test_rows_that_are_one_run_are_one_line() -> None:
    twice = table(row("short", settings={"eta": 6}), row("long", settings={"eta": 6}))
    grid = only([record("a")], twice)
    assert found(grid) == {"SHORT / LONG": ["a"]}


def test_an_explicit_default_is_the_default() -> None:
    assert found(only([record("a", eta=6)]))["FULL"] == ["a"]


def test_an_old_record_without_a_new_setting_still_counts() -> None:
    old = record("a")
    del old.config["params"]["beta_classifier"]
    assert found(only([old]))["FULL"] == ["a"]
