"""Models that rank by themselves and are fitted in one go: `tfidf-knn` and `parabel`, from fit to prediction."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from harness import metrics
from harness.data import load
from harness.data.tokens import tokenize
from harness.errors import DataError, UserError
from harness.infer.export import export_run
from harness.infer.load import load_run
from harness.infer.predict import label_vectors, predict
from harness.io.files import read_json, write_json
from harness.model import parabel as forest_module
from harness.model.neighbours import Neighbours
from harness.model.parabel import Parabel
from harness.model.tfidf import Tfidf
from harness.run import resolve_config, run
from harness.runs.record import RunRecord, read_record
from harness.runs.resume import find_earlier
from harness.settings.layers import Layer
from harness.settings.method import Inputs, Ranker
from harness.settings.schema import RunConfig
from harness.train.inputs import tokenise, train_side
from methods import parabel, tfidf_knn
from tests.support.commands import call
from tests.support.small_models import small_workspace
from tests.support.training_runs import in_child, only_run

DATA = "synthetic:train=240,test=80,labels=60"
METHODS = ("parabel", "tfidf-knn")
SETTINGS: dict[str, Any] = {"encoder": "tiny", "search": {"k": 20}, "ngrams": 2}


def config(method: str, **values: Any) -> RunConfig:
    layers = [Layer("small", SETTINGS), Layer("test", values)]
    layers += [Layer("fast", {"threads": 1, "max_leaf": 20})] if method == "parabel" else []
    return resolve_config(method, DATA, layers)[0]


@pytest.fixture(scope="module")
def home_of_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a run of each method, made once for all processes of a test run."""
    own = tmp_path_factory.getbasetemp()
    home = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "classical"
    with FileLock(home.with_suffix(".lock")):
        if not home.exists():
            with small_workspace(home):
                for method in METHODS:
                    run(config(method), track="none")
    return home


@pytest.fixture(scope="module")
def records(home_of_both: Path) -> dict[str, RunRecord]:
    found = [read_record(folder) for folder in (home_of_both / "runs").glob("2*")]
    return {record.config["method"]: record for record in found}


@pytest.fixture
def in_their_home(workspace: Path, home_of_both: Path, records: dict[str, RunRecord]) -> Iterator[None]:
    with small_workspace(home_of_both):
        yield


@pytest.fixture
def copied(home_of_both: Path, records: dict[str, RunRecord], tmp_path: Path) -> Path:
    """A run folder of `parabel` that a test may damage."""
    name = records["parabel"].run_id
    return Path(shutil.copytree(home_of_both / "runs" / name, tmp_path / "moved" / name))


def inputs_of(settings: RunConfig) -> Inputs:
    from harness.model.encoders.encoder import load_encoder

    dataset, encoder = load(settings.dataset), load_encoder(settings.encoder, seed=0)
    tokens = tokenise(dataset, encoder, encoder.max_len)
    return train_side(dataset, np.arange(len(tokens.train)), tokens, encoder, "cpu", settings, lambda _: None)


# ---------------------------------------------------------------- the run


@pytest.mark.parametrize("method", METHODS)
def test_a_finished_run_answers_as_it_did(
    method: str, records: dict[str, RunRecord], home_of_both: Path, in_their_home: None
) -> None:
    record, folder = records[method], home_of_both / "runs" / records[method].run_id
    trained = load_run(record.run_id)
    assert isinstance(trained.parts.scoring, Ranker)
    data = trained.dataset
    rows = predict(trained, list(data.test_text), 20, exclude=data.test_filter)
    place_of = {name: place for place, name in enumerate(data.label_id)}
    ids = np.full((len(rows), 20), -1)
    for row, found in enumerate(rows):
        ids[row, : len(found)] = [place_of[one.label] for one in found]
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    # trees of a forest are read in the order of the folder, so their float32 sum may differ in the last bit
    scores = np.load(folder / "scores.npy", allow_pickle=False)
    found_scores = [[one.score for one in found] + [-np.inf] * (20 - len(found)) for found in rows]
    np.testing.assert_allclose(found_scores, scores, rtol=1e-5)
    found = metrics.evaluate(ids, data.test)
    assert all(found[key] == pytest.approx(record.metrics[key], abs=0.5) for key in ("P@1", "P@3", "P@5"))
    if method == "tfidf-knn":
        assert (ids == np.load(folder / "ids.npy", allow_pickle=False)).all()
    assert len(predict(trained, ["word"], 10**6)[0]) <= 60
    assert predict(trained, [], 5) == []


