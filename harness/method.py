"""What a method is: a set of knobs and a function that builds parts.

`methods/<name>.py` exposes `METHOD = Method(Params, build)`, and `methods/<name>.yaml` beside it documents every knob;
a dash in the name is an underscore in that of the module. A preset is a YAML file alone, `preset_of: <method>`. A
package outside this repository adds its own method with an entry point of group `xmc_harness.methods` that names such a
`METHOD`; its YAML lies beside its module too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, Field, ValidationError, model_validator

from harness.config import Layer, Settings
from harness.data.card import describe_faults
from harness.errors import UserError
from harness.registry import Registry
from harness.yaml import read_yaml

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_array
    from torch import nn

    from harness.data.ragged import Ragged
    from harness.index import TopK
    from harness.model.encoder import Encoder
    from harness.train import Stage

METHOD_FOLDER = Path(__file__).parents[1] / "methods"


class Scorer(Protocol):
    """A model as search sees it: score(query, label) is the inner product of two vectors.

    A model may know several ways of scoring (its dual encoder, its classifier, both); each is a view with vectors of
    its own, and the first view is the one whose numbers a run reports as its own.
    """

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views."""
        ...

    @property
    def text_view(self) -> str | None:
        """The view whose label vectors come from text alone, so that it can score labels it was never trained on."""
        ...

    def query_vectors(self, tokens: "Ragged", views: tuple[str, ...]) -> "dict[str, NDArray[np.float32]]":
        """Vectors of queries for the given views, [n, D] each."""
        ...

    def label_vectors(self, tokens: "Ragged", views: tuple[str, ...]) -> "dict[str, NDArray[np.float32]]":
        """Vectors of labels for the given views, [L, D] each; for `text_view` alone, of any texts."""
        ...


@runtime_checkable
class Ranker(Protocol):
    """A model that ranks labels itself, because its score is no inner product of two dense vectors."""

    @property
    def views(self) -> tuple[str, ...]:
        """Names of its ways of ranking; the first is the one a run reports."""
        ...

    @property
    def text_view(self) -> str | None:
        """None: it knows the labels it was fitted on and no others."""
        ...

    def rank(self, tokens: "Ragged", k: int, exclude: "csr_array | None", view: str) -> "TopK":
        """The best k labels of queries [n]; pairs in `exclude` [n, L] are masked before the ranking."""
        ...


class Fitted(Protocol):
    """A model that is fitted in one go, by code that is not ours or in closed form, instead of trained in steps."""

    def fit(self) -> dict[str, Any]:
        """Fits on the train side; returns facts for the record."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what `load` needs into an existing, empty folder; nothing in it is executed on loading."""
        ...

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote instead of fitting."""
        ...


@dataclass(frozen=True)
class Inputs:
    """What a method may build from: train rows and labels. It never sees the test side, nor held-out rows."""

    train: "csr_array"
    """Train labels, [N, L]; rows may be made ones, see `harness.augment`."""
    train_filter: "csr_array"
    """Pairs that are neither positive nor negative, [N, L]."""
    train_tokens: "Ragged"
    """[N]."""
    label_tokens: "Ragged"
    """[L]."""
    encoder: "Encoder"
    device: str
    batch_tokens: int
    seed: int
    warn: Callable[[str], None]
    """Takes one line about a setting that cannot have the effect one would expect."""
    own: "Inputs | None" = None
    """The same without made rows, where there are any."""
    soft: bool = False
    """The values of `train` are targets in (0, 1]; otherwise every stored pair is a whole positive."""


@dataclass(frozen=True)
class Parts:
    """What a method is made of for one run."""

    scorer: Scorer | Ranker
    model: "nn.Module | None" = None
    """What is trained and saved; None for a method without training."""
    stages: "Callable[[], tuple[Stage, ...]]" = tuple
    """Makes the phases of training, in order; called for a training only, because an optimiser needs memory."""
    fitted: Fitted | None = None
    """What is fitted in one go, in place of `model` and `stages`."""


@dataclass(frozen=True)
class Method:
    """A registered method."""

    params: type[BaseModel]
    build: Callable[[Inputs, Any], Parts]


class SearchRange(Settings):
    """Where a sweep looks for the value of a knob: a range of numbers, or a list of choices."""

    knobs: tuple[str, ...] = Field(default=(), strict=False)
    """Settings that get the value, where they are not called as the range is; dots reach nested ones."""
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    """Draw evenly on a logarithmic scale."""
    step: int | float | None = None
    choices: list[int | float | str | bool | None] | None = None
    rate: Literal["encoder", "heads", "classifier", "one_vs_all"] | None = None
    """Which learning rate of the encoder a setting that is null stands for."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        numbers = (self.low, self.high)
        if (self.choices is None) == (numbers == (None, None)):
            raise ValueError("takes either low and high, or choices")
        if self.choices is not None:
            if not self.choices or self.log or self.step is not None:
                raise ValueError("choices are a list that is not empty, without log or step")
        elif self.low is None or self.high is None or not self.low < self.high:
            raise ValueError("low must be below high")
        elif self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("a logarithmic range begins above 0 and has no step")
        return self


