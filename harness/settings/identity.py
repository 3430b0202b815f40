"""Which settings decide the result of a run, and so when two runs are the same.

Each field of `RunConfig` and of a method's parameters is marked with what it decides (`harness.settings.schema`). A
record that is older than a setting counts as a run with the value that the harness had before there was a choice.
Configs are taken as recorded: nested values, folders by name.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from harness.errors import UserError
from harness.io.files import sha256_json
from harness.settings.layers import Flat
from harness.settings.layers import flat as flat
from harness.settings.method import load_method
from harness.settings.schema import NAME, RECORD, SPEED, Decides, RunConfig

_ABSENT = object()
BEFORE: dict[str, Any] = {"validation": {"draw": "any"}}
"""What an older record counts as where that is not the default of today."""


@cache
def marked(kind: Decides) -> frozenset[str]:
    """The settings of a run, groups included, that are marked so."""
    return frozenset(name for name, field in RunConfig.model_fields.items() if kind in field.metadata)


def upgrade(config: Mapping[str, Any]) -> Flat:
    """All settings of a recorded config, with those that it is too old to have."""
    return _defaults(str(config.get("method"))) | flat(config)


def fixed(config: Mapping[str, Any]) -> Flat:
    """What an interrupted run must go on with: all settings but those of its record and those without effect."""
    settings = upgrade(config)
    free = {key for key in settings if key.partition(".")[0] in marked(RECORD)} | _idle(settings)
    return {key: value for key, value in settings.items() if key not in free}


def decisive(config: Mapping[str, Any]) -> Flat:
    """What decides the result besides method, data, encoder and seed, by dotted key, without what has no effect."""
    speed, elsewhere = _speed(str(config.get("method"))), marked(NAME) | marked(SPEED)
    return {
        key: value
        for key, value in fixed(config).items()
        if key not in speed and key.partition(".")[0] not in elsewhere
    }


def key(
    config: Mapping[str, Any], dataset: Mapping[str, Any], metric_version: int, encoder_identity: str | None
) -> str:
    """A hash of what decides the numbers of a run; two runs with one key are the same run.

    Args:
        config: As recorded.
        dataset: As recorded: its digest, filter and propensity constants count.
        metric_version: Of `harness.metrics`.
        encoder_identity: Hash of the encoder's weights where its name does not tell them: a folder is recorded by its
            last name, and other weights may lie in another folder of that name.
    """
    names = [config[name] for name in sorted(marked(NAME))]
    data = [dataset.get(name) for name in ("digest", "filter", "propensity")]
    return sha256_json([decisive(config), names, data, metric_version, encoder_identity])


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line per field that differs between two nested settings, with dotted names; an empty group is no field."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        values = [group.get(key, _ABSENT) for group in (before, after)]
        if all(isinstance(value, dict) or value is _ABSENT for value in values):
            old, new = ({} if value is _ABSENT else value for value in values)
            lines += [f"{key}.{line}" for line in differences(old, new)]
        else:
            shown = ["(absent)" if value is _ABSENT else json.dumps(value, sort_keys=True) for value in values]
            lines += [f"{key}: {shown[0]} -> {shown[1]}"] if shown[0] != shown[1] else []
    return lines


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys that have several values among the flat settings that have them at all."""
    values: dict[str, list[Any]] = {}
    for one in settings:
        for name, value in one.items():
            if value not in (known := values.setdefault(name, [])):
                known.append(value)
    return sorted(name for name, known in values.items() if len(known) > 1)


def _idle(settings: Flat) -> set[str]:
    """Settings without effect: how rows are augmented if none are, how they are validated on if none are."""
    unused = [("augment_options.", settings.get("augment", "none") == "none")]
    unused.append(("validation.", not settings.get("validation.size")))
    return {key for key in settings for prefix, idle in unused if idle and key.startswith(prefix)} - {"validation.size"}


@cache
def _speed(method: str) -> frozenset[str]:
    params = _parameters(method)
    fields = params.model_fields.items() if params else ()
    return frozenset(f"params.{field.alias or name}" for name, field in fields if SPEED in field.metadata)


@cache
def _defaults(method: str) -> Flat:
    params = _parameters(method)
    own = params().model_dump(mode="json", by_alias=True) if params else {}
    return flat({**RunConfig().model_dump(mode="json"), "params": own}) | flat(BEFORE)


def _parameters(method: str) -> type[BaseModel] | None:
    """The class of a method's parameters; None if the method is unknown here."""
    try:
        return load_method(method).params
    except UserError:
        return None