def test_held_out_rows_are_scored_once_and_recorded(workspace: Path) -> None:
    held = {"size": 0.2, "metric": "nDCG@3", "patience": 2}
    record = run(config("tfidf-knn", validation=held), track="none")
    events = [json.loads(line) for line in (only_run(workspace) / "events.jsonl").read_text().splitlines()]
    (scored,) = (event["values"] for event in events if "validation/P@1" in event.get("values", {}))
    assert record.training["validation/nDCG@3"] == scored["validation/nDCG@3"] > 0
    assert record.training["rows"] == 240 - 48 + 60
    assert "validation.patience has no effect: tfidf-knn is fitted in one go" in record.warnings


def test_a_killed_fit_is_done_again(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 1: there is nothing in between to go on from"""

    def killed() -> None:
        Neighbours.fit = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, method-assign, return-value]
        run(config("tfidf-knn"), track="none")

    assert in_child(killed, tmp_path / "said") == -signal.SIGKILL
    record = run(config("tfidf-knn"), track="none", earlier=find_earlier(only_run(workspace).name))
    assert record.status == "finished"
    assert "there is no checkpoint to go on from; the training begins again" in record.warnings
    assert load_run(record.run_id).record == record


@pytest.mark.parametrize("method", METHODS)
def test_what_needs_vectors_is_refused(
    method: str,
    records: dict[str, RunRecord],
    in_their_home: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = load_run(records[method].run_id)
    for form in ("sentence-transformers", "safetensors"):
        with pytest.raises(UserError, match=f"'{method}' has no dual encoder .* folder model/ of run"):
            export_run(trained, form, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="ranks by itself"):
        label_vectors(trained, trained.parts.scoring.scorers[0])
    (tmp_path / "new.txt").write_text("a new label\n")
    arguments = ["predict", "--run", records[method].run_id, "--text", "x", "--add-labels", str(tmp_path / "new.txt")]
    assert call(*arguments) == 2
    assert f"method '{method}' cannot score a label by its text alone" in capsys.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_standard_output_holds_nothing_but_the_answer(
    method: str, records: dict[str, RunRecord], in_their_home: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a library writes there by itself, below Python, would break `--json`."""
    assert call("predict", "--run", records[method].run_id, "--text", "some words", "--json") == 0
    said = capfd.readouterr()
    (line,) = said.out.splitlines()
    assert json.loads(line)["scorer"] in ("forest", "neighbours")
    assert said.err == ""


# ---------------------------------------------------------------- neighbours


def fitted_neighbours(inputs: Inputs, params: tfidf_knn.Params) -> Neighbours:
    model = tfidf_knn.build(inputs, params).fitted
    assert isinstance(model, Neighbours)
    model.fit()
    return model


@pytest.mark.parametrize("label_texts", [True, False])
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_votes_are_those_of_the_formula(label_texts: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.model.neighbours._BLOCK_PRODUCTS", block)
    params = tfidf_knn.Params(neighbours=7, power=2.5, label_texts=label_texts, label_weight=1.5, ngrams=2)
    inputs = inputs_of(config("tfidf-knn"))
    model = fitted_neighbours(inputs, params)
    queries = inputs.train_tokens.take(np.arange(0, 240, 5))
    exclude = inputs.train_filter[np.arange(0, 240, 5)]
    features = Tfidf(inputs.encoder.tokenizer, params)
    features.fit(inputs.train_tokens, *([inputs.label_tokens] if label_texts else []))
    rows, votes = features.transform(inputs.train_tokens).toarray(), inputs.train.toarray()
    if label_texts:
        rows = np.concatenate([rows, features.transform(inputs.label_tokens).toarray()])
        votes = np.concatenate([votes, 1.5 * np.eye(60)])
    cosines = (features.transform(queries).toarray() @ rows.T).astype(np.float64)
    kept = np.where(cosines >= np.sort(cosines, axis=1)[:, [-7]], cosines, 0)
    untied = np.count_nonzero(kept, axis=1) == 7  # which of several equally near rows votes is decided elsewhere
    assert untied.sum() > 20
    scores = kept**2.5 @ votes
    scores[exclude.toarray() != 0] = 0
    topk = model.rank(queries, 60, exclude, "neighbours")
    found = np.zeros_like(scores)
    at = np.nonzero(topk.ids >= 0)
    found[at[0], topk.ids[at]] = topk.scores[at]
    np.testing.assert_allclose(found[untied], scores[untied], rtol=1e-4, atol=1e-6)


def test_targets_of_made_rows_weigh_their_votes() -> None:
    inputs = inputs_of(config("tfidf-knn"))
    whole, halved = (
        fitted_neighbours(replace(inputs, train=inputs.train * share), tfidf_knn.Params(label_texts=False))
        for share in (1.0, 0.5)
    )
    queries = inputs.train_tokens.take(np.arange(9))
    np.testing.assert_allclose(
        whole.rank(queries, 5, None, "neighbours").scores / 2, halved.rank(queries, 5, None, "neighbours").scores
    )


def test_a_text_of_unknown_words_finds_nothing(records: dict[str, RunRecord], in_their_home: None) -> None:
    """fault 55"""
    trained = load_run(records["tfidf-knn"].run_id)
    assert predict(trained, ["\u2603"], 5) == [[]]
    (found,) = predict(load_run(records["parabel"].run_id), ["\u2603"], 5)
    assert len(found) == 5  # a linear classifier has an intercept


# ---------------------------------------------------------------- the forest


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("flip", "its sha256 is not that of its manifest"),
        ("remove", "missing"),
        ("add", "not a file of this model"),
        ("cut", "bytes, .* by its manifest"),
    ],
)
def test_a_damaged_forest_is_refused_before_the_library_sees_it(
    damage: str, message: str, copied: Path, in_their_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 68"""
    tree = copied / "model" / "forest" / "tree1.cbor"
    content = bytearray(tree.read_bytes())
    content[len(content) // 2] ^= 0x40
    {
        "flip": lambda: tree.write_bytes(content),
        "remove": tree.unlink,
        "add": lambda: shutil.copy(tree, tree.with_name("tree9.cbor")),
        "cut": lambda: tree.write_bytes(content[:-7]),
    }[damage]()
    monkeypatch.setattr(Parabel, "load", lambda *_: pytest.fail("the library was asked to load it"))
    with pytest.raises(DataError, match=message):
        load_run(str(copied))


def test_files_that_do_not_fit_are_refused(copied: Path, in_their_home: None) -> None:
    values = read_json(copied / "record.json")
    values["config"]["params"]["trees"] = 4
    write_json(copied / "record.json", values)
    with pytest.raises(DataError, match="do not fit the settings of the run"):
        load_run(str(copied))
    (copied / "model" / "forest" / "tree0.cbor").write_bytes(b"\x00")
    with pytest.raises(DataError, match="omikuji cannot read this forest"):
        forest_module.Forest(copied / "model" / "forest", 1)
    shutil.rmtree(copied / "model")
    with pytest.raises(DataError, match="no model here"):
        load_run(str(copied))


def test_other_files_are_another_identity(copied: Path, records: dict[str, RunRecord], in_their_home: None) -> None:
    from harness.train.checkpoint import save_files

    trained = load_run(str(copied))
    assert trained.identity == load_run(records["parabel"].run_id).identity
    fitted = trained.parts.fitted
    assert fitted is not None
    fitted.fit()
    save_files(copied / "model", fitted.save, {"method": "parabel"})
    assert load_run(str(copied)).identity != trained.identity


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "omikuji", None)
    arguments = ["run", "--method", "parabel", "--dataset", DATA, "--encoder", "tiny", "--track", "none"]
    assert call(*arguments) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("method 'parabel' needs omikuji: pip install -c constraints.txt -e '.[peers]'")


def test_soft_targets_are_taken_as_whole_ones(tmp_path: Path) -> None:
    told: list[str] = []
    inputs = inputs_of(config("parabel"))
    inputs = replace(inputs, soft=True, train=inputs.train * 0.3, warn=told.append)
    parts = parabel.build(inputs, parabel.Params(threads=1, trees=1))
    assert parts.fitted is not None
    parts.fitted.fit()
    assert len(told) == 1
    assert "no soft targets" in told[0]
    queries = tokenize(["some words"], inputs.encoder.tokenizer, 32)
    assert isinstance(parts.scoring, Ranker)
    assert (parts.scoring.rank(queries, 5, None, "forest").ids >= 0).all()


def test_xr_linear_has_wider_trees(tmp_path: Path) -> None:
    """And so fewer nodes with children, which the file of a tree names one by one."""
    nodes = []
    for method in ("parabel", "xr-linear"):
        wanted = config(method)
        small = {**wanted.params, "trees": 1, "threads": 1, "max_leaf": 2}
        fitted = parabel.build(inputs_of(wanted), parabel.Params.model_validate(small)).fitted
        assert isinstance(fitted, Parabel)
        fitted.fit()
        (tmp_path / method).mkdir()
        fitted.save(tmp_path / method)
        (tree,) = (tmp_path / method).rglob("tree*")
        nodes.append(tree.read_bytes().count(b"children"))
    assert 0 < nodes[1] < 0.75 * nodes[0]
