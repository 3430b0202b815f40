"""Search spaces: what `--over` accepts, what the methods declare, and every mistake before anything runs."""

from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.checks import check_search
from harness.errors import UserError
from harness.experiments.sweep.space import (
    check_declared,
    default_names,
    parse_over,
    settings_of,
    starts,
    suggest,
)
from harness.run import resolve_config
from harness.settings import method as module
from harness.settings.layers import Layer, resolve_layers
from harness.settings.method import SearchRange, load_method, method_layer, search_ranges

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
    """Both ends and every choice resolve, parameters get the value, and the default of the method is inside."""
    params = load_method(name).params
    space = check_declared(name, params)
    assert bool(space) == (name != "zeroshot")
    defaults = resolve_layers([method_layer(name)], params)[0].params
    for range_name, found in space.items():
        for value in found.choices or [found.low, found.high]:
            layer = Layer("trial", settings_of({range_name: value}, space))
            config, _ = resolve_layers([method_layer(name), layer], params)
            assert [config.params[key] for key in found.parameters] == [value] * len(found.parameters)
        for key in found.parameters:
            default = defaults[key]
            if found.choices is not None:
                assert default in found.choices, range_name
            elif default is not None and found.low is not None and found.high is not None:
                assert found.low <= default <= found.high, range_name
    assert set(default_names(name)) <= set(space)


def test_a_preset_adds_to_the_ranges_of_its_method() -> None:
    assert set(search_ranges("dexml-hnm")) == set(search_ranges("dexml")) | {"eta", "refresh", "shortlist"}
    assert search_ranges("dexml-hnm")["tau"] == search_ranges("dexml")["tau"]


def test_every_form_of_a_range() -> None:
    space = over(
        "lambda, tau,lr_encoder=1e-5:1e-3:log,epochs=5:20,batch_size=64:512:step=64,schedule=[cosine, linear],"
        "augment_options.delta=0:0.3,clip=[null,1],gradient_cache=[true,false],encoder_options.dim=64:128:step=64"
    )
    assert list(space) == [
        "lambda", "tau", "lr_encoder", "epochs", "batch_size", "schedule", "augment_options.delta", "clip",
        "gradient_cache", "encoder_options.dim",
    ]  # fmt: skip
    assert space["tau"].parameters == ("temperature", "temperature_classifier")
    assert (space["lr_encoder"].low, space["lr_encoder"].high, space["lr_encoder"].log) == (1e-5, 1e-3, True)
    assert [type(end) for end in (space["epochs"].low, space["epochs"].high)] == [int, int]
    assert [type(end) for end in (space["augment_options.delta"].low, space["lambda"].low)] == [float, float]
    assert space["batch_size"].step == 64
    assert space["schedule"].choices == ["cosine", "linear"]
    assert space["clip"].choices == [None, 1.0]
    assert space["gradient_cache"].choices == [True, False]


def test_a_parameter_stands_for_the_range_that_sets_it() -> None:
    assert over("temperature,refresh_epochs") == over("tau,refresh")
    assert over("temperature_classifier") == over("tau")
    assert over("params.beta") == over("beta")
    alone = over("temperature=0.01:0.5:log")
    assert alone["temperature"].parameters == ("temperature",)
    assert over("tau=0.01:0.5:log")["tau"].parameters == ("temperature", "temperature_classifier")
    assert over("lambda", "depsl")["lambda"].parameters == ("lambda_d",)


@pytest.mark.parametrize("text", ["", " , ,"])
def test_an_empty_search_space_is_refused(text: str) -> None:
    refused(text, "--over is empty; ranges of unidec: lambda, beta")
    refused(text, "ranges of zeroshot: none; or write one", method="zeroshot")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lamda", "did you mean 'lambda'?"),
        ("refresh_epoch=1:3", "did you mean 'refresh_epochs'?"),
        ("random_epochs", "or write one: random_epochs=LOW:HIGH"),
        ("beta=3", "one value is no range"),
        ("beta=[3]", "two or more different values"),
        ("beta=[3,3]", "two or more different values"),
        ("beta=[]", "choices are a list that is not empty"),
        ("beta=3:1", "low must be below high"),
        ("beta=1.5:3", "valid integer"),
        ("lr_encoder=a:b", "'a' is not a number"),
        ("lr_encoder=1e-5:.inf", "'.inf' is not a number"),
        ("lr_encoder=true:false", "'true' is not a number"),
        ("lr_encoder=:1", "'' is not a number"),
        ("dropout=0:0.5:log", "begins above 0"),
        ("lr_encoder=1:2:lin", "unknown part 'lin'"),
        ("batch_size=64:500:step=64", "500 is not a whole number of steps of 64"),
        ("batch_size=64:128:step=0", "128 is not a whole number of steps of 0"),
        ("schedule=1:2", "'cosine', 'linear'"),
        ("schedule=[cosine,linear", "brackets do not match"),
        ("schedule=cosine]", "brackets do not match"),
        ("clip=[!!python/x 1,2]", "tags such as"),
        ("double_at=[1,2]", "params.double_at"),
        ("encoder_options=1:2", "encoder_options"),
        ("seed=1:4", "seed is the same for all trials"),
        ("validation.size=0.1:0.2", "the same for all trials"),
        ("tau,tau=0.02:0.03", "tau: named twice"),
        ("tau,temperature=0.02:0.03", "temperature is already set by tau"),
        ("encoder=[stattic,tiny]", "did you mean 'static'?"),
        ("search.backend=[exact,fais]", "fais"),
    ],
)
def test_a_range_that_cannot_be_is_one_clear_line(text: str, message: str) -> None:
    (line,) = refused(text, message)
    assert line.startswith("--over")


