"""Images of a study: drawn from any frame, the same bytes for the same frame, and the front checked by brute force."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.method import SearchRange
from harness.sweep.plots import draw_plots, importances
from harness.sweep.plots.drawing import draw_curves, draw_front, draw_history, draw_importance
from harness.sweep.plots.panels import limits_of
from harness.sweep.plots.slicing import draw_slices
from harness.sweep.results import pareto_front
from harness.sweep.space import to_json

SPACE = {
    "lambda": SearchRange(knobs=("lambda",), low=0.1, high=0.9),
    "beta": SearchRange(knobs=("beta",), low=1, high=6),
    "tau": SearchRange(knobs=("temperature",), low=0.02, high=0.1, log=True),
    "lr_encoder": SearchRange(knobs=("lr_encoder",), low=1e-5, high=2e-2, log=True),
    "schedule": SearchRange(knobs=("schedule",), choices=["cosine", "linear", "constant"]),
    "clip": SearchRange(knobs=("clip",), choices=[None, 1.0]),
    "fill": SearchRange(knobs=("fill",), choices=[True, False]),
    "eta": SearchRange(knobs=("eta",), low=0, high=10),
    "dropout": SearchRange(knobs=("dropout",), low=0.0, high=0.3),
}


@pytest.fixture(autouse=True)
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the dots takes a fraction of the time."""
    monkeypatch.setattr("harness.sweep.plots._DPI", 40)


def frame_of(count: int, ranges: list[str], objectives: tuple[str, ...] = ("P@1",), state: str = "") -> pd.DataFrame:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(count):
        kind = state or ("PRUNED" if number % 4 == 3 else "FAIL" if number == 5 else "COMPLETE")
        row: dict[str, Any] = {"number": number, "state": kind}
        for name in ranges:
            found = SPACE[name]
            picked = found.choices[number % len(found.choices)] if found.choices else found.low
            row[name] = picked if found.choices else found.low + (found.high - found.low) * generator.random()  # type: ignore[operator]
        reached = 50 + generator.normal()
        row |= {metric: reached if kind == "COMPLETE" else None for metric in objectives}
        row["intermediate"] = [(epoch, reached * (1 - 0.5**epoch)) for epoch in range(1, 6)] if kind != "FAIL" else []
        rows.append(row)
    return pd.DataFrame(rows)


def facts_of(ranges: list[str], objectives: tuple[str, ...] = ("P@1",), **others: Any) -> dict[str, Any]:
    space = {name: SPACE[name] for name in ranges}
    return {"objectives": list(objectives), "space": space, "method": "unidec", "dataset": "/data/my$et"} | others


def names(paths: list[Path]) -> list[str]:
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    return [path.name for path in paths]


