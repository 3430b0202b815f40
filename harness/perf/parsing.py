"""Reading data files: decompressed bytes a second, against fixed bounds.

A sparse label file with 22 labels a row, as LF-AmazonTitles-1.3M has, and a gzip file of JSON documents with title and
content. Both are generated in a temporary folder and read as `RepositorySource` reads them.
"""

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from harness.data.ragged import RaggedWriter
from harness.data.sources.documents import json_documents, targets
from harness.data.sources.pattern import PatternBuilder
from harness.data.sources.sparse_text import read_labels
from harness.perf import Row, Sample, bound, turns

LABELS = 1_305_265
SPARSE_AT_LEAST, JSON_AT_LEAST = 30e6, 40e6
"""Bytes a second."""


def rows() -> Iterator[Row]:
    """Both readers, each against its target in B/s."""
    with tempfile.TemporaryDirectory() as folder:
        sparse = Path(folder) / "trn_X_Y.txt"
        pairs = write_sparse(sparse, documents=110_000)
        size = sparse.stat().st_size
        (seconds,) = turns(lambda: read_labels(sparse))
        yield bound(
            "sparse label file", f"{size / 1e6:.0f} MB, {pairs:,} pairs", rate(size, seconds), at_least=SPARSE_AT_LEAST
        )

        documents = Path(folder) / "trn.json.gz"
        size = write_json(documents, megabytes=42)
        (seconds,) = turns(lambda: read_json(documents))
        yield bound(
            "JSON documents, gzip", f"{size / 1e6:.0f} MB decompressed", rate(size, seconds), at_least=JSON_AT_LEAST
        )


def rate(amount: float, seconds: Sample, unit: str = "B/s") -> Sample:
    """How much a second, for every measurement of the time that `amount` took."""
    return Sample(tuple(amount / value for value in seconds.values), unit)


def write_sparse(path: Path, documents: int) -> int:
    """Writes a label file of `documents` rows; returns the number of pairs."""
    random = np.random.default_rng(0)
    pairs = 0
    with path.open("w") as stream:
        stream.write(f"{documents} {LABELS}\n")
        for count in random.poisson(22, documents):
            labels = np.unique(random.integers(0, LABELS, count))
            pairs += len(labels)
            stream.write(" ".join(f"{label}:1.0" for label in labels.tolist()) + "\n")
    return pairs


def write_json(path: Path, megabytes: float) -> int:
    """Writes documents of Zipf-distributed words; returns the number of bytes before compression."""
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, (30_000, 12), dtype=np.uint8).tobytes().decode("ascii")
    lengths = np.clip(random.poisson(5, 30_000), 1, 12).tolist()
    vocabulary = [letters[12 * word : 12 * word + length] for word, length in enumerate(lengths)]
    frequency = 1 / np.arange(1, len(vocabulary) + 1)
    text = random.choice(len(vocabulary), 2_000_000, p=frequency / frequency.sum())
    written, number = 0, 0
    with gzip.open(path, "wb", compresslevel=6) as stream:
        while written < megabytes * 1e6:
            start = int(random.integers(len(text) - 1000))
            words = [vocabulary[word] for word in text[start : start + 9 + int(random.poisson(100))].tolist()]
            labels = np.unique(random.integers(0, LABELS, random.poisson(2) + 1)).tolist()
            document = {
                "uid": f"B{number:09}",
                "title": " ".join(words[:8]),
                "content": " ".join(words[8:]),
                "target_ind": labels,
                "target_rel": [1.0] * len(labels),
            }
            written += stream.write(orjson.dumps(document) + b"\n")
            number += 1
    return written


def read_json(path: Path) -> None:
    """Reads documents into a text column and a label matrix, as preparing a dataset does."""
    builder = PatternBuilder(LABELS)
    with RaggedWriter(path.parent, "train.text", np.uint8) as column:
        for chunk, _ in json_documents(path, "title+content", column, []):
            builder.extend(*targets(chunk, LABELS))
    builder.finish()
