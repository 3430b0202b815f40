"""What a paper says about each setting of a method that carries its name, and where our value comes from otherwise.

`methods/papers/<preset>.yaml` holds one entry per setting: the value of a run, its status and the reason. An entry with
`on` is that of the datasets it names; the one without is that of all others. A preset that `follows` another has its
entries, except for those that it has itself and for settings that its method does not have.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from harness.io.models import Strict, read_model
from harness.settings.layers import parameter_names
from harness.settings.method import METHOD_FOLDER, load_method
from harness.settings.schema import SPEED

PAPER_FOLDER = METHOD_FOLDER / "papers"
BESIDE = ("encoder", "max_len", "augment")
"""Settings of a run, beside the method's parameters, that a paper has a say in."""


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
    """Return the settings that need an entry: all parameters but those of speed alone, and `BESIDE`."""
    params = load_method(preset).params
    speed = [field.alias or name for name, field in params.model_fields.items() if SPEED in field.metadata]
    return [*BESIDE, *(name for name in parameter_names(params) if name not in speed)]


def claim_on(entries: list[Claim], dataset: str) -> Claim:
    """Return the entry of a setting that holds on a dataset."""
    named = [entry for entry in entries if dataset in entry.on]
    return (named or [entry for entry in entries if not entry.on])[0]


def _with_followed(path: Path) -> dict[str, list[Claim]]:
    own = read_model(path, PaperSettings)
    followed = _with_followed(PAPER_FOLDER / f"{own.follows}.yaml") if own.follows else {}
    return {**followed, **own.settings}
