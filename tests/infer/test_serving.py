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

from harness.data import load
from harness.errors import DataError
from harness.infer.load import TrainedModel, TrainedRun
from harness.infer.predict import predict
from harness.infer.serve import load_package
from harness.io.files import home, read_json, sha256_file, sha256_json, write_json
from harness.model.encoders.pretrained import files_of
from harness.run import resolve_config, run
from harness.runs.events import read_events
from harness.runs.record import RunRecord, read_record
from harness.settings.layers import Layer
from harness.tracking.artifacts import pack_model
from tests.faults.accounts import Account
from tests.support.damage import Payload
from tests.support.scoring import check_answers, free_port, opened, scoring_server
from tests.support.small_models import small_workspace, write_model

pytestmark = pytest.mark.usefixtures("in_their_home")

DATA = "synthetic:train=240,test=80,labels=60"
"""As the shared runs have it."""
PACKAGE = Path("data", "package")
OTHERS: dict[str, dict[str, Any]] = {
    "renee": {"params": {"epochs": 1, "warm_epochs": 0, "warmup_epochs": 0.0}},
    "ngame": {"params": {"epochs": 1, "classifier_epochs": 1, "batch_size": 64, "classifier_batch_size": 64}},
    "parabel": {"params": {"threads": 1, "max_leaf": 20}},
    "tfidf-knn": {"augment": "gandalf", "tracking": {"model": "always"}},
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
def packed(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packed models by method, from the run folders alone."""
    out = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(tmp_path_factory.mktemp("empty")))
        for name, folder in folders.items():
            pack_model(folder, out / name)
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
        expected = predict(unidec, [text], 3, scorer=scorer)[0]
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
    def read_only(model: TrainedModel, scorer: str) -> None:
        raise PermissionError("read-only")

    model = opened(packed["unidec"])
    monkeypatch.setattr("harness.infer.serve.label_vectors", read_only)
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
    variables = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
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
    ours = [home_of_runs, teacher.parent, Path(__file__).parents[2], Path.home(), packed["unidec"].parent]
    for folder in packed.values():
        files = [path for path in folder.rglob("*") if path.is_file()]
        for file in files:
            content = file.read_bytes()
            assert not [place for place in ours if str(place).encode() in content], file
        names = {str(path.relative_to(folder)) for path in files}
        assert {"MLmodel", "requirements.txt", "input_example.json"} <= names
        assert not [name for name in names if name.endswith(".py")]
        assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".bin"))]


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


# ---------------------------------------------------------------- damage and malice


def test_pickles_are_refused(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: Account) -> None:
    """fault 67"""
    import pickle

    from mlflow.exceptions import MlflowException

    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    opened(copied)  # it needs none
    marker = tmp_path / "marker"
    payload = pickle.dumps(Payload(marker))
    planted = copied / PACKAGE / "model" / "model.pkl"
    planted.write_bytes(payload)
    with pytest.raises(MlflowException, match=r"model\.pkl: not a file of this model"):
        opened(copied)
    planted.unlink()

    counts, manifest = copied / PACKAGE / "counts.npy", copied / PACKAGE / "manifest.json"
    np.save(counts, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    with pytest.raises(MlflowException, match=r"counts\.npy: .* by its manifest"):
        opened(copied)
    values = read_json(manifest)
    values["files"]["counts.npy"] = {"sha256": sha256_file(counts), "bytes": counts.stat().st_size}
    sealed(manifest, values)  # as somebody would who can write the folder
    with pytest.raises(DataError, match="not an array of numbers"):
        load_package(copied / PACKAGE)
    assert not marker.exists()
    account.did("pickles in an MLflow model: beside the weights, as counts.npy with a forged hash")
    account.saw("each refused when it is loaded; the marker file is not there")


def sealed(manifest: Path, values: dict[str, Any]) -> None:
    rest = {key: value for key, value in values.items() if key != "sealed"}
    write_json(manifest, {**rest, "sealed": sha256_json(rest)})


def test_a_package_of_another_time(copied: Path) -> None:
    manifest = copied / PACKAGE / "manifest.json"
    values = read_json(manifest)
    values["facts"]["format"] = 99
    sealed(manifest, values)
    with pytest.raises(DataError, match="a package of format 99"):
        load_package(copied / PACKAGE)


# ---------------------------------------------------------------- runs that are not packed


def test_what_is_not_packed(workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A method without training, a model that is too large or not wanted, and one whose packing fails."""
    monkeypatch.setenv("HARNESS_HOME", str(workspace))

    def folder_of(method: str, **settings: Any) -> Path:
        layer = Layer("test", {"encoder": "tiny", **settings})
        return home() / "runs" / run(resolve_config(method, DATA, [layer])[0], track="none").run_id

    quick = {"params": {"epochs": 1, "batch_size": 64, "warmup_epochs": 0.0}}
    assert not (folder_of("zeroshot") / "package").exists()
    never = folder_of("dpr", tracking={"model": "never"}, **quick)
    assert not (never / "package").exists()
    assert [event["left_out"] for event in read_events(never / "events.jsonl") if event["event"] == "package"]
    monkeypatch.setattr("harness.runs.package._AUTO_BYTES", 10)
    assert not (folder_of("dpr", **quick) / "package").exists()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.runs.package.save_array", full)
    failed = folder_of("dpr", tracking={"model": "always"}, **quick)
    assert not list(failed.glob("*package*"))
    assert any("could not be packed" in line for line in read_record(failed).warnings)


def test_damaged_runs_are_not_packed(folders: dict[str, Path], tmp_path: Path) -> None:
    run_folder, out = Path(shutil.copytree(folders["unidec"], tmp_path / "run")), tmp_path / "out"
    (run_folder / "model" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(DataError, match=r"model\.safetensors: .* by its manifest"):
        pack_model(run_folder, out)
    (run_folder / "package" / "counts.npy").unlink()
    with pytest.raises(DataError, match=r"counts\.npy: missing"):
        pack_model(run_folder, out)
    assert not out.exists()
