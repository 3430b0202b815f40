"""When two runs are the same: what decides a result, what does not, and what an older record counts as."""

import math
from typing import Any

import pytest
from pydantic import BaseModel

from harness.run import resolve_config
from harness.settings.identity import decisive, differences, fixed, key, marked, upgrade, varying
from harness.settings.layers import Layer
from harness.settings.method import load_method, methods
from harness.settings.schema import NAME, RECORD, SPEED, RunConfig

DATA = {"name": "synthetic", "digest": "abc", "filter": True, "propensity": None}


def config(method: str = "unidec", **changes: Any) -> dict[str, Any]:
    return resolve_config(method, "synthetic", [Layer("test", changes)])[0].model_dump(mode="json")


def key_of(values: dict[str, Any], **data: Any) -> str:
    return key(values, {**DATA, **data}, 1, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"eta": 2},
        {"seed": 1},
        {"encoder": "tiny"},
        {"max_len": 16},
        {"search": {"backend": "faiss-ivf"}},
        {"validation": {"size": 0.1}},
        {"augment": "gandalf"},
        {"evaluate": "validation"},
        {"precision": "bfloat16"},
        {"micro_batch_tokens": 64},  # dropout is drawn piece by piece
    ],
)
def test_what_decides_the_result_is_part_of_the_key(changes: dict[str, Any]) -> None:
    assert key_of(config(**changes)) != key_of(config())


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("unidec", {"device": "cpu", "batch_tokens": 64}),
        ("unidec", {"checkpoint": {"keep": 5}, "tracking": {"model": "never"}}),
        ("unidec", {"augment_options": {"delta": 0.4}}),
        ("unidec", {"validation": {"metric": "P@5", "patience": 3}}),
        ("renee", {"label_block": 16, "loss_rows": None}),
        ("parabel", {"threads": 2}),
    ],
)
def test_what_changes_speed_or_has_no_effect_is_not(method: str, changes: dict[str, Any]) -> None:
    assert key_of(config(method, **changes)) == key_of(config(method))


def test_an_interrupted_run_goes_on_with_the_same_speed_but_may_be_recorded_otherwise() -> None:
    assert fixed(config(checkpoint={"keep": 5}, tracking={"model": "never"})) == fixed(config())
    before, after = fixed(config()), fixed(config(micro_batch_tokens=64, device="cpu"))
    assert {key for key in before if before[key] != after[key]} == {"params.micro_batch_tokens", "device"}


@pytest.mark.parametrize("changes", [{"digest": "other"}, {"filter": False}, {"propensity": {"a": 0.5, "b": 0.4}}])
def test_the_data_is_part_of_the_key(changes: dict[str, Any]) -> None:
    assert key_of(config(), **changes) != key_of(config())
    assert key(config(), DATA, 2, None) != key(config(), DATA, 1, None) != key(config(), DATA, 1, "weights")


def test_an_older_record_counts_as_what_it_was() -> None:
    """Settings are added over time; before that, a run was one with their default, but for how rows were held out."""
    old = config(seed=3)
    for name in ("evaluate", "augment", "augment_options", "tracking"):
        del old[name]
    del old["params"]["table_device"], old["params"]["double_at"], old["validation"]["draw"]
    assert key_of(old) == key_of(config(seed=3))
    validated = config(validation={"size": 0.1})
    del validated["validation"]["draw"]
    assert key_of(validated) == key_of(config(validation={"size": 0.1, "draw": "any"}))
    assert key_of(validated) != key_of(config(validation={"size": 0.1}))
    assert upgrade(old)["params.double_at"] == []


def test_a_method_that_is_unknown_here_is_compared_as_recorded() -> None:
    own = config() | {"method": "theirs", "params": {"flip": True}}
    assert decisive(own)["params.flip"] is True
    assert key_of(own) != key_of(own | {"params": {"flip": False}})


def test_keys_that_vary_between_runs() -> None:
    one, other = decisive(config()), decisive(config(eta=2, augment="one-hot"))
    assert varying([one, other, one]) == ["augment", "params.eta"]


def test_every_setting_is_documented_and_marked_at_most_once() -> None:
    groups = [marked(kind) for kind in (NAME, SPEED, RECORD)]
    assert sum(map(len, groups)) == len(frozenset().union(*groups))
    assert marked(RECORD) == {"checkpoint", "tracking"}
    models: list[type[BaseModel]] = [RunConfig, *(load_method(name).params for name in methods())]
    for model in models:
        for name, field in model.model_fields.items():
            group = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert field.description or group, f"{model.__module__}: {name}"


def test_differences_are_listed_field_by_field() -> None:
    """fault 7"""
    before = {"seed": 0, "params": {"lr_encoder": 1e-4, "beta": 3}, "dataset": {"digest": "abc"}, "gone": {"a": [1]}}
    after = {"seed": 0, "params": {"lr_encoder": 2e-4, "beta": "3"}, "dataset": {"digest": "abd"}, "new": None}
    assert differences(before, after) == [
        'dataset.digest: "abc" -> "abd"',
        "gone.a: [1] -> (absent)",
        "new: (absent) -> null",
        'params.beta: 3 -> "3"',
        "params.lr_encoder: 0.0001 -> 0.0002",
    ]
    assert differences({"a": {"b": 1}}, {"a": 5}) == ['a: {"b": 1} -> 5']
    assert differences({"ks": (1, 3), "options": {}, "x": math.nan}, {"ks": [1, 3], "x": math.nan}) == []


@pytest.mark.parametrize("method", ["unidec", "unidec-thesis", "unidec-v1", "ngame", "renee"])
def test_records_from_before_scorer_fused_are_the_same_runs(method: str) -> None:
    now = config(method)
    added = {"fused_weight", *(["scorer"] if method == "renee" else [])}
    old = {**now, "params": {name: value for name, value in now["params"].items() if name not in added}}
    assert key_of(old) == key_of(now)
    assert fixed(old) == fixed(now)


def test_how_validation_rows_are_drawn_and_judged_counts_where_they_choose_a_weight() -> None:
    for changes in ({"metric": "P@3"}, {"draw": "any"}, {"equal_texts": "any"}):
        assert key_of(config(scorer="fused", validation=changes)) != key_of(config(scorer="fused"))
        assert key_of(config(validation=changes)) == key_of(config())
        fixed_weight = config(scorer="fused", fused_weight=0.5)
        assert key_of(config(scorer="fused", fused_weight=0.5, validation=changes)) == key_of(fixed_weight)
    assert key_of(config(scorer="fused", validation={"every_epochs": 2})) == key_of(config(scorer="fused"))
    assert key_of(config(scorer="fused")) != key_of(config(scorer="fused", fused_weight=0.5)) != key_of(config())
