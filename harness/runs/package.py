"""The folder `package/` of a run: what serving its model needs besides the record and the weights.

    labels.id.*, labels.text.*, labels.tokens.*     [L] each
    counts.npy                      number of occurrences of each token in the train and label texts, [V]
    folders/encoder/, folders/teacher/              model folders, where the encoder is a folder
    train.*                         train rows, only for a method that builds from them (nearest neighbours)
    manifest.json                   sha256 of all of the above

It is written while the model is in memory. With record.json and model/ beside its files, `harness.infer.serve` loads
it. To find out whether a method needs train rows, it is built from inputs that raise when train rows are read.
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
"""Version of the format; raised whenever an older reader would misunderstand the folder."""
_AUTO_BYTES = 500 * 2**20
"""Size of the largest model that `tracking.model=auto` packs, in bytes."""


class NeedsTrainRows(UserError):
    """Raised if a method that builds from train rows was given none."""


class AbsentRows:
    """Placeholder for absent train rows: it has their shape, and raises `NeedsTrainRows` for anything else."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NoReturn:
        raise NeedsTrainRows("this method builds from train rows, and there are none here")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # copy and pickle look for special methods and do without them
            raise AttributeError(name)
        raise NeedsTrainRows(f"this method builds from {name} of train rows, and there are none here")


def without_rows(inputs: Inputs) -> Inputs:
    """Return the inputs with placeholders in place of the train rows."""
    absent: Any = AbsentRows(inputs.train.shape)
    return replace(
        inputs, train=absent, train_filter=absent, train_tokens=absent, own=None, soft=False, warn=lambda _: None
    )


@dataclass(frozen=True)
class Package:
    """Contents of a package."""

    inputs: Inputs
    """Inputs that the method is built from when the model is loaded."""
    label_id: Texts
    label_text: Texts
    counts: NDArray[np.int64]
    """Number of occurrences of each token in the train and label texts, [V]."""
    scorers: tuple[str, ...]
    folders: Mapping[str, tuple[Path, Iterable[Path]]]
    """Model folders and their files, by setting: `encoder`, `teacher`."""


def write_package(folder: Path, package: Package) -> None:
    """Write a package into a folder, whole or not at all."""
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
    """Return why a model of `size` bytes is not packed into a run folder; None if it is packed."""
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
    """Copy the named files and nothing else from `source`, such as a link to a private file."""
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place_inside(source, name), copy)
