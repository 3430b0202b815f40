"""Which settings decide the result of a run, and thus whether two runs are the same.

Each field of `RunConfig` and of a method's parameters is marked with what it decides (`harness.settings.schema`). A
record that is older than a setting counts as a run with the value that the harness used before the setting existed.
Configs are given as recorded: nested values, folders by name.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from harness.errors import UserError
from harness.io.files import sha256_json
from harness.settings.catalogue import ENCODERS
from harness.settings.layers import Flat
from harness.settings.layers import flat as flat
from harness.settings.method import load_method
from harness.settings.schema import NAME, RECORD, SPEED, Decides, RunConfig

_ABSENT = object()
_BEFORE: dict[str, dict[str, Any]] = {
    "validation": {"draw": "any", "equal_texts": "any"},
    "params": {"optimiser_table": "touched", "undecayed": "norms", "eps": 1e-8},
}
"""Values of settings that older records lack, where they are not today's default or that of every preset."""


@cache
def marked(kind: Decides) -> frozenset[str]:
    """Return the names of the top-level settings, groups included, that are marked with `kind`."""
    return frozenset(name for name, field in RunConfig.model_fields.items() if kind in field.metadata)


def before(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a recorded config has for settings that are younger than it, where that is not today's default."""
    known = set(_defaults(str(config.get("method"))))
    if config.get("encoder") == "static":
        known.discard("params.undecayed")  # DEXML and Renee decay no biases since then; this encoder has none
    return {
        group: {name: value for name, value in values.items() if f"{group}.{name}" in known}
        for group, values in _BEFORE.items()
    }


def upgrade(config: Mapping[str, Any]) -> Flat:
    """Return all settings of a recorded config, those that it is too old to have filled in."""
    return _defaults(str(config.get("method"))) | flat(before(config)) | flat(config)


def fixed(config: Mapping[str, Any]) -> Flat:
    """Return the settings that a resumed run must keep: all but those marked `RECORD` and those without effect."""
    settings = upgrade(config)
    free = {key for key in settings if key.partition(".")[0] in marked(RECORD)} | _idle(settings)
    return {key: value for key, value in settings.items() if key not in free}


def decisive(config: Mapping[str, Any]) -> Flat:
    """Return the settings in effect that decide the result besides method, dataset, encoder and seed, by dotted key."""
    speed, elsewhere = _speed(str(config.get("method"))), marked(NAME) | marked(SPEED)
    return {
        key: value
        for key, value in fixed(config).items()
        if key not in speed and key.partition(".")[0] not in elsewhere
    }


def key(
    config: Mapping[str, Any], dataset: Mapping[str, Any], metric_version: int, encoder_identity: str | None
) -> str:
    """Return a hash of all that decides the result of a run; two runs with one key are the same run.

    Args:
        config: The config as recorded.
        dataset: The dataset as recorded: its digest, filter and propensity constants count.
        metric_version: Version of the metrics, from `harness.metrics`.
        encoder_identity: Hash of the encoder's weights if its name does not identify them: a folder is recorded by its
            last name alone, and another folder of that name may hold other weights.
    """
    names = [config[name] for name in sorted(marked(NAME))]
    data = [dataset.get(name) for name in ("digest", "filter", "propensity")]
    return sha256_json([decisive(config), names, data, metric_version, encoder_identity])


def key_of(config: Mapping[str, Any], dataset: Mapping[str, Any], metric_version: int, identity: str | None) -> str:
    """Return `key` of a recorded run; `identity` is the hash of its encoder's weights, whatever its name.

    It counts for a model folder alone, because a folder is recorded by its last name and other weights may lie in
    another one of that name.
    """
    return key(config, dataset, metric_version, None if config["encoder"] in ENCODERS else identity)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return one line per difference between two nested settings, with dotted keys; empty groups are ignored."""
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
    """Return the keys with more than one value among several flat settings; settings without a key are ignored."""
    values: dict[str, list[Any]] = {}
    for one in settings:
        for name, value in one.items():
            if value not in (known := values.setdefault(name, [])):
                known.append(value)
    return sorted(name for name, known in values.items() if len(known) > 1)


def _idle(settings: Flat) -> set[str]:
    """Return the settings without effect: of augmentation or validation if there is none.

    Without validation rows of its own, a run that has the weight of scorer `fused` chosen depends on how they are
    drawn and judged in the run that chooses it.
    """
    unused = [("augment_options.", settings.get("augment", "none") == "none")]
    unused.append(("validation.", not settings.get("validation.size")))
    chooses = settings.get("params.scorer") == "fused" and settings.get("params.fused_weight", 0) is None
    used = {"validation.size"} | (
        {f"validation.{name}" for name in ("draw", "equal_texts", "metric")} if chooses else set()
    )
    return {key for key in settings for prefix, idle in unused if idle and key.startswith(prefix)} - used


@cache
def _speed(method: str) -> frozenset[str]:
    params = _parameters(method)
    fields = params.model_fields.items() if params else ()
    return frozenset(f"params.{field.alias or name}" for name, field in fields if SPEED in field.metadata)


@cache
def _defaults(method: str) -> Flat:
    params = _parameters(method)
    own = params().model_dump(mode="json", by_alias=True) if params else {}
    return flat({**RunConfig().model_dump(mode="json"), "params": own})


def _parameters(method: str) -> type[BaseModel] | None:
    """Return the class of a method's parameters; None if the method is unknown here."""
    try:
        return load_method(method).params
    except UserError:
        return None
