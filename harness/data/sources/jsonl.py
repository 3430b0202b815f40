"""A user's own data: a folder of JSON lines, plain or gzip.

    train.jsonl  test.jsonl    {"text": "...", "labels": [label ids], "id": optional}
    labels.jsonl               {"id": ..., "text": "..."}
    filter.jsonl (optional)    {"split": "train" or "test", "id": row id, "label": label id}: never to be predicted

Ids are strings or whole numbers and are compared as strings, so 7 and "7" are one id. A label repeated within a row is
kept once and counted in the warnings. With the card's option `test_fraction` there is no test.jsonl: a row of
train.jsonl is a test row if a hash of its text says so, whatever its place, so rows of equal text stay together.
"""

import difflib
import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources.documents import count_empty, plain_texts, warn
from harness.data.sources.importing import import_folder
from harness.data.sources.lines import JsonRows, json_chunks
from harness.data.sources.pattern import PatternBuilder, from_pairs
from harness.data.sources.repository import SPLITS, file_facts
from harness.errors import DataError, MissingDataError, UserError
from harness.progress import progress

__all__ = ["JsonlSource", "find_files", "import_folder"]

_MOST_LABELS_FOR_HINT = 20_000


class JsonlSource:
    """Reads a folder of JSON lines; see `harness.data.prepare.Source`."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Relative name, size and modification time of every file that is read."""
        return {"files": file_facts(find_files(card, raw).values(), raw)}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Streams texts, labels and filters into the prepared folder."""
        files = find_files(card, raw)
        warnings: list[str] = []
        label_of = _write_labels(files["labels"], writer, warnings)
        fraction = _test_fraction(card)
        with ExitStack() as columns:
            splits = {name: _Split(name, writer, len(label_of), columns) for name in SPLITS}
            parts = {
                name: _read_rows(files[name], name, splits, label_of, fraction) for name in SPLITS if name in files
            }
        shapes = {}
        for name in SPLITS:
            matrix = splits[name].finish(files.get(name, files["train"]), warnings)
            writer.matrix(f"{name}.labels", matrix)
            shapes[name] = matrix.shape
        if "filter" in files:
            for name, pairs in _read_filter(files["filter"], parts, label_of).items():
                writer.matrix(f"{name}.filter", from_pairs(pairs[:, 0], pairs[:, 1], shapes[name]))
        return {
            "layout": "jsonl",
            "files": [path.name for path in files.values()],
            "filter_files": [files["filter"].name] if "filter" in files else [],
            "warnings": warnings,
        }


def find_files(card: DatasetCard, raw: Path) -> dict[str, Path]:
    """The files of a folder by what they hold: `labels`, `train`, `test` unless held out, `filter` if there."""
    files = {
        name: path
        for name in ("labels", "train", "test", "filter")
        for path in (raw / f"{name}.jsonl.gz", raw / f"{name}.jsonl")
        if path.is_file()
    }
    held_out = _test_fraction(card) > 0
    if held_out and "test" in files:
        raise UserError(f"{files['test']} holds the test rows already; leave out the test fraction, or that file")
    missing = [f"{name}.jsonl" for name in ("train", "test", "labels") if name not in files]
    if missing == ["test.jsonl"] and not held_out:
        raise MissingDataError(
            f"{raw} has no test.jsonl; write one, or hold out test rows of train.jsonl (here a fifth of them):\n"
            f"  python -m harness data import {raw} --name {card.name} --test-fraction 0.2"
        )
    if missing not in ([], ["test.jsonl"]):
        raise MissingDataError(
            f"{raw} has no {', no '.join(missing)}; a dataset of your own is train.jsonl and test.jsonl "
            "(`text`, `labels`: a list of label ids) and labels.jsonl (`id`, `text`), one JSON object per line"
        )
    return files


def _test_fraction(card: DatasetCard) -> float:
    """The share of train.jsonl that is held out; 0 without that option."""
    fraction = card.options.get("test_fraction", 0)
    if "test_fraction" in card.options and not (isinstance(fraction, float) and 0 < fraction < 1):
        raise UserError(f"{card.name}: the test fraction is {fraction!r}; it must lie between 0 and 1, for example 0.2")
    return float(fraction)


def _write_labels(path: Path, writer: DatasetWriter, warnings: list[str]) -> dict[str, int]:
    """Writes label texts and ids; returns the column of every label id."""
    label_of: dict[str, int] = {}
    empty = 0
    with writer.texts("labels.text") as texts, writer.texts("labels.id") as ids:
        for rows in json_chunks(path):
            strings, names = plain_texts(rows.column("text", str)), rows.column("id", str, int)
            _add_ids(label_of, names, len(label_of), rows, "label")
            texts.extend_strings(strings)
            ids.extend_strings(list(map(str, names)))
            empty += count_empty(strings)
    if not label_of:
        raise DataError("the file has no labels", path)
    warn(warnings, path, empty, "empty texts")
    return label_of


def _add_ids(index: dict[str, int], ids: list[Any], start: int, rows: JsonRows, kind: str) -> None:
    """Adds the ids of a chunk, numbered from `start` on, None being no id; a repeated one is refused at its line."""
    known = len(index)
    new = {str(name): number for number, name in enumerate(ids, start) if name is not None}
    index.update(new)
    if len(index) == known + len(ids) - ids.count(None):
        return
    seen = set(islice(index, known))
    for row, name in enumerate(ids):
        if str(name) in seen:
            raise rows.fault(row, f"{kind} id {str(name)!r} stands in this file already")
        if name is not None:
            seen.add(str(name))


class _Split:
    """Train or test rows while they are written: texts, labels, and counts of what is odd."""

    def __init__(self, name: str, writer: DatasetWriter, labels: int, columns: ExitStack) -> None:
        self._name = name
        self._texts = columns.enter_context(writer.texts(f"{name}.text"))
        self._builder = PatternBuilder(labels)
        self._repeats = self._empty = 0

    def extend(
        self,
        strings: list[str],
        lengths: NDArray[np.int64],
        labels: NDArray[np.int64],
        chosen: NDArray[np.bool_],
    ) -> None:
        """Appends those rows of a chunk that are chosen, [rows]."""
        own = list(compress(strings, chosen))
        self._texts.extend_strings(own)
        self._empty += count_empty(own)
        self._repeats += self._builder.extend(lengths[chosen], labels[np.repeat(chosen, lengths)])

    def finish(self, path: Path, warnings: list[str]) -> csr_array:
        """The label matrix, once all rows are in."""
        matrix = self._builder.finish()
        if not matrix.shape[0]:
            raise DataError(f"there are no {self._name} rows", path)
        warn(warnings, path, self._empty, f"empty {self._name} texts")
        warn(warnings, path, self._repeats, f"labels repeated within a {self._name} row, kept once")
        warn(warnings, path, int((np.diff(matrix.indptr) == 0).sum()), f"{self._name} rows without labels")
        return matrix


class _Part:
    """Where the rows of one file went."""

    def __init__(self, row_of: dict[str, int], in_test: NDArray[np.bool_]) -> None:
        self.row_of = row_of
        self.in_test = in_test
        self.place = np.where(in_test, np.cumsum(in_test), np.cumsum(~in_test)) - 1
        """Row within its split, [rows of the file]."""


def _read_rows(
    path: Path, name: str, splits: dict[str, _Split], label_of: dict[str, int], test_fraction: float
) -> _Part:
    row_of: dict[str, int] = {}
    in_test, count = [np.zeros(0, np.bool_)], 0
    with progress(f"reading {path.name}") as advance:
        for rows in json_chunks(path):
            strings = plain_texts(rows.column("text", str))
            lengths, labels = _label_columns(rows, label_of)
            _add_ids(row_of, rows.column("id", str, int, default=None), count, rows, "row")
            test = _held_out(strings, test_fraction) if test_fraction else np.full(len(rows), name == "test")
            splits["train"].extend(strings, lengths, labels, ~test)
            splits["test"].extend(strings, lengths, labels, test)
            in_test.append(test)
            count += len(rows)
            advance(len(rows))
    return _Part(row_of, np.concatenate(in_test))


def _label_columns(rows: JsonRows, label_of: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many labels each row has [rows], and the columns of all of them [pairs]."""
    lengths, ids = rows.lists("labels", str, int)
    try:
        return lengths, np.fromiter(map(label_of.__getitem__, map(str, ids)), np.int64, len(ids))
    except KeyError as error:
        unknown = error.args[0]
    row = next(i for i, row in enumerate(rows.rows) if unknown in map(str, row["labels"]))
    raise rows.fault(row, _unknown(f"label id {unknown!r} is not in labels.jsonl", unknown, label_of))


