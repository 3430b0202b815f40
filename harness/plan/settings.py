"""Settings of a run resolved without importing its method: a method's knobs are those that its YAML documents.

The layers are those of `harness.config`. An unknown key is refused with the nearest name; whether the value of a knob
is within its bounds is for the run to say.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from harness.config import Layer, RunConfig, card_layers, merge, own_encoder_options
from harness.data.card import DatasetCard, describe_faults, load_card
from harness.errors import UserError
from harness.plan.spec import method_cards

_COUNTED = ("epochs", "refresh_epochs", "micro_batch_tokens", "grad_cache_size", "label_block", "cluster_size")
_CHECKED_ELSEWHERE = ("augment",)
"""Settings whose check imports scipy; the run makes it."""


@dataclass(frozen=True)
class Resolved:
    """What a run would be given."""

    config: RunConfig
    """Without `augment` and `params`."""
    augment: str
    knobs: dict[str, Any]
    """Every knob of the method with its value."""


def dataset_card(name: str) -> DatasetCard:
    """The card of a dataset by name, `synthetic:option=value` included."""
    if name.startswith("synthetic:"):
        from harness.data.sources.synthetic import parse_name  # needs scipy, which no other name does

        return parse_name(name)
    if "/" in name:
        raise UserError(
            f"{name}: a plan is made from a card, which a folder has not; "
            f"`python -m harness data import {name} --name NAME` writes one"
        )
    return load_card(name)


def resolve(method: str, card: DatasetCard, layers: list[Layer]) -> Resolved:
    """Merges what the method, the card and the given layers say; one `UserError` lists every fault."""
    own = [
        Layer(f"methods/{path.name}", {**part.defaults, "params": part.params}) for path, part in method_cards(method)
    ]
    known = {knob for layer in own for knob in layer.values["params"]}
    stack = [*own, *card_layers(card, method), *layers]
    merged, origins = merge(_routed(layer, known) for layer in own_encoder_options(stack))
    knobs = merged.pop("params", {})
    if not isinstance(knobs, dict):
        raise UserError(f"{origins.get('params', 'params')}: params must be a group of knobs")
    faults = [
        f"{origins.get(f'params.{name}', 'default')}: {_unknown(name, known)}" for name in knobs if name not in known
    ]
    faults += [
        f"{origins.get(name, _setter(name, origins))}: {_unknown(name, [*RunConfig.model_fields, *known])}"
        for name in merged
        if name not in RunConfig.model_fields
    ]
    documented = {knob: value for layer in own for knob, value in layer.values["params"].items()}
    faults += [
        f"{origins.get(f'params.{name}', 'default')}: {name} is {value!r}, which cannot be; as it comes it is "
        f"{documented[name]!r}"
        for name, value in knobs.items()
        if name in documented and not _of_its_kind(value, documented[name], name)
    ]
    augment = str(merged.get("augment", "none"))
    checked = {
        name: value
        for name, value in merged.items()
        if name in RunConfig.model_fields and name not in _CHECKED_ELSEWHERE
    }
    try:
        config = RunConfig.model_validate({**checked, "method": method, "dataset": card.name})
    except ValidationError as error:
        faults += describe_faults(error, "settings", RunConfig)
    if faults:
        raise UserError("\n".join(faults))
    return Resolved(config, augment, knobs)


def _routed(layer: Layer, known: set[str]) -> Layer:
    """The layer with bare knobs moved under `params`, as `harness.config.route_knobs` does."""
    bare = (known - set(RunConfig.model_fields)) & set(layer.values)
    inside = layer.values.get("params", {})
    if not bare or not isinstance(inside, dict):
        return layer
    rest = {key: value for key, value in layer.values.items() if key not in bare}
    return Layer(layer.origin, {**rest, "params": {**inside, **{key: layer.values[key] for key in bare}}})


def _of_its_kind(value: Any, documented: Any, name: str) -> bool:
    """Whether a value can stand for a documented one: of its type, a number not below 0, a size or a period above 0.

    The method's own schema says more, but it needs torch; the run asks it.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number:
        least = 1 if name in _COUNTED or name.endswith("batch_size") else 0
        return value >= least and (documented is None or isinstance(documented, int | float))
    if documented is None or value is None:
        return isinstance(value, str | type(None)) and not (value is not None and documented is None)
    return type(value) is type(documented)


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return f"unknown key {name!r}; {hint}"


def _setter(name: str, origins: dict[str, str]) -> str:
    """Who set a group of settings."""
    found = [origin for key, origin in origins.items() if key.startswith(f"{name}.")]
    return found[-1] if found else "default"
