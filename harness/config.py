"""One resolved configuration per run, and where each value came from.

Layers, later wins: schema defaults < methods/<method>.yaml < the card's `defaults` and `recommended[method]` < a row
of a published table < a config file < the command line. Every layer is checked against the same schema; an unknown key
is an error that names the nearest one, and all faults of all layers are reported together, each with its origin.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.data.card import DatasetCard
from harness.errors import UserError
from harness.yaml import parse_yaml, read_yaml


class Settings(BaseModel):
    """Base of everything a config can hold: unknown keys refused, values frozen, no NaN, no silent conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


class SearchSettings(Settings):
    """How the top labels are found."""

    backend: str = "exact"
    """exact and faiss-flat are exact; faiss-hnsw and faiss-ivf are approximate and log their recall."""
    k: Annotated[int, Field(ge=1, le=2048)] = 100
    """Labels kept per query in the predictions file."""
    options: dict[str, int] = {}
    """Knobs of the backend, for example `efSearch`; see `harness.index.search`."""


class ValidationSettings(Settings):
    """Train rows held out to choose an epoch; without them a run trains on all rows and reports its last model."""

    size: Annotated[float, Field(ge=0)] = 0.0
    """Rows held out: a number of rows, or a share below 1; 0 for none."""
    draw: Literal["covered", "any"] = "covered"
    """Rows whose labels all keep another train row, as labels of test rows do; or any rows."""
    metric: str = "P@1"
    """What decides, larger is better."""
    every_epochs: Annotated[int, Field(ge=1)] = 1
    patience: Annotated[int, Field(ge=1)] | None = None
    """Stop after so many epochs without a better value; if absent, train to the end and take the best epoch."""

    @field_validator("size")
    @classmethod
    def _share_or_rows(cls, size: float) -> float:
        if size >= 1 and size != round(size):
            raise ValueError("must be a share below 1 or a whole number of rows")
        return size


class AugmentSettings(Settings):
    """How made train rows are made; see `harness.augment`. An option that a kind does not heed is warned of."""

    delta: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """gandalf, random-walk: targets at or below this are left out; glas: the same before its sigmoid."""
    labels: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the labels that become rows, of those that can: with a text and, but for one-hot, a train row."""
    order: Literal["random", "tail-first"] = "random"
    """Which labels, if not all: a random draw, or those with the fewest train rows, ties by smaller id."""
    keep: Literal["all", "made"] = "all"
    """Train on all rows, or on the made ones alone."""
    rows: int | Literal["train"] | None = None
    """Train on a random draw of so many of these rows, `train` for as many as the dataset has; if absent, on all."""

    @field_validator("rows", mode="before")
    @classmethod
    def _some_rows(cls, rows: Any) -> Any:
        if rows not in (None, "train") and not (type(rows) is int and rows >= 1):
            raise ValueError("must be a number of rows, 1 or more, or train")
        return rows


Background = Literal["auto", "always", "never"]


class CheckpointSettings(Settings):
    """When a training saves itself, and how; none of this changes a result."""

    every_steps: Annotated[int, Field(ge=1)] | None = None
    """Save after every so many steps."""
    min_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Save at the end of an epoch unless the last checkpoint is younger than this."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Checkpoints kept while a run trains; a finished run keeps its model alone."""
    background: Background = "auto"
    """Go on training from a copy in memory while a checkpoint is written; auto: if that takes a quarter of what is free
    or less."""


class TrackingSettings(Settings):
    """What a tracker gets besides figures; none of this changes a result."""

    model: Literal["auto", "always", "never"] = "auto"
    """Whether the trained model is copied there as one that `mlflow models serve` serves; auto: up to 500 MB."""
    system_seconds: Annotated[float, Field(ge=0)] = 10.0
    """How often load and memory of the machine are measured; 0 for never."""

    @field_validator("system_seconds")
    @classmethod
    def _never_or_whole_steps(cls, seconds: float) -> float:
        if 0 < seconds < 1:
            raise ValueError("must be 0 for never, or at least 1: the steps of these figures are seconds")
        return seconds


