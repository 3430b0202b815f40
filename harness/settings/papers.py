"""What a paper says about each setting of a method that carries its name, and where our value comes from otherwise.

`methods/papers/<preset>.yaml` holds one entry per setting: the value of a run, its status and the reason. An entry with
`on` is that of the datasets it names; the one without is that of all others. An entry with `rows` is that of rows of
the papers' tables (`methods/published/`) that have another value than other runs on their dataset. A preset that
`follows` another has its entries, except for those that it has itself and for settings that its method does not have.
"""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.io.models import Strict, read_model
from harness.settings.layers import parameter_names
from harness.settings.method import METHOD_FOLDER, load_method
from harness.settings.schema import SPEED

PAPER_FOLDER = METHOD_FOLDER / "papers"
BESIDE = ("encoder", "encoder_options", "max_len", "augment", "augment_options")
"""Settings of a run, beside the method's parameters, that a paper has a say in. The value of a group of options is
those that differ from their defaults."""
OF_CARD = ("text", "label_text")
"""Fields of a dataset's card that a paper has a say in: which texts make a row and a label."""


class Claim(Strict):
    """The value of one setting, on some datasets or on all others."""

    value: Any
    status: Literal["stated", "inferred", "unsaid", "ours"]
    """stated: in the paper or its official code; inferred: from what `why` names; unsaid: nowhere, and `why` says what
    stands here instead; ours: another value than the paper's, or one that no paper can have."""
    why: str = Field(min_length=1)
    """Where it is stated, what it is inferred from, or why it is ours."""
    on: list[str] = Field(default=[])
    """Datasets; empty for all that no other entry names."""
    rows: list[str] = Field(default=[])
    """Patterns of rows `<table>/<row>`, for example `thesis-2.5/*-no-hard/*`; such an entry is for them alone."""

    @model_validator(mode="after")
    def _datasets_or_rows(self) -> Self:
        if self.on and self.rows:
            raise ValueError("takes `on` or `rows`, not both; the name of a row ends in its dataset")
        return self

    def names_row(self, row: str) -> bool:
        """Return whether this entry is for a row `<table>/<row>`; no row has an empty name."""
        return bool(row) and any(fnmatchcase(row, pattern) for pattern in self.rows)


class PaperSettings(Strict):
    """The file of one preset."""

    follows: str | None = None
    """The preset whose entries stand where this one has none."""
    settings: dict[str, list[Claim]]

    @field_validator("settings", mode="before")
    @classmethod
    def _lists(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        return {name: entry if isinstance(entry, list) else [entry] for name, entry in settings.items()}


def presets() -> list[str]:
    """Return the presets that have a file."""
    return sorted(path.stem for path in PAPER_FOLDER.glob("*.yaml") if path.stem != "every")


def claims(preset: str) -> dict[str, list[Claim]]:
    """Return the entries of a preset by setting, those that it follows included; none if it has no file."""
    path = PAPER_FOLDER / f"{preset}.yaml"
    if not path.is_file():
        return {}
    known = settings_of(preset)
    return {name: found for name, found in _with_followed(path).items() if name in known}


def settings_of(preset: str) -> list[str]:
    """Return the settings that need an entry: all parameters but those of speed alone, `BESIDE` and `OF_CARD`."""
    params = load_method(preset).params
    speed = [field.alias or name for name, field in params.model_fields.items() if SPEED in field.metadata]
    return [*BESIDE, *OF_CARD, *(name for name in parameter_names(params) if name not in speed)]


def claim_on(entries: list[Claim], dataset: str, row: str = "") -> Claim:
    """Return the entry of a setting that holds on a dataset, or for a row `<table>/<row>` on it."""
    of_row = [entry for entry in entries if entry.names_row(row)]
    named = [entry for entry in entries if dataset in entry.on]
    return (of_row or named or [entry for entry in entries if not entry.on and not entry.rows])[0]


def _with_followed(path: Path) -> dict[str, list[Claim]]:
    own = read_model(path, PaperSettings)
    followed = _with_followed(PAPER_FOLDER / f"{own.follows}.yaml") if own.follows else {}
    return {**followed, **own.settings}
