"""Readers of runs and of what is saved to be resumed or used again: records, logs, checkpoints, weights, packages."""

import io
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from harness.data.prepare import load_matrix
from harness.data.ragged import Ragged
from harness.experiments.bench.store import RunStore
from harness.experiments.fusion.members import find_members
from harness.experiments.fusion.members import read_predictions as read_member
from harness.experiments.fusion.weights import validation_runs
from harness.experiments.sweep.runs import trial_runs
from harness.experiments.sweep.study import read_study_file
from harness.infer.load import config_of, finished_record
from harness.infer.serve import load_package
from harness.io.files import MANIFEST, read_manifest, sha256_json, write_manifest
from harness.model.folders import remembered_folders
from harness.report.collect import collect, read_study
from harness.report.compare import FEWEST_RESAMPLES, Run, compare, find_contenders
from harness.report.documents import comparison
from harness.report.earlier import read_earlier, read_rows
from harness.report.explorer.predictions import open_prepared, read_predictions
from harness.report.results import kept_columns, read_results, run_rows
from harness.report.rows import total_seconds
from harness.runs.events import LogReader, has_ended, read_events
from harness.runs.lock import held_by_another, run_lock, this_process
from harness.runs.record import RunRecord, find_records, read_record
from harness.runs.resume import find_earlier
from harness.runs.series import curves
from harness.tracking.sync import run_id_of, send, sync
from harness.train.checkpoint import load_model, verify_files
from harness.train.checkpoint.tensorfile import read_tensors
from harness.train.fusion import recorded_choice
from tests.faults.judge import Target, may_refuse, put
from tests.faults.world import chosen, copy_of_run, numbered, twin_of, world

Read = Callable[[bytes, Path], object]


def _of_run(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(world().run / name).read_bytes() for name in names]


# ---------------------------------------------------------------- records, logs, small files


def _read_record(data: bytes, folder: Path) -> None:
    """Call everything that reads the record of somebody else's run."""
    run = copy_of_run(folder, "record.json", data)
    find_records([run.parent])
    RunStore(run.parent).finished()
    record = read_record(run)
    record.model_dump(mode="json")
    recorded_choice(record)
    may_refuse(comparison, [record])
    may_refuse(lambda: config_of(finished_record(run), {"device": "cpu"}))


def _compare_with_twin(run: Path) -> None:
    found = find_contenders([str(run), str(twin_of(run))], [run.parent])
    compare(found, resamples=FEWEST_RESAMPLES).as_table()


def _read_report(data: bytes, folder: Path) -> None:
    """Make a report with somebody else's record in it."""
    run = copy_of_run(folder, "record.json", data)
    collect([run.parent], None, [], folder / "reports")
    read_results(folder / "reports")
    _compare_with_twin(run)


def _read_log(data: bytes, folder: Path) -> None:
    run = copy_of_run(folder, "events.jsonl", data, without=("record.json",))
    log = run / "events.jsonl"
    has_ended(log)
    RunStore(run.parent).finished()
    trial_runs(run.parent, "a-study")
    may_refuse(run_id_of, log)
    may_refuse(lambda: find_earlier(str(run)).continued(_start()))
    may_refuse(lambda: curves(read_events(log)))
    reader = LogReader(log)
    while events := reader.read():
        curves(events)


@cache
def _start() -> dict[str, Any]:
    first: dict[str, Any] = json.loads((world().run / "events.jsonl").read_bytes().splitlines()[0])
    return first


def _send_log(data: bytes, folder: Path) -> None:
    """Send a log to a tracking store that is empty and accepts everything."""
    run = copy_of_run(folder, "events.jsonl", data)
    with (
        mock.patch("harness.tracking.sync.search", return_value=[]),
        mock.patch("harness.tracking.sync.probe"),
        mock.patch("harness.tracking.mlflow_run.send_made", return_value=[]),  # a picture takes its time
    ):
        sync(mock.MagicMock(), [run])
        send(mock.MagicMock(), run, "as `runs reap` does", dead=True)


