"""The search space of a sweep: `--over` text -> ranges -> one value each -> settings of a trial.

An item of `--over` is the name of a range in the `search:` section of methods/<method>.yaml, or a range of its own:

    tau                               as the method declares it
    lr_encoder=1e-5:1e-3:log          numbers, drawn evenly on a logarithmic scale
    epochs=5:20                       whole numbers, because the parameter is one
    batch_size=64:512:step=64         64, 128, ..., 512
    schedule=[cosine,linear]          choices
    augment_options.delta=0:0.3       a run setting; dots reach nested ones

One range may set several parameters: tau is the temperature of all heads. Values of a range are resolved like those of
a run before anything runs: both ends, one value between, every choice. What they resolve to says whether a range is one
of whole numbers.
"""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from harness.errors import UserError
from harness.io.yaml import parse_yaml
from harness.model import learning_rates
from harness.settings.identity import marked
from harness.settings.layers import Layer, resolve_layers
from harness.settings.method import SearchRange, method_card_path, method_layer, search_ranges
from harness.settings.schema import RECORD, SPEED, RunConfig

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

Space = dict[str, SearchRange]
"""Ranges by name. Checked ones name their parameters, and their numbers have the type of the parameter."""
Value = int | float | str | bool | None

_PAPER_NAMES = ("lambda", "beta", "eta", "tau", "refresh")
"""The papers' names of the main parameters; tau is the temperature, refresh the period that they call tau too."""
_SAME_FOR_ALL = {"method", "dataset", "seed", "filter", "ks", "validation", "evaluate", *marked(SPEED), *marked(RECORD)}
"""Settings that cannot be searched: they decide how a trial is measured, or change no result."""
_LARGEST = 1e100
"""Largest end of a range in size; infinite ranges cannot be drawn from."""
_MOST_STEPS = 1e9
_FORMS = "{0}=LOW:HIGH, {0}=LOW:HIGH:log, {0}=LOW:HIGH:step=S or {0}=[A,B]"


def default_names(method: str) -> tuple[str, ...]:
    """Return the ranges searched without `--over`: those of the papers' parameters, or all if there are none."""
    declared = search_ranges(method)
    return tuple(name for name in _PAPER_NAMES if name in declared) or tuple(declared)


def parse_over(text: str, method: str, params: type[BaseModel], layers: Sequence[Layer] = ()) -> Space:
    """Turn the text of `--over` into checked ranges.

    Args:
        text: Comma separated items, as in the module's docstring.
        method: Name of a method or preset.
        params: Model of the method's parameters.
        layers: Other settings of the trials (command line): values are checked together with these.

    Raises:
        UserError: Lists every fault of every item.
    """
    declared = search_ranges(method)
    space: Space = {}
    faults: list[str] = []
    owners: dict[str, str] = {}
    for item in filter(None, map(str.strip, _items(text))):
        try:
            name, given = _range_of(item, declared)
            if name in space:
                raise UserError(f"{name}: named twice")
            space[name] = given = _checked(name, given, method, params, layers)
        except UserError as error:
            faults += str(error).splitlines()
            continue
        taken = [key for key in given.parameters if key in owners]
        faults += [f"{name}: {key} is already set by {owners[key]}; leave one of the two out" for key in taken]
        owners |= dict.fromkeys(given.parameters, name)
    if not space and not faults:
        known = f"ranges of {method}: {', '.join(declared) or 'none'}"
        raise UserError(f"--over is empty; {known}; or write one of your own: {_FORMS.format('parameter')}")
    if faults:
        raise UserError("\n".join(f"--over {fault}" for fault in faults))
    return space


def check_declared(method: str, params: type[BaseModel]) -> Space:
    """Return the ranges that a method declares, checked as in `parse_over`; two may set the same parameter."""
    space: Space = {}
    faults: list[str] = []
    for name, given in search_ranges(method).items():
        try:
            space[name] = _checked(name, given, method, params)
        except UserError as error:
            faults += str(error).splitlines()
    if faults:
        raise UserError("\n".join(f"{method_card_path(method)}: search: {fault}" for fault in faults))
    return space


