"""Where a sweep looks: `--over` text -> ranges -> one value each -> settings of a trial.

An item of `--over` is the name of a range in the `search:` section of methods/<method>.yaml, or a range of its own:

    tau                               as the method declares it
    lr_encoder=1e-5:1e-3:log          numbers, drawn evenly on a logarithmic scale
    epochs=5:20                       whole numbers, because the knob is one
    batch_size=64:512:step=64         64, 128, ..., 512
    schedule=[cosine,linear]          choices
    augment_options.delta=0:0.3       a run setting; dots reach nested ones

One range may set several knobs: tau is the temperature of all heads. A range is checked against the method's `Params`
before anything runs: its ends, the value beside its low end, and every choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from harness.config import Layer, RunConfig
from harness.errors import DataError, UserError
from harness.method import SearchRange, method_card_path, read_method_card
from harness.model import learning_rates
from harness.sweep.ranges import (
    Space,
    Value,
    bare,
    clashes,
    ends_of,
    refused_values,
    settings_of,
    settle,
    type_of,
    unknown_range,
)
from harness.yaml import parse_yaml

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

__all__ = [
    "PAPER_NAMES",
    "Space",
    "Value",
    "check_declared",
    "declared_ranges",
    "default_names",
    "describe",
    "describe_range",
    "from_json",
    "parse_over",
    "settings_of",
    "starts",
    "suggest",
    "to_json",
]

PAPER_NAMES = ("lambda", "beta", "eta", "tau", "refresh")
"""What the papers call the knobs that matter most; tau is the temperature, refresh the period of their other tau."""

_LARGEST = 1e100
"""No knob is larger, and ranges of infinite or uncountable width cannot be drawn from."""
_FORMS = "{0}=LOW:HIGH, {0}=LOW:HIGH:log, {0}=LOW:HIGH:step=S or {0}=[A,B]"


def declared_ranges(method: str) -> Space:
    """The `search:` section of a method as it is written; a preset has those of its method under its own."""
    card = read_method_card(method_card_path(method))
    return {**(declared_ranges(card.preset_of) if card.preset_of else {}), **card.search}


def default_names(method: str) -> tuple[str, ...]:
    """What is searched unless `--over` says otherwise: the papers' knobs; all ranges where there are none of these."""
    declared = declared_ranges(method)
    return tuple(name for name in PAPER_NAMES if name in declared) or tuple(declared)


def parse_over(text: str, method: str, params: type[BaseModel], layers: Sequence[Layer] = ()) -> Space:
    """Turns the text of `--over` into checked ranges.

    Args:
        text: Comma separated items, see the module.
        method: Name of a method or preset.
        params: Its knobs.
        layers: What else the trials are set to (card, command line): values are checked together with these.

    Raises:
        UserError: Lists every fault of every item.
    """
    declared = declared_ranges(method)
    space: Space = {}
    faults: list[str] = []
    for item in filter(None, map(str.strip, _items(text))):
        try:
            name, found = _range_of(item, declared, params)
            if name in space:
                raise UserError(f"{name}: named twice")
            space[name] = found
        except UserError as error:
            faults += str(error).splitlines()
    if not space and not faults:
        known = f"ranges of {method}: {', '.join(declared) or 'none'}"
        raise UserError(f"--over is empty; {known}; or write one of your own: {_FORMS.format('knob')}")
    faults += [*clashes(space), *refused_values(space, method, params, layers)]
    if faults:
        raise UserError("\n".join(f"--over {fault}" for fault in faults))
    return space


def check_declared(method: str, params: type[BaseModel]) -> Space:
    """The ranges that a method declares, checked like those of `parse_over`; two of them may set one knob."""
    space: Space = {}
    faults: list[str] = []
    for name, given in declared_ranges(method).items():
        try:
            space[name] = settle(name, given, params)
        except UserError as error:
            faults.append(str(error))
    faults += refused_values(space, method, params, ())
    if faults:
        raise UserError("\n".join(f"{method_card_path(method)}: search: {fault}" for fault in faults))
    return space


def suggest(trial: "BaseTrial", space: Space) -> dict[str, Value]:
    """Asks an Optuna trial for a value of every range, by name."""
    return {name: _suggest(trial, name, given) for name, given in space.items()}


def _suggest(trial: "BaseTrial", name: str, given: SearchRange) -> Value:
    if given.choices is not None:
        chosen: Value = trial.suggest_categorical(name, given.choices)
        return chosen
    low, high = ends_of(given)
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, step=int(given.step or 1), log=given.log)
    return trial.suggest_float(name, low, high, step=given.step, log=given.log)


def starts(space: Space, config: RunConfig, points: Sequence[Mapping[str, Value]] = ()) -> tuple[dict[str, Value], ...]:
    """Points to begin with: what the settings say, then `points` that are other ones; without values out of range."""
    settings = {name: _set_to(given, config) for name, given in space.items()}
    known: list[dict[str, Value]] = []
    for point in (settings, *points):
        found = {name: value for name, value in point.items() if name in space and _lies_in(value, space[name])}
        if found not in known:
            known.append(found)
    return tuple(known)


