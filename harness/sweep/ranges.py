"""What a range of values may be: which knobs it sets, of which type its numbers are, and whether the method takes them.

A range is written by a person, in a method's YAML or on the command line. `settle` gives it the knobs it sets and
numbers of their type; `refused_values` asks the method's `Params` about its ends, a value between, and every choice,
before anything runs.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from harness.config import Layer, RunConfig, knob_names, resolve_layers
from harness.errors import UserError, unknown_name
from harness.method import SearchRange, method_layer

Space = dict[str, SearchRange]
"""Ranges by name. Settled ones name their knobs, and their numbers have the type of the knob."""
Value = int | float | str | bool | None

_SAME_FOR_ALL = frozenset(
    {"method", "dataset", "seed", "device", "filter", "ks", "validation", "evaluate", "checkpoint", "tracking"}
)
"""Settings that decide how a trial is measured, or change no result: a value found for them would mean nothing."""
_MOST_STEPS = 1e9
_SCALARS: frozenset[type] = frozenset({int, float, str, bool})


def settle(name: str, given: SearchRange, params: type[BaseModel], declared: Iterable[str] = ()) -> SearchRange:
    """The range with its knobs named and its numbers of their type.

    Args:
        name: Of the range; the knob it sets unless it names others.
        given: As a person wrote it.
        params: Knobs of the method.
        declared: Names of the method's ranges, for the message about an unknown knob.
    """
    knobs = tuple(bare(knob) for knob in given.knobs or (name,))
    kinds = _SCALARS
    for knob in knobs:
        if knob.split(".")[0] in _SAME_FOR_ALL:
            raise UserError(f"{name}: {knob} is the same for all trials of a sweep; --set fixes it")
        annotation = type_of(knob, params)
        if annotation is None:
            raise unknown_range(knob, declared, params)
        kinds &= _kinds(annotation)
    if not kinds:
        raise UserError(f"{name}: {', '.join(knobs)} takes neither a number nor a word, so it has no range")
    settled = given.model_copy(update={"knobs": knobs})
    return _settle_choices(name, settled, kinds) if given.choices is not None else _settle_numbers(name, settled, kinds)


def _settle_choices(name: str, given: SearchRange, kinds: frozenset[type]) -> SearchRange:
    fractional = float in kinds and int not in kinds
    # `type` because a bool is an int
    choices = [float(each) if fractional and type(each) is int else each for each in given.choices or ()]
    if len({(type(each), each) for each in choices}) < max(2, len(choices)):
        raise UserError(f"{name}: choices are two or more different values (--set fixes a value)")
    return given.model_copy(update={"choices": choices})


def _settle_numbers(name: str, given: SearchRange, kinds: frozenset[type]) -> SearchRange:
    low, high = ends_of(given)
    numbers = {"low": low, "high": high} | ({} if given.step is None else {"step": given.step})
    if not kinds & {int, float}:
        raise UserError(f"{name}: not a number, so it takes choices: {name}=[A,B]")
    fractional = any(isinstance(value, float) for value in numbers.values())
    if int not in kinds or (fractional and float in kinds):
        numbers = {key: float(value) for key, value in numbers.items()}
    elif any(value != int(value) for value in numbers.values()):
        raise UserError(f"{name}: takes whole numbers, not {low} to {high}")
    else:
        numbers = {key: int(value) for key, value in numbers.items()}
    steps = 1.0 if given.step is None else (high - low) / given.step if given.step > 0 else 0.0
    if not 1 <= steps <= _MOST_STEPS or abs(steps - round(steps)) > 1e-6 * steps:
        raise UserError(f"{name}: {high} is not a whole number of steps of {given.step} away from {low}")
    return given.model_copy(update=numbers)


def clashes(space: Space) -> list[str]:
    """Knobs that two ranges would set."""
    owners: dict[str, str] = {}
    faults = []
    for name, given in space.items():
        for knob in given.knobs:
            if knob in owners:
                faults.append(f"{name}: {knob} is already set by {owners[knob]}; leave one of the two out")
            owners.setdefault(knob, name)
    return faults


def refused_values(space: Space, method: str, params: type[BaseModel], layers: Sequence[Layer]) -> list[str]:
    """What the method's `Params` and the run settings say against values of single ranges, without repetition."""
    faults: dict[str, None] = {}
    for name, given in space.items():
        for value in _probes(given):
            origin = f"{name}={'null' if value is None else value}"
            layer = Layer(origin, settings_of({name: value}, space))
            try:
                config, _ = resolve_layers([method_layer(method), *layers, layer], params)
                _check_parts(given, config)
            except UserError as error:
                lines = str(error).splitlines()
                faults |= dict.fromkeys(line if line.startswith(origin) else f"{origin}: {line}" for line in lines)
    return list(faults)


