"""The suites at full size do what they say, shown on little data: nothing here is timed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.batching import cluster
from harness.data.sources.sparse_text import read_labels
from harness.errors import UserError
from harness.perf import corpus, mining, racing
from harness.perf.batching import topic_vectors


def test_noted_splits_cover_every_row_at_every_level() -> None:
    vectors, splits = topic_vectors(300), mining.Splits()
    before = cluster._Tree.split, cluster._two_means, cluster._largest
    plain = cluster.balanced_clusters(vectors, 30, seed=0)
    with splits.noted():
        noted = cluster.balanced_clusters(vectors, 30, seed=0)
    assert (cluster._Tree.split, cluster._two_means, cluster._largest) == before
    assert all((one == other).all() for one, other in zip(plain, noted, strict=True))
    assert len(splits.levels) == 3
    for level in splits.levels:
        assert 300 <= sum(nodes * width for nodes, width, _ in level) <= 300 + 2 * len(plain)
        assert all(1 <= iterations <= 10 for _, _, iterations in level)
    assert splits.passes >= 3


def test_products_are_made_once_per_noted_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = mining.Splits(levels=[[(1, 100, 2)], [(2, 51, 3)]])
    shapes: list[tuple[int, ...]] = []
    product = torch.bmm

    def noted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        shapes.append((*left.shape, right.shape[2]))
        return product(left, right)

    monkeypatch.setattr(torch, "bmm", noted)
    splits.products(torch.ones(104, 8))
    assert shapes == [(1, 1, 8, 100), (1, 1, 100, 8)] * 2 + [(2, 1, 8, 51), (2, 1, 51, 8)] * 3


def test_without_the_earlier_version_there_is_no_race(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no commit 0123456789 in the history"):
        racing.unpack("0123456789", tmp_path / "earlier")


def test_recall_is_the_share_of_exact_labels_found_in_their_own_row() -> None:
    exact = np.array([[0, 1], [2, 3]], np.int32)
    assert mining.recall(np.array([[1, 9], [3, 2]], np.int32), exact) == 0.75
    assert mining.recall(np.array([[-1, -1], [0, 1]], np.int32), exact) == 0
    assert mining.recall(exact, exact) == 1


def test_raw_files_are_read_as_the_plain_loops_read_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"TRAIN": 90, "TEST": 40, "LABELS": 500, "SAMPLE": 90}.items():
        monkeypatch.setattr(corpus, name, value)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    raw = tmp_path / "raw"
    raw.mkdir()
    written = corpus.write_raw(raw)
    dataset = corpus._load(raw)
    texts, labels = corpus.json_loop(raw / "trn.json.gz")
    assert dataset.train_text[:] == texts
    assert (dataset.train.toarray() == labels.toarray()).all()
    assert (read_labels(raw / "trn_X_Y.txt").toarray() == corpus.sparse_loop(raw / "trn_X_Y.txt").toarray()).all()
    assert (dataset.train.shape, dataset.test.shape) == ((90, 500), (40, 500))
    assert 5 < dataset.facts["statistics"]["words_per_row"] < 13
    assert 15 < dataset.facts["statistics"]["labels_per_row"] < 25
    assert written > corpus._first_bytes(raw / "trn.json.gz") > 0
