"""Finished runs loaded again: found, compared with their records, and handed on to other software."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file

from harness.data.tokens import tokenize
from harness.errors import DataError, UserError
from harness.infer.export import export_run
from harness.infer.load import TrainedRun, load_run
from harness.infer.predict import predict
from harness.io.files import read_json, write_json
from harness.model.folders import remember_folders, remembered_folders
from harness.run import resolve_config, run
from harness.runs.record import RunRecord
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from harness.train.checkpoint import load_model, save_model
from tests.support.small_models import write_model

pytestmark = pytest.mark.usefixtures("in_their_home")


@pytest.fixture
def copied(records: dict[str, RunRecord], home_of_runs: Path, tmp_path: Path) -> Path:
    """A run folder that a test may damage."""
    name = records["unidec"].run_id
    return Path(shutil.copytree(home_of_runs / "runs" / name, tmp_path / "moved" / name))


# ---------------------------------------------------------------- which run


def test_runs_by_id_by_folder_and_the_newest(
    records: dict[str, RunRecord], copied: Path, home_of_runs: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 28"""
    for name in (str(copied), f"{copied}/"):
        assert load_run(name).record == records["unidec"]
    assert load_run(copied.name, copied.parent).record == records["unidec"]
    assert load_run("last", encoder=str(teacher)).record == records["zeroshot"]
    monkeypatch.chdir(teacher.parent)
    assert load_run("last").record == records["zeroshot"]
    with pytest.raises(UserError, match="no finished run in"):
        load_run("last", copied)


def test_runs_that_cannot_be_used(copied: Path, tmp_path: Path) -> None:
    for name in ("no-such-run", "../no-such-run", "", str(copied / "record.json")):
        with pytest.raises(UserError, match="there is no run"):
            load_run(name)
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UserError, match="is not the folder of a run"):
        load_run(str(tmp_path / "pictures"))
    values = read_json(copied / "record.json")
    write_json(copied / "record.json", {**values, "status": "killed", "error": "Terminated: "})
    with pytest.raises(UserError, match=f"unfinished: killed .* run --resume {copied.name}"):
        load_run(str(copied))
    (copied / "record.json").unlink()
    with pytest.raises(UserError, match=f"is unfinished: it is still running.* run --resume {copied.name}"):
        load_run(str(copied))


def test_weights_that_are_gone_are_missed(copied: Path) -> None:
    """tests/faults/test_flipped_bits.py has weights with a wrong bit"""
    shutil.rmtree(copied / "model")
    with pytest.raises(DataError, match="no model here"):
        load_run(str(copied))


def test_other_weights_are_another_identity(copied: Path, unidec: TrainedRun) -> None:
    assert load_run(str(copied)).identity == unidec.identity
    tensors, metadata = load_model(copied / "model")
    tensors["retrieval.projection.bias"] += 1
    save_model(copied / "model", tensors, metadata)
    other = load_run(str(copied))
    assert other.identity != unidec.identity
    assert predict(other, ["some text"], scorer="de") != predict(unidec, ["some text"], scorer="de")


def test_other_settings_than_the_weights(copied: Path) -> None:
    values = read_json(copied / "record.json")
    values["config"]["params"]["dim"] = 10
    write_json(copied / "record.json", values)
    with pytest.raises(DataError, match="do not fit the settings of the run"):
        load_run(str(copied))


