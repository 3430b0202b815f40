"""What a method is: a class of parameters and a function that builds parts.

`methods/<name>.py` exposes `METHOD = Method(Params, build)`; the class holds the default and the documentation of each
parameter and imports nothing heavy, `build` imports what it needs. `methods/<name>.yaml` beside it holds the summary,
the reference and the ranges of a sweep; a dash in the name is an underscore in that of the module. A preset is a YAML
file alone, with `preset_of: <method>` and the values that differ. A package outside this repository adds its own method
with an entry point of group `xmc_harness.methods` that names such a `METHOD`; its YAML lies beside its module too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from harness.errors import UserError
from harness.io.models import read_model
from harness.registry import Registry
from harness.settings.layers import Layer
from harness.settings.schema import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_array
    from torch import nn

    from harness.data.ragged import Ragged
    from harness.index import TopK
    from harness.model.encoders.encoder import Encoder
    from harness.train import Stage

METHOD_FOLDER = Path(__file__).parents[2] / "methods"


class Scoring(Protocol):
    """A model as search sees it: score(query, label) is the inner product of two vectors.

    A model may have several ways of scoring (its dual encoder, its classifier, both); each has vectors of its own, and
    the first is the one whose metrics a run reports.
    """

    @property
    def scorers(self) -> tuple[str, ...]:
        """Names of the ways of scoring."""
        ...

    @property
    def text_scorer(self) -> str | None:
        """The one whose label vectors come from text alone, so that it can score labels it was never trained on."""
        ...

    def query_vectors(self, tokens: "Ragged", scorers: tuple[str, ...]) -> "dict[str, NDArray[np.float32]]":
        """Vectors of queries for the given ways of scoring, [n, D] each."""
        ...

    def label_vectors(self, tokens: "Ragged", scorers: tuple[str, ...]) -> "dict[str, NDArray[np.float32]]":
        """Vectors of labels for the given ways of scoring, [L, D] each; for `text_scorer` alone, of any texts."""
        ...


@runtime_checkable
class Ranker(Protocol):
    """A model that ranks labels itself, because its score is not the inner product of two dense vectors."""

    @property
    def scorers(self) -> tuple[str, ...]:
        """Names of its ways of ranking; the first is the one a run reports."""
        ...

    @property
    def text_scorer(self) -> str | None:
        """None: it can score only the labels that it was fitted on."""
        ...

    def rank(self, tokens: "Ragged", k: int, exclude: "csr_array | None", scorer: str) -> "TopK":
        """The best k labels of queries [n]; pairs in `exclude` [n, L] are masked before the ranking."""
        ...


class Fitted(Protocol):
    """A model that is fitted in one go, by code that is not ours or in closed form, instead of trained in steps."""

    def fit(self) -> dict[str, Any]:
        """Fit on the train side; return metadata for the record."""
        ...

    def save(self, folder: Path) -> None:
        """Write what `load` needs into an existing, empty folder; nothing in it is executed on loading."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, in place of fitting."""
        ...


@dataclass(frozen=True)
class Inputs:
    """What a method may build from: train rows and labels, never test or validation rows."""

    train: "csr_array"
    """Train labels, [N, L]; augmented rows come last, see `harness.augment`."""
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
    """Called with one line about a setting that does not have the effect one would expect."""
    own: "Inputs | None" = None
    """The same without augmented rows, where there are any."""
    soft: bool = False
    """The values of `train` are targets in (0, 1]; otherwise every stored pair is a whole positive."""


@dataclass(frozen=True)
class Parts:
    """What a method is made of for one run."""

    scoring: Scoring | Ranker
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
    """Where a sweep looks for the value of a parameter: a range of numbers, or a list of choices."""

    model_config = ConfigDict(serialize_by_alias=True)

    parameters: tuple[str, ...] = Field(
        default=(), strict=False, validation_alias=AliasChoices("parameters", "knobs"), serialization_alias="knobs"
    )
    """Settings that get the value, if not the one of the range's own name; `knobs` in stored studies."""
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
    """Of a preset: the parameters in which it differs from its method."""
    search: dict[str, SearchRange] = Field(default={})
    """Where a sweep looks, by the names that `sweep --over` takes; a preset has those of its method and its own."""

    @model_validator(mode="after")
    def _defaults_are_in_the_class(self) -> Self:
        if self.params and self.preset_of is None:
            raise ValueError("params belong to a preset; the defaults of a method stand in its class of parameters")
        return self


@cache
def methods() -> Registry[Method]:
    """Every method and preset by name; nothing is imported until one is asked for."""
    registry: Registry[Method] = Registry("method", group="xmc_harness.methods")
    for path in sorted(METHOD_FOLDER.glob("*.yaml")):
        card = read_method_card(path)
        module = (card.preset_of or path.stem).replace("-", "_")
        if card.preset_of and not (METHOD_FOLDER / f"{module}.py").exists():
            raise UserError(f"{path}: preset_of: there is no method {card.preset_of!r}; name one that has a .py file")
        registry.register(path.stem, f"methods.{module}:METHOD", card.summary)
    return registry


@cache
def read_method_card(path: Path) -> MethodCard:
    """Parse the YAML of a method, once per process."""
    return read_model(path, MethodCard)


def load_method(name: str) -> Method:
    """Import a method by name."""
    method = methods().get(name)
    if not isinstance(method, Method):
        raise UserError(
            f"method {name!r} ({methods().origin(name)}) is not a harness.settings.method.Method; see CONTRIBUTING.md"
        )
    return method


_NAME = re.compile(r"[\w.-]{1,100}")
"""Names that can be those of files; a record may name its method in any way."""


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
    """What the YAML of a method sets, presets over what they are a preset of; other defaults are in its class."""
    path = method_card_path(name)
    card = read_method_card(path)
    base = method_layer(card.preset_of).values if card.preset_of else {"params": {}}
    return Layer(f"methods/{path.name}", {**base, **card.defaults, "params": {**base["params"], **card.params}})


def search_ranges(name: str) -> dict[str, SearchRange]:
    """Where a sweep looks, by name; a preset has the ranges of its method under its own."""
    card = read_method_card(method_card_path(name))
    return {**(search_ranges(card.preset_of) if card.preset_of else {}), **card.search}
