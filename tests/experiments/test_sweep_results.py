"""What a sweep leaves in its folder: the best settings as a config that `run` takes, its YAML, and the plots."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.experiments.sweep import Plan
from harness.experiments.sweep.results import Results, best_settings, write_best
from harness.experiments.sweep.trials import best_slots, slots
from harness.io.yaml import format_yaml, parse_yaml
from harness.report.figures.sweep import importances
from harness.run import resolve_config
from harness.settings.layers import Layer, parse_override, read_config_file
from tests.support.sweeps import begun, drawn, planned

DRAWN = {"lambda": 0.1 + 0.2, "beta": 4, "tau": 1 / 27, "clip": None, "lr_encoder": 1e-5, "augment_options.delta": 0.25}
OVER = "lambda,beta,tau,clip=[null,1],lr_encoder=1e-6:1e-3:log,augment_options.delta=0:0.3"


def of(folder: Path, over: str = "beta", typed: tuple[str, ...] = (), **changes: Any) -> Plan:
    """A plan; what was typed is not checked again."""
    layers = (Layer("sweep", {}), *(Layer(text, parse_override(text)) for text in ("encoder=tiny", *typed)))
    return dataclasses.replace(planned(over=over, settings=()), **{"folder": folder, "layers": layers} | changes)


def written(plan: Plan, *trials: tuple[int, dict[str, Any], list[float]]) -> list[Path]:
    """The files for trials, the best first: number, what was drawn, objectives."""
    rows = [
        {"slot": place, "trial": number, "state": "COMPLETE", "params": params, "values": values}
        for place, (number, params, values) in enumerate(trials)
    ]
    search = {"sampler": "tpe", "optuna": "5.0.0"}
    return list(write_best(plan, {"slots": rows, "best": list(range(len(rows))), "search": search}))


def test_the_file_is_a_config_that_gives_the_values_of_the_trial(tmp_path: Path) -> None:
    typed = ("validation.size=200", "evaluate=validation", "schedule=linear", "params.eta=2", "search.k=50")
    (path,) = written(of(tmp_path, OVER, typed), (17, DRAWN, [52.123456]))
    assert path == tmp_path / "best.yaml"
    layer = read_config_file(path)
    assert {"evaluate", "validation"}.isdisjoint(layer.values)
    config, origins = resolve_config(layer.values["method"], layer.values["dataset"], [layer])
    assert (config.method, config.encoder, config.search.k) == ("unidec", "tiny", 50)
    assert (config.evaluate, config.validation.size) == ("test", 0.0)
    found = config.params
    assert (found["lambda"], found["beta"], found["lr_encoder"], found["clip"]) == (0.1 + 0.2, 4, 1e-5, None)
    assert found["temperature"] == found["temperature_classifier"] == 1 / 27
    assert (found["schedule"], found["eta"], config.augment_options.delta) == ("linear", 2, 0.25)
    assert origins["params.beta"] == origins["params.eta"] == "best.yaml"
    assert origins["params.batch_size"] != "best.yaml"
    comments = "".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    for words in ("study small", "trial 17", "1 trials", "P@1 52.1235", "tpe, Optuna", "--config best.yaml"):
        assert words in comments, words


def test_what_was_drawn_wins_over_what_was_typed_in_another_form(tmp_path: Path) -> None:
    found = best_settings(of(tmp_path, "beta,tau", ("params={beta: 1, eta: 3}",)), {"beta": 5, "tau": 0.05})
    assert found["params"] == {"beta": 5, "eta": 3, "temperature": 0.05, "temperature_classifier": 0.05}
    assert "beta" not in found


def test_names_are_written_as_they_were_given_and_cannot_leave_a_comment(tmp_path: Path) -> None:
    odd = {"dataset": "../my data/set: 1", "study": "x\nmethod: zeroshot\u2028seed: 3"}
    (path,) = written(of(tmp_path, typed=("encoder=./1e5",), **odd), (0, {"beta": 2}, [1.0]))
    values = read_config_file(path).values
    assert (values["method"], values["dataset"], values["encoder"]) == ("unidec", "../my data/set: 1", "./1e5")
    assert set(values) == {"method", "dataset", "encoder", "params"}


def test_a_front_has_a_file_per_trial_and_forgets_beaten_ones(tmp_path: Path) -> None:
    plan = of(tmp_path, objectives=("P@1", "PSP@5"))
    written(plan, (2, {"beta": 2}, [41.0, 29.0]), (1, {"beta": 1}, [40.0, 30.0]))
    assert read_config_file(tmp_path / "best.yaml").values["params"] == {"beta": 2}
    files = written(plan, (7, {"beta": 3}, [50.0, 28.0]), (2, {"beta": 2}, [41.0, 29.0]))
    assert sorted(path.name for path in files) == ["best.yaml", "pareto-2.yaml", "pareto-7.yaml"]
    assert set(tmp_path.glob("*.yaml")) == set(files)
    assert read_config_file(tmp_path / "best.yaml").values["params"] == {"beta": 3}
    assert "PSP@5 28.0000" in (tmp_path / "best.yaml").read_text()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abz-1 ", min_size=1), inner, max_size=3),
)


ODD = ("1e5", "010", "null", "~", "true", "2024-01-01", "", " a", "a: b", "#x", "=", "<<", "[x]")


@given(st.dictionaries(st.text("abc_-1e5 ", min_size=1, max_size=8), VALUES, max_size=4))
@example({"a": 1e-5, "b": 1 / 27, "c": 5e-324, "d": 1e300, "e": 2.0, "f": 3, "g": -0.0, "h": True, "i": None})
@example({text or "empty": [text] for text in ODD})
@settings(max_examples=40)
def test_any_settings_are_read_back_as_they_were(values: dict[str, Any]) -> None:
    """Digits and types count: a string stays a string, a whole float a float."""
    assert repr(parse_yaml(format_yaml(values))) == repr(values)


def test_what_is_no_setting_is_not_written() -> None:
    with pytest.raises(TypeError, match="complex"):
        format_yaml({"a": 1j})


@pytest.mark.parametrize("objectives", [["P@1"], ["P@1", "PSP@5"]])
def test_a_study_is_drawn_into_its_folder(tmp_path: Path, objectives: list[str]) -> None:
    study = optuna.create_study(directions=["maximize"] * len(objectives))
    results = Results(of(tmp_path, objectives=tuple(objectives)), study, "group")
    assert results.draw() == []
    ranges = {
        "tau$": optuna.distributions.FloatDistribution(0.02, 0.1, log=True),
        "clip": optuna.distributions.CategoricalDistribution([None, 1.0]),
    }
    for number in range(6):
        params = {"tau$": 0.03 + 0.01 * number, "clip": (None, 1.0)[number % 2]}
        about = {"params": params, "distributions": ranges, "intermediate_values": {1: 40.0, 2: 50.0 + number}}
        done = number != 3
        state = optuna.trial.TrialState.COMPLETE if done else optuna.trial.TrialState.PRUNED
        values = [50.0 + number, 70.0 - number][: len(objectives)] if done else None
        study.add_trial(optuna.trial.create_trial(state=state, values=values, **about))
    names = {path.name for path in results.draw()}
    assert names >= {"history.png", "slice.png", "parallel.png", "importance.png"}
    assert (names >= {"intermediate.png"}) == (len(objectives) == 1) == (not names & {"pareto.png", "slice-2.png"})
    assert {path.name for path in (tmp_path / "plots").iterdir()} == names


def test_a_study_of_a_single_range_is_drawn(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    ranges = {"beta": optuna.distributions.IntDistribution(1, 6)}
    for number in range(3):
        trial = optuna.trial.create_trial(params={"beta": 1 + number}, distributions=ranges, value=50.0 + number)
        study.add_trial(trial)
    drawn_files = {path.name for path in Results(of(tmp_path), study, "group").draw()}
    assert drawn_files >= {"history.png", "slice.png", "parallel.png"}


def test_importances_say_what_decides_and_survive_small_studies() -> None:
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


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(3.0, 1.0), (2.0, 2.0), (1.0, 1.5), (2.0, 2.0), (1.0, 3.0)], [0, 1, 3, 4]),
        ([(1.0, 1.0), (1.0, 2.0), (0.0, 2.0)], [1]),
        ([(1.0, 2.0), (2.0, 1.0), (2.0, 0.0)], [1, 0]),
    ],
)
def test_a_front_holds_what_nothing_beats(points: list[tuple[float, float]], front: list[int]) -> None:
    plan, study, group = begun(trials=len(points), objective="P@1,R@5")
    for number, values in enumerate(points):
        drawn(study, plan, "w")
        study.tell(number, values)
    assert [slot.number for slot in best_slots(slots(study, plan))] == front
    assert sorted(trial.number for trial in study.best_trials) == sorted(front)  # as Optuna sees it
    Results(plan, study, group).write()
    assert {path.name for path in plan.folder.glob("*.yaml")} == {"best.yaml", *(f"pareto-{n}.yaml" for n in front)}
