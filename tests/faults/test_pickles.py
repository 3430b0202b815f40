"""A pickle in the place of every file that may come from somebody else: refused, and what is in it does not run."""

import io
import json
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from harness.data import load
from harness.data.prepare import prepared_folders
from harness.errors import UserError
from harness.experiments.sweep.study import join, read_study_file
from harness.infer.load import load_run
from harness.infer.predict import label_vectors
from harness.io.files import sha256_file, write_json, write_manifest
from harness.model.encoders.encoder import load_encoder
from harness.model.encoders.pretrained import vet
from harness.report.compare import Run
from harness.report.earlier import read_earlier, read_rows
from harness.report.explorer.predictions import open_prepared, read_predictions
from harness.report.results import run_rows
from harness.runs.record import RunRecord, read_record
from harness.runs.resume import find_earlier
from harness.train.inputs import tokenise
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.damage import Payload
from tests.support.finished_runs import DATA
from tests.support.sweeps import begun, drawn


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Is there as soon as a payload was unpickled."""
    return tmp_path / "marker"


def payloads(marker: Path) -> dict[str, bytes]:
    """The same payload in every form that some loader would run."""
    forms: dict[str, Callable[[Any, io.BytesIO], None]] = {
        "pkl": pickle.dump,
        "pt": torch.save,
        "npy": lambda value, stream: np.save(stream, np.array([[value]], dtype=object), allow_pickle=True),
        "npz": lambda value, stream: np.savez(stream, own=np.array([[value]], dtype=object)),
    }
    made = {}
    for name, write in forms.items():
        stream = io.BytesIO()
        write(Payload(marker), stream)
        made[name] = stream.getvalue()
    assert all(b"write_text" in content for content in made.values())
    return made


def test_the_payload_would_run(marker: Path) -> None:
    pickle.loads(payloads(marker)["pkl"])
    assert marker.read_text() == "ran"


def refused(read: Callable[[], Any], *kinds: type[Exception]) -> str:
    """The message; anything that is read all the same fails."""
    with pytest.raises((UserError, *kinds)) as caught:
        read()
    return str(caught.value)


def forged(folder: Path) -> None:
    """Makes a manifest fit its files again, as somebody would who can write the folder."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    for name in values["files"]:
        file = folder / name
        values["files"][name] = {"sha256": sha256_file(file), "bytes": file.stat().st_size}
    values.pop("sealed", None)
    write_json(path, values)


# ---------------------------------------------------------------- a run folder of somebody else


def test_in_a_run_folder(own_home: Path, records: dict[str, RunRecord], marker: Path, account: Account) -> None:
    """fault 67: in all its files, with a manifest that fits"""
    record = records["unidec"]
    folder = own_home / "runs" / record.run_id
    data = open_prepared(prepared_folders()[record.dataset["digest"]])
    run = Run(folder, record)
    readers: dict[str, Callable[[], Any]] = {
        "record.json": lambda: read_record(folder),
        "ids.npy": lambda: read_predictions(run, data, 80),
        "scores.npy": lambda: read_predictions(run, data, 80),
        "per_row.npy": lambda: run_rows(folder, record, "concat"),
        "per_row.de.npy": lambda: run_rows(folder, record, "de"),
        "model/model.safetensors": lambda: load_run(str(folder)),
        "model/manifest.json": lambda: load_run(str(folder)),
    }
    tried = 0
    for name, read in readers.items():
        whole = shutil.copytree(folder, own_home / "whole")
        for content in payloads(marker).values():
            (folder / name).write_bytes(content)
            if name == "model/model.safetensors":
                forged(folder / "model")
            write_manifest(folder, {})
            refused(read)
            tried += 1
            assert not marker.exists()
        shutil.rmtree(folder)
        shutil.move(whole, folder)
    (folder / "record.json").unlink()
    (folder / "events.jsonl").write_bytes(payloads(marker)["pkl"])
    refused(lambda: find_earlier(str(folder)))
    assert not marker.exists()
    account.did(
        f"pickles as .pkl, .pt, .npy and .npz in {len(readers)} files of a run folder, with a manifest that fits"
    )
    account.saw(f"{tried} of {tried} refused; the file that unpickling would write is not there")


