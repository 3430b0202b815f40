"""The pipeline end to end, on generated data with the tiny encoder: real files, real MLflow store."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from harness import metrics
from harness.data import load
from harness.errors import UserError
from harness.io.files import read_manifest
from harness.machine.device import choose_device
from harness.run import resolve_config, run
from harness.runs.metadata import recorded_origins
from harness.runs.record import RunRecord, find_records, read_record
from harness.settings.layers import Layer
from tests.faults.accounts import Account
from tests.runs.conftest import scored
from tests.support.commands import call
from tests.support.training_runs import only_run


def test_the_run_folder_is_complete(record: RunRecord, workspace: Path) -> None:
    folder = only_run(workspace)
    manifest = read_manifest(folder, verify=True)
    assert manifest is not None
    assert set(manifest["files"]) == {
        *("config.json", "events.jsonl", "record.json"),
        *("ids.npy", "sample.json", "scores.npy", "per_row.npy"),
    }
    assert folder.name == record.run_id == read_record(folder).run_id
    assert set(record.metrics) == {
        f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG", "R", "C") for k in (1, 3, 5)
    }
    assert record.encoder["name"] == "tiny"
    assert record.environment["packages"]["torch"]


def test_predictions_explain_the_metrics_and_hold_no_filtered_pair(record: RunRecord, workspace: Path) -> None:
    """fault 49"""
    dataset, folder = load("synthetic"), only_run(workspace)
    ids, scores = np.load(folder / "ids.npy"), np.load(folder / "scores.npy")
    assert ids.shape == scores.shape == (dataset.test.shape[0], 100)
    assert (np.diff(scores, axis=1) <= 0).all()
    filtered = {(row, label) for row, label in zip(*dataset.test_filter.nonzero(), strict=True)}
    assert filtered
    assert not any((row, label) in filtered for row in range(len(ids)) for label in ids[row].tolist())
    assert metrics.evaluate(ids, dataset.test)["P@5"] == pytest.approx(record.metrics["P@5"], abs=1e-9)
    rows = np.load(folder / "per_row.npy")
    assert rows[:, record.per_row.index("PSP@3")].mean() == pytest.approx(record.metrics["PSP@3"], rel=1e-5)


def test_same_seed_same_bits(record: RunRecord, workspace: Path) -> None:
    again = run(scored(), track="none")
    assert again.metrics == record.metrics
    first, second = (workspace / "runs" / run_id for run_id in (record.run_id, again.run_id))
    assert (first / "ids.npy").read_bytes() == (second / "ids.npy").read_bytes()
    assert (first / "scores.npy").read_bytes() == (second / "scores.npy").read_bytes()


def test_micro_batch_size_and_backend_change_nothing(record: RunRecord, workspace: Path, account: Account) -> None:
    """parity 5: from the texts on, so that the encoder's batches are others, too"""
    others = [{"batch_tokens": 64}, {"search": {"backend": "faiss-flat"}}]
    others.append({"batch_tokens": 500, "search": {"backend": "faiss-flat"}})
    kept = [np.load(workspace / "runs" / record.run_id / f"{name}.npy") for name in ("ids", "scores")]
    near = np.pad(np.abs(np.diff(kept[1], axis=1)) < 1e-6, ((0, 0), (1, 1)))  # to the one before, and the one behind
    tied, apart, swapped = near[:, 1:] | near[:, :-1], 0.0, 0
    for changes in others:
        again = run(scored(**changes), track="none")
        ids, scores = (np.load(workspace / "runs" / again.run_id / f"{name}.npy") for name in ("ids", "scores"))
        # an encoder's batches change the last bit of its vectors, so two that tie may change places; a backend, nothing
        batches = "batch_tokens" in changes
        assert again.metrics == (pytest.approx(record.metrics, abs=0.1) if batches else record.metrics)
        assert (ids == kept[0])[~tied if batches else ...].all()
        swapped = max(swapped, int((ids != kept[0]).sum()))
        apart = max(apart, float(np.abs(scores - kept[1]).max()))
    assert apart < 1e-6
    assert swapped < 60
    usual = record.config["batch_tokens"]
    account.did(f"one evaluation with encoder batches of 64, 500 and {usual:,} tokens, and both exact searches")
    equal = f"{kept[0].size:,} predictions and {len(record.metrics)} metrics equal, but for {swapped} that tie"
    account.saw(f"{equal}; scores differ by {apart:.0e}")


def test_without_filter_masked_pairs_come_back(record: RunRecord, workspace: Path) -> None:
    unfiltered = run(scored(filter=False), track="none")
    assert (record.dataset["filter"], unfiltered.dataset["filter"]) == (True, False)
    masked = load("synthetic").test_filter
    found = {}
    for name in (record.run_id, unfiltered.run_id):
        ids = np.load(workspace / "runs" / name / "ids.npy")
        rows = np.repeat(np.arange(len(ids)), np.diff(masked.indptr))
        found[name] = int((ids[rows] == masked.indices[:, None]).sum())
    assert found[record.run_id] == 0
    assert found[unfiltered.run_id] > 0


