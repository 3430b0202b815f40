"""Resolve names and layers to the settings of a run, for every command; needs neither data nor torch."""

from harness.data.card import find_card
from harness.errors import UserError
from harness.settings.layers import Layer, card_layers, resolve_layers
from harness.settings.method import load_method, method_layer
from harness.settings.schema import RunConfig


def resolve(method: str, dataset: str, layers: list[Layer]) -> tuple[RunConfig, dict[str, str]]:
    """Stack schema, method, card and the given layers into one checked config, with the origin of each value.

    Args:
        method: A method or preset.
        dataset: A card's name, `synthetic:option=value`, or the path of a folder.
        layers: Layers on top, the last one wins; parameters of the method may be named without `params`.
    """
    return _resolved(method, dataset, [*card_layers(find_card(dataset), method), *layers])


def usual_config(method: str, dataset: str, layers: list[Layer]) -> RunConfig | None:
    """Resolve settings like `resolve`, for a record: its card may be unknown here; None if its method is."""
    try:
        card = card_layers(find_card(dataset.partition(":")[0]), method)
    except UserError:
        card = []
    try:
        load_method(method)
    except UserError:
        return None
    return _resolved(method, dataset, [*card, *layers])[0]


def _resolved(method: str, dataset: str, layers: list[Layer]) -> tuple[RunConfig, dict[str, str]]:
    names = Layer("default", {"method": method, "dataset": dataset})
    return resolve_layers([names, method_layer(method), *layers], load_method(method).params)
