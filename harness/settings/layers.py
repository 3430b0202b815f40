"""Layers of settings, and the one config that they resolve to, with the origin of each value.

Later layers win: schema defaults < methods/<preset>.yaml < the card's `defaults` and `recommended[method]` < a row of a
published table < a config file < the command line. Every layer is checked against the same schema; an unknown key is an
error that names the nearest one, and all faults of all layers are reported together, each with its origin.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.data.card import DatasetCard
from harness.errors import UserError
from harness.io.yaml import parse_yaml, read_yaml
from harness.settings.schema import RunConfig

Flat = dict[str, Any]
"""Settings by dotted key, for example `search.k`."""


@dataclass(frozen=True)
class Layer:
    """Settings from one origin (a file, the command line ...), nested as in `RunConfig`."""

    origin: str
    values: dict[str, Any]


def comma_list(text: str) -> list[str]:
    """Split a list at commas; empty words are left out."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_override(text: str) -> dict[str, Any]:
    """Turn a `--set key=value` into nested values; dots reach nested keys.

    The value is read as YAML, so 1e-5 is a number and [1, 3] a list.
    """
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator or not key:
        raise UserError(f"--set takes key=value, for example --set search.k=50 (got {text!r})")
    parsed: Any = parse_yaml(value, f"--set {key}") if value.strip() else ""
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    nested: dict[str, Any] = parsed
    return nested


def read_config_file(path: Path) -> Layer:
    """Read a run config: a YAML file, or the config.json of a run folder."""
    values = read_yaml(path)
    if set(values) == {"config", "origins"} and isinstance(values["config"], dict):
        values = values["config"]
    return Layer(path.name, values)


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Deep-merge layers in order; return the values and, per dotted leaf, the origin that set it last."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for path, value in _leaves(layer.values):
            target = merged
            for part in path[:-1]:
                inner = target.get(part)
                target[part] = target = inner if isinstance(inner, dict) else {}
            target[path[-1]] = value
            origins.pop(".".join(path), None)  # inserted again at the end: the last entry is the origin that won
            origins[".".join(path)] = layer.origin
    return merged, origins


def _leaves(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def route_parameters(layer: Layer, params: type[BaseModel]) -> Layer:
    """Move the method's parameters that are named without `params.` under `params`, so that `--set beta=3` works."""
    bare = (set(parameter_names(params)) - set(RunConfig.model_fields)) & set(layer.values)
    if not bare:
        return layer
    values = {key: value for key, value in layer.values.items() if key not in bare}
    if not isinstance(values.get("params", {}), dict):
        return Layer(layer.origin, values)
    named = {key: layer.values[key] for key in bare}
    return Layer(layer.origin, {**values, "params": {**values.get("params", {}), **named}})


def own_encoder_options(layers: list[Layer]) -> list[Layer]:
    """Return the layers without the encoder options of a layer whose encoder a later layer replaces."""
    chosen = [layer.values["encoder"] for layer in layers if "encoder" in layer.values][-1:]

    def kept(layer: Layer) -> Layer:
        if "encoder" not in layer.values or [layer.values["encoder"]] == chosen:
            return layer
        return Layer(layer.origin, {key: value for key, value in layer.values.items() if key != "encoder_options"})

    return [kept(layer) for layer in layers]


def flat(values: Mapping[str, Any]) -> Flat:
    """Return nested values by dotted key; tuples become lists, an empty group has no key."""
    leaves = {".".join(path): value for path, value in _leaves(values) if not isinstance(value, Mapping)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in leaves.items()}


def flatten(values: Mapping[str, Any]) -> dict[str, str]:
    """Return nested values by dotted key, each as a string (JSON unless it is one)."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in flat(values).items()}


def resolve_layers(layers: list[Layer], params: type[BaseModel]) -> tuple[RunConfig, dict[str, str]]:
    """Merge and validate layers; raise one `UserError` that lists every fault with its origin.

    Return the config, whose `params` has the final value of every parameter, and the origin of each dotted key.
    """
    merged, origins = merge(route_parameters(layer, params) for layer in own_encoder_options(layers))
    faults: list[str] = []
    own = merged.get("params", {})
    resolved: dict[str, Any] = {}
    if isinstance(own, dict):
        try:
            resolved = params.model_validate(own).model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            faults += _describe(error, origins, "params.", parameter_names(params))
    try:
        config = RunConfig.model_validate({**merged, "params": resolved if isinstance(own, dict) else own})
    except ValidationError as error:
        faults += _describe(error, origins, "", [*RunConfig.model_fields, *parameter_names(params)])
    if faults:
        raise UserError("\n".join(faults))
    leaves = (".".join(path) for path, _ in _leaves(config.model_dump(mode="json")))
    return config, {leaf: origins.get(leaf, "default") for leaf in leaves}


def parameter_names(params: type[BaseModel]) -> list[str]:
    """Return the names under which a method's parameters are set: the field's alias if it has one."""
    return [field.alias or name for name, field in params.model_fields.items()]


def card_layers(card: DatasetCard, method: str) -> list[Layer]:
    """Return two layers of settings that a card recommends: for every method, then for this one."""
    return [
        Layer(f"card {card.name}, defaults", card.defaults),
        Layer(f"card {card.name}, recommended for {method}", card.recommended.get(method, {})),
    ]


def _describe(error: ValidationError, origins: dict[str, str], prefix: str, known: Iterable[str]) -> list[str]:
    lines = []
    for fault in error.errors(include_url=False):
        key = prefix + ".".join(str(part) for part in fault["loc"])
        if not fault["loc"]:  # a rule between settings: its message names them
            lines.append(f"settings: {fault['msg'].removeprefix('Value error, ')}")
            continue
        setters = [
            origin
            for name, origin in origins.items()
            if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}.")
        ]
        origin = setters[-1] if setters else "default"
        if fault["type"] == "extra_forbidden":
            names = known if prefix else _names_beside(fault["loc"], known)
            near = difflib.get_close_matches(str(fault["loc"][-1]), list(names), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(names))}"
            lines.append(f"{origin}: unknown key {key!r}{hint}")
        else:
            lines.append(
                f"{origin}: {key}: {fault['msg'].removeprefix('Value error, ')} (got {str(fault['input'])[:60]!r})"
            )
    return lines


def _names_beside(place: tuple[int | str, ...], known: Iterable[str]) -> Iterable[str]:
    """Return the names allowed beside an unknown one: the settings of its group, or `known` at the top level."""
    field = RunConfig.model_fields.get(str(place[0])) if len(place) == 2 else None
    group = field.annotation if field else None
    return group.model_fields if isinstance(group, type) and issubclass(group, BaseModel) else known
