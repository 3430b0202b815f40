"""Layers, origins, and faults that are all reported at once."""

import math
import re
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from harness.errors import UserError
from harness.io.files import write_json
from harness.io.yaml import parse_yaml
from harness.run import resolve_config
from harness.settings.layers import Layer, merge, parse_override, read_config_file, resolve_layers
from harness.settings.method import load_method, methods
from harness.settings.resolve import usual_config
from harness.settings.schema import Settings
from tests.faults.accounts import Account


class Parameters(Settings):
    beta: int = 2
    weight: float = Field(default=0.5, alias="lambda", gt=0)


def test_later_layers_win_and_origins_are_kept() -> None:
    layers = [
        Layer("method", {"encoder": "tiny", "params": {"beta": 3, "lambda": 0.3}}),
        Layer("card", {"max_len": 64, "beta": 4}),
        Layer("command line", {"search": {"k": 7}}),
    ]
    config, origins = resolve_layers(layers, Parameters)
    assert (config.encoder, config.max_len, config.search.k, config.search.backend) == ("tiny", 64, 7, "exact")
    assert config.params == {"beta": 4, "lambda": 0.3}
    assert origins["params.beta"] == "card"
    assert origins["search.k"] == "command line"


def test_every_fault_is_reported_with_its_origin(account: Account) -> None:
    """fault 65"""
    layers = [
        Layer("a.yaml", {"enkoder": "x", "seed": -1, "ks": [3, 1]}),
        Layer("--set", {"params": {"bata": 1, "lambda": 0}, "max_len": float("nan")}),
    ]
    with pytest.raises(UserError) as caught:
        resolve_layers(layers, Parameters)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    for expected in (
        "a.yaml: unknown key 'enkoder'; did you mean 'encoder'?",
        "--set: unknown key 'params.bata'; did you mean 'beta'?",
        "a.yaml: seed: ",
        "a.yaml: ks: ",
        "--set: max_len: ",
        "--set: params.lambda: ",
    ):
        assert any(line.startswith(expected) for line in lines), (expected, lines)
    account.did("two misspelt keys, a negative seed, ks out of order, NaN and 0 where senseless, in two places")
    account.saw(f"{len(lines)} faults told together with where they are, e.g. {lines[0]}")


def test_every_parameter_of_every_method_refuses_what_has_no_sense(account: Account) -> None:
    """fault 65: NaN and infinity everywhere; nothing negative where it would be a size, a rate or a number of times"""
    tried, positive = 0, re.compile(r"(^|_)(lr|epochs|size|dim|temperature|threads|trees|beta|rows)($|_)")
    for name in methods():
        params = load_method(name).params
        for field, about in params.model_fields.items():
            kinds = str(about.annotation)
            if "float" not in kinds and "int" not in kinds:
                continue
            senseless = [math.nan, math.inf, -math.inf] + [-1] * bool(positive.search(field))
            for value in senseless:
                tried += 1
                with pytest.raises(ValidationError):
                    params.model_validate({about.alias or field: value})
    assert tried > 200
    config, _ = resolve_config("unidec", "synthetic", [Layer("a.yaml", parse_yaml("lr_encoder: 1e-5"))])
    assert (config.params["lr_encoder"], type(config.params["lr_encoder"])) == (1e-5, float)
    account.did(f"{tried} senseless values (NaN, infinite, negative) for parameters of {len(list(methods()))} methods")
    account.saw(f"all {tried} refused; lr_encoder: 1e-5 is the float {config.params['lr_encoder']}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-5", {"lr": 1e-5}),
        ("search.k=50", {"search": {"k": 50}}),
        ("ks=[1, 3]", {"ks": [1, 3]}),
        ("flag=no", {"flag": "no"}),
        ("flag=false", {"flag": False}),
        ("name=", {"name": ""}),
        ("a=b=c", {"a": "b=c"}),
    ],
)
def test_overrides_are_yaml(text: str, expected: dict[str, object]) -> None:
    """fault 65: `1e-5` is a number, `no` is a word"""
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("search.k", "key=value"),
        ("=3", "key=value"),
        ("", "key=value"),
        ("x=!!python/object/apply:os.system [ls]", "tags"),
        ("x=&a [1]", "anchors"),
        ("x={a: 1, a: 2}", "duplicate"),
        ("x=[1", "not valid YAML"),
    ],
)
def test_an_override_without_key_and_smuggled_yaml_are_refused(text: str, error: str) -> None:
    """fault 66"""
    with pytest.raises(UserError, match=error):
        parse_override(text)


def test_merge_replaces_a_value_by_a_mapping() -> None:
    merged, _ = merge([Layer("a", {"x": 1}), Layer("b", {"x": {"y": 2}}), Layer("c", {"x": {"z": 3}})])
    assert merged == {"x": {"y": 2, "z": 3}}


def test_a_written_config_and_that_of_an_earlier_run_read_back(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("encoder: tiny\nmax_len: 16\nks: [1, 2]\nparams:\n  similarity: dot\n")
    config, origins = resolve_config("zeroshot", "synthetic", [read_config_file(file)])
    assert (config.encoder, config.max_len, config.ks, config.params) == ("tiny", 16, (1, 2), {"similarity": "dot"})
    assert (origins["max_len"], origins["seed"]) == ("mine.yaml", "default")
    write_json(tmp_path / "config.json", {"config": config.model_dump(mode="json"), "origins": {}})
    again, origins = resolve_config("zeroshot", "synthetic", [read_config_file(tmp_path / "config.json")])
    assert (again, origins["seed"]) == (config, "config.json")


@pytest.mark.parametrize(
    "values",
    [{"seed": "5"}, {"seed": True}, {"filter": "no"}, {"ks": ["1"]}, {"max_len": 32.0}, {"params": 3, "beta": 1}],
)
def test_nothing_is_converted_silently(values: dict[str, object]) -> None:
    """fault 65"""
    with pytest.raises(UserError):
        resolve_layers([Layer("x", values)], Parameters)


def test_options_of_an_encoder_go_with_it() -> None:
    """A row or a card may choose an encoder with options; another one from the command line does not take them."""
    chosen = Layer("row", {"encoder": "distilbert", "encoder_options": {"pooling": "cls"}})
    other = Layer("--encoder", {"encoder": "static"})
    same = Layer("--encoder", {"encoder": "distilbert"})
    late = Layer("--set", {"encoder_options": {"dim": 64}})
    for layers, options in (
        ([Layer("method", {"encoder": "static"}), chosen], {"pooling": "cls"}),
        ([chosen, other], {}),
        ([chosen, same], {"pooling": "cls"}),
        ([chosen, other, late], {"dim": 64}),
    ):
        assert resolve_layers(layers, Settings)[0].encoder_options == options


def test_a_record_of_elsewhere_resolves_as_far_as_it_is_known() -> None:
    row = Layer("row", {"eta": 3, "encoder": "tiny"})
    config = usual_config("unidec", "no-such-card", [row])
    assert config is not None
    assert (config.params["eta"], config.encoder, config.max_len) == (3, "tiny", None)
    assert usual_config("nobody", "lf-pydocstitles", []) is None
    known = usual_config("unidec", "lf-pydocstitles", [row])
    assert known == resolve_config("unidec", "lf-pydocstitles", [row])[0]
