"""Turn a request into cells; every fault that can be known before a run starts is found here and reported at once."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

from harness import metrics
from harness.data import load
from harness.data.prepare import resolve
from harness.errors import MissingDataError, UserError, unknown_name
from harness.experiments.bench import Cell, Request
from harness.experiments.request import override_layer
from harness.machine.device import choose_device
from harness.model import check_encoder
from harness.model.folders import encoder_weights
from harness.run import resolve_config
from harness.runs.metadata import describe, recorded
from harness.settings.identity import key_of
from harness.settings.layers import Layer, comma_list, merge, route_parameters
from harness.settings.method import load_method, methods
from harness.settings.schema import RunConfig
from harness.train.fusion import run_before
from harness.train.inputs import validation_split

_OWN_OPTIONS = {"method": "--methods", "dataset": "--datasets", "seed": "--seeds"}
_ON_TEST_ROWS = "a bench compares figures of test rows; settings are searched by `sweep`"
_HINT = "a setting for one method alone carries its name: --set unidec:beta=3"

Pair = tuple[str, str]
"""Names of a method and a dataset."""


class Faults:
    """Faults of a request; one that many cells have is reported once."""

    def __init__(self) -> None:
        self._found: dict[str, set[Pair]] = {}
        self.hints: list[str] = []
        """Advice on what to do instead, printed after the faults."""

    def add(self, error: UserError, *pairs: Pair) -> None:
        """Add a fault of the given cells, or of the whole request."""
        for line in str(error).splitlines():
            self._found.setdefault(line, set()).update(pairs)

    def refuse(self, chosen: list[str], datasets: list[str]) -> None:
        """Raise one error that lists all faults, if there are any."""
        lines = [_place(pairs, chosen, datasets) + line for line, pairs in self._found.items()]
        if any("--set" in line and "unknown key" in line for line in lines) and len(chosen) > 1:
            lines.append(_HINT)
        lines += self.hints
        if self._found:
            count = f"{len(self._found)} faults" if len(self._found) > 1 else "1 fault"
            head = f"{count}, nothing was run:\n  " if len(lines) > 1 else ""
            raise UserError(head + "\n  ".join(lines))


def _place(pairs: set[Pair], chosen: list[str], datasets: list[str]) -> str:
    """Return which cells a fault belongs to, as the start of a line; empty if it belongs to all."""
    if len(pairs) in (0, len(chosen) * len(datasets)):
        return ""
    at_fault = [name for name in chosen if any(method == name for method, _ in pairs)]
    places = [name for name in datasets if any(dataset == name for _, dataset in pairs)]
    if len(pairs) == len(at_fault) * len(datasets):
        return f"{', '.join(at_fault)}: "
    if len(pairs) == len(chosen) * len(places):
        return f"{', '.join(places)}: "
    return f"{', '.join(f'{method} on {dataset}' for method, dataset in sorted(pairs))}: "


@dataclass(frozen=True)
class Wanted:
    """A run that is asked for, without its seed."""

    name: str
    """Name in error messages."""
    method: str
    dataset: str
    layers: list[Layer]
    """Settings that override those of the method and of the card."""
    variant: str = ""
    """Settings that differ between runs of the same method, as text."""
    seeds: tuple[int, ...] = ()
    """Its own seeds; empty to take those of the bench."""


def plan(request: Request) -> list[Cell]:
    """Return the cells of a matrix by dataset, then seed; prepares the data, as keys of cells contain its digest.

    Raises one `UserError` with every fault. Data is read, and its faults reported, only if all else is right.
    """
    faults = Faults()
    chosen, datasets = chosen_methods(request.methods, faults), known_datasets(request.datasets or "", faults)
    seeds = parsed_seeds("0" if request.seeds is None else request.seeds, faults)
    layers = setting_layers(request, chosen, faults)
    wanted = [Wanted(method, method, dataset, layers[method]) for dataset in datasets for method in chosen]
    cells, missing = resolved(wanted, seeds, faults)
    for line in missing.values():
        faults.add(UserError(line))
    faults.refuse(chosen, datasets)
    return in_order(wanted, cells)


def resolved(wanted: list[Wanted], seeds: list[int], faults: Faults) -> tuple[list[list[Cell]], dict[str, str]]:
    """Return the cells of each wanted run, one per seed, and a sentence per dataset that is not on this machine.

    A missing dataset has no cells. Raises every fault found so far, if there is one.
    """
    names = list(dict.fromkeys(one.name for one in wanted))
    datasets = list(dict.fromkeys(one.dataset for one in wanted))
    drafts: dict[int, tuple[RunConfig, dict[str, Any]]] = {}
    for place, one in enumerate(wanted):
        try:
            drafts[place] = _draft(one)
        except UserError as error:
            faults.add(error, (one.name, one.dataset))
    faults.refuse(names, datasets)
    described: dict[int, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    load_once = cache(load)
    for place, (config, _) in drafts.items():
        name, dataset = wanted[place].name, wanted[place].dataset
        if dataset in missing:
            continue
        try:
            loaded = load_once(dataset, use_filter=config.filter)
            validation_split(loaded, config)
            validation_split(loaded, run_before(config) or config)
            described[place] = describe(loaded, config) | {"weights": encoder_weights(config)}
        except MissingDataError as error:  # the message is long, and `data check` prints it
            first = str(error).splitlines()[0]
            missing[dataset] = f"{first}; `python -m harness data check {dataset}` says what to place where"
        except UserError as error:
            faults.add(error, (name, dataset))
    if not missing:
        faults.refuse(names, datasets)
    cells: list[list[Cell]] = [[] for _ in wanted]
    for place, data in described.items():
        for seed in wanted[place].seeds or seeds:
            cells[place].append(_cell(*drafts[place], seed, data, wanted[place].variant))
    return cells, missing


def in_order(wanted: list[Wanted], cells: list[list[Cell]]) -> list[Cell]:
    """Return the cells by dataset, then seed; of cells with equal keys, the first."""
    ordered = []
    for dataset in dict.fromkeys(one.dataset for one in wanted):
        of_dataset = [of_one for one, of_one in zip(wanted, cells, strict=True) if one.dataset == dataset and of_one]
        ordered += [cell for of_seed in zip_longest(*of_dataset) for cell in of_seed if cell]
    return list({cell.key: cell for cell in reversed(ordered)}.values())[::-1]


def chosen_methods(text: str, faults: Faults) -> list[str]:
    """Parse `--methods` (`a,b`, `all`, `all,-c`) into names in the order given, each once."""
    names: list[str] = []
    left_out: set[str] = set()
    for word in comma_list(text):
        name = word.removeprefix("-")
        if word == "all":
            names += methods()
        elif name not in methods():
            faults.add(unknown_name("method", name, ["all", *methods()]))
        elif word.startswith("-"):
            left_out.add(name)
        else:
            names.append(name)
    chosen = [name for name in dict.fromkeys(names) if name not in left_out]
    if not chosen:
        faults.add(UserError(f"--methods {text!r} leaves no method; `python -m harness ls methods` lists them"))
    return chosen


def known_datasets(text: str, faults: Faults) -> list[str]:
    """Parse `--datasets`, `x,y`, into names and folders; in `synthetic:train=9,test=9` the comma is part of a name."""
    names: list[str] = []
    for word in comma_list(text):
        if re.fullmatch(r"\w+=[^=]*", word) and names and names[-1].startswith("synthetic:"):
            names[-1] += f",{word}"
        else:
            names.append(word)
    known = []
    for name in dict.fromkeys(names):
        try:
            resolve(name)
            known.append(name)
        except UserError as error:
            faults.add(error)
    if not names:
        faults.add(UserError("--datasets names none; `python -m harness ls datasets` lists them"))
    return known


def parsed_seeds(text: str, faults: Faults) -> list[int]:
    """Parse `--seeds` (`0,1,2`) into numbers, each once."""
    words = comma_list(text)
    wrong = [word for word in words if not (re.fullmatch(r"[0-9]{1,19}", word) and int(word) < 2**63)]
    if wrong or not words:
        faults.add(UserError(f"--seeds takes whole numbers from 0, for example 0,1,2 (got {text!r})"))
    return list(dict.fromkeys(int(word) for word in words if word not in wrong))


def setting_layers(request: Request, chosen: list[str], faults: Faults) -> dict[str, list[Layer]]:
    """Return the settings given on the command line as layers, by method."""
    layers: dict[str, list[Layer]] = {method: [] for method in chosen}
    for text in request.settings:
        method = text.partition("=")[0].rpartition(":")[0]
        try:
            layer = override_layer(text, "bench", _OWN_OPTIONS, _ON_TEST_ROWS, method)
            if method and method not in chosen:
                raise UserError(f"--set {text}: {method} is not among the methods of this bench ({', '.join(chosen)})")
        except UserError as error:
            faults.add(error)
            continue
        for name in [method] if method else chosen:
            layers[name].append(layer)
    if request.encoder is not None:
        try:
            check_encoder(request.encoder, {})
        except UserError as error:
            faults.add(error)
        for given in layers.values():
            given.append(Layer("--encoder", {"encoder": request.encoder}))
    return layers


def _draft(wanted: Wanted) -> tuple[RunConfig, dict[str, Any]]:
    """Return the resolved settings of a run without its seed, and those of them that were given."""
    try:
        params = load_method(wanted.method).params
    except ImportError as error:
        raise UserError(
            f"method {wanted.method!r} cannot be imported ({error}); leave it out: --methods all,-{wanted.method}"
        ) from error
    config, _ = resolve_config(wanted.method, wanted.dataset, wanted.layers)
    given, _ = merge(route_parameters(layer, params) for layer in wanted.layers)
    choose_device(config.device)
    return config, given


def _cell(config: RunConfig, given: dict[str, Any], seed: int, data: dict[str, Any], variant: str) -> Cell:
    config = config.model_copy(update={"seed": seed})
    key = key_of(recorded(config), data, metrics.METRIC_VERSION, data["weights"])
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", f"{config.method[:24]}-{data['name'][:32]}-s{seed}-{key[:8]}")
    return Cell(config, given, key, name, data["name"], variant)