def test_a_study_is_drawn_and_drawn_again_alike(tmp_path: Path) -> None:
    ranges = ["tau", "clip"]
    frame, facts = frame_of(8, ranges), facts_of(ranges, importance={"tau": 0.7, "lambda": 0.3})
    first = draw_plots(frame, facts, tmp_path / "a" / "plots")
    assert names(first) == ["history.png", "importance.png", "slice.png", "intermediate.png"]
    shuffled = frame.sample(frac=1, random_state=1)
    again = draw_plots(shuffled, {**facts, "space": to_json(facts["space"])}, tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == sorted(names(again))


def test_two_objectives_have_a_front(tmp_path: Path) -> None:
    objectives = ("P@1", "PSP@5")
    frame = frame_of(9, ["tau"], objectives).assign(intermediate=[[]] * 9)
    frame["PSP@5"] = 80 - frame["P@1"]
    paths = draw_plots(frame, facts_of(["tau"], objectives), tmp_path)
    assert names(paths) == ["history.png", "slice.png", "pareto.png"]
    figure = draw_front(frame, facts_of(["tau"], objectives))
    assert figure is not None
    (panel,) = figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("validation P@1, percent", "validation PSP@5, percent")
    complete = frame[frame["state"] == "COMPLETE"]["number"]
    assert {text.get_text() for text in panel.texts} == {str(number) for number in complete}


@pytest.mark.parametrize("state", ["PRUNED", "FAIL", "RUNNING", "COMPLETE"])
@pytest.mark.parametrize("count", [1, 3])
def test_odd_studies_are_drawn(count: int, state: str) -> None:
    frame, facts = frame_of(count, ["beta", "fill"], state=state), facts_of(["beta", "fill"])
    if state == "COMPLETE":
        frame["P@1"] = 50.0
    (panel,) = draw_history(frame, facts).axes
    assert any("no trial is complete" in text.get_text() for text in panel.texts) == (state != "COMPLETE")
    assert (draw_slices(frame, facts) is None) == (state != "COMPLETE")
    assert (draw_curves(frame, facts) is None) == (state == "FAIL")
    assert draw_importance(facts) is None
    assert draw_front(frame, facts) is None


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    frame, facts = frame_of(6, ["beta"]), facts_of(["beta", "tau"])
    frame.loc[0, "P@1"] = math.nan
    frame.loc[1, "P@1"] = math.inf
    frame.at[2, "intermediate"] = [(1, math.nan), (2, 40.0)]
    frame.at[3, "intermediate"] = [(1, math.nan)]
    frame.loc[4, "beta"] = None
    frame = pd.concat([frame, pd.DataFrame([{"number": None, "state": "RUNNING"}])], ignore_index=True)
    assert names(draw_plots(frame, facts, tmp_path)) == ["history.png", "slice.png", "intermediate.png"]
    assert draw_plots(frame.iloc[:0], facts, tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_nine_ranges_have_nine_panels_with_axes_of_their_kind() -> None:
    figure = draw_slices(frame_of(12, list(SPACE)), facts_of(list(SPACE)))
    assert figure is not None
    panels = {panel.get_xlabel(): panel for panel in figure.axes if panel.get_xlabel()}
    assert set(panels) == set(SPACE)
    scales = {name: panel.get_xscale() for name, panel in panels.items()}
    assert {name for name, scale in scales.items() if scale == "log"} == {"tau", "lr_encoder"}
    words = {
        name: [tick.get_text() for tick in panels[name].get_xticklabels()] for name in ("schedule", "clip", "fill")
    }
    assert words == {"schedule": ["cosine", "linear", "constant"], "clip": ["null", "1.0"], "fill": ["true", "false"]}
    points = sum(len(collection.get_offsets()) for collection in panels["clip"].collections)
    assert points == (frame_of(12, ["clip"])["state"] == "COMPLETE").sum() + 1  # and the star of the best


def test_the_best_so_far_never_falls_and_ends_at_the_best() -> None:
    frame = frame_of(12, ["beta"])
    (panel,) = draw_history(frame, facts_of(["beta"])).axes
    best = np.asarray(panel.lines[0].get_ydata(), dtype=float)
    assert (np.diff(best) >= 0).all()
    assert best[-1] == frame["P@1"].max()
    top = frame["P@1"].astype(float).idxmax()
    assert any(f"trial {top}: {frame['P@1'].max():.2f}" in text.get_text() for text in panel.texts)


def test_one_bad_trial_does_not_squeeze_the_others() -> None:
    values = np.array([50.0, 51.0, 52.0, 50.5, 51.5, 0.1])
    low, high = limits_of(values, np.full(6, np.nan))
    assert 49 < low < 50 < 52 < high < 53
    low, high = limits_of(np.array([50.0, 50.0]), np.full(2, np.nan))
    assert low < 50 < high


def test_importances_say_what_decides_and_survive_small_studies() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    assert importances(study) == {}
    study.optimize(lambda trial: 50.0 + 0 * trial.suggest_float("tau", 0, 1), n_trials=5)
    assert importances(study) == {}
    study = optuna.create_study(directions=["maximize"] * 2, sampler=optuna.samplers.RandomSampler(seed=0))

    def objective(trial: Any) -> tuple[float, float]:
        first, second = trial.suggest_float("tau", 0, 1), trial.suggest_float("beta", 0, 1)
        return 10 * first + 0.1 * second, 10 * second

    study.optimize(objective, n_trials=25)
    shares = importances(study), importances(study, 1)
    assert [max(each, key=lambda name: each[name]) for each in shares] == ["tau", "beta"]
    assert all(math.isclose(sum(each.values()), 1, abs_tol=1e-6) for each in shares)


POINTS = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan])] * 2), max_size=12)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    front = pareto_front(np.array(points, dtype=np.float64).reshape(-1, 2))
    finite = [point for point in points if not any(map(math.isnan, point))]
    for point, found in zip(points, front, strict=True):
        beaten = any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in finite)
        assert found == (point in finite and not beaten)