def test_values_out_of_bounds_are_found_together_before_anything_runs() -> None:
    lines = refused(
        "beta=0:3,eta=-1:2,lambda=0.5:1.5,tau=0:1,dim=128:512,loss=[supcon,supkon],max_len=2:64",
        "beta=0: params.beta: ",
        "eta=-1: params.eta: ",
        "lambda=1.5: params.lambda: ",
        "tau=0: params.temperature: ",
        "tau=0: params.temperature_classifier: ",
        "dim=129: settings: dim is 129",
        "loss=supkon: params.loss: no such loss",
        "max_len=2: max_len: ",
    )
    assert len(lines) == 8


def test_values_are_checked_together_with_the_settings_of_the_trials() -> None:
    refused("loss=[triplet,supcon]", "loss=triplet: settings: ", "set temperature=1")
    assert over("loss=[triplet,supcon]", layers=(Layer("--set", {"temperature": 1.0}),))


def test_optuna_draws_inside_the_space_and_the_trial_resolves() -> None:
    space = over("beta,tau,refresh,batch_size=64:256:step=64,clip=[null,1.5],augment_options.delta=0:0.3")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3), direction="maximize")
    seen = []
    for _ in range(20):
        trial = study.ask()
        values = suggest(trial, space)
        layer = Layer("trial", settings_of(values, space))
        config, _ = resolve_layers([method_layer("unidec"), layer], load_method("unidec").params)
        assert trial.params == values
        assert config.params["temperature"] == config.params["temperature_classifier"] == values["tau"]
        assert config.params["refresh_epochs"] == values["refresh"]
        assert config.augment_options.delta == values["augment_options.delta"]
        assert config.params["batch_size"] in (64, 128, 192, 256)
        assert 0.02 <= float(str(values["tau"])) <= 0.1
        seen.append(values)
    assert {values["clip"] for values in seen} == {None, 1.5}
    assert {type(values["beta"]) for values in seen} == {int}


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("beta,lambda", {}, {"beta": 3, "lambda": 0.5}),
        ("beta=4:9", {}, {}),  # 3 is out of range
        ("beta=1:9:step=2", {}, {"beta": 3}),
        ("beta=2:8:step=2", {}, {}),
        ("batch_size", {"batch_size": 128}, {"batch_size": 128}),
        ("batch_size", {"batch_size": 100}, {}),
        ("tau", {"temperature": 0.05}, {}),  # its two parameters differ
        ("lr_classifier", {"encoder": "static"}, {"lr_classifier": 1.5e-3}),
        ("lr_classifier", {"encoder": "static", "lr_classifier": 2e-3}, {"lr_classifier": 2e-3}),
        ("max_len=16:64", {"max_len": 32}, {"max_len": 32}),
    ],
)
def test_the_first_trial_has_the_settings_as_they_stand(
    text: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    config, _ = resolve_config("unidec", "synthetic", [Layer("test", settings)])
    assert starts(over(text), config) == (expected,)


@given(st.text(alphabet="abtu=[]:,.-1e5 log\n", max_size=30))
def test_no_text_brings_it_down(text: str) -> None:
    fault, space = "--over", {}
    try:
        space = over(text)
    except UserError as error:
        fault = str(error)
    assert fault.startswith("--over")
    assert all(found.parameters for found in space.values())


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"tau": {"parameters": ["temprature"], "low": 0.1, "high": 1.0}}, "'temprature'; did you mean"),
        ({"beta": {"low": 0, "high": 3}}, "beta=0: params.beta"),
        ({"loss": {"choices": ["supcon", "x"]}}, "loss=x: params.loss"),
    ],
)
def test_validate_refuses_a_wrong_section(
    search: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {name: SearchRange.model_validate(values) for name, values in search.items()}
    monkeypatch.setattr("harness.experiments.sweep.space.search_ranges", lambda method: ranges)
    with pytest.raises(UserError, match=r"unidec\.yaml: search: ") as caught:
        check_search("unidec")
    assert message in str(caught.value)