class RunConfig(Settings):
    """Everything that decides the outcome of a run, apart from the data itself."""

    method: str = DEFAULT_METHOD
    dataset: str = DEFAULT_DATASET
    encoder: Annotated[str, Field(min_length=1)] = "static"
    """A registered name (`harness ls encoders`) or the path of a local model folder."""
    encoder_options: dict[str, Any] = {}
    """Knobs of the encoder, for example `dim` or `weighting` of `static`."""
    max_len: Annotated[int, Field(ge=3, le=8192)] | None = None
    """Tokens per text, special tokens included; if absent, what the encoder was made for."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    batch_tokens: Annotated[int, Field(ge=1)] = 16_384
    """Tokens per micro-batch when encoding without gradients; changes speed and memory, results by rounding only."""
    filter: bool = True
    """Mask the dataset's filter pairs before ranking."""
    ks: Annotated[tuple[Annotated[int, Field(ge=1, strict=True)], ...], Field(strict=False)] = (1, 3, 5)
    augment: str = "none"
    """Rows made and added to the train rows: none, gandalf, one-hot, mixup, ...; `harness ls augmentations`."""
    augment_options: AugmentSettings = AugmentSettings()
    search: SearchSettings = SearchSettings()
    validation: ValidationSettings = ValidationSettings()
    evaluate: Literal["test", "validation"] = "test"
    """Which rows the numbers of the run are of. With `validation` test rows are never looked at: a trial of a sweep."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    tracking: TrackingSettings = TrackingSettings()
    params: dict[str, Any] = {}
    """The method's own knobs; their schema is the method's `Params`."""

    @field_validator("augment")
    @classmethod
    def _known_augmentation(cls, name: str) -> str:
        if name == "none":
            return name
        from harness.augment import check_name  # not at the top, because it needs scipy and few runs need it

        try:
            check_name(name)
        except UserError as error:
            raise ValueError(str(error)) from error
        return name

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?|mps", device):
            raise ValueError("must be auto, cpu, cuda, cuda:1 (or another number) or mps")
        return device

    @field_validator("ks")
    @classmethod
    def _increasing(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if not ks or list(ks) != sorted(set(ks)):
            raise ValueError("must be increasing, for example [1, 3, 5]")
        return ks

    @model_validator(mode="after")
    def _deep_enough(self) -> "RunConfig":
        if max(self.ks) > self.search.k:
            raise ValueError(f"search.k is {self.search.k}, but ks asks for the first {max(self.ks)}; raise search.k")
        return self


@dataclass(frozen=True)
class Layer:
    """Values of one origin, nested as in `RunConfig`."""

    origin: str
    values: dict[str, Any]


def parse_override(text: str) -> dict[str, Any]:
    """Turns a `--set key=value` into nested values; dots reach nested keys.

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
    """A run config: YAML written by a person, or the config.json of an earlier run's folder."""
    values = read_yaml(path)
    if set(values) == {"config", "origins"} and isinstance(values["config"], dict):
        values = values["config"]
    return Layer(path.name, values)


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Deep-merges layers in order; returns the values and, per dotted leaf, the origin that set it last."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for path, value in _leaves(layer.values):
            target = merged
            for part in path[:-1]:
                inner = target.get(part)
                target[part] = target = inner if isinstance(inner, dict) else {}
            target[path[-1]] = value
            origins.pop(".".join(path), None)  # set anew at the end: the last entry is the last word
            origins[".".join(path)] = layer.origin
    return merged, origins


def _leaves(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        path = (*prefix, str(key))
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def route_knobs(layer: Layer, params: type[BaseModel]) -> Layer:
    """Moves bare keys that are knobs of the method under `params`, so that `--set beta=3` reads as the papers do."""
    knobs = set(knob_names(params)) - set(RunConfig.model_fields)
    if not knobs & set(layer.values):
        return layer
    values = {key: value for key, value in layer.values.items() if key not in knobs}
    if not isinstance(values.get("params", {}), dict):
        return Layer(layer.origin, values)
    own = {key: value for key, value in layer.values.items() if key in knobs}
    return Layer(layer.origin, {**values, "params": {**values.get("params", {}), **own}})


def own_encoder_options(layers: list[Layer]) -> list[Layer]:
    """The layers without options that one of them gives together with an encoder which a later one replaces."""
    chosen = [layer.values["encoder"] for layer in layers if "encoder" in layer.values][-1:]

    def kept(layer: Layer) -> Layer:
        if "encoder" not in layer.values or [layer.values["encoder"]] == chosen:
            return layer
        return Layer(layer.origin, {key: value for key, value in layer.values.items() if key != "encoder_options"})

    return [kept(layer) for layer in layers]


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as dotted keys and strings."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def resolve_layers(layers: list[Layer], params: type[BaseModel]) -> tuple[RunConfig, dict[str, str]]:
    """Merges and validates; raises one `UserError` that lists every fault with its origin.

    The method's parameters come back complete: every knob of `params` with its final value.
    """
    merged, origins = merge(route_knobs(layer, params) for layer in own_encoder_options(layers))
    faults: list[str] = []
    knobs = merged.get("params", {})
    resolved_knobs: dict[str, Any] = {}
    if isinstance(knobs, dict):
        try:
            resolved_knobs = params.model_validate(knobs).model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            faults += _describe(error, origins, "params.", knob_names(params))
    try:
        config = RunConfig.model_validate({**merged, "params": resolved_knobs if isinstance(knobs, dict) else knobs})
    except ValidationError as error:
        faults += _describe(error, origins, "", [*RunConfig.model_fields, *knob_names(params)])
    if faults:
        raise UserError("\n".join(faults))
    leaves = (".".join(path) for path, _ in _leaves(config.model_dump(mode="json")))
    return config, {leaf: origins.get(leaf, "default") for leaf in leaves}


def knob_names(params: type[BaseModel]) -> list[str]:
    """The names under which a method's knobs are set."""
    return [field.alias or name for name, field in params.model_fields.items()]


def card_layers(card: DatasetCard, method: str) -> list[Layer]:
    """The settings a card recommends: for every method, then for this one."""
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
    """The names that may stand where an unknown one was found: inside a group of settings, those of the group."""
    field = RunConfig.model_fields.get(str(place[0])) if len(place) == 2 else None
    group = field.annotation if field else None
    return group.model_fields if isinstance(group, type) and issubclass(group, BaseModel) else known
