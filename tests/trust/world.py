"""What the harness itself makes for others to tamper with, once a process and in seconds.

A prepared dataset, a finished run, a checkpoint with the training it belongs to, a model folder, a packed model.
"""

import atexit
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness.config import Layer, RunConfig
from harness.data import load
from harness.method import load_method
from harness.model.encoder import load_encoder
from harness.resume import Earlier
from harness.run import hold_out, resolve_config, run, text_length, tokenise, train_side
from harness.serving.package import write_package
from harness.tracking import Journal
from harness.train.loop import Training
from tests.small_models import write_model

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
    """Where everything is."""

    home: Path
    run: Path
    """The folder of a finished run."""
    package: Path
    checkpoints: Path
    """Of the same run, as they were before it ended."""
    prepared: Path
    """The prepared dataset."""
    model: Path
    """A small BERT."""
    config: RunConfig

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Its workspace, in place of that of the input at hand."""
        with mock.patch.dict(os.environ, {"HARNESS_HOME": str(self.home)}):
            yield


@cache
def world() -> World:
    """Makes it."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-world-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    torch.set_num_threads(1)
    kept = home / "checkpoints"
    with mock.patch.dict(os.environ, {"HARNESS_HOME": str(home)}), redirect_stderr(io.StringIO()):
        config = resolve_config("unidec", DATASET, [Layer("fuzzing", _SETTINGS)])[0]
        record = run(config, track="none", on_validation=None)
        folder = home / "runs" / record.run_id
        _keep_checkpoints(config, kept)
        write_package(folder, home / "package")
        model = write_model(home / "small-bert", max_position_embeddings=16, num_hidden_layers=1)
        (prepared,) = (path.parent for path in (home / "cache" / "datasets").glob("*/manifest.json"))
    return World(home, folder, home / "package", kept, prepared, model, config)


def _keep_checkpoints(config: RunConfig, kept: Path) -> None:
    """Trains once more, for the checkpoints that a finished run removes."""
    journal = _Elsewhere(kept.parent)
    training = _training(config, journal)
    training.run()


class _Elsewhere:
    """As much of a journal as a training needs."""

    earlier: Earlier | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def event(self, kind: str, **facts: Any) -> None:
        """Forgotten."""

    def metrics(self, values: dict[str, float], step: int = 0) -> None:
        """Forgotten."""

    def warn(self, message: str) -> None:
        """Forgotten."""


def _training(config: RunConfig, journal: Any) -> Training:
    data, method = load(config.dataset), load_method(config.method)
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    rows, _ = hold_out(data, config)
    tokens = tokenise(data, encoder, text_length(config, encoder), rows)
    inputs = train_side(data, rows, tokens, encoder, "cpu", config, lambda _: None)
    parts = method.build(inputs, method.params.model_validate(config.params))
    assert parts.model is not None
    return Training(parts.model, parts.stages(), journal, config.checkpoint, config.validation, None)


@cache
def _built() -> Training:
    with world().at_home():
        return _training(world().config, _Elsewhere(world().home))


def training_in(folder: Path) -> Training:
    """The training of the run, about to take up the checkpoints of a folder; its parts are built once."""
    journal: Journal = _Elsewhere(folder)  # type: ignore[assignment]
    made = _built()
    return Training(made.model, made.stages, journal, world().config.checkpoint, world().config.validation, None)


def copy_of_run(folder: Path, name: str = "", data: bytes = b"", *, without: tuple[str, ...] = ()) -> Path:
    """The finished run in the workspace of this input, one file of it another."""
    run = folder / "home" / "runs" / world().run.name
    shutil.copytree(world().run, run, ignore=shutil.ignore_patterns("model", *without))
    if name:
        (run / name).write_bytes(data)
    return run


def seed_of(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(world().run / name).read_bytes() for name in names]


def twin_of(run: Path) -> Path:
    """A run to compare with, whose files are as they should be."""
    twin = run.parent / "twin"
    shutil.copytree(world().run, twin, ignore=shutil.ignore_patterns("model"))
    record = json.loads((twin / "record.json").read_bytes())
    (twin / "record.json").write_text(json.dumps(record | {"run_id": "twin"}))
    return twin