def test_in_stored_evidence(marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 67: records, rows, studies and speed beside a report"""
    for name, content in payloads(marker).items():
        folder = tmp_path / name
        for file in ("runs/a.json", "runs/a.rows.npz", "studies/a.json", "neighbours/a.json"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        assert read_earlier(folder).records == ()
        assert capsys.readouterr().err.count("left out a damaged") == 3
        refused(lambda folder=folder: read_rows(folder / "runs/a.rows.npz", ["P@1"]))
    assert not marker.exists()


# ---------------------------------------------------------------- models, caches, data


def test_in_a_model_folder(teacher: Path, tmp_path: Path, marker: Path, own_home: Path, account: Account) -> None:
    """fault 67: alone, in the place of a file that is read, and beside the model"""
    made, refusals = payloads(marker), 0
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        for kind, content in made.items():
            folder = Path(shutil.copytree(teacher, tmp_path / f"{name}-{kind}"))
            (folder / name).write_bytes(content)
            refused(lambda folder=folder: load_encoder(str(folder), seed=0))
            refusals += 1
    for name in ("pytorch_model.bin", "model.pt", "model.pkl", "model.ckpt"):
        folder = Path(shutil.copytree(teacher, tmp_path / name))
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(made["pt"])
        assert f"{name} can run code when loaded and is refused" in refused(lambda folder=folder: vet(folder, "x"))
        refusals += 1
    folder = Path(shutil.copytree(teacher, tmp_path / "beside"))
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "rng_state.pth", "vocab.pkl"):
        (folder / name).write_bytes(made["pt"])
    assert load_encoder(str(folder), seed=0).identity == load_encoder(str(teacher), seed=0).identity
    assert not marker.exists()
    account.did("pickles as weights, config and tokenizer of a model folder, and five more beside a sound model")
    account.saw(f"{refusals} folders refused; the sound one loads without a look at the pickles; nothing ran")


def test_in_caches(own_home: Path, records: dict[str, RunRecord], teacher: Path, marker: Path) -> None:
    """fault 67: shared workspaces; the manifests fit, so it is up to the readers"""
    trained = load_run(records["depsl"].run_id)
    label_vectors(trained, "de")
    readers: dict[str, Callable[[], Any]] = {
        "datasets/*/train.labels.indices.npy": lambda: load(DATA),
        "datasets/*/test.text.values.npy": lambda: load(DATA),
        "tokens/*/tokens.values.npy": lambda: tokenise(load(DATA), trained.encoder, trained.max_len),
        "encoders/static-*/table.safetensors": lambda: load_encoder("static", seed=0, teacher=str(teacher), dim=12),
        "label-vectors/*/vectors.npy": lambda: label_vectors(trained, "de"),
    }
    for pattern, read in readers.items():
        for name in ("npy", "pkl"):
            backup = shutil.copytree(own_home / "cache", own_home / "backup")
            for file in (own_home / "cache").glob(pattern):
                file.write_bytes(payloads(marker)[name])
                forged(file.parent)
            refused(read, ValueError, SafetensorError)
            assert not marker.exists(), pattern
            shutil.rmtree(own_home / "cache")
            shutil.move(backup, own_home / "cache")


def test_in_data_and_texts(tmp_path: Path, marker: Path, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 67: JSON lines, repository files, texts to predict, labels to add, a tracking store"""
    for name, content in payloads(marker).items():
        folder = tmp_path / name
        folder.mkdir()
        for file in ("train.jsonl", "test.jsonl", "labels.jsonl", "trn.json.gz", "tst.json.gz", "lbl.json.gz"):
            (folder / file).write_bytes(content)
        for words in (
            ["data", "import", str(folder), "--name", "x"],
            ["run", "--dataset", f"{folder}/"],
            ["run", "--config", str(folder / "train.jsonl")],
        ):
            assert call(*words) == 2, words
            assert "error: " in capsys.readouterr().err
    workspace.mkdir(exist_ok=True)
    (workspace / "mlflow.db").write_bytes(payloads(marker)["pkl"])
    assert call("doctor", "--json") == 1
    findings = {one["what"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert findings["mlflow store"] == "broken"
    assert not marker.exists()


# ---------------------------------------------------------------- studies


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("study_user_attributes", "value_json"),
        ("trial_user_attributes", "value_json"),
        ("trial_params", "distribution_json"),
    ],
)
def test_in_the_database_of_a_study(table: str, column: str, marker: Path, workspace: Path, account: Account) -> None:
    """fault 67: where Optuna keeps JSON"""
    plan, study, _ = begun(trials=2)
    drawn(study, plan, "w")
    study._storage.remove_session()
    with closing(sqlite3.connect(plan.folder / "study.db")) as base:
        changed = base.execute(f"update {table} set {column} = ?", (payloads(marker)["pkl"],)).rowcount
        base.commit()
    assert changed > 0
    assert "is damaged" in refused(lambda: join(plan))
    assert not marker.exists()
    (plan.folder / "study.json").write_bytes(payloads(marker)["pkl"])
    refused(lambda: read_study_file(plan.folder))
    assert not marker.exists()
    if table == "study_user_attributes":
        account.did(f"a pickle in {changed} values of a study's database, where Optuna keeps JSON")
        account.saw("the study is called damaged, with --recover as the way back; nothing ran")
