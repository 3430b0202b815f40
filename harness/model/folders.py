"""Where the model folders of a run are on this machine.

A record names such a folder without its parents, because records travel. The workspace does not travel: it keeps
the path, by the identity of the encoder, so that a model can be packed after its run without asking the user.
"""

from pathlib import Path
from typing import Any

from harness.errors import DataError
from harness.io import files
from harness.io.files import home, is_file_name, read_json, write_json
from harness.model import ENCODERS, is_folder
from harness.settings.schema import RunConfig

TEACHER = "teacher"
"""The option of an encoder that may name a model folder."""


def folders_in(encoder: str, options: dict[str, Any]) -> dict[str, str]:
    """Return the settings of an encoder that name a model folder, by key: `encoder`, `teacher`."""
    named = {"encoder": encoder, TEACHER: options.get(TEACHER)}
    return {key: value for key, value in named.items() if isinstance(value, str) and is_folder(value)}


def encoder_weights(config: RunConfig) -> str | None:
    """Return the hash of a model folder's files; None for an encoder that is given by name."""
    if not is_folder(config.encoder):
        return None
    from harness.model.encoders.pretrained import find

    return find(config.encoder, pooling=config.encoder_options.get("pooling")).identity


def remember_folders(config: RunConfig, identity: str) -> None:
    """Write down where the model folders of an encoder are; nothing if its settings name none.

    Args:
        config: Config of the run, with the paths as the user gave them.
        identity: The encoder's identity, a hash.
    """
    if found := folders_in(config.encoder, dict(config.encoder_options)):
        write_json(_note(identity), {key: str(Path(place).expanduser().absolute()) for key, place in found.items()})


def remembered_folders(config: dict[str, Any], identity: str | None) -> dict[str, Path]:
    """Return the folders that a recorded config names, if they were noted for its encoder and still exist.

    Another run of the same encoder may have its weights from elsewhere, so what the config does not name is left alone.
    """
    note = _note(str(identity))
    if not is_file_name(f"{identity}.json"):  # it comes from a record, perhaps of others
        return {}
    options = config.get("encoder_options")
    named = {"encoder": config["encoder"], TEACHER: options.get(TEACHER) if isinstance(options, dict) else None}
    noted = read_json(note) if note.is_file() else {}
    if not isinstance(noted, dict) or not all(isinstance(place, str) for place in noted.values()):
        raise DataError("not a note of model folders; remove it", note)
    places = {key: Path(noted[key]) for key in named if key in noted}
    return {key: place for key, place in places.items() if _means(named[key], place) and files.is_folder(place)}


def _means(recorded: Any, place: Path) -> bool:
    """Return whether a recorded name is that of the folder `place`, not of a registered encoder."""
    return isinstance(recorded, str) and recorded not in ENCODERS and recorded.removeprefix("./") == place.name


def with_folders(config: dict[str, Any], folders: dict[str, Path]) -> dict[str, Any]:
    """Return `encoder` and `encoder_options` of a recorded config with names of folders replaced by paths."""
    changes: dict[str, Any] = {}
    if "encoder" in folders:
        changes["encoder"] = str(folders["encoder"])
    if TEACHER in folders:
        changes["encoder_options"] = {**config["encoder_options"], TEACHER: str(folders[TEACHER])}
    return changes


def _note(identity: str) -> Path:
    return home() / "cache" / "folders" / f"{identity}.json"
