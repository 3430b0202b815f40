"""What a paper says about each setting of a method that carries its name, and where our value comes from otherwise.

`methods/papers/<preset>.yaml` holds one entry per setting: the value of a run, its status and the reason. An entry with
`on` is that of the datasets it names; the one without is that of all others. An entry with `rows` is that of rows of
the papers' tables (`methods/published/`) that have another value than other runs on their dataset. A preset that
`follows` another has its entries, except for those that it has itself and for settings that its method does not have.
"""

from collections import Counter
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.errors import UserError
from harness.io.models import Strict, read_model
from harness.settings.layers import parameter_names
from harness.settings.method import METHOD_FOLDER, load_method
from harness.settings.schema import SPEED

PAPER_FOLDER = METHOD_FOLDER / "papers"
BESIDE = ("encoder", "encoder_options", "max_len", "augment", "augment_options")
"""Settings of a run, beside the method's parameters, that a paper has a say in. The value of a group of options is
those that differ from their defaults."""
STATUSES = ("stated", "inferred", "unsaid", "ours")
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

    @field_validator("settings")
    @classmethod
    def _one_entry_holds(cls, settings: dict[str, list[Claim]]) -> dict[str, list[Claim]]:
        for name, entries in settings.items():
            if sum(not entry.on and not entry.rows for entry in entries) != 1:
                raise ValueError(f"{name}: takes one entry without `on` and `rows`, for all other datasets")
            named = Counter(dataset for entry in entries for dataset in entry.on)
            if twice := [dataset for dataset, count in named.items() if count > 1]:
                raise ValueError(f"{name}: two entries for {', '.join(twice)}")
        return settings


SHARED = "every"
"""The file that others follow and that belongs to no preset."""


def presets() -> list[str]:
    """Return the presets that have a file."""
    return sorted(path.stem for path in PAPER_FOLDER.glob("*.yaml") if path.stem != SHARED)


def claims(preset: str) -> dict[str, list[Claim]]:
    """Return the entries of a preset by setting, those that it follows included; none if it has no file."""
    known = settings_of(preset)
    if preset not in presets():
        return {}
    found = _with_followed(preset)
    return {name: found[name] for name in known if name in found}


def own_claims(name: str) -> dict[str, list[Claim]]:
    """Return the entries in the file of a preset, or in the one that belongs to none."""
    return read_model(PAPER_FOLDER / f"{name}.yaml", PaperSettings).settings


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


def _with_followed(name: str, *followers: str) -> dict[str, list[Claim]]:
    if name in followers:
        raise UserError(f"{PAPER_FOLDER / f'{name}.yaml'}: follows itself by way of {', '.join(followers)}")
    own = read_model(PAPER_FOLDER / f"{name}.yaml", PaperSettings)
    followed = _with_followed(own.follows, name, *followers) if own.follows else {}
    return {**followed, **own.settings}