def _log_seeds() -> list[bytes]:
    whole = (world().run / "events.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    again = _start() | {"event": "resume", "resumed": [{"time": _start()["time"], "environment": []}]}
    return [b"".join(lines[:3]), whole, b"".join(lines[:-1]) + json.dumps(again).encode() + b"\n" + lines[-1][:9]]


def _read_lock(data: bytes, folder: Path) -> None:
    put(folder, "runs/.a-run.lock", data)
    run = folder / "runs" / "a-run"
    run.mkdir()
    held_by_another(run)
    with run_lock(run):
        pass


def _lock_seeds() -> list[bytes]:
    here = this_process()
    others = (here.model_copy(update={"pid": 2**22 + 1}), here, here.model_copy(update={"host": "elsewhere"}))
    return [holder.model_dump_json().encode() for holder in others]


def _read_study(data: bytes, folder: Path) -> None:
    file = put(folder, "studies/a-study/study.json", data)
    may_refuse(read_study_file, file.parent)
    read_study(file).model_dump_json()


_SLOT = {"slot": 0, "state": "COMPLETE", "values": [1.5], "params": {"tau": 0.3}, "seconds": 2.0}
_STUDY = {
    "id": "g",
    "identity": {
        "config": {"encoder": "static", "seed": 0, "validation": {"size": 0.1}},
        "dataset": {"digest": "ab"},
        "space": {"tau": {"low": 0.1, "high": 1.0, "log": True}},
    },
    "search": {"pruner": "none", "sampler": "tpe"},
    "objectives": ["P@1"],
    "slots": [_SLOT],
    "best": [0],
    "method": "unidec",
    "dataset": "synthetic",
}
_KEPT_STUDY = {
    **{"name": "x", "method": "unidec", "dataset": "synthetic", "digest": "ab", "objectives": ["P@1"]},
    **{"space": {"tau": {"low": 0.1}}, "settings": {}, "best": [0]},
    "trials": [{"number": 0, "state": "COMPLETE", "values": {"P@1": 1.5}, "params": {"tau": 0.3}, "seconds": 2.0}],
}
_NEIGHBOURS = {
    **{"dataset": "x", "digest": "ab"},
    "examples": [{"label": "a", "train_rows": 3, "neighbours": [{"label": "b", "share": 0.5}]}],
}


def _json(value: object) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode()]


def _read_kept(kind: str) -> Read:
    def read(data: bytes, folder: Path) -> None:
        put(folder, f"reports/{kind}/x.json", data)
        read_earlier(folder / "reports")

    return read


def _read_note(data: bytes, folder: Path) -> None:
    put(folder, "home/cache/folders/ab.json", data)
    remembered_folders({"encoder": "./small", "encoder_options": {"teacher": "./big"}}, "ab")


# ---------------------------------------------------------------- manifests, checkpoints, weights, packages

_STEP = "step-00000004"


def _sign(folder: Path, metadata: dict[str, Any]) -> Path:
    """Write a manifest that matches the content of a folder, as anybody can."""
    write_manifest(folder, {"facts": metadata, "digest": sha256_json(metadata)})
    return folder


def _read_any_manifest(data: bytes, folder: Path) -> None:
    held = _sign(put(folder, "held/model.safetensors", b"x").parent, {})
    (held / MANIFEST).write_bytes(data)
    read_manifest(held, verify=True)
    for read in (load_model, verify_files, lambda each: load_package(each, device="cpu")):
        may_refuse(read, held)


def _manifest_seeds() -> list[bytes]:
    places = (world().run, world().run / "model", world().checkpoints / _STEP)
    return [(place / MANIFEST).read_bytes() for place in places]


def _resume_from(hostile: str) -> Read:
    """Return a reader of a checkpoint that matches its manifest but is not of this training."""

    def read(data: bytes, folder: Path) -> None:
        step = folder / "checkpoints" / _STEP
        shutil.copytree(world().checkpoints / _STEP, step, ignore=shutil.ignore_patterns(MANIFEST))
        (step / hostile).write_bytes(data)
        _sign(step, {"step": 4})
        world().training_in(folder).resume()

    return read


def _checkpoint_seeds(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(world().checkpoints / step / name).read_bytes() for step in (_STEP, "step-00000002")]


def _load_packed(files: dict[str, bytes], folder: Path) -> None:
    """Load a packed model with some files replaced and a manifest that matches them."""
    package = folder / "package"
    shutil.copytree(world().package, package)
    metadata = json.loads((package / MANIFEST).read_bytes())["facts"]
    (package / MANIFEST).unlink()
    for name, content in files.items():
        (package / name).write_bytes(content)
    _sign(package, metadata)
    shutil.copytree(world().home / "cache" / "encoders", folder / "home" / "cache" / "encoders")
    load_package(package, device="cpu")


def _load_packed_rows(data: bytes, folder: Path) -> None:
    """Load a packed model with train rows, which some methods need, with one file replaced."""
    name, content = chosen(data, _packed_rows())
    _load_packed(_packed_rows() | {name: content}, folder)


@cache
def _packed_rows() -> dict[str, bytes]:
    train = load_matrix(world().prepared, "train.labels", 12)
    tokens = Ragged.load(world().package, "labels.tokens").take(np.zeros(train.shape[0], np.int64))
    arrays = {f"train.tokens.{part}.npy": getattr(tokens, part) for part in ("values", "offsets")}
    for name in ("train.labels", "train.filter"):
        arrays |= {f"{name}.{part}.npy": getattr(train, part) for part in ("data", "indices", "indptr")}
    return {name: _saved(lambda stream, array=array: np.save(stream, array)) for name, array in arrays.items()}


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


