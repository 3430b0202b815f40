"""A trained model away from its data: packed, loaded by MLflow, and asked for labels."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import Layer
from harness.data import load
from harness.errors import DataError, UserError
from harness.files import home, read_json, sha256_file, sha256_json, write_json
from harness.folders import remember_folders
from harness.model.vetting import files_of
from harness.predict import predict
from harness.record import RunRecord
from harness.run import resolve_config, run
from harness.serving.package import AbsentRows, NeedsTrainRows, load_package
from harness.tracking.model import pack_model
from harness.trained import TrainedModel, TrainedRun
from tests.scoring import check_answers, free_port, opened, scoring_server
from tests.small_models import small_workspace, write_model
from tests.trust.accounts import Account

pytest_plugins = ["tests.finished_runs"]
pytestmark = pytest.mark.usefixtures("in_their_home")

DATA = "synthetic:train=240,test=80,labels=60"
"""As the shared runs have it."""
PACKAGE = Path("artifacts", "package")
OTHERS: dict[str, dict[str, Any]] = {
    "renee": {"params": {"epochs": 1, "warm_epochs": 0, "warmup_epochs": 0.0}},
    "ngame": {"params": {"epochs": 1, "classifier_epochs": 1, "batch_size": 64, "classifier_batch_size": 64}},
    "parabel": {"params": {"threads": 1, "max_leaf": 20}},
    "tfidf-knn": {"augment": "gandalf"},
}


@pytest.fixture(scope="module")
def folders(records: dict[str, RunRecord], home_of_runs: Path) -> dict[str, Path]:
    """Run folders by method: those that others use too, and one of every other kind."""
    layers = {name: [Layer("test", {"encoder": "tiny", **values})] for name, values in OTHERS.items()}
    own = home_of_runs / "other-runs"  # the newest of the shared runs stays the newest
    with small_workspace(home_of_runs):
        made = {
            name: run(resolve_config(name, DATA, given)[0], out=own, track="none") for name, given in layers.items()
        }
    shared = {name: home_of_runs / "runs" / record.run_id for name, record in records.items()}
    return shared | {name: own / record.run_id for name, record in made.items()}


@pytest.fixture(scope="module")
def packed(
    folders: dict[str, Path], home_of_runs: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Packed models by method."""
    out = tmp_path_factory.mktemp("packed")
    with small_workspace(home_of_runs):
        for name, folder in folders.items():
            pack_model(folder, out / name, encoder=str(teacher) if name == "zeroshot" else None)
    return {name: out / name for name in folders}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine: a workspace of its own, without data and runs."""
    folder = tmp_path / "elsewhere"
    monkeypatch.setenv("HARNESS_HOME", str(folder))
    return folder


@pytest.fixture
def copied(packed: dict[str, Path], tmp_path: Path) -> Path:
    """A packed model that a test may damage."""
    return Path(shutil.copytree(packed["unidec"], tmp_path / "copied"))


def frame(*texts: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"text": list(texts)})


# ---------------------------------------------------------------- the same answers as the run


@pytest.mark.parametrize("name", ["unidec", "depsl", "zeroshot", *OTHERS])
def test_every_kind_of_method_answers_without_its_data(
    name: str, packed: dict[str, Path], folders: dict[str, Path], home_of_runs: Path, elsewhere: Path
) -> None:
    with small_workspace(home_of_runs):
        data = load(DATA)
    free = np.flatnonzero(np.diff(data.test_filter.indptr) == 0)[:12]
    ids, scores = (np.load(folders[name] / f"{part}.npy")[free, :4] for part in ("ids", "scores"))
    answer = opened(packed[name]).predict(frame(*(data.test_text[int(row)] for row in free)), params={"k": 4})
    assert list(answer.columns) == ["labels", "texts", "scores"]
    assert len(answer) == len(free)
    for row, (labels, texts, given) in enumerate(answer.itertuples(index=False)):
        found = ids[row][ids[row] >= 0]
        assert labels == [data.label_id[int(place)] for place in found]
        assert texts == [data.label_text[int(place)] for place in found]
        assert given == pytest.approx(scores[row][: len(found)].tolist(), abs=1e-5)
    assert not (elsewhere / "cache" / "datasets").exists()
    assert json.loads(answer.to_json(orient="records"))


def test_settings_of_a_request(packed: dict[str, Path], unidec: TrainedRun) -> None:
    from mlflow.exceptions import MlflowException

    model = opened(packed["unidec"])
    text = unidec.dataset.test_text[0]
    assert len(model.predict(frame(text))["labels"][0]) == 5
    assert len(model.predict(frame(text), params={"k": 10**6})["labels"][0]) == 60
    for scorer in ("concat", "de", "clf"):
        expected = predict(unidec, [text], 3, view=scorer)[0]
        answer = model.predict(frame(text), params={"k": 3, "scorer": scorer})
        assert answer["labels"][0] == [one.label for one in expected]
        assert answer["scores"][0] == pytest.approx([one.score for one in expected], abs=1e-6)
    shifted = frame(text, text).set_index([[7, 9]])
    assert list(model.predict(shifted).index) == [7, 9]
    for wanted, params, message in (
        (frame(text), {"k": 0}, "k is 0"),
        (frame(text), {"scorer": "cfl"}, "unknown scorer 'cfl'; did you mean 'clf'"),
        (frame(text, None), {}, "text 2 is nan, not a string|text 2 is None, not a string"),
        (frame(text).rename(columns={"text": "words"}), {}, "missing inputs"),
    ):
        with pytest.raises(MlflowException, match=message):
            model.predict(wanted, params=params)


def test_a_workspace_that_cannot_be_written(
    packed: dict[str, Path], unidec: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(model: TrainedModel, view: str) -> None:
        raise PermissionError("read-only")

    model = opened(packed["unidec"])
    monkeypatch.setattr("harness.serving.predictor.label_vectors", read_only)
    expected = predict(unidec, ["some text"], 2)[0]
    assert model.predict(frame("some text"), params={"k": 2})["labels"][0] == [one.label for one in expected]


# ---------------------------------------------------------------- over the wire


def test_the_scoring_server_answers(
    packed: dict[str, Path], unidec: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")  # so that it is taken back afterwards
    with scoring_server(packed["unidec"]) as port:
        check_answers(port, unidec)


@pytest.mark.slow
def test_mlflow_models_serve(packed: dict[str, Path], unidec: TrainedRun, tmp_path: Path) -> None:
    port, tools = free_port(), Path(sys.executable).parent
    command = [str(tools / "mlflow"), "models", "serve", "-m", str(packed["unidec"]), "--env-manager", "local"]
    variables = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[1])}
    log = tmp_path / "log"
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port), "-w", "1"],
            env={**os.environ, **variables, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
            cwd=tmp_path,
            stdout=stream,
            stderr=stream,
        ) as server,
    ):
        try:
            limit = time.monotonic() + 120
            while server.poll() is None and time.monotonic() < limit:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            assert server.poll() is None, log.read_text()
            check_answers(port, unidec)
        finally:
            server.terminate()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


# ---------------------------------------------------------------- what is in the folder


def test_nothing_in_the_folder_is_of_this_machine(packed: dict[str, Path], home_of_runs: Path, teacher: Path) -> None:
    """fault 70"""
    ours = [home_of_runs, teacher.parent, Path(__file__).parents[1], Path.home(), packed["unidec"].parent]
    for folder in packed.values():
        files = [path for path in folder.rglob("*") if path.is_file()]
        for file in files:
            content = file.read_bytes()
            assert not [place for place in ours if str(place).encode() in content], file
        names = {str(path.relative_to(folder)) for path in files}
        assert {"MLmodel", "entry.py", "requirements.txt", "input_example.json"} <= names
        assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".bin"))]
    assert not list(packed["unidec"].parent.glob(".*"))


def test_model_folders_are_packed_and_others_are_not(packed: dict[str, Path]) -> None:
    for name, key in (("zeroshot", "encoder"), ("depsl", "teacher")):
        inside = packed[name] / PACKAGE / "folders" / key / "small-bert"
        assert sorted(path.name for path in inside.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not (packed["unidec"] / PACKAGE / "folders").exists()
    assert not (packed["zeroshot"] / PACKAGE / "model").exists()


def test_of_a_model_folder_only_the_model_is_packed(tmp_path: Path) -> None:
    """fault 70: it may be the folder of somebody's project"""
    folder = write_model(tmp_path / "project")
    for name in ("notes.json", "data/private.json", "other.safetensors", "1_Pooling/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    kept = [str(path.relative_to(folder)) for path in files_of(folder)]
    assert kept == ["1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"]


def test_train_rows_are_packed_only_where_a_method_builds_from_them(packed: dict[str, Path]) -> None:
    with_rows = {name for name, folder in packed.items() if list((folder / PACKAGE).glob("train.*"))}
    assert with_rows == {"tfidf-knn"}


def test_what_a_reader_of_the_folder_finds(packed: dict[str, Path], unidec: TrainedRun) -> None:
    from mlflow.models import Model

    described = Model.load(str(packed["unidec"]))
    assert described.metadata == {"run_id": unidec.record.run_id, "scorers": ["concat", "de", "clf"]}
    assert [column.name for column in described.signature.inputs] == ["text"]
    assert {param.name: param.default for param in described.signature.params} == {"k": 5, "scorer": ""}
    required = (packed["parabel"] / "requirements.txt").read_text().split()
    assert all("==" in line and "+" not in line for line in required)
    assert {line.split("==")[0] for line in required} >= {"xmc-harness", "mlflow", "torch", "omikuji"}
    example = described.load_input_example(str(packed["unidec"]))
    assert len(opened(packed["unidec"]).predict(example)) == 1


def test_rows_that_are_not_there_say_so() -> None:
    absent = AbsentRows((240, 60))
    assert (len(absent), absent.shape) == (240, (240, 60))
    for read in (lambda: absent.indices, lambda: absent[0], lambda: absent.T):
        with pytest.raises(NeedsTrainRows):
            read()


# ---------------------------------------------------------------- damage and malice


class Marker:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_pickles_are_refused(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: Account) -> None:
    """fault 67"""
    import pickle

    from mlflow.exceptions import MlflowException

    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    opened(copied)  # it needs none
    marker = tmp_path / "marker"
    payload = pickle.dumps(Marker(marker))
    planted = copied / PACKAGE / "model" / "model.pkl"
    planted.write_bytes(payload)
    with pytest.raises(MlflowException, match=r"model\.pkl: not a file of this model"):
        opened(copied)
    planted.unlink()

    counts, manifest = copied / PACKAGE / "counts.npy", copied / PACKAGE / "manifest.json"
    before = counts.read_bytes(), manifest.read_bytes()
    np.save(counts, np.array([Marker(marker)], dtype=object), allow_pickle=True)
    with pytest.raises(MlflowException, match=r"counts\.npy: .* by its manifest"):
        opened(copied)
    values = read_json(manifest)
    values["files"]["counts.npy"] = {"sha256": sha256_file(counts), "bytes": counts.stat().st_size}
    write_json(manifest, values)  # as somebody would who can write the folder
    with pytest.raises(DataError, match="not an array of numbers"):
        load_package(copied / PACKAGE)
    counts.write_bytes(before[0])
    manifest.write_bytes(before[1])

    (copied / "python_model.pkl").write_bytes(payload)
    text = (copied / "MLmodel").read_text()
    text = text.replace("model_code_path: entry.py", "python_model: python_model.pkl")
    (copied / "MLmodel").write_text(text.replace("mlflow.pyfunc.loaders.code_model", "mlflow.pyfunc.model"))
    with pytest.raises(MlflowException, match="pickle is disallowed"):
        opened(copied)
    assert not marker.exists()
    account.did("pickles in an MLflow model: beside the weights, as counts.npy with a forged hash, as python_model")
    account.saw("each refused when it is loaded; the marker file is not there")


@pytest.mark.parametrize("name", ["record.json", "labels.text.values.npy", "model/model.safetensors", "manifest.json"])
def test_one_flipped_bit_is_found(name: str, copied: Path) -> None:
    """fault 68"""
    file = copied / PACKAGE / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x01
    file.write_bytes(content)
    with pytest.raises(DataError, match="the model cannot be used"):
        load_package(copied / PACKAGE)


def test_a_package_of_another_time(copied: Path) -> None:
    manifest = copied / PACKAGE / "manifest.json"
    values = read_json(manifest)
    values["facts"]["format"] = 99
    write_json(manifest, {**values, "digest": sha256_json(values["facts"])})
    with pytest.raises(DataError, match="a package of format 99"):
        load_package(copied / PACKAGE)


# ---------------------------------------------------------------- runs that cannot be packed


def test_runs_that_cannot_be_packed(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, run_folder = tmp_path / "out", tmp_path / "run"
    shutil.copytree(folders["unidec"], run_folder)
    values = read_json(run_folder / "record.json")

    def refused(message: str, place: Path = run_folder) -> None:
        with pytest.raises(UserError, match=message):
            pack_model(place, out)
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]

    with monkeypatch.context() as forgetful:
        forgetful.setattr("harness.serving.package.remembered_folders", lambda config, identity: {})
        refused("a folder called 'small-bert', .*--encoder PATH", folders["zeroshot"])
    write_json(run_folder / "record.json", {**values, "status": "killed"})
    refused("is unfinished: killed")
    held_out = {**values["config"], "evaluate": "validation", "validation": {"size": 0.1}}
    write_json(run_folder / "record.json", {**values, "config": held_out})
    refused("scored on held-out rows, so it saved no model")
    write_json(run_folder / "record.json", values)
    shutil.rmtree(run_folder / "model")
    refused("no model here")
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "empty"))
    refused("is not in the workspace; prepare it with", folders["unidec"])


