"""What the report page is told of the runs: rows, means over seeds, settings, and what never shares a table."""

import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.report.evidence import Evidence
from harness.report.grids.defaults import default_settings
from harness.report.page import page_data
from tests.setting_runs import nested
from tests.test_page import run


def rows_of(data: dict[str, Any], dataset: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["method"], row["scorer"]): row for row in data["datasets"][dataset]["rows"]}


def test_a_row_is_the_mean_over_seeds_with_its_spread_and_its_runs() -> None:
    values = [50.0, 53.0, 57.5]
    data = page_data(Evidence(tuple(run(seed=seed, p1=value) for seed, value in enumerate(values))))
    row = rows_of(data)["alpha", ""]
    assert row["figures"]["P@1"]["mean"] == pytest.approx(statistics.mean(values))
    assert row["figures"]["P@1"]["std"] == pytest.approx(statistics.stdev(values))
    assert row["runs"] == ["run-alpha-0", "run-alpha-1", "run-alpha-2"]
    assert row["seconds"] == pytest.approx(11.0)
    assert [data["runs"][name]["seed"] for name in row["runs"]] == [0, 1, 2]


def test_one_seed_has_no_spread_and_a_missing_metric_no_figure() -> None:
    """Fault 61."""
    data = page_data(Evidence((run(), run("beta", metrics={"P@1": 3.0}))))
    rows = rows_of(data)
    assert "std" not in rows["alpha", ""]["figures"]["P@1"]
    assert rows["beta", ""]["figures"]["PSP@5"] == {"mean": None}


def test_every_way_of_scoring_has_a_row_and_keeps_its_metrics() -> None:
    views = {"clf": {"P@1": 1.0, "P@5": 2.0}, "de": {"P@1": 3.0, "P@5": 4.0}}
    data = page_data(Evidence((run(views=views),)))
    assert set(rows_of(data)) == {("alpha", "clf"), ("alpha", "de")}
    kept = data["runs"]["run-alpha-0"]
    named = {
        view: dict(zip(data["metrics"][kept["metrics"]], scores, strict=True)) for view, scores in kept["views"].items()
    }
    assert named == views


def test_a_configuration_comes_back_whole_from_its_pool() -> None:
    data = page_data(Evidence((run(), run(seed=1), run("beta"))))
    told = {
        name: dict(data["settings"][one] for one in data["configs"][kept["config"]])
        for name, kept in data["runs"].items()
    }
    assert told["run-alpha-0"] == {"method": "alpha", "encoder": "static", "dataset": "made", "params.beta": "3"}
    assert told["run-alpha-1"] == told["run-alpha-0"]
    assert told["run-beta-0"]["method"] == "beta"
    assert len(data["configs"]) == 2


def test_trials_are_left_out_and_failures_are_told() -> None:
    """Fault 61."""
    trial = run("trial", config={**run("trial").config, "evaluate": "validation"})
    failed = run("broken", status="failed", error="out of memory", metrics={})
    data = page_data(Evidence((run(), trial, failed)))
    assert list(data["runs"]) == ["run-alpha-0"]
    assert data["trials"] == 1
    assert [(one["method"], one["error"]) for one in data["unfinished"]] == [("broken", "out of memory")]


def test_other_data_or_metrics_never_share_a_table() -> None:
    """Fault 62."""
    other = run(seed=1, dataset={**run().dataset, "digest": "e" * 64})
    newer = run(seed=2, metric_version=2)
    data = page_data(Evidence((run(), other, newer)))
    assert [len(one["rows"]) for one in data["datasets"]] == [1, 1, 1]
    assert len({one["key"] for one in data["datasets"]}) == 3
    assert len({one["note"] for one in data["datasets"]}) == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dataset": {**run().dataset, "propensity": {"a": 0.5, "b": 0.4}}}, "propensity A 0.5, B 0.4"),
        ({"environment": {"harness": "9.9"}}, "harness 9.9"),
        ({"metric_version": 2}, "metrics v2"),
        ({"dataset": {**run().dataset, "filter": False}}, "no filter"),
        ({"dataset": {**run().dataset, "digest": "e" * 64}}, "data eeeeeeeeeeee"),
    ],
)
def test_runs_measured_otherwise_are_another_dataset_with_a_name_of_its_own(changes: Any, told: str) -> None:
    """Fault 62: constants and versions are never averaged over."""
    about = {**run().dataset, "propensity": {"a": 0.55, "b": 1.5}}
    usual = [run(seed=seed, p1=50.0, dataset=about, environment={"harness": "0.1"}) for seed in (0, 1)]
    values = {"dataset": about, "environment": {"harness": "0.1"}, **changes}
    data = page_data(Evidence((*usual, run(seed=2, p1=80.0, run_id="other", **values))))
    first, second = sorted(data["datasets"], key=lambda one: len(one["rows"][0]["runs"]), reverse=True)
    assert first["rows"][0]["figures"]["P@1"] == {"mean": 50.0, "std": 0.0}
    assert second["rows"][0]["figures"]["P@1"] == {"mean": 80.0}
    assert told in second["label"]
    assert told in second["note"]
    assert told not in first["label"]
    assert first["key"] != second["key"]


