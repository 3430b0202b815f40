"""Data from raw files to token ids, against plain Python loops and the tokenizer library; and writing a checkpoint."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import save_file
from scipy.sparse import csr_array
from tokenizers import Tokenizer as Library

from harness.data.pattern import PatternBuilder
from harness.data.ragged import RaggedWriter, Texts
from harness.data.sources.repository import json_documents, targets
from harness.data.sources.sparse_text import read_labels
from harness.data.tokens import token_store
from harness.train.checkpoint import Checkpoints
from tests.benchmarks.race import Race, size
from tests.support.word_pieces import synthetic_texts, word_pieces

LABELS, LABELS_PER_ROW = 1_305_265, 22
ROWS, DOCUMENTS = size(110_000, 500), size(40_000, 200)


@pytest.fixture(scope="module")
def sparse_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse label file with as many labels a row as LF-AmazonTitles-1.3M."""
    path, draw = tmp_path_factory.mktemp("raw") / "trn_X_Y.txt", np.random.default_rng(0)
    rows = [np.unique(draw.integers(0, LABELS, count)) for count in draw.poisson(LABELS_PER_ROW, ROWS)]
    lines = (" ".join(f"{label}:1.0" for label in row.tolist()) for row in rows)
    path.write_text("\n".join([f"{ROWS} {LABELS}", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def json_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gzip JSON lines with title, content and labels."""
    path, draw = tmp_path_factory.mktemp("raw") / "trn.json.gz", np.random.default_rng(0)
    with gzip.open(path, "wb", compresslevel=6) as stream:
        for number, text in enumerate(synthetic_texts(DOCUMENTS, words=100)):
            labels = np.unique(draw.integers(0, LABELS, draw.poisson(2) + 1)).tolist()
            document = {"uid": f"B{number:09}", "title": text[:50], "content": text[50:], "target_ind": labels}
            stream.write(orjson.dumps({**document, "target_rel": [1.0] * len(labels)}) + b"\n")
    return path


def test_sparse_labels(race: Race, sparse_file: Path) -> None:
    def loop() -> csr_array:
        row, label = [], []
        with sparse_file.open() as stream:
            next(stream)
            for number, line in enumerate(stream):
                for word in line.split():
                    target, relevance = word.split(":")
                    if float(relevance) > 0:
                        row.append(number)
                        label.append(int(target))
        return csr_array((np.ones(len(row), np.float32), (row, label)), shape=(ROWS, LABELS))

    assert (read_labels(sparse_file) != loop()).nnz == 0
    inputs = f"{ROWS:,} rows, {sparse_file.stat().st_size / 1e6:.0f} MB"
    reference = "a plain Python loop over lines"
    race("sparse label file", inputs, reference, lambda: read_labels(sparse_file), loop, at_least=3.0, rounds=3)


def test_json_documents(race: Race, json_file: Path) -> None:
    def ours() -> csr_array:
        builder = PatternBuilder(LABELS)
        with RaggedWriter(json_file.parent, "train.text", np.uint8) as column:
            for chunk, _ in json_documents(json_file, "title+content", column, []):
                builder.extend(*targets(chunk, LABELS))
        return builder.finish()

    def loop() -> csr_array:
        texts, row, label = [], [], []
        for number, line in enumerate(gzip.open(json_file, "rt", encoding="utf-8")):
            document = json.loads(line)
            texts.append(f"{document['title']} {document['content']}")
            for target, relevance in zip(document["target_ind"], document["target_rel"], strict=True):
                if relevance > 0:
                    row.append(number)
                    label.append(target)
        return csr_array((np.ones(len(row), np.float32), (row, label)), shape=(len(texts), LABELS))

    assert (ours() != loop()).nnz == 0
    inputs = f"{DOCUMENTS:,} documents of 100 words, gzip"
    race("JSON documents to text and labels", inputs, "json.loads and a plain Python loop", ours, loop, rounds=3)


@pytest.mark.parametrize(
    ("count", "words", "max_len", "at_most"), [(200_000, 8, 32, 1.3), (2_000, 800, 128, 0.6)], ids=["short", "long"]
)
def test_token_store(
    race: Race, workspace: Path, tmp_path: Path, count: int, words: int, max_len: int, at_most: float
) -> None:
    """Ours is from a cold cache to a finished store: read, tokenise, flatten, write, hash."""
    tokenizer = word_pieces(tmp_path / "tokenizer.json")
    strings = synthetic_texts(size(count, 50), words)
    texts, library = Texts.from_strings(strings), Library.from_file(str(tokenizer.path))
    library.enable_truncation(max_len)

    def ours() -> None:
        shutil.rmtree(workspace / "cache", ignore_errors=True)
        token_store(texts, tokenizer, max_len, "tokenise")

    race(
        f"texts to stored token ids, at most {max_len} tokens",
        f"{len(strings):,} texts of {words} words",
        "tokenizers encode_batch_fast, ids left in its objects",
        ours,
        lambda: library.encode_batch_fast(strings),
        at_most=at_most,
    )


def test_checkpoint_write(race: Race, tmp_path: Path) -> None:
    """Ours is a whole checkpoint: weights, state, sha256 of every file, flushed, put in place, older ones removed."""
    tensors = {f"part{place}": torch.randn(size(20_000, 100), 512) for place in range(5)}
    checkpoints, step = Checkpoints(tmp_path / "checkpoints"), iter(range(1_000))
    inputs = f"{sum(tensor.nbytes for tensor in tensors.values()) / 1e6:.0f} MB"

    def ours() -> None:
        checkpoints.save(next(step), {"epoch": 1}, tensors)

    def theirs() -> None:
        save_file(tensors, tmp_path / "plain.safetensors")

    race("checkpoint write", inputs, "safetensors save_file, neither hashed nor flushed", ours, theirs)
