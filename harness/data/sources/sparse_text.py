"""Reading sparse label files (`trn_X_Y.txt`) and filter files of the Extreme Classification Repository.

Two header styles, told apart by the first line:

    rows labels             then per row `label:relevance label:relevance ...`, labels from 0, an empty line = no labels
    rows features labels    then per row `label,label feature:value ...`; a row without labels begins with a space

A label is positive if its relevance is above zero; zero means absent, and a negative relevance is an error. Labels out
of order are sorted. A label twice in a row, or a number that contradicts the header, is an error at its line, even a
label of relevance zero or a feature. Empty lines after the last row are ignored. Values of features are not read.

A chunk is parsed whole by pyarrow's CSV reader: white space becomes newlines, so that every word is a line of the CSV.
If anything in the chunk is unusual, the line-by-line reader takes over, which defines the format and finds the fault.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.pattern import MOST_LABELS, PatternBuilder, from_pairs
from harness.data.sources.lines import line_chunks
from harness.errors import DataError

MOST_DIGITS = 18
"""Most digits of a number: decimal numbers of up to 18 digits fit int64."""

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rows of labels: the number of labels of each row [rows], and all labels [pairs]."""


class _Header(NamedTuple):
    rows: int
    labels: int
    features: int | None
    """Number of features in the style with three numbers, with labels comma-joined before features; else None."""


def read_labels(path: Path) -> csr_array:
    """Read a sparse label file, plain or gzip, as a [rows, L] matrix of ones."""
    header: _Header | None = None
    builder, seen = PatternBuilder(0), 0
    for first, chunk in line_chunks(path):
        if header is None:
            line, _, chunk = chunk.partition(b"\n")
            header, first = _parse_header(line, path), 2
            builder = PatternBuilder(header.labels)
        chunk = _only_promised_rows(chunk, header.rows - seen, path, first, header)
        if not chunk:
            continue
        rows = _fast_pairs(chunk, header) if header.features is None else _fast_label_lists(chunk, header)
        lengths, labels = rows or _read_slowly(chunk, header, path, first)
        if builder.extend(lengths, labels):
            _read_slowly(chunk, header, path, first)
            raise AssertionError("the line-by-line reader refuses a repeated label")
        seen += len(lengths)
    if header is None:
        raise DataError("the file is empty; its first line must be `rows labels`", path, 1)
    if seen < header.rows:
        raise DataError(f"the header promises {header.rows:,} rows, but the file has {seen:,}", path, 1)
    return builder.finish()


def read_filter(path: Path, rows: int, labels: int) -> csr_array:
    """Read a filter file, lines of `row label` from 0, as a [rows, L] matrix of ones; it may be empty.

    Lines may be in any order; repeated pairs count once.
    """
    pairs = [np.zeros((0, 2), np.int64)]
    for first, chunk in line_chunks(path):
        words = _columns(chunk, max(rows, labels))
        if words is None or not np.isin(_words_per_line(chunk), (0, 2)).all():
            pairs.append(_filter_slowly(chunk, (rows, labels), path, first))
            continue
        pairs.append(words["number"].reshape(-1, 2).astype(np.int64))
        if (pairs[-1] >= (rows, labels)).any():
            _filter_slowly(chunk, (rows, labels), path, first)
    all_pairs = np.concatenate(pairs)
    return from_pairs(all_pairs[:, 0], all_pairs[:, 1], (rows, labels))


def _parse_header(line: bytes, path: Path) -> _Header:
    numbers = line.split()
    if len(numbers) not in (2, 3) or not all(word.isdigit() and len(word) <= MOST_DIGITS for word in numbers):
        raise DataError(
            f"the first line must be `rows labels` or `rows features labels`, not {_quoted(line.strip())}", path, 1
        )
    header = _Header(int(numbers[0]), int(numbers[-1]), int(numbers[1]) if len(numbers) == 3 else None)
    if header.labels > MOST_LABELS:
        raise DataError(f"the header promises {header.labels:,} labels; at most {MOST_LABELS:,} are possible", path, 1)
    return header


def _only_promised_rows(chunk: bytes, rows_left: int, path: Path, first: int, header: _Header) -> bytes:
    """Return the chunk up to the last row that the header announces; only empty lines may follow it."""
    if chunk.count(b"\n") <= rows_left:
        return chunk
    newlines = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
    cut = int(newlines[rows_left - 1]) + 1 if rows_left else 0
    for number, line in enumerate(chunk[cut:].split(b"\n"), first + rows_left):
        if line.strip():
            raise DataError(f"a row too many: the header promises {header.rows:,} rows", path, number)
    return chunk[:cut]


# The fast path: functions of one chunk; None means "something unusual here".


def _fast_pairs(chunk: bytes, header: _Header) -> Rows | None:
    """Parse rows of `label:relevance` words."""
    words = _columns(chunk, header.labels, paired=True)
    if words is None or not (words["value"] >= 0).all():
        return None
    rows, labels, positive = _words_per_line(chunk), words["number"].astype(np.int64), words["value"] > 0
    if positive.all():
        return rows, labels
    lengths = np.bincount(np.repeat(np.arange(len(rows)), rows)[positive], minlength=len(rows))
    return lengths, labels[positive]


