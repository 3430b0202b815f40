"""What a training run leaves on disk so that it can go on: checkpoints, and the model at the end.

    <run id>/checkpoints/step-00001234/state.json             progress: stage, epoch, step, sums, best value so far
                                       tensors.safetensors    parameters and optimiser moments by name
                                       manifest.json          sha256 of both
             model/model.safetensors                          parameters alone
                   manifest.json                              its sha256, and the metadata needed to rebuild the model

Folders are written by `harness.io.files.whole_folder`. One that has its final name and does not match its manifest was
damaged later; it is refused, because weights with one wrong byte load without any error. One process at a time writes
here: the caller holds `harness.runs.lock.run_lock`.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.errors import DataError
from harness.io.files import (
    MANIFEST,
    read_json,
    remove_folder,
    sha256_json,
    sweep,
    verified_manifest,
    whole_folder,
    write_text,
)
from harness.train.checkpoint.tensorfile import read_tensors, write_tensors

STATE, TENSORS, MODEL = "state.json", "tensors.safetensors", "model.safetensors"
_STEP_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})")


class Checkpoints:
    """The last `keep` checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """Use `folder`, which is made with the first checkpoint; the disk needs room for `keep + 1` of them."""
        assert keep > 0
        self.folder = folder
        self.keep = keep

    def save(
        self, step: int, state: dict[str, Any], tensors: dict[str, Tensor], go_on: Callable[[], None] = lambda: None
    ) -> Path:
        """Write the checkpoint of a step, then remove those that are too old; return its folder.

        Saving the newest step again replaces it.

        Args:
            step: Optimiser steps done; at least as many as in the newest checkpoint.
            state: Values that JSON can hold; NaN and infinity are kept, tuples come back as lists.
            tensors: Tensors of any shape on any device, by name.
            go_on: Called repeatedly while tensors are written; an exception from it ends that, without a checkpoint.
        """
        self._sweep()
        assert step >= max([0, *self.steps()])
        self._thin_out()  # a writer that was killed here may have left one more than are kept, and so may the next
        with whole_folder(self._path(step)) as draft:
            # a diverged loss is NaN and has to come back as NaN, hence Python's dialect of JSON
            write_text(draft.path / STATE, json.dumps(state, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
            draft.hashes[TENSORS] = write_tensors(draft.path / TENSORS, tensors, go_on)
            draft.metadata["facts"] = {"step": step}
        self._thin_out()
        return self._path(step)

    def latest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return state and tensors of the newest checkpoint after checking its hashes; None if there is none."""
        self._sweep()
        steps = self.steps()
        if not steps:
            return None
        *before, step = steps
        newest = self._path(step)
        back = f"to go back to {self._path(before[-1]).name}" if before else "to start again"
        advice = f"the checkpoint cannot be used; remove the folder {newest} {back}"
        if verified_manifest(newest, advice, [STATE, TENSORS]).get("facts") != {"step": step}:
            raise DataError(f"written for another step; {advice}", newest / MANIFEST)
        try:
            state, tensors = read_json(newest / STATE), read_tensors(newest / TENSORS)
        except DataError as error:
            raise DataError(f"{error}; {advice}") from error
        return state, tensors

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first; only `latest` checks that one is undamaged."""
        found = (_STEP_NAME.fullmatch(path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def discard(self) -> None:
        """Remove all checkpoints, the oldest first, so that a kill on the way leaves the newest."""
        self._sweep()
        for step in self.steps():
            remove_folder(self._path(step))
        with suppress(OSError):  # absent, or somebody keeps something there
            self.folder.rmdir()

    def _thin_out(self) -> None:
        for old in self.steps()[: -self.keep]:
            remove_folder(self._path(old))

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _sweep(self) -> None:
        for leftover in self.folder.glob(".step-*.*"):
            sweep(self.folder / leftover.name.split(".")[1])


def save_model(folder: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write a model, replacing an earlier one; `metadata` are JSON values without NaN or infinity."""
    with whole_folder(folder) as draft:
        draft.metadata["facts"] = metadata
        draft.hashes[MODEL] = write_tensors(draft.path / MODEL, tensors)


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and metadata of a model folder after checking its hashes."""
    advice = _advice(folder)
    metadata: dict[str, Any] = verified_manifest(folder, advice, [MODEL]).get("facts", {})
    try:
        return read_tensors(folder / MODEL), metadata
    except DataError as error:
        raise DataError(f"{error}; {advice}") from error


def save_files(folder: Path, fill: Callable[[Path], None], metadata: dict[str, Any]) -> None:
    """Write a model that has a format of its own: `fill` writes its files into the empty folder it is given."""
    with whole_folder(folder) as draft:
        draft.metadata["facts"] = metadata
        fill(draft.path)


def verify_files(folder: Path) -> str:
    """Raise unless a folder of `save_files` holds every byte that was written and no other file; return its sha256."""
    advice = _advice(folder)
    files = verified_manifest(folder, advice)["files"]
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if strange := sorted(found - {*files, MANIFEST}):
        raise DataError(f"not a file of this model; {advice}", folder / strange[0])
    return sha256_json(files)


def _advice(folder: Path) -> str:
    """Return what to do about a damaged model, for an error message; raise if the folder is missing."""
    if not folder.is_dir():
        raise DataError("no model here; repeat the run that writes it", folder)
    return f"the model cannot be used; remove the folder {folder} and repeat the run"
