"""Turn a request into a checked plan; every fault that can be known before a trial runs is found here."""

import re
from typing import Any

from harness import metrics
from harness.data import Dataset, load
from harness.data.prepare import resolve
from harness.errors import UserError, unknown_name
from harness.experiments.request import override_layer
from harness.experiments.sweep import PRUNERS, SAMPLERS, Plan, Request, Timing, study_folder
from harness.experiments.sweep.space import Space, default_names, parse_over, settings_of, starts, to_json
from harness.experiments.sweep.study import storage_address
from harness.io.files import checked_name
from harness.machine.device import choose_device
from harness.model.folders import encoder_weights
from harness.run import resolve_config
from harness.runs.metadata import describe, recorded, recorded_name
from harness.settings.identity import marked
from harness.settings.layers import Layer, comma_list, flat, merge, route_parameters
from harness.settings.method import load_method
from harness.settings.schema import RECORD, SPEED, RunConfig
from harness.tracking import make_tracker
from harness.train.inputs import validation_split

_OWN_OPTIONS = {name: f"--{name}" for name in ("method", "dataset", "encoder", "seed")}
_FREE = marked(RECORD) | marked(SPEED)
"""Settings that may differ between the machines of one study."""
_VALIDATION_SHARE = 0.1
_CHECKPOINT_SECONDS = 10.0
_ON_TEST_ROWS = "a sweep judges its trials on validation rows, never on test rows; leave it out"
_MOST_TRIALS = 10_000
"""Most trials of a sweep; each is a row in the database and a run folder."""


def make_plan(request: Request, timing: Timing) -> Plan:
    """Return the plan of a request, or raise `UserError`; prepares the data, as the study's identity has its digest."""
    _check_names(request)
    study = _study_name(request)
    folder = study_folder(study, request.out)
    storage = storage_address(request.storage, folder)
    given = [override_layer(text, "sweep", _OWN_OPTIONS, _ON_TEST_ROWS) for text in request.settings]
    if request.encoder is not None:
        given.append(Layer("--encoder", {"encoder": request.encoder}))
    objectives = tuple(dict.fromkeys(comma_list(request.objective)))
    if len(objectives) not in (1, 2):
        raise UserError(f"--objective takes one metric or two, for example P@1,PSP@5 (got {request.objective!r})")
    layers, config = _shared_settings(request, given, objectives)
    space = _space(request, given, layers)
    dataset = load(request.dataset, use_filter=config.filter)
    _check_objectives(objectives, config, dataset)
    validation_split(dataset, config)
    choose_device(config.device)
    epochs = config.params.get("epochs")
    checked: dict[str, Any] = {
        "study": study,
        "folder": folder,
        "storage": storage,
        "layers": tuple(layers),
        "space": space,
        "starts": starts(space, config, request.points),
        "objectives": objectives,
        "identity": _identity(request, config, space, objectives, dataset),
        "epochs": epochs if isinstance(epochs, int) and "epochs" not in settings_of(_lowest(space), space) else None,
        "timing": timing,
    }
    return Plan(**vars(request) | checked)


def _check_names(request: Request) -> None:
    if not 1 <= request.trials <= _MOST_TRIALS:
        raise UserError(f"--trials takes a number from 1 to {_MOST_TRIALS:,} (got {request.trials})")
    if request.max_retry < 0:
        raise UserError(f"--max-retry takes a number from 0 (got {request.max_retry})")
    if request.sampler not in SAMPLERS:
        raise unknown_name("sampler", request.sampler, SAMPLERS)
    if request.pruner not in PRUNERS:
        raise unknown_name("pruner", request.pruner, PRUNERS)
    if request.out and request.out.exists() and not request.out.is_dir():
        raise UserError(f"--out {request.out} is a file; name a folder")
    make_tracker(request.track)
    load_method(request.method)
    resolve(request.dataset)


def _study_name(request: Request) -> str:
    """Return the name given, or method and dataset with dashes for what a folder's name cannot have."""
    if request.study is not None:
        return checked_name("study", request.study)
    words = f"{request.method}-{recorded_name(request.dataset).removeprefix('./')}"
    return checked_name("study", re.sub(r"[^A-Za-z0-9._+-]+", "-", words)[:100].strip("-."))


def _shared_settings(
    request: Request, given: list[Layer], objectives: tuple[str, ...]
) -> tuple[list[Layer], RunConfig]:
    """Return the layers of settings that all trials share, and the config they resolve to."""
    own: dict[str, Any] = {"evaluate": "validation", "seed": request.seed, "tracking": {"model": "never"}}
    before, origins = resolve_config(request.method, request.dataset, given)
    validation: dict[str, Any] = {} if before.validation.size else {"size": _VALIDATION_SHARE}
    if not before.validation.size and origins["validation.size"].startswith("--set"):
        raise UserError(f"{origins['validation.size']}: {_ON_TEST_ROWS}")
    if origins["validation.metric"].startswith("--set") and before.validation.metric != objectives[0]:
        raise UserError(
            f"validation.metric is {before.validation.metric}, but the trials are judged by {objectives[0]}; leave it "
            "out, or name it with --objective"
        )
    own["validation"] = {**validation, "metric": objectives[0]}
    if origins["checkpoint.min_seconds"] == "default":  # so that a killed trial need not begin anew
        own["checkpoint"] = {"min_seconds": _CHECKPOINT_SECONDS}
    layers = [Layer("sweep", own), *given]
    return layers, resolve_config(request.method, request.dataset, layers)[0]


def _space(request: Request, given: list[Layer], layers: list[Layer]) -> Space:
    params = load_method(request.method).params
    over = ",".join(default_names(request.method)) if request.over is None else request.over
    space = parse_over(over, request.method, params, layers)
    set_by_hand = merge(route_parameters(layer, params) for layer in given)[1]
    for key in flat(route_parameters(Layer("over", settings_of(_lowest(space), space)), params).values):
        if key in set_by_hand:
            raise UserError(f"{set_by_hand[key]}: --over searches it; leave one of the two out")
    return space


def _lowest(space: Space) -> dict[str, Any]:
    """Return one value of every range: the low end or the first choice."""
    return {name: one.choices[0] if one.choices else one.low for name, one in space.items()}


def _check_objectives(objectives: tuple[str, ...], config: RunConfig, dataset: Dataset) -> None:
    known = metrics.names(config.ks, dataset.card.propensity is not None)
    for name in objectives:
        if name not in known and name in metrics.names(config.ks, True):
            raise UserError(
                f"--objective {name}: the card of {dataset.name} has no propensity constants, so this cannot be "
                "computed; take another metric, or give the card its `propensity:`"
            )
        if name not in known:
            raise unknown_name("objective", name, known)


def _identity(
    request: Request, config: RunConfig, space: Space, objectives: tuple[str, ...], dataset: Dataset
) -> dict[str, Any]:
    """Return what two sweeps must have in common to work on the same study."""
    data = describe(dataset, config)
    fixed = {key: value for key, value in recorded(config).items() if key not in _FREE}
    return {
        "method": request.method,
        "dataset": {key: data[key] for key in ("name", "digest", "filter", "propensity")},
        "weights": encoder_weights(config),
        "objective": list(objectives),
        "space": to_json(space),
        "config": fixed,
        "sampler": request.sampler,
        "pruner": request.pruner,
        "metric_version": metrics.METRIC_VERSION,
    }
