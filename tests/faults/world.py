"""What the harness itself makes for others to tamper with, once a process and in seconds.

A prepared dataset, a finished run, a checkpoint with the training it belongs to, a model folder, a packed model.
"""

import atexit
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness.run import resolve_config, run
from harness.runs.package import assemble
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from harness.train import loop
from harness.train.loop import Training
from tests.support.small_models import write_model

DATASET = "synthetic:train=24,test=8,labels=12,words=3"
_SETTINGS = {
    "encoder": "tiny",
    "encoder_options": {"dim": 8, "layers": 1},
    "max_len": 8,
    "dim": 4,
    "batch_size": 12,
    "epochs": 2,
    "random_epochs": 1,
    "refresh_epochs": 1,
    "checkpoint": {"min_seconds": 0.0},
}


@dataclass(frozen=True)
class World:
    """Paths and objects that hostile inputs are made from."""

    home: Path
    run: Path
    """The folder of a finished run."""
    package: Path
    checkpoints: Path
    """Folder of checkpoints of the same run, as they were before it ended."""
    prepared: Path
    """Folder of the prepared dataset."""
    model: Path
    """Model folder of a small BERT."""
    config: RunConfig
    training: Training
    """The training of the run."""

    def training_in(self, folder: Path) -> Training:
        """Return the training of the run, ready to resume from the checkpoints of a folder."""
        run_log: Any = mock.MagicMock(folder=folder, earlier=None)
        saving, choosing = self.config.checkpoint, self.config.validation
        return Training(self.training.model, self.training.stages, run_log, saving, choosing, None)


@cache
def world() -> World:
    """Make the world, once per process."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-world-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    torch.set_num_threads(1)
    kept, trainings = home / "checkpoints", []

    class KeptTraining(Training):
        def metadata(self) -> dict[str, Any]:
            shutil.copytree(self.run_log.folder / "checkpoints", kept)  # which a finished run removes
            trainings.append(self)
            return super().metadata()

    with (
        mock.patch.dict(os.environ, {"HARNESS_HOME": str(home)}),
        mock.patch.object(loop, "Training", KeptTraining),
        redirect_stderr(io.StringIO()),
    ):
        config = resolve_config("unidec", DATASET, [Layer("fuzzing", _SETTINGS)])[0]
        folder = home / "runs" / run(config, track="none").run_id
        assemble(folder, home / "package")
        model = write_model(home / "small-bert", max_position_embeddings=16, num_hidden_layers=1)
        (prepared,) = (path.parent for path in (home / "cache" / "datasets").glob("*/manifest.json"))
    return World(home, folder, home / "package", kept, prepared, model, config, trainings[0])


def copy_of_run(folder: Path, name: str, data: bytes, *, without: tuple[str, ...] = ()) -> Path:
    """Copy the finished run into the workspace of an input, with one file replaced; return its folder."""
    run = folder / "home" / "runs" / world().run.name
    shutil.copytree(world().run, run, ignore=shutil.ignore_patterns("model", *without))
    (run / name).write_bytes(data)
    return run


def twin_of(run: Path) -> Path:
    """Make an undamaged run to compare with; return its folder."""
    twin = run.parent / "twin"
    shutil.copytree(world().run, twin, ignore=shutil.ignore_patterns("model"))
    record = json.loads((twin / "record.json").read_bytes())
    (twin / "record.json").write_text(json.dumps(record | {"run_id": "twin"}))
    return twin


def numbered(files: dict[str, bytes]) -> list[bytes]:
    """Return a seed for each file: a line as long as its index among the sorted names, then its content."""
    return [b"n" * place + b"\n" + files[name] for place, name in enumerate(sorted(files))]


def chosen(data: bytes, names: Iterable[str]) -> tuple[str, bytes]:
    """Return the name of the file that a `numbered` input replaces, and its new content."""
    line, _, content = data.partition(b"\n")
    ordered = sorted(names)
    return ordered[len(line) % len(ordered)], content
