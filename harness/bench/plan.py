"""From what the user typed to cells; everything that can be known to be wrong is found here, and told at once."""

import re
from collections.abc import Iterable
from typing import Any

from harness import metrics
from harness.bench import Cell, Request
from harness.bench.shelf import key_of
from harness.config import Layer, RunConfig, merge, parse_override, route_knobs
from harness.data import Dataset, load
from harness.data.prepare import resolve
from harness.errors import MissingDataError, UserError, unknown_name
from harness.method import load_method, methods
from harness.model import check_encoder, is_folder
from harness.run import choose_device, describe, hold_out, recorded, resolve_config

_OWN_OPTIONS = {"method": "--methods", "dataset": "--datasets", "seed": "--seeds"}
_HINT = "a setting for one method alone carries its name: --set unidec:beta=3"

Pair = tuple[str, str]
"""Method and dataset."""


class Faults:
    """Faults of a request, each told once however many cells have it."""

    def __init__(self) -> None:
        self._found: dict[str, set[Pair]] = {}

    def add(self, error: UserError, *pairs: Pair) -> None:
        """Notes a fault, of the given cells or of the request as such."""
        for line in str(error).splitlines():
            self._found.setdefault(line, set()).update(pairs)

    def refuse(self, chosen: list[str], datasets: list[str]) -> None:
        """Raises one error that lists all faults; silent if there are none."""
        lines = [_place(pairs, chosen, datasets) + line for line, pairs in self._found.items()]
        if any("--set" in line and "unknown key" in line for line in lines) and len(chosen) > 1:
            lines.append(_HINT)
        if self._found:
            count = f"{len(self._found)} faults" if len(self._found) > 1 else "1 fault"
            head = f"{count}, nothing was run:\n  " if len(lines) > 1 else ""
            raise UserError(head + "\n  ".join(lines))


def _place(pairs: set[Pair], chosen: list[str], datasets: list[str]) -> str:
    """Which cells a fault belongs to; nothing if to all of them."""
    if len(pairs) in (0, len(chosen) * len(datasets)):
        return ""
    at_fault = [name for name in chosen if any(method == name for method, _ in pairs)]
    places = [name for name in datasets if any(dataset == name for _, dataset in pairs)]
    if len(pairs) == len(at_fault) * len(datasets):
        return f"{', '.join(at_fault)}: "
    if len(pairs) == len(chosen) * len(places):
        return f"{', '.join(places)}: "
    return f"{', '.join(f'{method} on {dataset}' for method, dataset in sorted(pairs))}: "


def plan(request: Request) -> list[Cell]:
    """The cells of a request, dataset by dataset and seed by seed; prepares the data, because its digest counts.

    Raises one `UserError` with every fault; those of the data come second, because looking at data takes time.
    """
    faults = Faults()
    chosen, datasets = chosen_methods(request.methods, faults), known_datasets(request.datasets, faults)
    seeds = parsed_seeds(request.seeds, faults)
    layers = setting_layers(request, chosen, faults)
    drafts: dict[Pair, tuple[RunConfig, dict[str, Any]]] = {}
    for method in chosen:
        for dataset in datasets:
            try:
                drafts[method, dataset] = _draft(method, dataset, layers[method])
            except UserError as error:
                faults.add(error, (method, dataset))
    faults.refuse(chosen, datasets)
    data = {
        dataset: _look_at_data(dataset, {method: drafts[method, dataset][0] for method in chosen}, faults)
        for dataset in datasets
    }
    faults.refuse(chosen, datasets)
    return [
        _cell(*drafts[method, dataset], seed, data[dataset][method])
        for dataset in datasets
        for seed in seeds
        for method in chosen
    ]


