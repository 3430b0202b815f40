"""Loading the model of a finished run: the same data, the same encoder, and the trained weights.

Data and encoder are compared with the record of the run, because with others a model would give wrong predictions
without any error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.augment import NONE, with_augmented_rows
from harness.data import Dataset, load
from harness.data.ragged import Ragged, Texts
from harness.errors import DataError, UserError
from harness.io.files import read_manifest, sha256_json
from harness.machine.device import choose_device
from harness.model.encoders.encoder import Encoder, load_encoder
from harness.model.folders import remembered_folders, with_folders
from harness.runs.record import (
    RunRecord,
    find_records,
    is_trial,
    read_record,
    refuse_places,
    require_place,
    runs_folder,
)
from harness.runs.record import run_folder as named_folder
from harness.settings.identity import before
from harness.settings.layers import Layer, resolve_layers
from harness.settings.method import Inputs, Parts, load_method
from harness.settings.schema import RunConfig
from harness.train.inputs import text_length, tokenise, train_side, validation_split

NEWEST = "last"
"""Name that stands for the newest finished run."""


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its labels, ready to score texts; its dataset need not be on this machine."""

    record: RunRecord
    config: RunConfig
    label_id: Texts
    """Ids of the labels, [L]."""
    label_text: Texts
    """Texts of the labels, [L]."""
    label_tokens: Ragged
    """Token ids of the label texts, [L]."""
    encoder: Encoder
    parts: Parts
    """Parts of the method with the weights of the run, in eval mode."""
    max_len: int
    """Tokens per text, special tokens included."""
    device: str
    identity: str
    """sha256 of all that decides the model's vectors: weights, method, encoder, tokens, dataset."""


@dataclass(frozen=True)
class TrainedRun(TrainedModel):
    """The model of a finished run, with the dataset it was trained on."""

    dataset: Dataset


def load_run(
    run: str,
    out: Path | None = None,
    *,
    dataset: str | None = None,
    encoder: str | None = None,
    device: str = "auto",
) -> TrainedRun:
    """Load a finished run.

    Args:
        run: Id of the run, path of its folder, or `last` for the newest finished run.
        out: Folder of run folders; by default the workspace's.
        dataset: Path of its dataset, if that was a folder: a record keeps names, never paths.
        encoder: Path of its encoder, if that was a model folder.
        device: auto, cpu, cuda, cuda:1 or mps; need not be the one that it was trained on.
    """
    folder = run_folder(run, out)
    record = finished_record(folder)
    places = with_folders(record.config, remembered_folders(record.config, record.encoder.get("identity")))
    places |= {key: place for key, place in (("dataset", dataset), ("encoder", encoder)) if place is not None}
    config = config_of(record, {**places, "device": device})
    for key in ("dataset", "encoder"):
        require_place(record.run_id, key, record.config[key], getattr(config, key))
    data = load(config.dataset, use_filter=config.filter)
    inputs = rebuilt_inputs(record, config, data)
    model = ready_model(record, config, inputs, data.label_id, data.label_text, folder / "model")
    return TrainedRun(**vars(model), dataset=data)


def config_of(record: RunRecord, changes: dict[str, Any]) -> RunConfig:
    """Return the config of a run, checked again, with `changes` for this machine: paths and device."""
    refuse_places(f"the record of run {record.run_id}", record.config)
    method = load_method(record.config["method"])
    fused = record.training.get("fused")
    chosen = {"params": {"fused_weight": fused.get("weight") if isinstance(fused, dict) else fused}} if fused else {}
    layers = [
        Layer("before", before(record.config)),
        Layer(f"run {record.run_id}", record.config),
        Layer(f"run {record.run_id}, training.fused", chosen),
        Layer("given", changes),
    ]
    return resolve_layers(layers, method.params)[0]


def rebuilt_inputs(record: RunRecord, config: RunConfig, data: Dataset) -> Inputs:
    """Return the inputs of a run's method without augmented rows; `UserError` if data or encoder are others."""
    require_same(record, "dataset", "digest", data.digest)
    device = choose_device(config.device)
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    require_same(record, "encoder", "identity", encoder.identity)
    kept, _ = validation_split(data, config)
    tokens = tokenise(data, encoder, text_length(config, encoder), kept)
    # the run itself has given the warnings already
    return train_side(data, kept, tokens, encoder, device, config, lambda _: None)