def _unknown(message: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(islice(known, _MOST_LABELS_FOR_HINT)), n=1, cutoff=0.6)
    return message + (f"; did you mean {near[0]!r}?" if near else "")


def _held_out(strings: list[str], fraction: float) -> NDArray[np.bool_]:
    """Whether the hash of each text, as a number in [0, 1), is below the fraction, [rows]."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in strings)
    return np.frombuffer(digests, "<u8") / 2.0**64 < fraction


def _read_filter(path: Path, parts: dict[str, _Part], label_of: dict[str, int]) -> dict[str, NDArray[np.int64]]:
    """Pairs (row of the split, label) of each split, [pairs, 2]."""
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in SPLITS}
    for rows in json_chunks(path):
        columns = rows.column("split", str), rows.column("id", str, int), rows.column("label", str, int)
        for number, (split, row_id, label) in enumerate(zip(*columns, strict=True)):
            if split not in parts:
                raise rows.fault(number, f"`split` is {split!r}; expected the file of the row: {' or '.join(parts)}")
            part = parts[split]
            if str(row_id) not in part.row_of:
                none = "" if part.row_of else " (none has an `id`)"
                problem = f"no row of {split}.jsonl has the id {str(row_id)!r}{none}"
                raise rows.fault(number, _unknown(problem, str(row_id), part.row_of))
            if str(label) not in label_of:
                raise rows.fault(number, _unknown(f"label id {label!r} is not in labels.jsonl", str(label), label_of))
            row = part.row_of[str(row_id)]
            pairs["test" if part.in_test[row] else "train"].append((int(part.place[row]), label_of[str(label)]))
    return {name: np.array(found, np.int64).reshape(-1, 2) for name, found in pairs.items()}