def test_the_target_has_to_be_free(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        pack_model(folders["unidec"], tmp_path / "taken")
    (tmp_path / "empty").mkdir()
    pack_model(folders["unidec"], tmp_path / "empty")
    assert (tmp_path / "empty" / "MLmodel").is_file()


def test_folders_of_data_and_models_are_found_again(
    teacher: Path, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 28: the record names both folders without their paths; the workspace knows data and encoder."""
    monkeypatch.setenv("HARNESS_HOME", str(workspace))
    folder = tmp_path / "tickets"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text('{"text": "printer on fire", "labels": ["a"]}\n')
    (folder / "labels.jsonl").write_text('{"id": "a", "text": "printers"}\n{"id": "b", "text": "fires"}\n')
    settings, _ = resolve_config("zeroshot", str(folder), [Layer("test", {"encoder": str(teacher)})])
    record = run(settings, track="none")
    remember_folders(settings, record.encoder["identity"])
    shutil.rmtree(folder)
    pack_model(home() / "runs" / record.run_id, tmp_path / "out")
    answer = opened(tmp_path / "out").predict(frame("fires"), params={"k": 1})
    assert answer["labels"][0] == ["b"]


def test_nothing_is_noted_of_an_encoder_that_goes_by_its_name(unidec: TrainedRun, elsewhere: Path) -> None:
    remember_folders(unidec.config, unidec.record.encoder["identity"])
    assert not elsewhere.exists()