def test_the_encoder_hears_of_train_and_label_texts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.data.tokens import token_counts
    from harness.model.encoders.encoder import load_encoder
    from harness.model.encoders.transformer import TransformerEncoder
    from harness.train.inputs import tokenise

    heard: list[np.ndarray] = []
    monkeypatch.setattr(TransformerEncoder, "adapt", lambda self, counts: heard.append(counts))
    run(scored(), track="none")
    encoder = load_encoder("tiny", seed=0)
    tokens = tokenise(load("synthetic"), encoder, encoder.max_len)
    assert len(heard) == 2
    assert (heard[0] == token_counts(encoder.tokenizer.vocab_size, tokens.train, tokens.labels)).all()


def test_fewer_labels_than_k_is_said(workspace: Path) -> None:
    """fault 55"""
    settings = resolve_config(
        "zeroshot",
        "synthetic:labels=8,labels_per_row=2,train=50,test=20",
        [Layer("t", {"encoder": "tiny", "ks": [1, 20]})],
    )
    record = run(settings[0], track="none")
    assert any("fewer than 20 predictions" in warning for warning in record.warnings)
    with pytest.raises(UserError, match=r"raise search\.k"):
        scored(search={"k": 3})


def test_a_run_folder_can_be_moved(
    record: RunRecord,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 28: to another place and another workspace, and nothing is left where it was"""
    assert call("report") == 0
    table = capsys.readouterr().out
    assert f"{record.metrics['P@1']:.2f}" in table
    moved = tmp_path / "elsewhere"
    shutil.move(workspace / "runs", moved)
    shutil.rmtree(workspace)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "another-machine"))
    (found,) = find_records([moved])
    assert found == record
    assert read_manifest(moved / record.run_id, verify=True) is not None
    assert call("report", "--runs", str(moved)) == 0
    assert capsys.readouterr().out == table
    assert call("predict", "--run", str(moved / record.run_id), "--text", "one two", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 5
    account.did("a run folder moved, its workspace deleted, HARNESS_HOME elsewhere")
    account.saw("record and hashes hold, `report` prints the same table, `predict` answers from there")


def test_origins_name_no_path() -> None:
    """fault 70: what was typed with --set is in config.json, which goes to MLflow"""
    others = {"params.beta": "methods/unidec.yaml", "seed": "--set seed=1"}
    shown = recorded_origins({"encoder": "--set encoder=/data/models/small/", **others})
    assert shown == {"encoder": "--set encoder=./small", **others}


@pytest.mark.usefixtures("forked_uploader")
def test_mlflow_has_the_same_figures(mlflow_store: str) -> None:
    from mlflow import MlflowClient

    record = run(scored())
    client = MlflowClient(mlflow_store)
    (logged,) = client.search_runs([client.get_experiment_by_name("synthetic").experiment_id])
    assert logged.info.status == "FINISHED"
    for key, value in record.metrics.items():
        assert logged.data.metrics[key.replace("@", "_at_")] == pytest.approx(value)
    assert logged.data.params["encoder"] == "tiny"
    names = {artifact.path for artifact in client.list_artifacts(logged.info.run_id)}
    assert names == {"config.json", "events.jsonl", "record.json", "sample.json"}
    assert record.warnings == []


def test_ranks_of_a_launcher_are_refused_by_the_command(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """parity 2: no figure can depend on how many ranks there are"""
    command = ("run", "--method", "zeroshot", "--dataset", "synthetic", "--set", "encoder=tiny", "--track", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert call(*command) == 2
        told = capsys.readouterr().err
        assert "WORLD_SIZE is 2, but a run is one process on one device" in told
    assert not list((workspace / "runs").glob("*"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert call(*command) == 0
    (made,) = find_records([workspace / "runs"])
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    assert run(scored(), track="none").metrics == made.metrics
    account.did(
        "`harness run` as rank 0 and as rank 1 of WORLD_SIZE=2, as a launcher starts them; then of WORLD_SIZE=1"
    )
    account.saw("two ranks: exit code 2 each, no run folder; one rank: the same metrics as without a launcher")


def test_not_finite_vectors_are_flagged_and_count_as_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 55"""
    from harness.train import evaluation

    real = evaluation.search

    def poisoned(queries: np.ndarray, *rest: object, **named: object) -> object:
        queries = queries.copy()
        queries[:10] = np.nan
        return real(queries, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluation, "search", poisoned)
    record = run(scored(), track="none")
    assert record.search["flagged"] == 10
    assert any("not finite" in warning for warning in record.warnings)


def test_a_device_that_is_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        assert choose_device("auto") == "cuda"
        return
    assert choose_device("auto") == "cpu"
    with pytest.raises(UserError, match="0 CUDA devices"):
        choose_device("cuda")


def test_a_failure_midway_is_recorded(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("harness.train.evaluation.search", out_of_memory)
    with pytest.raises(MemoryError):
        run(scored(), track="none")
    failed = read_record(only_run(workspace))
    assert (failed.status, failed.error, failed.metrics) == ("failed", "MemoryError: no room", {})
    last = json.loads((only_run(workspace) / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("end", "failed")