def test_folders_have_to_be_found_again(
    teacher: Path, records: dict[str, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tickets"
    folder.mkdir()
    row = '{"text": "printer on fire", "labels": ["a"]}\n'
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text(row)
    (folder / "labels.jsonl").write_text('{"id": "a", "text": "printers"}\n{"id": "b", "text": "fires"}\n')
    settings, _ = resolve_config("zeroshot", str(folder), [Layer("test", {"encoder": "tiny"})])
    name = run(settings, out=tmp_path / "runs", track="none").run_id
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UserError, match=r"a folder called 'tickets', .*--dataset PATH"):
        load_run(name, tmp_path / "runs")
    assert load_run(records["zeroshot"].run_id).encoder.name  # the workspace knows where a model folder is
    monkeypatch.setattr("harness.infer.load.remembered_folders", lambda config, identity: {})
    with pytest.raises(UserError, match=r"a folder called 'small-bert', .*--encoder PATH"):
        load_run(records["zeroshot"].run_id)
    assert predict(load_run(name, tmp_path / "runs", dataset=str(folder)), ["fires"])[0][0].label == "b"
    (folder / "train.jsonl").write_text(row * 2)
    with pytest.raises(UserError, match=r"its digest is [0-9a-f]{12}, that of the run [0-9a-f]{12}"):
        load_run(name, tmp_path / "runs", dataset=str(folder))
    other = write_model(tmp_path / "other", hidden_size=8)
    with pytest.raises(UserError, match=r"its identity is [0-9a-f]{12}, that of the run [0-9a-f]{12}"):
        load_run(records["zeroshot"].run_id, encoder=str(other))


def test_a_folder_is_put_only_where_a_run_named_it(teacher: Path) -> None:
    """Weights are known by content, so a run that has them by their name must not be given the folder of another."""
    options = {"teacher": str(teacher)}
    remember_folders(RunConfig(encoder="static", encoder_options=options), "identity")

    def known(encoder: str, **options: str) -> dict[str, Path]:
        return remembered_folders({"encoder": encoder, "encoder_options": options}, "identity")

    assert known("static", teacher=f"./{teacher.name}") == {"teacher": teacher}
    for other in (known("static"), known("static", teacher="minilm"), known("static", teacher="./elsewhere")):
        assert other == {}
    assert remembered_folders({"encoder": "static"}, None) == {}


# ---------------------------------------------------------------- for other software


@pytest.mark.parametrize("name", ["unidec", "depsl", "zeroshot"])
def test_sentence_transformers_gives_the_vectors_of_the_run(
    name: str, loaded: dict[str, TrainedRun], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    trained = loaded[name]
    export_run(trained, "sentence-transformers", tmp_path / "out")
    texts = [*list(trained.dataset.test_text)[:20], "unseen words", "long " * 500]
    tokens = tokenize(texts, trained.encoder.tokenizer, trained.max_len)
    scorer = {"zeroshot": "encoder"}.get(name, "de")
    ours = trained.parts.scoring.query_vectors(tokens, (scorer,))[scorer]
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    metadata = read_json(tmp_path / "out" / "manifest.json")["facts"]
    expected = trained.record.scorers.get(scorer, trained.record.metrics)
    assert (metadata["run"], metadata["metrics"]) == (trained.record.run_id, expected)


def test_plain_weights_are_those_of_the_run(
    unidec: TrainedRun, loaded: dict[str, TrainedRun], home_of_runs: Path, tmp_path: Path
) -> None:
    export_run(unidec, "safetensors", tmp_path / "all")
    theirs = load_file(tmp_path / "all" / "model.safetensors")
    ours = load_file(home_of_runs / "runs" / unidec.record.run_id / "model" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all((theirs[name] == ours[name]).all() for name in ours)
    export_run(loaded["zeroshot"], "safetensors", tmp_path / "encoder")
    assert all(name.startswith("encoder.") for name in load_file(tmp_path / "encoder" / "model.safetensors"))


def test_what_has_no_dual_encoder_is_not_exported_as_one(
    unidec: TrainedRun, loaded: dict[str, TrainedRun], tmp_path: Path
) -> None:
    zeroshot = loaded["zeroshot"]
    textless = SimpleNamespace(scorers=("clf",), text_scorer=None)
    uncosine = replace(zeroshot.parts.scoring, normalise=False)  # type: ignore[type-var]
    for parts, message in (
        (replace(unidec.parts, scoring=textless), "'unidec' has no dual encoder; export its weights"),
        (replace(unidec.parts, model=unidec.encoder), "'unidec' has no dual encoder; export its weights"),
        (replace(zeroshot.parts, scoring=uncosine), "inner products of vectors of any length"),
    ):
        with pytest.raises(UserError, match=message):
            export_run(replace(unidec, parts=parts), "sentence-transformers", tmp_path / "out")
    assert not (tmp_path / "out").exists()