class MethodCard(Settings):
    """The YAML beside a method."""

    summary: str
    reference: str = ""
    """The paper, in one line."""
    preset_of: str | None = None
    defaults: dict[str, Any] = Field(default={})
    """Run settings this method prefers, for example its encoder."""
    params: dict[str, Any] = Field(default={})
    """Every knob with its default, one comment each."""
    search: dict[str, SearchRange] = Field(default={})
    """Where a sweep looks, by the names that `sweep --over` takes; a preset has those of its method and its own."""
    plan: dict[str, Any] = Field(default={})
    """What `harness plan` has to know to foresee memory and time; see `harness.plan`."""


def _own_methods() -> Registry[Method]:
    registry: Registry[Method] = Registry("method", group="xmc_harness.methods")
    for path in sorted(METHOD_FOLDER.glob("*.yaml")):
        card = read_method_card(path)
        module = module_name(card.preset_of or path.stem)
        if card.preset_of and not (METHOD_FOLDER / f"{module}.py").exists():
            raise UserError(f"{path}: preset_of: there is no method {card.preset_of!r}; name one that has a .py file")
        registry.register(path.stem, f"methods.{module}:METHOD", card.summary)
    return registry


def module_name(method: str) -> str:
    """The module in `methods/` that a method of ours lives in."""
    return method.replace("-", "_")


@cache
def methods() -> Registry[Method]:
    """Every method and preset, by name; nothing is imported until one is asked for."""
    return _own_methods()


@cache
def read_method_card(path: Path) -> MethodCard:
    """Parses one method YAML, once per process."""
    try:
        return MethodCard.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, str(path)))) from error


def load_method(name: str) -> Method:
    """Imports a method by name."""
    method = methods().get(name)
    if not isinstance(method, Method):
        raise UserError(
            f"method {name!r} ({methods().origin(name)}) is not a harness.method.Method; see CONTRIBUTING.md"
        )
    return method


_NAME = re.compile(r"[\w.-]{1,100}")
"""Names of files; a record may call a method by anything."""


def method_card_path(name: str) -> Path:
    """Where the YAML of a method or preset lies; a module outside this repository is located, not imported."""
    path = METHOD_FOLDER / f"{name}.yaml"
    if _NAME.fullmatch(name) and path.exists():
        return path
    if name not in methods():
        methods().get(name)  # raises the error that names the nearest one
    found = find_spec(methods().origin(name).split(":")[0])
    path = Path(str(found.origin if found else name)).with_suffix(".yaml")
    if not path.exists():
        raise UserError(f"method {name!r} has no YAML beside its module ({path.name}); see CONTRIBUTING.md")
    return path


def method_layer(name: str) -> Layer:
    """The defaults a method brings: from its YAML, presets over what they are a preset of."""
    path = method_card_path(name)
    card = read_method_card(path)
    base = method_layer(card.preset_of).values if card.preset_of else {}
    values = {**base, **card.defaults, "params": {**base.get("params", {}), **card.params}}
    return Layer(f"methods/{path.name}", values)
