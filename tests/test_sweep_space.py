"""Search spaces: what `--over` accepts, what the methods declare, and every mistake before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import method as module
from harness.config import Layer, resolve_layers
from harness.errors import UserError
from harness.method import SearchRange, load_method, method_layer, methods
from harness.sweep.ranges import searchable
from harness.sweep.space import (
    PAPER_NAMES,
    check_declared,
    declared_ranges,
    default_names,
    describe,
    from_json,
    parse_over,
    settings_of,
    suggest,
    to_json,
)
from harness.validate import check_search

NAMES = sorted(path.stem for path in module.METHOD_FOLDER.glob("*.yaml"))


def over(text: str, method: str = "unidec", layers: tuple[Layer, ...] = ()) -> dict[str, SearchRange]:
    return parse_over(text, method, load_method(method).params, layers)


def refused(text: str, *expected: str, method: str = "unidec") -> list[str]:
    with pytest.raises(UserError) as caught:
        over(text, method)
    for words in expected:
        assert words in str(caught.value), (words, str(caught.value))
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_method_declares_it_takes(name: str) -> None:
    """Both ends and every choice resolve, knobs get the value, and the default of the method is inside."""
    params = load_method(name).params
    space = check_declared(name, params)
    assert bool(space) == (name != "zeroshot")
    defaults = resolve_layers([method_layer(name)], params)[0].params
    for range_name, found in space.items():
        for value in found.choices or [found.low, found.high]:
            layer = Layer("trial", settings_of({range_name: value}, space))
            config, _ = resolve_layers([method_layer(name), layer], params)
            assert [config.params[knob] for knob in found.knobs] == [value] * len(found.knobs)
        for knob in found.knobs:
            default = defaults[knob]
            if found.choices is not None:
                assert default in found.choices, range_name
            elif default is not None and found.low is not None and found.high is not None:
                assert found.low <= default <= found.high, range_name
    assert set(default_names(name)) <= set(space)


def test_the_papers_knobs_are_searched_by_default() -> None:
    for name in ("unidec", "unidec-thesis", "unidec-v1", "depsl", "depsl-v1"):
        assert default_names(name) == PAPER_NAMES
    assert default_names("ance") == ("eta", "tau", "refresh")
    assert default_names("renee") == tuple(declared_ranges("renee"))
    assert default_names("zeroshot") == ()


def test_a_preset_adds_to_the_ranges_of_its_method() -> None:
    assert set(declared_ranges("dexml-hnm")) == set(declared_ranges("dexml")) | {"eta", "refresh", "shortlist"}
    assert declared_ranges("dexml-hnm")["tau"] == declared_ranges("dexml")["tau"]


def test_a_preset_replaces_a_range(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = {"one": "summary: a\nsearch: {tau: {low: 1, high: 2}, eta: {low: 1, high: 3}}\n"}
    base["two"] = "summary: b\npreset_of: one\nsearch: {tau: {low: 5, high: 6}}\n"
    for name, text in base.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(module, "METHOD_FOLDER", tmp_path)
    assert {name: (found.low, found.high) for name, found in declared_ranges("two").items()} == {
        "tau": (5, 6),
        "eta": (1, 3),
    }


def test_every_form_of_a_range() -> None:
    space = over(
        "lambda, tau,lr_encoder=1e-5:1e-3:log,epochs=5:20,batch_size=64:512:step=64,schedule=[cosine, linear],"
        "augment_options.delta=0:0.3,clip=[null,1],gradient_cache=[true,false],encoder_options.dim=64:128:step=64"
    )
    assert list(space) == [
        "lambda", "tau", "lr_encoder", "epochs", "batch_size", "schedule", "augment_options.delta", "clip",
        "gradient_cache", "encoder_options.dim",
    ]  # fmt: skip
    assert space["tau"].knobs == ("temperature", "temperature_classifier")
    assert (space["lr_encoder"].low, space["lr_encoder"].high, space["lr_encoder"].log) == (1e-5, 1e-3, True)
    assert [type(end) for end in (space["epochs"].low, space["epochs"].high)] == [int, int]
    assert [type(end) for end in (space["augment_options.delta"].low, space["lambda"].low)] == [float, float]
    assert space["batch_size"].step == 64
    assert space["schedule"].choices == ["cosine", "linear"]
    assert space["clip"].choices == [None, 1.0]
    assert space["gradient_cache"].choices == [True, False]


def test_a_knob_stands_for_the_range_that_sets_it() -> None:
    assert over("temperature,refresh_epochs") == over("tau,refresh")
    assert over("temperature_classifier") == over("tau")
    assert over("params.beta") == over("beta")
    alone = over("temperature=0.01:0.5:log")
    assert alone["temperature"].knobs == ("temperature",)
    assert over("tau=0.01:0.5:log")["tau"].knobs == ("temperature", "temperature_classifier")
    assert over("lambda", "depsl")["lambda"].knobs == ("lambda_d",)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    lines = refused("lamda,refrsh=1:3,zzz", "did you mean 'lambda'?", "did you mean 'refresh'?", "--over zzz: unknown;")
    assert len(lines) == 3
    for known in ("lambda, beta, eta, tau, refresh", "lr_encoder", "augment_options.delta"):
        assert known in lines[0]
    refused("random_epochs", "no range is declared for it; write one: random_epochs=LOW:HIGH")
    assert "ks" not in searchable(load_method("unidec").params)


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_an_empty_search_space_is_refused(text: str) -> None:
    refused(text, "--over is empty; ranges of unidec: lambda, beta")
    refused(text, "ranges of zeroshot: none; or write one", method="zeroshot")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta=3", "one value is no range"),
        ("beta=[3]", "two or more different values"),
        ("beta=[3,3]", "two or more different values"),
        ("beta=[]", "choices are a list that is not empty"),
        ("beta=3:1", "low must be below high"),
        ("beta=1.5:3", "takes whole numbers"),
        ("lr_encoder=a:b", "'a' is not a number"),
        ("lr_encoder=1e-5:.inf", "'.inf' is not a number"),
        ("lr_encoder=true:false", "'true' is not a number"),
        ("lr_encoder=:1", "'' is not a number"),
        ("dropout=0:0.5:log", "begins above 0"),
        ("lr_encoder=1:2:lin", "unknown part 'lin'"),
        ("batch_size=64:500:step=64", "500 is not a whole number of steps of 64"),
        ("batch_size=64:128:step=0", "128 is not a whole number of steps of 0"),
        ("batch_size=64:128:step=-64", "not a whole number of steps"),
        ("schedule=1:2", "it takes choices: schedule=[A,B]"),
        ("schedule=[cosine,linear", "brackets do not match"),
        ("schedule=cosine]", "brackets do not match"),
        ("clip=[!!python/x 1,2]", "tags such as"),
        ("double_at=[1,2]", "neither a number nor a word"),
        ("encoder_options=1:2", "neither a number nor a word"),
        ("seed=1:4", "seed is the same for all trials"),
        ("validation.size=0.1:0.2", "the same for all trials"),
        ("evaluate=[test,validation]", "the same for all trials"),
        ("tau,tau=0.02:0.03", "tau: named twice"),
        ("tau,temperature=0.02:0.03", "temperature is already set by tau"),
        ("encoder=[stattic,tiny]", "did you mean 'static'?"),
        ("search.backend=[exact,fais]", "fais"),
    ],
)
def test_a_range_that_cannot_be_is_one_clear_line(text: str, message: str) -> None:
    lines = refused(text, message)
    assert len(lines) == 1
    assert lines[0].startswith("--over")


def test_values_out_of_bounds_are_found_together_before_anything_runs() -> None:
    lines = refused(
        "beta=0:3,eta=-1:2,lambda=0.5:1.5,tau=0:1,dim=128:512,loss=[supcon,supkon],max_len=2:64",
        "beta=0: params.beta: ",
        "eta=-1: params.eta: ",
        "lambda=1.5: params.lambda: ",
        "tau=0.0: params.temperature: ",
        "tau=0.0: params.temperature_classifier: ",
        "dim=129: settings: dim is 129",
        "loss=supkon: params.loss: no such loss",
        "max_len=2: max_len: ",
    )
    assert len(lines) == 8


def test_values_are_checked_together_with_the_settings_of_the_trials() -> None:
    refused("loss=[triplet,supcon]", "loss=triplet: settings: ", "set temperature=1")
    assert over("loss=[triplet,supcon]", layers=(Layer("--set", {"temperature": 1.0}),))


def test_optuna_draws_inside_the_space_and_the_trial_resolves() -> None:
    optuna = pytest.importorskip("optuna")
    space = over("lambda,beta,eta,tau,refresh,batch_size=64:256:step=64,clip=[null,1.5],augment_options.delta=0:0.3")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3), direction="maximize")
    seen = []
    for _ in range(30):
        trial = study.ask()
        values = suggest(trial, space)
        config, _ = resolve_layers(
            [method_layer("unidec"), Layer("trial", settings_of(values, space))], load_method("unidec").params
        )
        assert trial.params == values
        assert config.params["temperature"] == config.params["temperature_classifier"] == values["tau"]
        assert config.params["refresh_epochs"] == values["refresh"]
        assert config.augment_options.delta == values["augment_options.delta"]
        assert config.params["batch_size"] in (64, 128, 192, 256)
        assert 0.02 <= float(str(values["tau"])) <= 0.1
        seen.append(values)
    assert {values["clip"] for values in seen} == {None, 1.5}
    assert {type(values["beta"]) for values in seen} == {int}
    with pytest.raises(UserError, match="unknown range 'gamma'"):
        settings_of({"gamma": 1}, space)


def test_a_space_survives_json() -> None:
    space = over("lambda,eta,tau,batch_size=64:256:step=64,clip=[null,1.5],gradient_cache=[true,false],dropout=0:0.5")
    stored = json.loads(json.dumps(to_json(space)))
    assert from_json(stored) == space == from_json(space)
    assert (type(from_json(stored)["dropout"].low), type(from_json(stored)["eta"].low)) == (float, int)
    for broken in ({"tau": {"lo": 1}}, {"tau": 3}, ["tau"]):
        with pytest.raises(UserError, match="not a search space"):
            from_json(broken)  # type: ignore[arg-type]


def test_people_can_read_a_space() -> None:
    assert describe(over("tau,beta,batch_size=64:256:step=64,clip=[null,1.5]")) == [
        "tau (temperature, temperature_classifier): 0.02 to 0.1, logarithmic",
        "beta: 1 to 6, whole numbers",
        "batch_size: 64 to 256 in steps of 64",
        "clip: one of null, 1.5",
    ]


@given(st.text(alphabet="abtu=[]:,.-1e5 log\n", max_size=30))
def test_no_text_brings_it_down(text: str) -> None:
    fault, space = "--over", {}
    try:
        space = over(text)
    except UserError as error:
        fault = str(error)
    assert fault.startswith("--over")
    assert all(found.knobs for found in space.values())


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"tau": {"knobs": ["temprature"], "low": 0.1, "high": 1.0}}, "temprature: unknown; did you mean"),
        ({"beta": {"low": 0, "high": 3}}, "beta=0: params.beta"),
        ({"loss": {"choices": ["supcon", "x"]}}, "loss=x: params.loss"),
    ],
)
def test_validate_refuses_a_wrong_section(
    search: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in methods():
        check_search(name)
    ranges = {name: SearchRange.model_validate(values) for name, values in search.items()}
    monkeypatch.setattr("harness.sweep.space.declared_ranges", lambda method: ranges)
    with pytest.raises(UserError, match=r"unidec\.yaml: search: ") as caught:
        check_search("unidec")
    assert message in str(caught.value)