def _set_to(given: SearchRange, config: RunConfig) -> Value:
    """The one value of all knobs of a range; None if they differ."""
    values = {knob: _setting(config, knob) for knob in given.knobs}
    first = next(iter(values.values()))
    if any(value != first for value in values.values()):
        return None
    if first is None and given.rate is not None:
        rates = learning_rates(config.encoder)
        first = getattr(rates, given.rate) if rates else None
    return first if isinstance(first, int | float | str) else None


def _setting(config: RunConfig, knob: str) -> Any:
    first, *inner = knob.removeprefix("params.").split(".")
    value: Any = config.params if first in config.params else config
    for part in (first, *inner):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value


def _lies_in(value: Value, given: SearchRange) -> bool:
    if given.choices is not None:
        return (type(value), value) in [(type(each), each) for each in given.choices]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = ends_of(given)
    if not low <= value <= high or (isinstance(value, float) and isinstance(low, int)):
        return False
    steps = (value - low) / given.step if given.step else 0.0
    return abs(steps - round(steps)) < 1e-9


def to_json(space: Space) -> dict[str, Any]:
    """A space as JSON values; `from_json` gives the same space back."""
    return {name: given.model_dump(mode="json", exclude_defaults=True) for name, given in space.items()}


def from_json(values: Mapping[str, Any]) -> Space:
    """Takes back what `to_json` gave; ranges that are ranges already stay what they are."""
    try:
        return {name: SearchRange.model_validate(given) for name, given in values.items()}
    except (ValidationError, TypeError, AttributeError) as error:
        raise UserError(f"not a search space that this version wrote: {str(error).splitlines()[0]}") from error


def describe(space: Space) -> list[str]:
    """One line a range, for people."""
    return [describe_range(name, given) for name, given in space.items()]


def describe_range(name: str, given: SearchRange) -> str:
    """For example `tau (temperature, temperature_classifier): 0.02 to 0.1, logarithmic`."""
    knobs = given.knobs if given.knobs not in ((), (name,)) else ()
    title = f"{name} ({', '.join(knobs)})" if knobs else name
    if given.choices is not None:
        return f"{title}: one of {', '.join('null' if each is None else str(each) for each in given.choices)}"
    step = f" in steps of {given.step}" if given.step is not None else ""
    kind = ", whole numbers" if isinstance(given.low, int) and isinstance(given.high, int) and not step else ""
    return f"{title}: {given.low} to {given.high}{step}{kind}{', logarithmic' if given.log else ''}"


def _items(text: str) -> Iterator[str]:
    """Splits at commas outside brackets."""
    depth, item = 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            break
        if letter == "," and not depth:
            yield item
            item = ""
        else:
            item += letter
    if depth:
        raise UserError(f"--over: brackets do not match in {text!r}; choices are written name=[a,b]")
    yield item


def _range_of(item: str, declared: Space, params: type[BaseModel]) -> tuple[str, SearchRange]:
    """Name and settled range of one item."""
    name, separator, written = (part.strip() for part in item.partition("="))
    name = name if name in declared else bare(name)
    if separator:
        kept = {"knobs": declared[name].knobs, "rate": declared[name].rate} if name in declared else {}
        return name, settle(name, _inline(name, written).model_copy(update=kept), params, declared)
    for known, given in declared.items():
        if name == known or name in map(bare, given.knobs):
            return known, settle(known, given, params, declared)
    if type_of(name, params) is not None:
        raise UserError(f"{name}: no range is declared for it; write one: {_FORMS.format(name)}")
    raise unknown_range(name, declared, params)


def _inline(name: str, written: str) -> SearchRange:
    """A range from the text after `name=`."""
    where = f"{name}={written}"
    if written.startswith("["):
        return _made(where, choices=_parsed(written, where))
    first, *others = (part.strip() for part in written.split(":"))
    if not others:
        raise UserError(f"{where}: one value is no range (--set fixes a value); write {_FORMS.format(name)}")
    values: dict[str, Any] = {"low": _number(first, where), "high": _number(others[0], where)}
    for option in others[1:]:
        key, separator, step = option.partition("=")
        if option == "log":
            values["log"] = True
        elif key == "step" and separator:
            values["step"] = _number(step, where)
        else:
            raise UserError(f"{where}: unknown part {option!r}; write {_FORMS.format(name)}")
    return _made(where, **values)


def _made(where: str, **values: Any) -> SearchRange:
    try:
        return SearchRange(**values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UserError(f"{where}: {fault['msg'].removeprefix('Value error, ')}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_yaml(text, where)
    except DataError as error:
        raise UserError(str(error)) from error


def _number(text: str, where: str) -> int | float:
    value = _parsed(text, where) if text else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        raise UserError(f"{where}: {text!r} is not a number; choices are written [a,b]")
    return value
