"""Readers of what is saved to be taken up or used again: manifests, checkpoints, weights, packages, arrays."""

import functools
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.arrays import save_array
from harness.data.prepare import load_matrix
from harness.data.ragged import Ragged
from harness.files import MANIFEST, read_manifest, sha256_json, write_manifest
from harness.record import RunRecord, read_record
from harness.report.collecting import collect
from harness.report.comparing import _FEWEST_RESAMPLES, compare
from harness.report.comparing.contenders import Run, find_contenders
from harness.report.evidence import kept_columns, read_rows, run_rows
from harness.report.explorer.predictions import read_predictions
from harness.report.explorer.prepared import open_prepared
from harness.serving.package import load_package
from harness.train.checkpoint import load_model, verify_files
from harness.train.tensorfile import read_tensors
from tests.trust.fuzzing import Target, may_refuse
from tests.trust.world import copy_of_run, seed_of, training_in, twin_of, world

Read = Callable[[bytes, Path], object]


# ---------------------------------------------------------------- manifests, checkpoints, weights


def _signed(folder: Path, files: dict[str, bytes], facts: dict[str, Any]) -> Path:
    """A folder with the manifest of its content, such as anybody can write."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    write_manifest(folder, {"facts": facts, "digest": sha256_json(facts)})
    return folder


def _read_any_manifest(data: bytes, folder: Path) -> None:
    held = _signed(folder / "held", {"model.safetensors": b"x"}, {})
    (held / MANIFEST).write_bytes(data)
    read_manifest(held, verify=True)
    for read in (load_model, verify_files, lambda each: load_package(each, device="cpu")):
        may_refuse(functools.partial(read, held))


def _manifest_seeds() -> list[bytes]:
    return [
        (place / MANIFEST).read_bytes() for place in (world().run, world().run / "model", world().checkpoints / _STEP)
    ]


_STEP = "step-00000004"


def _resume_from(hostile: str) -> Read:
    """A checkpoint that is whole by its manifest, and yet not that of this training."""

    def read(data: bytes, folder: Path) -> None:
        names = ("state.json", "tensors.safetensors")
        files = {name: (world().checkpoints / _STEP / name).read_bytes() for name in names}
        _signed(folder / "checkpoints" / _STEP, files | {hostile: data}, {"step": 4})
        training_in(folder).resume()

    return read


def _read_weights(data: bytes, folder: Path) -> None:
    load_model(_signed(folder / "model", {"model.safetensors": data}, {}))


def _tensors(data: bytes, folder: Path) -> None:
    (folder / "tensors").write_bytes(data)
    read_tensors(folder / "tensors")


def _checkpoint_seeds(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(world().checkpoints / step / name).read_bytes() for step in (_STEP, "step-00000002")]


def _load_packed(hostile: str, beside: Path | None = None) -> Read:
    """A packed model one file of which is another, with a manifest that says so; `beside` has more files for it."""

    def read(data: bytes, folder: Path) -> None:
        package = folder / "package"
        shutil.copytree(world().package, package)
        facts = json.loads((package / MANIFEST).read_bytes())["facts"]
        (package / MANIFEST).unlink()
        (package / hostile).write_bytes(data)
        if beside is not None:
            shutil.copytree(beside, package, dirs_exist_ok=True)
        write_manifest(package, {"facts": facts, "digest": sha256_json(facts)})
        shutil.copytree(world().home / "cache" / "encoders", folder / "home" / "cache" / "encoders")
        load_package(package, device="cpu")

    return read


# ---------------------------------------------------------------- arrays


def _load_packed_rows(data: bytes, folder: Path) -> None:
    """The same with train rows, which some methods need; the first line says which array is hostile."""
    name, _, content = data.partition(b"\n")
    rows = folder / "rows"
    rows.mkdir()
    for each, array in _packed_rows().items():
        save_array(rows / each, array)
    file = sorted(_packed_rows())[len(name) % len(_packed_rows())]
    (rows / file).write_bytes(content)
    _load_packed("counts.npy", rows)((world().package / "counts.npy").read_bytes(), folder)


@functools.cache
def _packed_rows() -> dict[str, Any]:
    train = load_matrix(world().prepared, "train.labels", 12)
    tokens = Ragged.load(world().package, "labels.tokens").take(np.zeros(train.shape[0], np.int64))
    matrix = {part: getattr(train, part) for part in ("data", "indices", "indptr")}
    matrices = {
        f"{name}.{part}.npy": array for name in ("train.labels", "train.filter") for part, array in matrix.items()
    }
    return {**matrices, "train.tokens.values.npy": tokens.values, "train.tokens.offsets.npy": tokens.offsets}


def _packed_row_seeds() -> list[bytes]:
    seeds = []
    for place, name in enumerate(sorted(_packed_rows())):
        stream = io.BytesIO()
        np.save(stream, _packed_rows()[name])
        seeds.append(b"n" * place + b"\n" + stream.getvalue())
    return seeds


def _record() -> RunRecord:
    return read_record(world().run)


def _read_scores(data: bytes, folder: Path) -> None:
    """Per-row scores in a run folder whose manifest vouches for them, read by reports and comparisons."""
    run = copy_of_run(folder, "per_row.npy", data)
    (run / MANIFEST).unlink()
    write_manifest(run, {})
    twin = twin_of(run)
    may_refuse(lambda: run_rows(run, _record(), ""))
    for _ in range(2):  # the second time it is compared with what is there
        may_refuse(lambda: collect([run.parent], None, [], folder / "reports"))
    found = find_contenders([str(run), str(twin)], [run.parent])
    compare(found, resamples=_FEWEST_RESAMPLES).as_table()


def _read_predictions(hostile: str) -> Read:
    def read(data: bytes, folder: Path) -> None:
        run = copy_of_run(folder, hostile, data)
        (run / MANIFEST).unlink()
        write_manifest(run, {})
        read_predictions(Run(run, _record()), open_prepared(world().prepared), 4, 5)

    return read


def _read_stored(data: bytes, folder: Path) -> None:
    (folder / "x.rows.npz").write_bytes(data)
    read_rows(folder / "x.rows.npz", kept_columns(_record()))


def _stored_seeds() -> list[bytes]:
    stream = io.BytesIO()
    rows = np.ones((8, len(kept_columns(_record()))), np.float32)
    np.savez_compressed(stream, concat=rows, de=rows)
    return [stream.getvalue()]


TARGETS = (
    Target("manifest", _read_any_manifest, _manifest_seeds, "json"),
    Target("checkpoint-state", _resume_from("state.json"), _checkpoint_seeds("state.json"), "json"),
    Target(
        "checkpoint-tensors", _resume_from("tensors.safetensors"), _checkpoint_seeds("tensors.safetensors"), "tensors"
    ),
    Target("tensor-file", _tensors, _checkpoint_seeds("tensors.safetensors"), "tensors"),
    Target("weights", _read_weights, seed_of("model/model.safetensors"), "tensors"),
    Target("package-record", _load_packed("record.json"), seed_of("record.json"), "json"),
    Target(
        "package-array", _load_packed("counts.npy"), lambda: [(world().package / "counts.npy").read_bytes()], "arrays"
    ),
    Target("package-rows", _load_packed_rows, _packed_row_seeds, "arrays"),
    Target("row-scores", _read_scores, seed_of("per_row.npy", "per_row.de.npy"), "arrays"),
    Target("predicted-ids", _read_predictions("ids.npy"), seed_of("ids.npy"), "arrays"),
    Target("predicted-scores", _read_predictions("scores.npy"), seed_of("scores.npy"), "arrays"),
    Target("stored-rows", _read_stored, _stored_seeds, "arrays"),
)
