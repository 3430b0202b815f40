"""Data of LF-AmazonTitles-1.3M's size, from raw files to token ids.

The texts are synthetic titles of about nine words, written beforehand in the repository's formats: gzip JSON lines,
sparse label files, filter files. The plain Python loops and the tokenizer library are timed on the first rows only,
because their rates do not depend on the number of rows.
"""

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data import Dataset
from harness.data.card import DatasetCard
from harness.data.prepare import opened, prepare
from harness.data.ragged import Ragged
from harness.data.sources.sparse_text import read_labels
from harness.data.tokens import Tokenizer, token_store
from harness.perf import Row, compare, fresh_workspace, turns
from harness.perf.parsing import rate
from harness.perf.tokenising import synthetic_words, word_pieces
from harness.progress import progress

TRAIN, TEST, LABELS = 2_248_619, 970_237, 1_305_265
LABELS_PER_ROW, WORDS, MAX_LEN = 22.0, 9.0, 32
SAMPLE, REPEATS, CHUNK = 40_000, 2, 1 << 15
CARD = DatasetCard(name="perf-corpus", title="titles", summary="generated", source="repository", text="title")
_SIZE = f"{TRAIN:,} + {TEST:,} rows, {LABELS:,} labels"


def rows() -> Iterator[Row]:
    """Parsing, tokenising and reading back."""
    with fresh_workspace() as home, tempfile.TemporaryDirectory(prefix="harness-perf-") as name:
        raw = Path(name)
        decompressed = write_raw(raw)
        yield _parsing(raw, decompressed, home)
        yield _sparse(raw / "trn_X_Y.txt")
        dataset = _load(raw)
        tokenizer = word_pieces(home / "tokenizer.json")
        yield _tokenising(dataset, tokenizer, home)
        yield _reading(raw, tokenizer, home)


def _parsing(raw: Path, decompressed: int, home: Path) -> Row:
    def ours() -> None:
        shutil.rmtree(home / "cache", ignore_errors=True)
        prepare(CARD, raw)

    seconds, loop = turns(ours, partial(json_loop, raw / "trn.json.gz"), repeats=REPEATS, warm=0)
    return compare(
        "raw files to a prepared folder",
        f"{_SIZE}, {decompressed / 1e9:.2f} GB decompressed",
        f"gzip, json.loads and a plain Python loop, {SAMPLE:,} train rows",
        rate(decompressed, seconds),
        rate(_first_bytes(raw / "trn.json.gz"), loop),
        detail=f"{rate(TRAIN + TEST + LABELS, seconds).median:,.0f} texts/s; writing and hashing the folder counts",
    )


def _sparse(path: Path) -> Row:
    size = path.stat().st_size
    seconds, loop = turns(partial(read_labels, path), partial(sparse_loop, path), repeats=REPEATS, warm=0)
    return compare(
        "sparse label file",
        f"{TRAIN:,} rows, {LABELS:,} labels, {size / 1e6:.0f} MB",
        f"a plain Python loop over lines, {SAMPLE:,} rows",
        rate(size, seconds),
        rate(_first_bytes(path), loop),
    )


def _tokenising(dataset: Dataset, tokenizer: Tokenizer, home: Path) -> Row:
    from tokenizers import Tokenizer as Library

    library = Library.from_file(str(tokenizer.path))
    library.enable_truncation(MAX_LEN)
    sample = dataset.train_text[:SAMPLE]

    def ours() -> None:
        shutil.rmtree(home / "cache" / "tokens", ignore_errors=True)
        _tokens(dataset, tokenizer)

    library.encode_batch_fast(sample[:1000])  # its threads are started
    seconds, direct = turns(ours, lambda: library.encode_batch_fast(sample), repeats=REPEATS, warm=0)
    return compare(
        "texts to stored token ids",
        f"{_SIZE}, {WORDS:.0f} words a text",
        f"tokenizers encode_batch_fast, {SAMPLE:,} train rows, ids left in its objects",
        rate(TRAIN + TEST + LABELS, seconds, "texts/s"),
        rate(SAMPLE, direct, "texts/s"),
    )


def _reading(raw: Path, tokenizer: Tokenizer, home: Path) -> Row:
    stored = list((home / "cache").rglob("*.npy"))
    size = sum(path.stat().st_size for path in stored)

    def ours() -> None:
        for column in _tokens(_load(raw), tokenizer):
            int(column.values.max())

    seconds, plain = turns(ours, lambda: [path.read_bytes() for path in stored], repeats=REPEATS + 1, warm=1)
    return compare(
        "prepared data and tokens read back",
        f"{_SIZE}, {size / 1e6:.0f} MB stored",
        "the bytes of the same files",
        rate(size, seconds),
        rate(size, plain),
        detail=f"{seconds.median:.2f} s until every token was read; stored hashes are compared",
    )


