"""What a served model needs besides the record and the weights of its run: the folder `package/` of a run.

    labels.id.*, labels.text.*, labels.tokens.*     [L] each
    counts.npy                      how often each token occurs in what was learned from, [V]
    folders/encoder/, folders/teacher/              model folders, where the encoder is a folder
    train.*                         train rows, only for a method that builds from them (nearest neighbours)
    manifest.json                   sha256 of all of the above

It is written while the model is in memory. With record.json and model/ beside its files, `harness.infer.serve` loads
it. Whether a method needs train rows shows when it is built from inputs that have none to give.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from harness.data.ragged import Texts
from harness.errors import DataError, UserError
from harness.io.arrays import save_array
from harness.io.files import MANIFEST, place_inside, verified_manifest, whole_folder
from harness.settings.method import Inputs

PACKAGE = "package"
FORMAT = 1
"""Bumped whenever an older reader would misunderstand the folder."""
_AUTO_BYTES = 500 * 2**20
"""The largest model that is packed unless the settings ask for it."""


class NeedsTrainRows(UserError):
    """A method that builds from train rows was given none."""


class AbsentRows:
    """Stands where train rows would be: it knows how many there are, and refuses everything else."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NoReturn:
        raise NeedsTrainRows("this method builds from train rows, and there are none here")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked for by copying and the like, which look elsewhere then
            raise AttributeError(name)
        raise NeedsTrainRows(f"this method builds from {name} of train rows, and there are none here")


def without_rows(inputs: Inputs) -> Inputs:
    """The same inputs with none of the train rows in them."""
    absent: Any = AbsentRows(inputs.train.shape)
    return replace(
        inputs, train=absent, train_filter=absent, train_tokens=absent, own=None, soft=False, warn=lambda _: None
    )


@dataclass(frozen=True)
class Package:
    """What is packed."""

    inputs: Inputs
    """What the method is built from when the model is loaded."""
    label_id: Texts
    label_text: Texts
    counts: NDArray[np.int64]
    """How often each token occurs in what was learned from, [V]."""
    scorers: tuple[str, ...]
    folders: Mapping[str, tuple[Path, Iterable[Path]]]
    """By setting: a model folder, and its files."""


def write_package(folder: Path, package: Package) -> None:
    """Write the folder, whole or not at all."""
    inputs = package.inputs
    rows = not isinstance(inputs.train, AbsentRows)
    with whole_folder(folder) as draft:
        package.label_id.save(draft.path, "labels.id")
        package.label_text.save(draft.path, "labels.text")
        inputs.label_tokens.save(draft.path, "labels.tokens")
        save_array(draft.path / "counts.npy", package.counts)
        for key, (place, files) in package.folders.items():
            _copy(place, (str(file.relative_to(place)) for file in files), draft.path / "folders" / key / place.name)
        if rows:
            inputs.train_tokens.save(draft.path, "train.tokens")
            for name, matrix in (("train.labels", inputs.train), ("train.filter", inputs.train_filter)):
                for part in ("data", "indices", "indptr"):
                    save_array(draft.path / f"{name}.{part}.npy", getattr(matrix, part))
        draft.metadata["facts"] = {
            "format": FORMAT,
            "soft": rows and inputs.soft,
            "train_rows": inputs.train.shape[0],
            "scorers": list(package.scorers),
            "example": next((text for text in package.label_text if text.strip()), "some text"),
        }


def left_out(wanted: str, size: int, folder: Path) -> str | None:
    """Why a model of so many bytes is not packed into a run folder; None if it is."""
    if wanted == "never":
        return "tracking.model is never"
    if wanted == "auto" and size > _AUTO_BYTES:
        return f"{size / 2**20:,.0f} MB, more than tracking.model=auto sends"
    if wanted == "auto" and shutil.disk_usage(folder).free < 2 * size:
        return "no space to pack it"
    return None


def assemble(run_folder: Path, out: Path) -> dict[str, Any]:
    """Put package, weights and record of a finished run into one new folder that can be served; return its metadata."""
    package = run_folder / PACKAGE
    metadata: dict[str, Any] = verified_manifest(package, "the package cannot be used; run it again")["facts"]
    if not (run_folder / "record.json").is_file():
        raise DataError("the run has no record, so its model cannot be served", run_folder)
    with whole_folder(out) as draft:
        _copy(run_folder, ["record.json"], draft.path)
        for source, target in ((package, draft.path), (run_folder / "model", draft.path / "model")):
            if source.is_dir():
                listed = [*verified_manifest(source, "run it again")["files"]]
                _copy(source, listed if source == package else [*listed, MANIFEST], target)
        draft.metadata["facts"] = metadata
    return metadata


def _copy(source: Path, names: Iterable[str], target: Path) -> None:
    """Copy named files; what lies beside them, a link to a private file say, stays there."""
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place_inside(source, name), copy)