# ---------------------------------------------------------------- predictions and scores


def _record() -> RunRecord:
    return read_record(world().run)


def _vouched_run(folder: Path, name: str, data: bytes) -> Path:
    """Make a run with one file replaced and a manifest that matches it."""
    run = copy_of_run(folder, name, data)
    (run / MANIFEST).unlink()
    write_manifest(run, {})
    return run


def _read_scores(data: bytes, folder: Path) -> None:
    """Read per-row scores as reports and comparisons do."""
    run = _vouched_run(folder, "per_row.npy", data)
    may_refuse(run_rows, run, _record(), "")
    for _ in range(2):  # the second time it is compared with what is there
        may_refuse(collect, [run.parent], None, [], folder / "reports")
    _compare_with_twin(run)


def _read_predictions(hostile: str) -> Read:
    def read(data: bytes, folder: Path) -> None:
        run = _vouched_run(folder, hostile, data)
        data_of_run = open_prepared(world().prepared)
        may_refuse(read_predictions, Run(run, _record()), data_of_run, 4)
        read_member(Run(run, _record()), data_of_run.truth, None, (1,))

    return read


def _read_fused(data: bytes, folder: Path) -> None:
    """Fuse with a run whose record is somebody else's, up to the reading of data."""
    run = copy_of_run(folder, "record.json", data)
    twin = twin_of(run) / "record.json"
    record = json.loads(twin.read_bytes())
    twin.write_text(json.dumps(record | {"config": record["config"] | {"max_len": 7}}))
    members = find_members([str(run), str(twin.parent)], [run.parent], None, None)
    may_refuse(validation_runs, members, [run.parent])
    total_seconds(members[0].record)


def _stored_seeds() -> list[bytes]:
    rows = np.ones((8, len(kept_columns(_record()))), np.float32)
    return [_saved(lambda stream: np.savez_compressed(stream, concat=rows, de=rows))]


TARGETS = (
    Target("record", _read_record, _of_run("record.json"), "json"),
    Target("record-in-reports", _read_report, _of_run("record.json"), "json"),
    Target("event-log", _read_log, _log_seeds, "lines"),
    Target("event-log-sent", _send_log, _log_seeds, "lines"),
    Target("run-lock", _read_lock, _lock_seeds, "json"),
    Target("study", _read_study, _json(_STUDY), "json"),
    Target("kept-study", _read_kept("studies"), _json(_KEPT_STUDY), "json"),
    Target("kept-neighbours", _read_kept("neighbours"), _json(_NEIGHBOURS), "json"),
    Target("folder-note", _read_note, _json({"encoder": "/tmp/small", "teacher": "/tmp/big"}), "json"),
    Target("manifest", _read_any_manifest, _manifest_seeds, "json"),
    Target("checkpoint-state", _resume_from("state.json"), _checkpoint_seeds("state.json"), "json"),
    Target(
        "checkpoint-tensors", _resume_from("tensors.safetensors"), _checkpoint_seeds("tensors.safetensors"), "tensors"
    ),
    Target(
        "tensor-file",
        lambda data, folder: read_tensors(put(folder, "tensors", data)),
        _checkpoint_seeds("tensors.safetensors"),
        "tensors",
    ),
    Target(
        "weights",
        lambda data, folder: load_model(_sign(put(folder, "model/model.safetensors", data).parent, {})),
        _of_run("model/model.safetensors"),
        "tensors",
    ),
    Target(
        "package-record",
        lambda data, folder: _load_packed({"record.json": data}, folder),
        _of_run("record.json"),
        "json",
    ),
    Target(
        "package-array",
        lambda data, folder: _load_packed({"counts.npy": data}, folder),
        lambda: [(world().package / "counts.npy").read_bytes()],
        "arrays",
    ),
    Target("package-rows", _load_packed_rows, lambda: numbered(_packed_rows()), "arrays"),
    Target("row-scores", _read_scores, _of_run("per_row.npy", "per_row.de.npy"), "arrays"),
    Target("predicted-ids", _read_predictions("ids.npy"), _of_run("ids.npy"), "arrays"),
    Target("predicted-scores", _read_predictions("scores.npy"), _of_run("scores.npy"), "arrays"),
    Target("record-fused", _read_fused, _of_run("record.json"), "json"),
    Target(
        "stored-rows",
        lambda data, folder: read_rows(put(folder, "x.rows.npz", data), kept_columns(_record())),
        _stored_seeds,
        "arrays",
    ),
)