def _fast_label_lists(chunk: bytes, header: _Header) -> Rows | None:
    """Parse rows that begin with `label,label`; after the first space only the numbers of features are read."""
    lists, features = re.sub(rb"[ \t\r][^\n]*", b"", chunk), re.sub(rb"\n[^ \t\r\n]+", b"\n", b"\n" + chunk)
    spaced = lists.replace(b",", b" ")
    labels = _columns(spaced, header.labels)
    # n labels are joined by n - 1 commas, so `1,,2`, `,1` and `1,` have a number too few
    if labels is None or len(labels["number"]) != lists.count(b",") + _words_per_line(lists).sum():
        return None
    if _columns(features, header.features or 0, paired=True, values=False) is None:
        return None
    return _words_per_line(spaced), labels["number"].astype(np.int64)


def _columns(chunk: bytes, count: int, *, paired: bool = False, values: bool = True) -> dict[str, NDArray[Any]] | None:
    """Return arrays [words]: the `number` of each word, and the `value` after its colon; None if anything is unusual.

    Args:
        chunk: Whole lines; every word is a number, or number:value.
        count: Upper bound; every number must be smaller.
        paired: Whether the words have values.
        values: Whether to read the values.
    """
    import pyarrow
    from pyarrow import csv

    if chunk.translate(None, (b"0123456789:.+-eE" if paired else b"0123456789") + b" \t\r\n"):
        return None
    lines = chunk.translate(bytes.maketrans(b": \t\r", b",\n\n\n"))
    if b",\n" in lines:
        return None
    names = ["number", "value"] if paired else ["number"]
    try:
        table = csv.read_csv(
            pyarrow.py_buffer(lines),
            csv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names),
            csv.ParseOptions(quote_char=False),
            csv.ConvertOptions(
                column_types={"number": "uint32", "value": "float64"},
                include_columns=names if values else ["number"],
                null_values=[],
            ),
        )
    except pyarrow.ArrowInvalid:
        return None
    words = {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}
    return None if len(words["number"]) and words["number"].max() >= count else words


def _words_per_line(chunk: bytes) -> NDArray[np.int64]:
    """Return the number of words in each line, [rows]."""
    text = np.frombuffer(chunk, np.uint8)
    solid = text > ord(" ")
    ends = np.flatnonzero(solid[:-1] & ~solid[1:])
    return np.diff(np.searchsorted(ends, np.flatnonzero(text == ord("\n"))), prepend=0)


# The slow path: the format line by line. It refuses what is wrong and parses what is merely unusual.


def _read_slowly(chunk: bytes, header: _Header, path: Path, first: int) -> Rows:
    parse: Callable[[bytes, _Header], list[int]] = _pairs_of_line if header.features is None else _label_list_of_line
    rows = []
    for number, line in enumerate(chunk.split(b"\n")[:-1], first):
        try:
            rows.append(parse(line, header))
        except ValueError as error:
            raise DataError(str(error), path, number) from None
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return lengths, np.array([label for row in rows for label in row], np.int64)


def _pairs_of_line(line: bytes, header: _Header) -> list[int]:
    seen: dict[int, None] = {}
    for word in line.split():
        label, colon, relevance = word.partition(b":")
        if not colon:
            raise ValueError(f"{_quoted(word)} is not of the form label:relevance")
        index = _index(label, header.labels, "label")
        if not _NUMBER.fullmatch(relevance):
            raise ValueError(f"relevance {_quoted(relevance)} in {_quoted(word)} is not a number")
        if float(relevance) < 0:
            raise ValueError(f"relevance {_quoted(relevance)} in {_quoted(word)} is negative")
        if float(relevance) > 0:
            _keep_new(seen, index)
    return list(seen)


def _label_list_of_line(line: bytes, header: _Header) -> list[int]:
    joined, *behind = re.split(rb"[ \t\r]", line, maxsplit=1)
    seen: dict[int, None] = {}
    for label in joined.split(b",") if joined else ():
        if b":" in label:
            raise ValueError(
                f"{_quoted(label)} where labels joined by commas belong; a row without labels begins with a space"
            )
        _keep_new(seen, _index(label, header.labels, "label"))
    for word in behind[0].split() if behind else ():
        feature, _, value = word.partition(b":")
        if not value:
            raise ValueError(f"{_quoted(word)} is not of the form feature:value")
        _index(feature, header.features or 0, "feature")
    return list(seen)


def _keep_new(seen: dict[int, None], label: int) -> None:
    if label in seen:
        raise ValueError(f"label {label} appears twice in this row")
    seen[label] = None


def _filter_slowly(chunk: bytes, shape: tuple[int, int], path: Path, first: int) -> NDArray[np.int64]:
    pairs = []
    for number, line in enumerate(chunk.split(b"\n")[:-1], first):
        words = line.split()
        try:
            if len(words) not in (0, 2):
                raise ValueError(f"expected two numbers, `row label`, not {_quoted(line.strip())}")
            if words:
                pairs.append((_index(words[0], shape[0], "row"), _index(words[1], shape[1], "label")))
        except ValueError as error:
            raise DataError(str(error), path, number) from None
    return np.array(pairs, np.int64).reshape(-1, 2)


def _index(word: bytes, count: int, what: str) -> int:
    if not word.isdigit():
        raise ValueError(f"{what} {_quoted(word)} is not a whole number from 0 on")
    if len(word) > MOST_DIGITS or int(word) >= count:
        raise ValueError(f"{what} {_quoted(word)} is out of range: there are {count:,}, counted from 0")
    return int(word)


def _quoted(text: bytes) -> str:
    """Return the beginning of a text, quoted for a message."""
    beginning = text[:40].decode("utf-8", "backslashreplace").replace("\0", "\\0")
    return f"{beginning!r}" + ("..." if len(text) > 40 else "")
