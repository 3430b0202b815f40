"""Dataset cards: what a dataset is, how to obtain it, its published statistics, and recommended settings.

A card is one YAML file in `datasets/`. Its figures are the published ones; `harness data check` prints them beside the
measured ones. The propensity constants A and B belong to the dataset and are never guessed: a card without them gives
results without PSP.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from harness.errors import UserError, unknown_name
from harness.io.files import checked_name, home, is_folder
from harness.io.models import Strict, describe_faults
from harness.io.yaml import read_yaml

CARD_FOLDER = Path(__file__).parents[2] / "datasets"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


Recipe = Literal["title", "title+content"]


class Statistics(Strict):
    """Published statistics of a dataset; None for those that are not published."""

    train: Count | None = None
    test: Count | None = None
    labels: Count | None = None
    rows_per_label: Positive | None = None
    labels_per_row: Positive | None = None
    words_per_row: Positive | None = None
    words_per_label: Positive | None = None
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Relative tolerance of the averages; counts must match exactly unless `approximate` is set."""
    approximate: bool = False
    """True for data built from software of this machine: `tolerance` then holds for counts as well."""

    def slack(self, name: str) -> float:
        """Return the relative difference that is allowed between a measured and the published figure."""
        return 0.0 if name in ("train", "test", "labels") and not self.approximate else self.tolerance


class Propensity(Strict):
    """Constants A and B of the inverse propensity w_l = 1 + C (n_l + B)^-A, C = (ln N - 1)(B + 1)^A."""

    a: Positive
    b: Positive


class Download(Strict):
    """A published link; without a `sha256`, the counts of the card verify what it gives.

    `contains` names the wanted files, separated by blanks. Entries with equal `contains` are mirrors of
    one another, tried in order; entries that differ are parts, and all of them are needed.
    """

    url: Annotated[str, Field(pattern=r"^(https://|http://(127\.0\.0\.1|\[::1\])[:/])")]
    """Address of the download; https, or http from this machine itself for a local mirror."""
    filename: FileName
    """Name of the download on disk; a person who downloads by hand places it under this name."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    contains: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*( [A-Za-z0-9][A-Za-z0-9._-]*)*)?$")] = ""
    seen: str = ""
    """Page on which the link was published, in case it breaks."""


class Pin(Strict):
    """Content digest of the dataset when the card was written, and the versions it was made with."""

    digest: str
    made_with: dict[str, str] = Field(default={})


class DatasetCard(Strict):
    """One dataset; the file's stem is its name."""

    name: str
    title: str
    summary: str
    version: Annotated[int, Field(ge=1)] = 1
    source: Literal["repository", "jsonl", "pydocs", "debian", "wordnet", "manpages", "debtags", "synthetic"]
    text: Recipe = "title"
    """Fields of a `trn.json.gz` row that make its text; for data built here, short or long text."""
    label_text: Recipe | None = None
    """Fields of a `lbl.json.gz` row that make a label's text; by default those of `text`, or titles in data built here.
    Files of one text per line (Y.txt, Yf.txt) are taken as they are."""
    options: dict[str, int | float | str | bool] = Field(default={})
    """Options of the data source, for example the size of `synthetic`."""
    statistics: Statistics = Statistics()
    propensity: Propensity | None = None
    filter: Literal["required", "built", "optional"] = "optional"
    """`required`: refuse to evaluate without filter files; `built`: the builder writes them."""
    checksums: dict[FileName, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default={})
    downloads: list[Download] = Field(default=[])
    obtain: str = ""
    """How a person obtains the data, in a few lines; printed when it is missing."""
    licence: str = ""
    homepage: str = ""
    pin: Pin | None = None
    defaults: dict[str, Any] = Field(default={})
    """Recommended run settings; they override those of the method, and the command line overrides them."""
    recommended: dict[str, dict[str, Any]] = Field(default={})
    """Recommended settings by method; they override `defaults`."""
    notes: list[str] = Field(default=[])

    @property
    def built_here(self) -> bool:
        """Whether the data is built on this machine instead of being downloaded."""
        return self.source not in ("repository", "jsonl")

    @property
    def recipe_of_labels(self) -> Recipe:
        """Fields that make the text of a label."""
        return self.label_text or ("title" if self.built_here else self.text)

    @model_validator(mode="after")
    def _name_is_safe(self) -> "DatasetCard":
        try:
            checked_name("dataset", self.name)
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _labels_have_fields(self) -> "DatasetCard":
        if self.label_text is not None and self.source != "repository":
            raise ValueError(f"label_text is for source: repository; labels of {self.source} have one text")
        return self


def card_paths() -> dict[str, Path]:
    """Return the files of all cards by name: those of the repository, and those that `data import` wrote."""
    paths: dict[str, Path] = {}
    for folder in (CARD_FOLDER, home() / "cards"):
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in paths:
                raise UserError(f"two cards are called {path.stem!r}: {paths[path.stem]} and {path}; rename one")
            paths[path.stem] = path
    return paths


def load_card(name: str) -> DatasetCard:
    """Return the card of that name; the error for an unknown one names the nearest."""
    paths = card_paths()
    if name not in paths:
        raise unknown_name("dataset", name, paths)
    return read_card(paths[name])


def find_card(name_or_folder: str | Path) -> DatasetCard:
    """Return the card for a card's name, for `synthetic:option=value,...`, or for a folder of files."""
    if isinstance(name_or_folder, str) and "/" not in name_or_folder:
        if not name_or_folder.startswith("synthetic:"):
            return load_card(name_or_folder)
        from harness.data.sources.synthetic import parse_name  # imports scipy, which only this kind of name needs

        return parse_name(name_or_folder)
    folder = Path(name_or_folder)
    if not is_folder(folder):
        raise UserError(f"{folder} is not a folder; give a dataset's name (`harness ls datasets`) or a folder of files")
    title = folder.absolute().name
    lines = any((folder / f"labels.jsonl{end}").exists() for end in ("", ".gz"))
    return DatasetCard(
        name=checked_name("dataset", title.lower()),
        title=title,
        summary=f"files in {folder.name}/",
        source="jsonl" if lines else "repository",
    )


@cache
def read_card(path: Path) -> DatasetCard:
    """Read one card file; `UserError` lists all of its faults."""
    values = read_yaml(path)
    try:
        card = DatasetCard.model_validate({"name": path.stem, **values})
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, str(path), DatasetCard))) from error
    if card.name != path.stem:
        raise UserError(f"{path}: name is {card.name!r} but the file is called {path.stem!r}; make them equal")
    return card