def test_names_of_datasets_stay_apart_whatever_they_are() -> None:
    names = ["made", "made (2)", "made (3)", ""]
    records = [
        run(seed=seed, run_id=f"{name}{version}", metric_version=version, dataset={**run().dataset, "name": name})
        for seed, name in enumerate(names)
        for version in (1, 2)
    ]
    found = page_data(Evidence(tuple(records)))["datasets"]
    assert len({one["key"] for one in found}) == len({one["label"] for one in found}) == 2 * len(names)
    assert {one["key"] for one in found} >= set(names)


def test_a_run_that_does_not_say_whether_it_was_filtered_is_shown() -> None:
    about = {key: value for key, value in run().dataset.items() if key != "filter"}
    data = page_data(Evidence((run(), run("beta", dataset=about))))
    assert {"filter pairs masked" in one["note"]: one["rows"][0]["method"] for one in data["datasets"]} == {
        True: "alpha",
        False: "beta",
    }


def test_bins_without_numbers_are_gaps() -> None:
    bins: list[dict[str, Any]] = [
        {"bin": "head", "P@5": 1.5, "PSP@5": None},
        {"bin": "torso", "P@5": "many", "PSP@5": float("nan")},
        {"P@5": None},
        {"bin": "tail", "P@5": True},
    ]
    data = page_data(Evidence((run(contributions=bins), run("beta", contributions=[{"bin": "head", "P@5": None}]))))
    assert data["runs"]["run-alpha-0"]["bins"] == [
        {"bin": "head", "P@5": 1.5},
        {"bin": "torso", "P@5": None},
        {"bin": "", "P@5": None},
        {"bin": "tail", "P@5": None},
    ]
    assert "bins" not in data["runs"]["run-beta-0"]


@pytest.mark.parametrize("points", [3, 200])
def test_a_curve_that_is_shorter_or_longer_than_its_steps(points: int) -> None:
    """Short ones end in gaps; what has no step has no place; without steps there is nothing to draw."""
    steps: list[float | None] = [float(step) for step in range(points)]
    curves: dict[str, Any] = {"step": steps, "train/loss": [1.0], "lr": [], "train/pool": [2.0] * (points + 5)}
    data = page_data(Evidence((run(curves=curves), run("beta", curves={"train/loss": [1.0, 2.0]}))))
    kept = {name: data["series"][number] for name, number in data["runs"]["run-alpha-0"]["curves"].items()}
    length = len(kept["step"])
    assert (kept["step"][0], kept["step"][-1]) == (0, points - 1)
    assert kept["train/loss"] == [1.0] + [None] * (length - 1)
    assert kept["lr"] == [None] * length
    assert kept["train/pool"] == [2.0] * length
    assert "curves" not in data["runs"]["run-beta-0"]
    gap = page_data(Evidence((run(curves={"step": [0.0, None, 2.0], "train/loss": [5.0, 6.0, 7.0]}),)))
    kept = {name: gap["series"][number] for name, number in gap["runs"]["run-alpha-0"]["curves"].items()}
    assert kept == {"step": [0.0, 2.0], "train/loss": [5.0, 7.0]}


def test_settings_say_what_is_not_the_default() -> None:
    flat = default_settings("unidec", "lf-pydocstitles")
    assert flat is not None
    about = {**run().dataset, "name": "lf-pydocstitles"}
    names = {"method": "unidec", "dataset": "lf-pydocstitles", "encoder": "static"}
    plain = run(config={**nested(flat), **names, "seed": 0}, dataset=about, run_id="plain")
    changed = run(config={**nested({**flat, "params.beta": 99}), **names, "seed": 0}, dataset=about, run_id="changed")
    older_config = {**nested({key: value for key, value in flat.items() if key != "params.eta"}), **names, "seed": 1}
    older = run(config=older_config, dataset=about, run_id="older")
    told = {row["run"]: row for row in page_data(Evidence((plain, changed, older)))["datasets"][0]["rows"]}
    assert told["changed"]["settings"] == "beta=99"
    assert told["plain"]["settings"] == ""
    assert told["plain"]["runs"] == ["plain", "older"], "a key that a record does not have is no difference"


def test_methods_of_elsewhere_are_told_apart_by_what_varies() -> None:
    one = run(config={**run().config, "params": {"beta": 3, "eta": 1}}, run_id="one")
    two = run(config={**run().config, "params": {"beta": 4, "eta": 1}}, run_id="two")
    told = {row["run"]: row["settings"] for row in page_data(Evidence((one, two)))["datasets"][0]["rows"]}
    assert told == {"one": "beta=3", "two": "beta=4"}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.integers(1, 9))
def test_thinned_curves_keep_both_ends_and_every_validation(points: int, every: int) -> None:
    steps = [float(step) for step in range(points)]
    measured = [value if index % (every * 40) == 0 else None for index, value in enumerate(steps)]
    data = page_data(Evidence((run(curves={"step": steps, "train/loss": steps, "validation/P@1": measured}),)))
    kept = {name: data["series"][number] for name, number in data["runs"]["run-alpha-0"]["curves"].items()}
    assert (kept["step"][0], kept["step"][-1]) == (steps[0], steps[-1])
    assert kept["train/loss"] == kept["step"]
    assert len(kept["step"]) <= 61 + 10
    known = [value for value in measured if value is not None]
    if known:
        assert [value for value in kept["validation/P@1"] if value is not None] == known
