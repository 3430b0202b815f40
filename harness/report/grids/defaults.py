"""What a method's settings are when nobody changes them, without building the method: no torch is imported.

Every knob of a method stands in its YAML, so the defaults are those files and the dataset's card, stacked as
`harness.run.resolve_config` stacks them.
"""

from functools import cache
from typing import Any

from harness.config import Layer, RunConfig, card_layers, merge, own_encoder_options
from harness.data.card import card_paths, read_card
from harness.errors import UserError
from harness.method import method_layer
from harness.record import RunRecord

Settings = dict[str, Any]
"""Values by dotted key."""

NOT_COMPARED = {"method", "dataset", "seed", "device", "batch_tokens", "checkpoint", "tracking", "evaluate"}
"""Keys of a config that have a place of their own, or do not decide the outcome."""


def default_settings(method: str, dataset: str, over: dict[str, Any] | None = None) -> Settings | None:
    """The settings of a method on a dataset, with those of `over` on top; None if there is no such method here.

    Args:
        method: A method or preset.
        dataset: The name of a card; one without a card recommends nothing.
        over: As in a published row: settings of a run, and knobs of the method by their bare names.
    """
    try:
        own = method_layer(method)
    except UserError:
        return None
    row = {key: value for key, value in (over or {}).items() if key in RunConfig.model_fields}
    knobs = {key: value for key, value in (over or {}).items() if key not in RunConfig.model_fields}
    layers = [
        Layer("schema", RunConfig().model_dump(mode="json")),
        own,
        *(_routed(layer, own) for layer in _card_layers(dataset, method)),
        Layer("row", {**row, "params": knobs} if knobs else row),
    ]
    return settings(merge(own_encoder_options(layers))[0])


def changed_settings(record: RunRecord) -> Settings | None:
    """Where a run differs from what its method is by default on this dataset with this encoder; None if unknown."""
    config = record.config
    usual = _usual(config["method"], str(record.dataset.get("name")), config["encoder"])
    return None if usual is None else changes(settings(config), usual)


@cache
def _usual(method: str, dataset: str, encoder: str) -> Settings | None:
    return default_settings(method, dataset, {"encoder": encoder})


def settings(config: dict[str, Any]) -> Settings:
    """What decides the outcome of a run, by dotted key: a config without what has a place of its own."""
    left_out = NOT_COMPARED | ({"augment_options"} if config.get("augment", "none") == "none" else set())
    return dict(_leaves({key: value for key, value in config.items() if key not in left_out}))


def changes(found: Settings, expected: Settings) -> Settings:
    """Where settings differ from the expected ones; a key that an older record does not have is no difference."""
    return {key: value for key, value in found.items() if key not in expected or expected[key] != value}


def _leaves(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", list(value) if isinstance(value, tuple) else value))
    return found


@cache
def _card_layers(dataset: str, method: str) -> tuple[Layer, ...]:
    path = card_paths().get(dataset.partition(":")[0])
    return () if path is None else tuple(card_layers(read_card(path), method))


def _routed(layer: Layer, method: Layer) -> Layer:
    """A card's recommendation with the knobs of the method in their place."""
    knobs = {key: value for key, value in layer.values.items() if key in method.values.get("params", {})}
    rest = {key: value for key, value in layer.values.items() if key not in knobs}
    return Layer(layer.origin, {**rest, "params": {**rest.get("params", {}), **knobs}} if knobs else rest)
