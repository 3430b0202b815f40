"""Methods: a class of parameters and a function that builds model, scorer and stages of training.

`methods/<name>.py` exposes `METHOD = Method(Params, build)`; the class holds the default and the documentation of each
parameter and imports nothing heavy, `build` imports what it needs. `methods/<name>.yaml` beside it holds the summary,
the reference and the search ranges of a sweep; a dash in the name becomes an underscore in the module's name. A preset
is a YAML file alone, with `preset_of: <method>` and the values that differ. A package outside this repository adds its
own method with an entry point of group `xmc_harness.methods` that names such a `METHOD`; its YAML lies beside its
module too.
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
    """A trained model whose score(query, label) is the inner product of two vectors.

    A model may have several scorers (its dual encoder, its classifier, both); each has vectors of its own, and a run
    reports the metrics of the first.
    """

    @property
    def scorers(self) -> tuple[str, ...]:
        """Names of the scorers; a run reports the first."""
        ...

    @property
    def text_scorer(self) -> str | None:
        """The scorer that needs only a label's text, so that it can score unseen labels; None if there is none."""
        ...

    def query_vectors(self, tokens: "Ragged", scorers: tuple[str, ...]) -> "dict[str, NDArray[np.float32]]":
        """Return the query vectors of each given scorer, [n, D]."""
        ...

    def label_vectors(self, tokens: "Ragged", scorers: tuple[str, ...]) -> "dict[str, NDArray[np.float32]]":
        """Return the label vectors of each given scorer, [L, D]; `text_scorer` accepts tokens of any texts."""
        ...


@runtime_checkable
class Ranker(Protocol):
    """A model that ranks labels itself, because its score is not the inner product of two dense vectors."""

    @property
    def scorers(self) -> tuple[str, ...]:
        """Names of the scorers; a run reports the first."""
        ...

    @property
    def text_scorer(self) -> str | None:
        """Always None: labels that it was not fitted on cannot be scored."""
        ...

    def rank(self, tokens: "Ragged", k: int, exclude: "csr_array | None", scorer: str) -> "TopK":
        """Return the best k labels of queries [n]; pairs in `exclude` [n, L] are masked before the ranking."""
        ...


class Fitted(Protocol):
    """A model that is fitted in one call, by a library or in closed form, instead of trained in steps."""

    def fit(self) -> dict[str, Any]:
        """Fit the model on the train rows; return metadata for the record."""
        ...

    def save(self, folder: Path) -> None:
        """Write the fitted model into an existing, empty folder; it must hold no code and no pickles."""
        ...

    def load(self, folder: Path) -> None:
        """Load a model that `save` wrote, in place of fitting."""
        ...


@dataclass(frozen=True)
class Inputs:
    """Input of a method's `build`: train rows and labels, never test or validation rows."""

    train: "csr_array"
    """Positives of the train rows, [N, L]; augmented rows come last, see `harness.augment`."""
    train_filter: "csr_array"
    """Filter pairs, neither positive nor negative, [N, L]."""
    train_tokens: "Ragged"
    """Token ids of the train rows, [N]."""
    label_tokens: "Ragged"
    """Token ids of the label texts, [L]."""
    encoder: "Encoder"
    device: str
    batch_tokens: int
    seed: int
    warn: Callable[[str], None]
    """Called with a warning, one line, for example about a setting without the expected effect."""
    own: "Inputs | None" = None
    """These inputs without augmented rows; None if there are no augmented rows."""
    soft: bool = False
    """Whether the values of `train` are soft targets in (0, 1]; otherwise all of them are 1."""


@dataclass(frozen=True)
class Parts:
    """The parts that a method builds for one run."""

    scoring: Scoring | Ranker
    model: "nn.Module | None" = None
    """The module that is trained and saved; None for a method without training."""
    stages: "Callable[[], tuple[Stage, ...]]" = tuple
    """Returns the stages of training, in order; called only for training, because optimisers need memory."""
    fitted: Fitted | None = None
    """The model that is fitted in one call, in place of `model` and `stages`."""


@dataclass(frozen=True)
class Method:
    """A method: its class of parameters, and the function that builds its parts."""

    params: type[BaseModel]
    build: Callable[[Inputs, Any], Parts]


class SearchRange(Settings):
    """Values of a parameter that a sweep searches: a range of numbers, or a list of choices."""

    model_config = ConfigDict(serialize_by_alias=True)

    parameters: tuple[str, ...] = Field(
        default=(), strict=False, validation_alias=AliasChoices("parameters", "knobs"), serialization_alias="knobs"
    )
    """Settings that get the value; empty for the setting named like the range. Stored studies call it `knobs`."""
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    """Draw values evenly on a logarithmic scale."""
    step: int | float | None = None
    choices: list[int | float | str | bool | None] | None = None
    rate: Literal["encoder", "heads", "classifier", "one_vs_all"] | None = None
    """Which learning rate of the encoder replaces a null setting at the start of a sweep."""

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
    """The YAML file of a method or preset."""

    summary: str
    reference: str = ""
    """Reference to the paper, in one line."""
    preset_of: str | None = None
    defaults: dict[str, Any] = Field(default={})
    """Default run settings of this method, for example its encoder."""
    params: dict[str, Any] = Field(default={})
    """For a preset: the parameters in which it differs from its method."""
    search: dict[str, SearchRange] = Field(default={})
    """Search ranges of a sweep, by the names that `sweep --over` takes; a preset also has those of its method."""

    @model_validator(mode="after")
    def _defaults_are_in_the_class(self) -> Self:
        if self.params and self.preset_of is None:
            raise ValueError("params belong to a preset; the defaults of a method stand in its class of parameters")
        return self


@cache
def methods() -> Registry[Method]:
    """Return the registry of all methods and presets; a method's module is imported only by `get`."""
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
    """Read the YAML of a method or preset, once per process."""
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
"""Method names that are safe as file names; a record from elsewhere may hold any name."""


def method_card_path(name: str) -> Path:
    """Return the path of the YAML of a method or preset; a module outside this repository is located, not imported."""
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
    """Return the settings in the YAML of a method, or of a preset over its method; other defaults are in its class."""
    path = method_card_path(name)
    card = read_method_card(path)
    base = method_layer(card.preset_of).values if card.preset_of else {"params": {}}
    return Layer(f"methods/{path.name}", {**base, **card.defaults, "params": {**base["params"], **card.params}})


def search_ranges(name: str) -> dict[str, SearchRange]:
    """Return the search ranges of a sweep, by name; those of a preset override those of its method."""
    card = read_method_card(method_card_path(name))
    return {**(search_ranges(card.preset_of) if card.preset_of else {}), **card.search}
