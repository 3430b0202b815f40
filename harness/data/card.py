"""Dataset cards: what a dataset is, how to obtain it, what its numbers must be, and how it is best run.

A card is one YAML file in `datasets/`. Its figures are the published ones; `harness data check` prints them beside the
measured ones. The propensity constants A and B belong to the dataset and are never guessed: a card without them gives
results without PSP.
"""

import difflib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import UserError, unknown_name
from harness.files import checked_name, home
from harness.yaml import read_yaml

CARD_FOLDER = Path(__file__).parents[2] / "datasets"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Statistics(_Frozen):
    """Published figures; a figure nobody published is left out."""

    train: Count | None = None
    test: Count | None = None
    labels: Count | None = None
    rows_per_label: Positive | None = None
    labels_per_row: Positive | None = None
    words_per_row: Positive | None = None
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Relative slack for the averages; counts must match exactly unless `approximate` is set."""
    approximate: bool = False
    """True for data built from what this machine has installed: counts then carry `tolerance` as well."""

    def slack(self, name: str) -> float:
        """How far a measured figure may be from the published one, relative to it."""
        return 0.0 if name in ("train", "test", "labels") and not self.approximate else self.tolerance


class Propensity(_Frozen):
    """Constants of w_l = 1 + C (n_l + B)^-A, C = (ln N - 1)(B + 1)^A."""

    a: Positive
    b: Positive


class Download(_Frozen):
    """A published link; `sha256` where somebody recorded one, otherwise counts decide after unpacking.

    `contains` names the files that are wanted from it, blank between them. Entries with equal `contains` are mirrors of
    one another, tried in order; entries that differ are parts, and all of them are needed.
    """

    url: Annotated[str, Field(pattern=r"^(https://|http://(127\.0\.0\.1|\[::1\])[:/])")]
    """https; plain http only from this machine itself, for a local mirror."""
    filename: FileName
    """Name of the download on disk; a person who downloads by hand places it under this name."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    contains: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*( [A-Za-z0-9][A-Za-z0-9._-]*)*)?$")] = ""
    seen: str = ""
    """Where the link was published, because links rot."""


class Pin(_Frozen):
    """What the dataset was on the day the card was written, for exact comparison."""

    digest: str
    made_with: dict[str, str] = {}


class DatasetCard(_Frozen):
    """One dataset; the file's stem is its name."""

    name: str
    title: str
    summary: str
    version: Annotated[int, Field(ge=1)] = 1
    source: Literal["repository", "jsonl", "pydocs", "debian", "synthetic"]
    text: Literal["title", "title+content"] = "title"
    """Which fields of a `trn.json.gz` row make its text; builders read it as short or long."""
    options: dict[str, int | float | str | bool] = {}
    """Parameters of a builder, for example the size of `synthetic`."""
    statistics: Statistics = Statistics()
    propensity: Propensity | None = None
    filter: Literal["required", "built", "optional"] = "optional"
    """`required`: refuse to evaluate without filter files; `built`: the builder writes them."""
    checksums: dict[FileName, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = {}
    downloads: list[Download] = []
    obtain: str = ""
    """What a person has to do, in a few lines; printed when the data is missing."""
    licence: str = ""
    homepage: str = ""
    pin: Pin | None = None
    defaults: dict[str, Any] = {}
    """Recommended run settings, over the method's own and under the command line's."""
    recommended: dict[str, dict[str, Any]] = {}
    """Published settings per method, over `defaults`."""
    notes: list[str] = []

    @property
    def built_here(self) -> bool:
        """Whether the data is made on this machine instead of being obtained."""
        return self.source in ("pydocs", "debian", "synthetic")

    @model_validator(mode="after")
    def _name_is_safe(self) -> "DatasetCard":
        try:
            checked_name("dataset", self.name)
        except UserError as error:
            raise ValueError(str(error)) from error
        return self


def card_paths() -> dict[str, Path]:
    """Every known card by name: ours, and those that `data import` wrote into the workspace."""
    paths: dict[str, Path] = {}
    for folder in (CARD_FOLDER, home() / "cards"):
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in paths:
                raise UserError(f"two cards are called {path.stem!r}: {paths[path.stem]} and {path}; rename one")
            paths[path.stem] = path
    return paths


def load_card(name: str) -> DatasetCard:
    """The card of that name, or an error that names the nearest one."""
    paths = card_paths()
    if name not in paths:
        raise unknown_name("dataset", name, paths)
    return read_card(paths[name])


@cache
def read_card(path: Path) -> DatasetCard:
    """Parses and validates one card file; all its faults are reported together."""
    values = read_yaml(path)
    try:
        card = DatasetCard.model_validate({"name": path.stem, **values})
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, str(path), DatasetCard))) from error
    if card.name != path.stem:
        raise UserError(f"{path}: name is {card.name!r} but the file is called {path.stem!r}; make them equal")
    return card


Model = TypeVar("Model", bound=BaseModel)


def read_model(path: Path, model: type[Model]) -> Model:
    """A YAML file as a model; all faults of its form are told together."""
    try:
        return model.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, str(path), model))) from error


def describe_faults(error: ValidationError, where: str, model: type[BaseModel] | None = None) -> list[str]:
    """One line per fault of a pydantic error: file, key, what is wrong; `model` gives unknown keys a hint."""
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"]) or "(top level)"
        if fault["type"] == "extra_forbidden" and model is not None:
            name, known = str(fault["loc"][-1]), _keys_at(model, fault["loc"][:-1])
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            lines.append(f"{where}: {key}: unknown key; {hint}")
            continue
        shown = "" if fault["type"] == "missing" else f" (got {str(fault['input'])[:60]!r})"
        lines.append(f"{where}: {key}: {fault['msg']}{shown}")
    return lines


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys a model accepts at a place inside it, for example ("downloads", 0)."""
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
            model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    return sorted(model.model_fields)
