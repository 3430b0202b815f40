"""The folder that holds a trained model and everything it needs but the harness and a named encoder.

    record.json                     of the run, with model folders by name
    labels.id.*, labels.text.*, labels.tokens.*     [L] each
    counts.npy                      how often each token occurs in what was learned from, [V]
    model/                          weights as the run saved them; absent for a method without training
    folders/encoder/, folders/teacher/              model folders, where the encoder is none that goes by its name
    train.*                         train rows, only for a method that builds from them (nearest neighbours)
    manifest.json                   sha256 of all of the above; anything else in the folder is refused

Whether a method needs train rows shows when it is built from inputs that have none to give.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.arrays import load_array, save_array
from harness.augment import NONE
from harness.augment.side import with_made_rows
from harness.data import Dataset
from harness.data.card import DatasetCard
from harness.data.prepare import opened
from harness.data.ragged import Ragged, Texts
from harness.data.tokens import token_counts
from harness.errors import DataError, UserError
from harness.files import MANIFEST, home, place_inside, read_json, read_manifest, write_json
from harness.folders import folders_in, remembered_folders, with_folders
from harness.method import Inputs
from harness.model.encoder import load_encoder
from harness.model.vetting import files_of
from harness.record import RunRecord, read_record, require_place
from harness.run import choose_device
from harness.train.checkpoint import save_files, verify_files
from harness.trained import (
    TrainedModel,
    config_of,
    finished_record,
    ready_model,
    rebuilt_inputs,
    require_same,
)

FORMAT = 1
"""Bumped whenever an older reader would misunderstand the folder."""


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


# ---------------------------------------------------------------- writing


def write_package(run_folder: Path, package: Path, *, encoder: str | None = None) -> TrainedModel:
    """Packs the model of a finished run into a new folder, whole or not at all; returns it as read from there.

    Args:
        run_folder: With the data of the run in the workspace.
        package: New.
        encoder: Where its encoder is, if that was a model folder and the workspace does not know.
    """
    record = finished_record(run_folder)
    folders = remembered_folders(record.config, record.encoder.get("identity"))
    if encoder is not None:
        folders["encoder"] = Path(encoder)
    places = with_folders(record.config, folders)
    config = config_of(record, {**places, "device": "cpu"})
    require_place(record.run_id, "encoder", record.config["encoder"], config.encoder)
    used = folders_in(config.encoder, dict(config.encoder_options))
    folders = {key: Path(place).expanduser() for key, place in used.items()}
    data = recorded_dataset(record)
    inputs = rebuilt_inputs(record, config, data)
    counts = token_counts(inputs.encoder.tokenizer.vocab_size, inputs.train_tokens, inputs.label_tokens)
    weights = run_folder / "model"
    try:
        # shown before anything is written: what is built without train rows now can be built without them anywhere
        unmade = config_of(record, {**places, "device": "cpu", "augment": NONE})
        ready_model(record, unmade, without_rows(inputs), data.label_id, data.label_text, weights)
        rows = None
    except NeedsTrainRows:
        rows = with_made_rows(inputs, config)[0]

    def fill(folder: Path) -> None:
        named = {key: Path(f"./{place.name}") for key, place in folders.items()}
        shown = record.config | with_folders(record.config, named)
        write_json(folder / "record.json", record.model_copy(update={"config": shown}).model_dump(mode="json"))
        data.label_id.save(folder, "labels.id")
        data.label_text.save(folder, "labels.text")
        inputs.label_tokens.save(folder, "labels.tokens")
        save_array(folder / "counts.npy", counts)
        if (listed := read_manifest(weights)) is not None:
            _copy_listed(weights, [*listed["files"], MANIFEST], folder / "model")
        for key, place in folders.items():
            _copy_model_folder(place, folder / "folders" / key / place.name)
        if rows is not None:
            _save_rows(rows, folder)

    size = {"train_rows": inputs.train.shape[0]} if rows is None else {"train_rows": rows.train.shape[0]}
    save_files(package, fill, {"format": FORMAT, "soft": rows is not None and rows.soft, **size})
    return load_package(package, device="cpu")


def recorded_dataset(record: RunRecord) -> Dataset:
    """The dataset of a run by its content: in the workspace it is prepared, wherever its raw files were."""
    wanted = record.dataset
    for path in sorted((home() / "cache" / "datasets").glob("*/manifest.json")):
        manifest = read_manifest(path.parent)
        if manifest is not None and manifest.get("digest") == wanted["digest"]:
            return _prepared(path.parent, manifest, record)
    raise UserError(
        f"the data of run {record.run_id} ({wanted['name']}, digest {wanted['digest'][:12]}) is not in the workspace; "
        f"prepare it with `python -m harness data prepare {wanted['name']}`"
    )


def _prepared(folder: Path, manifest: dict[str, Any], record: RunRecord) -> Dataset:
    known = {key: record.dataset[key] for key in ("name", "title", "version", "propensity")}
    card = DatasetCard(source="jsonl", summary="as the run knew it", **known)
    return opened(card, folder, manifest, record.config["filter"])


def without_rows(inputs: Inputs) -> Inputs:
    """The same inputs with none of the train rows in them."""
    absent: Any = AbsentRows(inputs.train.shape)
    return replace(inputs, train=absent, train_filter=absent, train_tokens=absent)


def _copy_listed(source: Path, names: list[str], target: Path) -> None:
    """The files that a manifest lists; what lies beside them, a link to a private file say, stays there."""
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place_inside(source, name), copy)


def _copy_model_folder(source: Path, target: Path) -> None:
    """The files of a model folder that are read; whatever else lies there stays there."""
    for file in files_of(source):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _save_rows(rows: Inputs, folder: Path) -> None:
    rows.train_tokens.save(folder, "train.tokens")
    for name, matrix in (("train.labels", rows.train), ("train.filter", rows.train_filter)):
        for part in ("data", "indices", "indptr"):
            save_array(folder / f"{name}.{part}.npy", getattr(matrix, part))


# ---------------------------------------------------------------- reading


def load_package(package: Path, *, device: str = "auto") -> TrainedModel:
    """The model of a package, after every byte was found to be as written and no other file to be there.

    Args:
        package: As `write_package` wrote it.
        device: auto, cpu, cuda, cuda:1 or mps.
    """
    verify_files(package)
    facts = read_json(package / MANIFEST)["facts"]
    if facts.get("format") != FORMAT:
        raise DataError(
            f"a package of format {facts.get('format')}, this harness reads {FORMAT}; pack it anew", package
        )
    record = read_record(package)
    places = {key: next(iter(package.glob(f"folders/{key}/*")), None) for key in ("encoder", "teacher")}
    folders = {key: place for key, place in places.items() if place is not None}
    config = config_of(record, {**with_folders(record.config, folders), "device": device, "augment": NONE})
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    require_same(record, "encoder", "identity", encoder.identity)
    encoder.adapt(_counts(package, encoder.tokenizer.vocab_size))
    labels = {name: Texts.load(package, f"labels.{name}") for name in ("id", "text")}
    label_tokens = Ragged.load(package, "labels.tokens")
    train, train_filter, train_tokens = _train_rows(package, (facts["train_rows"], len(label_tokens)))
    inputs = Inputs(
        train=train,
        train_filter=train_filter,
        train_tokens=train_tokens,
        label_tokens=label_tokens,
        encoder=encoder,
        device=choose_device(config.device),
        batch_tokens=config.batch_tokens,
        seed=config.seed,
        warn=lambda _: None,  # what there was to warn of was said when the run was made
        soft=bool(facts["soft"]),
    )
    return ready_model(record, config, inputs, labels["id"], labels["text"], package / "model")


def _counts(package: Path, tokens: int) -> NDArray[np.int64]:
    """How often each token occurs, [V]."""
    counts = load_array(package / "counts.npy", 1, "i")
    if len(counts) != tokens or (counts < 0).any():
        raise DataError(f"not the counts of {tokens:,} tokens; pack the model anew", package / "counts.npy")
    return counts


def _train_rows(package: Path, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Labels [N, L], filter pairs [N, L] and tokens [N] of the train rows; what refuses to be read if none are here."""
    if not (package / "train.tokens.offsets.npy").exists():
        absent = AbsentRows(shape)
        return absent, absent, absent

    def matrix(name: str) -> csr_array:
        data, indices, indptr = (
            load_array(package / f"{name}.{part}.npy", 1) for part in ("data", "indices", "indptr")
        )
        try:
            found = csr_array((data, indices, indptr), shape=shape)
            found.check_format(full_check=True)
            return found
        except ValueError as error:
            raise DataError(
                f"{name} is no matrix of {shape[0]:,} rows and {shape[1]:,} labels ({error})", package
            ) from error

    return matrix("train.labels"), matrix("train.filter"), Ragged.load(package, "train.tokens")
