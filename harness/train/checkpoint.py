"""What a training run leaves on disk so that it can go on: checkpoints, and the model at the end.

    <run id>/checkpoints/step-00001234/state.json             progress: stage, epoch, step, sums, best value so far
                                       tensors.safetensors    parameters and optimiser moments by name
                                       manifest.json          sha256 of both
             model/model.safetensors                          parameters alone
                   manifest.json                              its sha256, and the facts needed to rebuild the model

A folder is written under a hidden temporary name, flushed to disk and renamed, so a writer that is killed or out of
space leaves the folder before it untouched. What it leaves besides is swept by the next writer. A folder that has its
final name and does not match its manifest was damaged later; it is refused, because weights with one wrong byte load
without any error. One process at a time writes here: the caller holds `harness.runlock.run_lock`.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from harness.errors import DataError
from harness.files import MANIFEST, place_inside, read_json, sha256_file, sha256_json, write_manifest, write_text
from harness.train.tensorfile import read_tensors, write_tensors

STATE, TENSORS, MODEL = "state.json", "tensors.safetensors", "model.safetensors"
_STEP_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})")

Hashes = dict[str, str]
"""sha256 by the name of the file."""


class Checkpoints:
    """The last `keep` checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """Uses `folder`, which is made with the first checkpoint; the disk needs room for `keep + 1` of them."""
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint has to be kept")
        self.folder = folder
        self.keep = keep

    def save(
        self, step: int, state: dict[str, Any], tensors: dict[str, Tensor], go_on: Callable[[], None] = lambda: None
    ) -> Path:
        """Writes the checkpoint of a step, then removes those that are too old; returns its folder.

        Saving the newest step again replaces it.

        Args:
            step: Optimiser steps done; not before that of the newest checkpoint.
            state: Values that JSON can hold; NaN and infinity are kept, tuples come back as lists.
            tensors: Tensors of any shape on any device.
            go_on: Called again and again while tensors are written; what it raises ends that, without a checkpoint.
        """
        self._sweep()
        if step < max([0, *self.steps()]):
            raise ValueError(f"step {step} is before that of the newest checkpoint: {self.steps()}")

        def fill(temporary: Path) -> Hashes:
            # a diverged loss is NaN and has to come back as NaN, hence Python's dialect of JSON
            write_text(temporary / STATE, json.dumps(state, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
            return {TENSORS: write_tensors(temporary / TENSORS, tensors, go_on)}

        self._thin_out()  # a writer that was killed here may have left one more than are kept, and so may the next
        _write_folder(self._path(step), fill, {"step": step})
        self._thin_out()
        return self._path(step)

    def latest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """State and tensors of the newest checkpoint, verified; None if there is none."""
        self._sweep()
        steps = self.steps()
        if not steps:
            return None
        *before, step = steps
        newest = self._path(step)
        back = f"to go back to {self._path(before[-1]).name}" if before else "to start again"
        advice = f"the checkpoint cannot be used; remove the folder {newest} {back}"
        if _verified(newest, [STATE, TENSORS], advice) != {"step": step}:
            raise DataError(f"written for another step; {advice}", newest / MANIFEST)
        try:
            state, tensors = read_json(newest / STATE), read_tensors(newest / TENSORS)
        except DataError as error:
            raise DataError(f"{error}; {advice}") from error
        return state, tensors

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, oldest first; whether they are undamaged is found by `latest`."""
        found = (_STEP_NAME.fullmatch(path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def discard(self) -> None:
        """Removes all checkpoints, the oldest first, so that a kill on the way leaves the newest."""
        self._sweep()
        for step in self.steps():
            _remove(self._path(step))
        with suppress(OSError):  # absent, or somebody keeps something there
            self.folder.rmdir()

    def _thin_out(self) -> None:
        for old in self.steps()[: -self.keep]:
            _remove(self._path(old))

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _sweep(self) -> None:
        for leftover in self.folder.glob(".step-*.*"):
            _sweep(self.folder / leftover.name.split(".")[1])


def save_model(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes the final model, in place of the one that is there; `facts` are JSON without NaN or infinity."""
    _write_folder(folder, lambda temporary: {MODEL: write_tensors(temporary / MODEL, tensors)}, facts)


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a model folder, verified."""
    if not folder.is_dir():
        raise DataError("no model here; repeat the run that writes it", folder)
    advice = f"the model cannot be used; remove the folder {folder} and repeat the run"
    facts = _verified(folder, [MODEL], advice)
    try:
        return read_tensors(folder / MODEL), facts
    except DataError as error:
        raise DataError(f"{error}; {advice}") from error


def save_files(folder: Path, fill: Callable[[Path], None], facts: dict[str, Any]) -> None:
    """Writes a model that has a format of its own: `fill` writes its files into the empty folder it is given."""

    def filled(temporary: Path) -> Hashes:
        fill(temporary)
        return {}

    _write_folder(folder, filled, facts)


def verify_files(folder: Path) -> str:
    """Makes sure that a folder of `save_files` holds every byte that was written and no other file; its sha256."""
    if not folder.is_dir():
        raise DataError("no model here; repeat the run that writes it", folder)
    advice = f"the model cannot be used; remove the folder {folder} and repeat the run"
    _verified(folder, None, advice)
    files = read_json(folder / MANIFEST)["files"]
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if strange := sorted(found - {*files, MANIFEST}):
        raise DataError(f"not a file of this model; {advice}", folder / strange[0])
    return sha256_json(files)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sha256: str
    bytes: int


class _Manifest(BaseModel):
    """The manifest of a folder written here; `digest` guards the facts as the hashes guard the files."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: dict[str, _File]
    facts: dict[str, Any]
    digest: str


def _write_folder(folder: Path, fill: Callable[[Path], Hashes], facts: dict[str, Any]) -> None:
    """Writes a folder whole or not at all; one of that name stays until the new one is on disk.

    `fill` returns the sha256 of those of its files that it knows already.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    facts = json.loads(json.dumps(facts))  # as a reader will see them: keys are strings, tuples are lists
    _sweep(folder)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        hashes = fill(temporary)
        write_manifest(temporary, {"facts": facts, "digest": sha256_json(facts)}, hashes=hashes)
        temporary.chmod(0o755)
        _flush_names(temporary)
        if folder.exists():
            folder.replace(_aside(folder))
        temporary.replace(folder)
        _flush_names(folder.parent)
    finally:
        _sweep(folder)


def _verified(folder: Path, names: list[str] | None, advice: str) -> dict[str, Any]:
    """The facts of a folder, after every byte of its files and manifest was found to be as written.

    `names` are the files it must list; None for whatever it lists.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"missing; {advice}", path)
    try:
        manifest = _Manifest.model_validate(read_json(path))
    except (DataError, ValidationError) as error:
        raise DataError(f"damaged; {advice}", path) from error
    listed = set(manifest.files)
    if listed != set(listed if names is None else names) or sha256_json(manifest.facts) != manifest.digest:
        raise DataError(f"damaged; {advice}", path)
    for name, expected in manifest.files.items():
        try:
            file = place_inside(folder, name)
        except DataError as error:
            raise DataError(f"{error}; {advice}") from error
        if not file.is_file():
            raise DataError(f"missing; {advice}", file)
        if (size := file.stat().st_size) != expected.bytes:
            raise DataError(f"{size:,} bytes, {expected.bytes:,} by its manifest; {advice}", file)
        if sha256_file(file) != expected.sha256:
            raise DataError(f"its sha256 is not that of its manifest; {advice}", file)
    return manifest.facts


def _aside(folder: Path) -> Path:
    """Where a folder waits while its successor takes the name; the hyphen keeps it apart from temporary names."""
    return folder.with_name(f".{folder.name}.set-aside")


def _sweep(folder: Path) -> None:
    """Removes what an interrupted write or removal of `folder` left, and undoes a replacement that was half done."""
    if _aside(folder).exists() and not folder.exists():
        _aside(folder).replace(folder)
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Removes a folder whole: it loses its name before it loses its files."""
    folder.replace(folder.with_name(f".{folder.name}.removed"))
    _sweep(folder)


def _flush_names(folder: Path) -> None:
    """Makes the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
