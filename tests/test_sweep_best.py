"""The best settings of a sweep as a config file that `run` takes, and the YAML that carries them."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import parse_override, read_config_file
from harness.method import load_method
from harness.run import resolve_config
from harness.sweep.best import best_settings, write_best, write_front
from harness.sweep.space import parse_over, to_json
from harness.yaml import format_yaml, parse_yaml


def facts(over: str, **others: Any) -> dict[str, Any]:
    space = parse_over(over, "unidec", load_method("unidec").params)
    return {
        "study": "first",
        "method": "unidec",
        "dataset": "synthetic",
        "encoder": "tiny",
        "settings": [],
        "objectives": ["P@1"],
        "space": to_json(space),
        "sampler": "TPESampler(multivariate=True, seed=0), Optuna 5.0.0",
        "trials": 20,
        "trial": 17,
    } | others


DRAWN = {"lambda": 0.1 + 0.2, "beta": 4, "tau": 1 / 27, "clip": None, "lr_encoder": 1e-5, "augment_options.delta": 0.25}
OVER = "lambda,beta,tau,clip=[null,1],lr_encoder=1e-6:1e-3:log,augment_options.delta=0:0.3"


def test_the_file_is_a_config_that_gives_the_values_of_the_trial(tmp_path: Path) -> None:
    typed = [
        parse_override(text)
        for text in ("validation.size=200", "evaluate=validation", "schedule=linear", "params.eta=2", "search.k=50")
    ]
    path = write_best(tmp_path, facts(OVER, settings=typed), DRAWN, [52.123456])
    assert path == tmp_path / "best.yaml"
    layer = read_config_file(path)
    assert {"evaluate", "validation"}.isdisjoint(layer.values)
    config, origins = resolve_config(layer.values["method"], layer.values["dataset"], [layer])
    assert (config.method, config.dataset, config.encoder, config.search.k) == ("unidec", "synthetic", "tiny", 50)
    assert (config.evaluate, config.validation.size) == ("test", 0.0)
    knobs = config.params
    assert (knobs["lambda"], knobs["beta"], knobs["lr_encoder"], knobs["clip"]) == (0.1 + 0.2, 4, 1e-5, None)
    assert knobs["temperature"] == knobs["temperature_classifier"] == 1 / 27
    assert (knobs["schedule"], knobs["eta"], config.augment_options.delta) == ("linear", 2, 0.25)
    assert origins["params.beta"] == origins["params.eta"] == "best.yaml"
    assert origins["params.batch_size"] != "best.yaml"
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    for words in (
        "study first",
        "trial 17",
        "20 trials",
        "P@1 52.1235",
        "TPESampler",
        "held-out",
        "--config best.yaml",
    ):
        assert any(words in line for line in comments), words


def test_what_was_drawn_wins_over_what_was_typed_in_another_form() -> None:
    settings = best_settings(facts("beta,tau", settings={"params": {"beta": 1, "eta": 3}}), {"beta": 5, "tau": 0.05})
    assert settings["params"] == {"beta": 5, "eta": 3, "temperature": 0.05, "temperature_classifier": 0.05}
    assert "beta" not in settings


def test_folders_are_written_as_they_were_given(tmp_path: Path) -> None:
    given = facts("beta", dataset="../my data/set: 1", encoder="./1e5")
    values = read_config_file(write_best(tmp_path, given, {"beta": 2}, [1.0])).values
    assert (values["dataset"], values["encoder"]) == ("../my data/set: 1", "./1e5")
    without = read_config_file(write_best(tmp_path, facts("beta", encoder=None), {"beta": 2}, [1.0])).values
    assert "encoder" not in without


def test_a_name_cannot_leave_its_comment(tmp_path: Path) -> None:
    given = facts("beta", study="x\nmethod: zeroshot\u2028seed: 3", sampler="a\rb")
    values = read_config_file(write_best(tmp_path, given, {"beta": 2}, [1.0])).values
    assert (values["method"], set(values)) == ("unidec", {"method", "dataset", "encoder", "params"})


def test_a_front_has_a_file_per_trial_and_forgets_beaten_ones(tmp_path: Path) -> None:
    known = facts("beta", objectives=["P@1", "PSP@5"])
    write_front(tmp_path, known, [(1, {"beta": 1}, [40.0, 30.0]), (2, {"beta": 2}, [41.0, 29.0])])
    assert read_config_file(tmp_path / "best.yaml").values["params"] == {"beta": 2}
    written = write_front(tmp_path, known, [(2, {"beta": 2}, [41.0, 29.0]), (7, {"beta": 3}, [50.0, 28.0])])
    assert [path.name for path in written] == ["best.yaml", "pareto-2.yaml", "pareto-7.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)
    assert read_config_file(tmp_path / "best.yaml").values["params"] == {"beta": 3}
    assert "trial 7" in (tmp_path / "pareto-7.yaml").read_text()
    assert "PSP@5 28.0000" in (tmp_path / "best.yaml").read_text()


@pytest.mark.parametrize(
    "text", ["1e5", "010", "null", "~", "true", "2024-01-01", "", " a", "a: b", "#x", "=", "<<", "[x]"]
)
def test_a_string_stays_a_string(text: str) -> None:
    assert parse_yaml(format_yaml({"key": text, text or "empty": [text]})) == {"key": text, text or "empty": [text]}


def test_numbers_keep_digits_and_type() -> None:
    values = {"a": 1e-5, "b": 1 / 27, "c": 5e-324, "d": 1e300, "e": 2.0, "f": 3, "g": -0.0, "h": True, "i": None}
    read = parse_yaml(format_yaml(values))
    assert {key: (type(value), value) for key, value in read.items()} == {
        key: (type(value), value) for key, value in values.items()
    }
    assert math.copysign(1, read["g"]) == -1
    with pytest.raises(TypeError, match="complex is no setting"):
        format_yaml({"a": 1j})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abz-1 ", min_size=1), inner, max_size=3),
)


@settings(max_examples=40)
@given(st.dictionaries(st.text("abc_-1e5 ", min_size=1, max_size=8), VALUES, max_size=4))
def test_any_settings_are_read_back_as_they_were(values: dict[str, Any]) -> None:
    assert parse_yaml(format_yaml(values)) == values
