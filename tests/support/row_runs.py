"""Run folders with predictions made up for a small prepared dataset: what a comparison reads, without any training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness import metrics
from harness.data import Dataset
from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter, opened
from harness.index import TopK
from harness.io.files import write_manifest
from harness.runs.record import RunRecord, read_record, write_record
from harness.train.evaluation import Scored, label_weights, save_predictions

DATA = "synthetic:train=240,test=80,labels=60"
CONFIG = {"method": "alpha", "encoder": "static", "dataset": "d", "seed": 0, "evaluate": "test", "params": {"beta": 1}}


def prepared(home: Path, name: str, texts: list[str], truth: csr_array, labels: list[str], train: csr_array) -> Dataset:
    """Make a prepared dataset in the cache of a workspace, without any source.

    Args:
        home: The workspace.
        name: Name of the dataset.
        texts: Texts of the test rows, [M].
        truth: Labels of the test rows, [M, L].
        labels: Label texts, [L].
        train: Labels of the train rows, [N, L].
    """
    datasets = home / "cache" / "datasets"
    datasets.mkdir(parents=True, exist_ok=True)
    folder = datasets / f"{name}-{len(list(datasets.iterdir())):016}"
    folder.mkdir()
    writer = DatasetWriter(folder)
    ids = [f"id{place}" for place in range(len(labels))]
    columns = {"train.text": ["a"] * train.shape[0], "test.text": texts, "labels.text": labels, "labels.id": ids}
    for column, strings in columns.items():
        with writer.texts(column) as stream:
            stream.extend_strings(strings)
    writer.matrix("train.labels", train)
    writer.matrix("test.labels", truth)
    write_manifest(folder, writer.finish())
    card = DatasetCard(name=name, title="<b>Hostile</b> & more", summary="", source="jsonl")
    return opened(card, folder, json.loads((folder / "manifest.json").read_text()), True)


def guesses(truth: csr_array, skill: float, seed: int) -> NDArray[np.int64]:
    """Five predictions per row, [M, 5]: each is the oracle's with probability `skill`, else a random label."""
    generator = np.random.default_rng(seed)
    oracle = metrics.oracle_topk(truth, 5)
    random = generator.permuted(np.tile(np.arange(truth.shape[1]), (truth.shape[0], 1)), axis=1)[:, :5]
    return np.where((generator.random(oracle.shape) < skill) & (oracle >= 0), oracle, random)


def add_run(
    runs: Path,
    dataset: Dataset,
    run_id: str,
    *,
    skill: float = 0.5,
    seed: int = 0,
    ids: NDArray[np.int64] | None = None,
    confidences: NDArray[np.float32] | None = None,
    config: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    **metadata: Any,
) -> Path:
    """Make a finished run folder; `config`, `about` (the dataset) and `metadata` (the record) replace defaults.

    `ids` are its predictions and `confidences` their scores, both [M, K].
    """
    ids = guesses(dataset.test, skill, seed) if ids is None else ids
    weights = label_weights(dataset)
    scores = metrics.evaluate(ids, dataset.test, weights)
    rows = metrics.per_row(ids, dataset.test, weights)
    folder = runs / run_id
    folder.mkdir(parents=True)
    confidences = np.zeros(ids.shape, np.float32) if confidences is None else confidences
    save_predictions(folder, {"": Scored(TopK(ids, confidences), scores, [], rows)})
    constants = dataset.card.propensity
    described = {
        "name": dataset.name,
        "digest": dataset.digest,
        "propensity": constants.model_dump() if constants else None,
        "filter": True,
        **(about or {}),
    }
    record = {
        "run_id": run_id,
        "status": "finished",
        "started": f"2026-01-01T00:00:{len(list(runs.iterdir())):02}",
        "seconds": 1.0,
        "config": {**CONFIG, "seed": seed, **(config or {})},
        "dataset": described,
        "metrics": scores,
        "metric_version": 1,
        "per_row": list(rows),
        **metadata,
    }
    write_record(folder, RunRecord.model_validate(record))
    write_manifest(folder, {})
    return folder


def add_scorers(folder: Path, dataset: Dataset, skill: float) -> RunRecord:
    """Add a second scorer to a run, which comes before its own one by name."""
    weights, ids = label_weights(dataset), guesses(dataset.test, skill, 7)
    record = read_record(folder)
    rows = metrics.per_row(ids, dataset.test, weights)
    np.save(folder / "per_row.clf.npy", np.stack(list(rows.values()), axis=1).astype(np.float32))
    scorers = {"own": record.metrics, "clf": metrics.evaluate(ids, dataset.test, weights)}
    write_record(folder, record.model_copy(update={"scorers": scorers}))
    write_manifest(folder, {})
    return read_record(folder)