def _load(raw: Path) -> Dataset:
    return opened(CARD, *prepare(CARD, raw), use_filter=True)


def _tokens(dataset: Dataset, tokenizer: Tokenizer) -> list[Ragged]:
    columns = {"train": dataset.train_text, "test": dataset.test_text, "labels": dataset.label_text}
    return [token_store(texts, tokenizer, MAX_LEN, f"tokenise {name}") for name, texts in columns.items()]


def json_loop(path: Path) -> tuple[list[str], csr_array]:
    """Texts and labels of the first rows of a JSON file, the obvious way."""
    texts, row, label = [], [], []
    for number, line in zip(range(SAMPLE), gzip.open(path, "rt", encoding="utf-8"), strict=False):
        document = json.loads(line)
        texts.append(document["title"])
        for target, relevance in zip(document["target_ind"], document["target_rel"], strict=True):
            if relevance > 0:
                row.append(number)
                label.append(target)
    return texts, csr_array((np.ones(len(row), np.float32), (row, label)), shape=(len(texts), LABELS))


def sparse_loop(path: Path) -> csr_array:
    """Labels of the first rows of a sparse label file, the obvious way."""
    row, label = [], []
    with path.open() as stream:
        next(stream)
        for number, line in zip(range(SAMPLE), stream, strict=False):
            for word in line.split():
                target, relevance = word.split(":")
                if float(relevance) > 0:
                    row.append(number)
                    label.append(int(target))
    return csr_array((np.ones(len(row), np.float32), (row, label)), shape=(SAMPLE, LABELS))


def _first_bytes(path: Path) -> int:
    """How many decompressed bytes the first `SAMPLE` lines have."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return sum(len(line) for _, line in zip(range(SAMPLE), stream, strict=False))


def write_raw(folder: Path) -> int:
    """Writes all raw files; returns how many bytes the JSON and filter files hold decompressed."""
    draw = np.random.default_rng(0)
    with progress("writing raw files", TRAIN + TEST + LABELS, "texts") as advance:
        written = _write_json(folder / "lbl.json.gz", LABELS, draw, advance)
        for split, count in (("trn", TRAIN), ("tst", TEST)):
            with (folder / f"{split}_X_Y.txt").open("wb") as sparse:
                sparse.write(f"{count} {LABELS}\n".encode())
                written += _write_json(folder / f"{split}.json.gz", count, draw, advance, sparse.write)
        for split, count in (("train", TRAIN), ("test", TEST)):
            pairs = np.stack([np.arange(0, count, 10), draw.integers(LABELS, size=-(-count // 10))], axis=1)
            text = "".join(f"{row} {label}\n" for row, label in pairs.tolist())
            written += (folder / f"filter_labels_{split}.txt").write_text(text)
    return written


def _write_json(
    path: Path,
    count: int,
    draw: np.random.Generator,
    advance: Callable[[int], None],
    also_sparse: Callable[[bytes], object] | None = None,
) -> int:
    """JSON lines of titles; with labels if they are to be written as sparse text too. Returns the bytes."""
    words, written = np.array(synthetic_words()), 0
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for start in range(0, count, CHUNK):
            titles = _titles(words, min(CHUNK, count - start), draw)
            documents: list[dict[str, Any]] = [
                {"uid": f"{path.name[0]}{start + place}", "title": title} for place, title in enumerate(titles)
            ]
            if also_sparse is not None:
                labels = [np.unique(draw.integers(LABELS, size=size)).tolist() for size in _sizes(len(titles), draw)]
                documents = [
                    {**document, "target_ind": some, "target_rel": [1.0] * len(some)}
                    for document, some in zip(documents, labels, strict=True)
                ]
                lines = (" ".join(f"{label}:1.0" for label in some) for some in labels)
                also_sparse(("\n".join(lines) + "\n").encode())
            written += stream.write(b"".join(orjson.dumps(document) + b"\n" for document in documents))
            advance(len(titles))
    return written


def _sizes(count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    return 1 + draw.poisson(LABELS_PER_ROW - 1, count)


def _titles(words: NDArray[np.str_], count: int, draw: np.random.Generator) -> list[str]:
    """Texts of about `WORDS` words whose frequencies follow Zipf's law."""
    lengths = 1 + draw.poisson(WORDS - 1, count)
    drawn = words[draw.zipf(1.2, size=int(lengths.sum())) % len(words)].tolist()
    ends = np.cumsum(lengths).tolist()
    return [" ".join(drawn[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