def _check_parts(given: SearchRange, config: RunConfig) -> None:
    """Names of encoders and search backends, which the schema alone does not know."""
    groups = {knob.split(".")[0] for knob in given.knobs}
    if groups & {"encoder", "encoder_options"}:
        from harness.model import check_encoder

        check_encoder(config.encoder, dict(config.encoder_options))
    if "search" in groups:
        from harness.index import check_backend

        check_backend(config.search.backend, dict(config.search.options))


def _probes(given: SearchRange) -> list[Value]:
    """Every choice; of numbers both ends and one between, which finds a rule such as `even numbers only`."""
    if given.choices is not None:
        return list(given.choices)
    low, high = ends_of(given)
    if given.step is not None or isinstance(low, int):
        return list(dict.fromkeys([low, low + (given.step or 1), high]))
    return [low, math.sqrt(low * high) if given.log else (low + high) / 2, high]


def ends_of(given: SearchRange) -> tuple[int | float, int | float]:
    """Low and high of a range of numbers."""
    assert given.low is not None
    assert given.high is not None
    return given.low, given.high


def bare(knob: str) -> str:
    """A knob without `params.` before it, where no run setting has that name."""
    rest = knob.removeprefix("params.")
    return knob if rest.split(".")[0] in RunConfig.model_fields else rest


def type_of(knob: str, params: type[BaseModel]) -> Any:
    """The annotation of a knob of the method or of a run setting; None if there is no such."""
    first, *inner = knob.removeprefix("params.").split(".")
    own = {field.alias or name: field.annotation for name, field in params.model_fields.items()}
    fields = {name: field.annotation for name, field in RunConfig.model_fields.items() if name != "params"}
    annotation = own.get(first) if knob.startswith("params.") else {**own, **fields}.get(first)
    for part in inner:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(part)
            annotation = field.annotation if field else None
        else:
            annotation = get_args(annotation)[1] if get_origin(annotation) is dict else None
    return annotation


def _kinds(annotation: Any) -> frozenset[type]:
    """Which plain types an annotation lets through."""
    if annotation is Any:
        return _SCALARS | {NoneType}
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return frozenset(type(value) for value in inner)
    if origin is Annotated:
        return _kinds(inner[0])
    if origin in (Union, UnionType):
        return frozenset[type]().union(*(_kinds(each) for each in inner))
    return frozenset({annotation}) & (_SCALARS | {NoneType})


def searchable(params: type[BaseModel]) -> list[str]:
    """Every setting that can have a range: the method's knobs, then run settings."""
    names = knob_names(params)
    for name, field in RunConfig.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += [f"{name}.{part}" for part in inner.model_fields]
        else:
            names.append(name)
    allowed = (name for name in names if name.split(".")[0] not in _SAME_FOR_ALL | {"params"})
    return [name for name in allowed if _kinds(type_of(name, params)) & _SCALARS]


def settings_of(values: Mapping[str, Value], space: Space) -> dict[str, Any]:
    """Values of ranges as nested settings, ready for a `harness.config.Layer`."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        if name not in space:
            raise unknown_name("range", name, space)
        for knob in space[name].knobs or (name,):
            *groups, leaf = knob.split(".")
            target = nested
            for group in groups:
                target = target.setdefault(group, {})
            target[leaf] = value
    return nested


def unknown_range(name: str, declared: Iterable[str], params: type[BaseModel]) -> UserError:
    """Builds the error for a name that is neither a range nor a knob, with the nearest one and the list."""
    ranges, others = list(declared), searchable(params)
    near = difflib.get_close_matches(bare(name), [*ranges, *others], n=1, cutoff=0.6)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return UserError(
        f"{name}: unknown;{hint} declared ranges: {', '.join(ranges) or 'none'}; "
        f"others take a range of their own (knob=LOW:HIGH or knob=[A,B]): {', '.join(others)}"
    )