def chosen_methods(text: str, faults: Faults) -> list[str]:
    """`a,b`, `all`, `all,-c`: names in the order given, without repetition."""
    names: list[str] = []
    left_out: set[str] = set()
    for word in _words(text):
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
    """`x,y`: names and folders; in `synthetic:train=9,test=9` the comma belongs to the name."""
    names: list[str] = []
    for word in _words(text):
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
    """`0,1,2`."""
    words = _words(text)
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and int(word) < 2**63)]
    if wrong or not words:
        faults.add(UserError(f"--seeds takes whole numbers from 0, for example 0,1,2 (got {text!r})"))
    return list(dict.fromkeys(int(word) for word in words if word not in wrong))


def setting_layers(request: Request, chosen: list[str], faults: Faults) -> dict[str, list[Layer]]:
    """What was given on the command line, for each method."""
    layers: dict[str, list[Layer]] = {method: [] for method in chosen}
    for text in request.settings:
        key = text.partition("=")[0]
        method, _, rest = text.partition(":") if ":" in key else ("", "", text)
        try:
            values = parse_override(rest)
            if own := _OWN_OPTIONS.get(next(iter(values))):
                raise UserError(f"--set {text}: in a bench this is what {own} is for")
            if method and method not in chosen:
                raise UserError(f"--set {text}: {method} is not among the methods of this bench ({', '.join(chosen)})")
        except UserError as error:
            faults.add(error)
            continue
        for name in [method] if method else chosen:
            layers[name].append(Layer(f"--set {text}", values))
    if request.encoder is not None:
        try:
            check_encoder(request.encoder, {})
        except UserError as error:
            faults.add(error)
        for given in layers.values():
            given.append(Layer("--encoder", {"encoder": request.encoder}))
    return layers


def _draft(method: str, dataset: str, layers: list[Layer]) -> tuple[RunConfig, dict[str, Any]]:
    """The settings of a cell but for its seed, and those of them that the user gave."""
    try:
        params = load_method(method).params
    except ImportError as error:
        raise UserError(
            f"method {method!r} cannot be imported ({error}); leave it out: --methods all,-{method}"
        ) from error
    config, _ = resolve_config(method, dataset, layers)
    given, _ = merge(route_knobs(layer, params) for layer in layers)
    choose_device(config.device)
    return config, given


def _look_at_data(dataset: str, configs: dict[str, RunConfig], faults: Faults) -> dict[str, dict[str, Any]]:
    """What a record of each method would say about the data and, under `weights`, about an encoder's folder."""
    described = {}
    for use_filter in (True, False):
        sharing = {method: config for method, config in configs.items() if config.filter is use_filter}
        loaded = _load(dataset, use_filter, sharing, faults) if sharing else None
        if loaded is None:
            continue
        for method, config in sharing.items():
            try:
                hold_out(loaded, config)
                described[method] = describe(loaded, config) | {"weights": _weights(config)}
            except UserError as error:
                faults.add(error, (method, dataset))
    return described


def _load(dataset: str, use_filter: bool, sharing: Iterable[str], faults: Faults) -> Dataset | None:
    try:
        return load(dataset, use_filter=use_filter)
    except MissingDataError as error:  # a screenful, which has a command of its own
        short = f"{str(error).splitlines()[0]}; `python -m harness data check {dataset}` says what to place where"
        faults.add(UserError(short))
    except UserError as error:
        faults.add(error, *((method, dataset) for method in sharing))
    return None


def _weights(config: RunConfig) -> str | None:
    """The hash of a model folder's files; None for an encoder that is known by its name."""
    if not is_folder(config.encoder):
        return None
    from harness.model.weights import find

    return find(config.encoder, pooling=config.encoder_options.get("pooling")).identity


def _cell(config: RunConfig, given: dict[str, Any], seed: int, data: dict[str, Any]) -> Cell:
    config = config.model_copy(update={"seed": seed})
    key = key_of(recorded(config), data, metrics.METRIC_VERSION, data["weights"])
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", f"{config.method[:24]}-{data['name'][:32]}-s{seed}-{key[:8]}")
    return Cell(config, given, key, name)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
