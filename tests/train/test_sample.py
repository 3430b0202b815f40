"""Predictions for a person to look at."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.data import Dataset, load
from harness.index import TopK
from harness.train.evaluation import Scored
from harness.train.outcome import LONGEST, prediction_sample


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    folder = tmp_path / "tickets"
    folder.mkdir()
    rows = [{"text": f"row {row}", "labels": ["a"] if row % 2 else ["b", "c"]} for row in range(20)]
    rows[7]["text"] = "long " * 1000
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows[:10] if name == "train" else rows)))
    labels = [{"id": name, "text": f"text of {name}"} for name in "abcd"]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    return load(folder)


def scored(ids: list[list[int]], scores: list[list[float]]) -> Scored:
    return Scored(TopK(np.array(ids, np.int32), np.array(scores, np.float32)), {}, [], {})


@pytest.fixture
def everything() -> Scored:
    """Label a first for every row, d last, and in the places behind nothing."""
    return scored([[0, 1, 3, -1, -1, -1]] * 20, [[0.5, 0.25, 0.1, -np.inf, -np.inf, -np.inf]] * 20)


def test_rows_with_truth_and_predictions(dataset: Dataset, everything: Scored) -> None:
    sample = prediction_sample(dataset, everything, count=100, seed=0)
    assert [one["row"] for one in sample] == list(range(20))
    assert sample[3] == {
        "row": 3,
        "text": "row 3",
        "truth": ["text of a"],
        "predictions": [
            {"label": "text of a", "score": 0.5, "hit": True, "train_rows": 5},
            {"label": "text of b", "score": 0.25, "hit": False, "train_rows": 5},
            {"label": "text of d", "score": 0.1, "hit": False, "train_rows": 0},
        ],
    }
    assert [one["hit"] for one in sample[4]["predictions"]] == [False, True, False]
    assert sample[4]["truth"] == ["text of b", "text of c"]
    assert len(sample[7]["text"]) == LONGEST
    assert sample[7]["text"].endswith(" ...")


def test_scores_that_are_not_finite_are_json_all_the_same(dataset: Dataset) -> None:
    """fault 55"""
    sample = prediction_sample(dataset, scored([[1, -1]] * 20, [[np.nan, np.nan]] * 20), count=2)
    assert json.loads(json.dumps(sample, allow_nan=False)) == sample
    assert [one["score"] for one in sample[0]["predictions"]] == [None]