def suggest(trial: "BaseTrial", space: Space) -> dict[str, Value]:
    """Ask an Optuna trial for a value of every range, by name."""
    values: dict[str, Value] = {}
    for name, given in space.items():
        if given.choices is not None:
            values[name] = trial.suggest_categorical(name, given.choices)
            continue
        low, high = ends_of(given)
        if isinstance(low, int) and isinstance(high, int):
            values[name] = trial.suggest_int(name, low, high, step=int(given.step or 1), log=given.log)
        else:
            values[name] = trial.suggest_float(name, low, high, step=given.step, log=given.log)
    return values


def settings_of(values: Mapping[str, Value], space: Space) -> dict[str, Any]:
    """Return values of ranges as nested settings, ready for a `Layer`."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        for key in space[name].parameters or (name,):
            *groups, leaf = key.split(".")
            target = nested
            for group in groups:
                target = target.setdefault(group, {})
            target[leaf] = value
    return nested


def starts(space: Space, config: RunConfig, points: Sequence[Mapping[str, Value]] = ()) -> tuple[dict[str, Value], ...]:
    """Return the first points: the settings of `config`, then other `points`; values out of range are left out."""
    settings = {name: _set_to(given, config) for name, given in space.items()}
    known: list[dict[str, Value]] = []
    for point in (settings, *points):
        found = {name: value for name, value in point.items() if name in space and _in_range(value, space[name])}
        if found not in known:
            known.append(found)
    return tuple(known)


def _set_to(given: SearchRange, config: RunConfig) -> Value:
    """Return the value that all parameters of a range have in `config`; None if they differ."""
    first, *others = (_setting(config, key) for key in given.parameters)
    if any(value != first for value in others):
        return None
    if first is None and given.rate is not None:
        rates = learning_rates(config.encoder)
        first = getattr(rates, given.rate) if rates else None
    return first if isinstance(first, int | float | str) else None


def _setting(config: RunConfig, key: str) -> Any:
    first, *inner = key.removeprefix("params.").split(".")
    value: Any = config.params if first in config.params else config
    for part in (first, *inner):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value


def _in_range(value: Value, given: SearchRange) -> bool:
    if given.choices is not None:
        return (type(value), value) in [(type(each), each) for each in given.choices]  # because True == 1
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = ends_of(given)
    if not low <= value <= high or (isinstance(value, float) and isinstance(low, int)):
        return False
    steps = (value - low) / given.step if given.step else 0.0
    return abs(steps - round(steps)) < 1e-9


def to_json(space: Space) -> dict[str, Any]:
    """Return a space as plain values, as study.json has it."""
    return {name: given.model_dump(mode="json", exclude_defaults=True) for name, given in space.items()}


def describe(space: Space) -> list[str]:
    """Return one line per range, for example `tau (temperature, temperature_classifier): 0.02 to 0.1, logarithmic`."""
    lines = []
    for name, given in space.items():
        keys = f" ({', '.join(given.parameters)})" if given.parameters not in ((), (name,)) else ""
        if given.choices is not None:
            lines.append(f"{name}{keys}: one of {', '.join(map(_written, given.choices))}")
            continue
        step = f" in steps of {given.step}" if given.step is not None else ""
        kind = ", whole numbers" if isinstance(given.low, int) and isinstance(given.high, int) and not step else ""
        lines.append(f"{name}{keys}: {given.low} to {given.high}{step}{kind}{', logarithmic' if given.log else ''}")
    return lines


def ends_of(given: SearchRange) -> tuple[int | float, int | float]:
    """Return low and high end of a range of numbers."""
    assert given.low is not None
    assert given.high is not None
    return given.low, given.high


def _written(value: Value) -> str:
    return "null" if value is None else str(value)


def _items(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
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


def _range_of(item: str, declared: Space) -> tuple[str, SearchRange]:
    """Return name and range of one item, not checked yet."""
    name, separator, written = (part.strip() for part in item.partition("="))
    name = name if name in declared else _bare(name)
    if separator:
        kept = {"parameters": declared[name].parameters, "rate": declared[name].rate} if name in declared else {}
        return name, _inline(name, written).model_copy(update=kept)
    for known, given in declared.items():
        if name == known or name in map(_bare, given.parameters):
            return known, given
    near = difflib.get_close_matches(name, declared, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(declared) or "none"
    raise UserError(f"{name}: no such range; {hint}declared: {known}; or write one: {_FORMS.format(name)}")


def _inline(name: str, written: str) -> SearchRange:
    """Parse a range from the text after `name=`."""
    where = f"{name}={written}"
    first, *others = (part.strip() for part in written.split(":"))
    values: dict[str, Any] = {}
    if written.startswith("["):
        values["choices"] = parse_yaml(written, where)
    elif not others:
        raise UserError(f"{where}: one value is no range (--set fixes a value); write {_FORMS.format(name)}")
    else:
        values |= {"low": _number(first, where), "high": _number(others[0], where)}
        for option in others[1:]:
            key, separator, step = option.partition("=")
            if option == "log":
                values["log"] = True
            elif key == "step" and separator:
                values["step"] = _number(step, where)
            else:
                raise UserError(f"{where}: unknown part {option!r}; write {_FORMS.format(name)}")
    try:
        return SearchRange(**values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UserError(f"{where}: {fault['msg'].removeprefix('Value error, ')}") from error


def _number(text: str, where: str) -> int | float:
    value: Any = parse_yaml(text, where) if text else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        raise UserError(f"{where}: {text!r} is not a number; choices are written [a,b]")
    return value


def _checked(
    name: str, given: SearchRange, method: str, params: type[BaseModel], layers: Sequence[Layer] = ()
) -> SearchRange:
    """Return the range with all its parameters named and its values converted to their type.

    Raises:
        UserError: The settings of a trial with one of the values would be refused.
    """
    keys = tuple(_bare(key) for key in given.parameters or (name,))
    given = given.model_copy(update={"parameters": keys})
    for key in keys:
        if key.split(".")[0] in _SAME_FOR_ALL:
            raise UserError(f"{name}: {key} is the same for all trials of a sweep; --set fixes it")

    def resolved(value: Any) -> Any:
        """Return the value after validation as a setting."""
        origin = f"{name}={_written(value)}"
        layer = Layer(origin, settings_of({name: value}, {name: given}))
        try:
            config, _ = resolve_layers([method_layer(method), *layers, layer], params)
            _check_names(keys, config)
        except UserError as error:
            lines = (line.removeprefix(f"{origin}: ") for line in str(error).splitlines())
            raise UserError("\n".join(f"{origin}: {line}" for line in lines)) from error
        return _setting(config, keys[0])

    values: dict[str, Any]
    if given.choices is not None:
        values = {"choices": [resolved(choice) for choice in given.choices]}
        if len({(type(each), each) for each in values["choices"]}) < max(2, len(given.choices)):
            raise UserError(f"{name}: choices are two or more different values (--set fixes a value)")
    else:
        values = _numbers(name, given, resolved(given.low), resolved(given.high))
        resolved(_between(values, given.log))  # finds a rule such as `even numbers only`
    return given.model_copy(update=values)


def _numbers(name: str, given: SearchRange, *resolved: Any) -> dict[str, int | float]:
    """Return low, high and step as numbers of one type: int if the ends are int once `resolved` as settings."""
    low, high = ends_of(given)
    steps = 1.0 if given.step is None else (high - low) / given.step if given.step > 0 else 0.0
    if not 1 <= steps <= _MOST_STEPS or abs(steps - round(steps)) > 1e-6 * steps:
        raise UserError(f"{name}: {high} is not a whole number of steps of {given.step} away from {low}")
    kind = float if any(isinstance(value, float) for value in (*resolved, given.step)) else int
    numbers = {"low": low, "high": high} | ({} if given.step is None else {"step": given.step})
    return {key: kind(value) for key, value in numbers.items()}


def _between(numbers: Mapping[str, int | float], log: bool) -> int | float:
    """Return a second number of a range: the one after the low end, or one in the middle."""
    low, high = numbers["low"], numbers["high"]
    if "step" in numbers or isinstance(low, int):
        return low + numbers.get("step", 1)
    return math.sqrt(low * high) if log else (low + high) / 2


def _check_names(keys: tuple[str, ...], config: RunConfig) -> None:
    """Refuse names of encoders and search backends that the schema alone does not know."""
    groups = {key.split(".")[0] for key in keys}
    if groups & {"encoder", "encoder_options"}:
        from harness.model import check_encoder

        check_encoder(config.encoder, dict(config.encoder_options))
    if "search" in groups:
        from harness.index import check_backend

        check_backend(config.search.backend, dict(config.search.options))


def _bare(key: str) -> str:
    """Return a key without `params.` before it, unless a run setting has the rest as its name."""
    rest = key.removeprefix("params.")
    return key if rest.split(".")[0] in RunConfig.model_fields else rest