def ready_model(
    record: RunRecord, config: RunConfig, inputs: Inputs, label_id: Texts, label_text: Texts, weights: Path
) -> TrainedModel:
    """Return the model of a run, built from its inputs, with the weights in folder `weights`."""
    method = load_method(config.method)
    params = method.params.model_validate(config.params)
    parts = method.build(inputs, params)
    if parts.model is None and config.augment != NONE:  # a saved model needs no augmented rows, anything else might
        parts = method.build(with_augmented_rows(inputs, config)[0], params)
    max_len, rows = text_length(config, inputs.encoder), config.validation
    identity = {
        "weights": _load_weights(parts, weights),
        "method": [config.method, config.params],
        "encoder": [inputs.encoder.identity, inputs.encoder.tokenizer.sha256, max_len],
        "dataset": record.dataset["digest"],
        # an encoder may use token counts, which leave out validation rows
        "held_out": [rows.size, rows.draw, rows.equal_texts, config.seed] if rows.size else None,
    }
    return TrainedModel(
        record=record,
        config=config,
        label_id=label_id,
        label_text=label_text,
        label_tokens=inputs.label_tokens,
        encoder=inputs.encoder,
        parts=parts,
        max_len=max_len,
        device=inputs.device,
        identity=sha256_json(identity),
    )


def run_folder(run: str, out: Path | None = None) -> Path:
    """Return the folder of a run by its id, its path, or the word `last`."""
    if run == NEWEST:
        runs = runs_folder(out)
        records = [one for one in find_records([runs]) if not is_trial(one.config) and not one.fusion]
        finished = [record.run_id for record in records if record.status == "finished"]
        there = [runs / run_id for run_id in finished if (runs / run_id).is_dir()]
        if not there:
            raise UserError(f"there is no finished run in {runs}; make one with `python -m harness run`")
        return there[-1]
    return named_folder(run, out)


def finished_record(folder: Path) -> RunRecord:
    """Return the record of a finished run; for any other, `UserError` says how to finish it."""
    resume = f"take it up with `python -m harness run --resume {folder.name}`"
    if not (folder / "record.json").exists():
        if not (folder / "events.jsonl").exists():
            raise UserError(f"{folder} is not the folder of a run; `python -m harness ls runs` lists what there is")
        raise UserError(f"run {folder.name} is unfinished: it is still running, or it was killed; if so, {resume}")
    record = read_record(folder)
    if record.status != "finished":
        reason = f" ({record.error})" if record.error else ""
        raise UserError(f"run {record.run_id} is unfinished: {record.status}{reason}; {resume}")
    if record.fusion:
        raise UserError(f"run {record.run_id} is made of predictions of other runs and has no model; name one of those")
    if is_trial(record.config):
        raise UserError(
            f"run {record.run_id} was scored on validation rows, so it saved no model; run it with --set evaluate=test"
        )
    return record


def require_same(record: RunRecord, key: str, mark: str, found: str) -> None:
    """Raise if the digest of the dataset or the identity of the encoder is not that of the run."""
    expected = str(getattr(record, key).get(mark, "unknown"))
    if found != expected:
        raise UserError(
            f"the {key} {record.config[key]!r} is not the one run {record.run_id} was made with: its {mark} is "
            f"{found[:12]}, that of the run {expected[:12]}; put the old one back (a folder: --{key} PATH), or run anew"
        )


def _load_weights(parts: Parts, folder: Path) -> str | None:
    """Load the saved weights into the model; return their sha256, None for a method without training."""
    if parts.fitted is not None:
        from harness.train.checkpoint import verify_files

        digest = verify_files(folder)
        parts.fitted.load(folder)
        return digest
    if parts.model is None:
        return None
    from harness.train.checkpoint import MODEL, load_model

    tensors, _ = load_model(folder)
    try:
        parts.model.load_state_dict(tensors)
    except RuntimeError as error:
        detail = str(error).splitlines()[-1].strip()
        raise DataError(f"these weights do not fit the settings of the run ({detail}); run anew", folder) from error
    parts.model.eval()
    manifest = read_manifest(folder) or {}
    return str(manifest["files"][MODEL]["sha256"])
