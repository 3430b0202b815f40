"""Sparse label files (`trn_X_Y.txt`) and filter files of the Extreme Classification Repository, as CSR patterns.

Two header styles, told apart by the first line:

    rows labels             then per row `label:relevance label:relevance ...`, labels from 0, an empty line = no labels
    rows features labels    then per row `label,label feature:value ...`; a row without labels begins with a space

A label is positive if its relevance is above zero. A zero is as good as not written, and less than zero is an error.
Labels out of order are sorted. A label twice in a row, or a number against the header, is an error at its line, be it a
label of relevance zero or a feature. Empty lines after the last row are ignored. Values of features are not read.

A chunk is parsed as one byte array. If anything in it is unusual, the line-by-line reader takes over, which defines the
format and finds the fault.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.sources.byte_words import (
    COLON,
    COMMA,
    DIGIT,
    DOT,
    MOST_DIGITS,
    OTHER,
    SIGN,
    SPACE,
    ZERO,
    ByteWords,
    Places,
)
from harness.data.sources.lines import line_chunks
from harness.data.sources.pattern import MOST_LABELS, PatternBuilder, from_pairs
from harness.errors import DataError

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Labels per row [rows], and all labels [pairs]."""


class _Header(NamedTuple):
    rows: int
    labels: int
    features: int | None
    """Given by the style with three numbers, in which labels are comma-joined in front of the features."""


def read_labels(path: Path) -> csr_array:
    """Reads a sparse label file, plain or gzip, as a [rows, L] pattern of ones."""
    header: _Header | None = None
    builder, seen = PatternBuilder(0), 0
    for first, chunk in line_chunks(path):
        if header is None:
            line, _, chunk = chunk.partition(b"\n")
            header, first = _parse_header(line, path), 2
            builder = PatternBuilder(header.labels)
        chunk = _only_promised_rows(chunk, header.rows - seen, path, first, header)
        lengths, labels = _parse_chunk(chunk, header, path, first)
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
    """Reads a filter file, lines of `row label` from 0, as a [rows, L] pattern; an empty file masks nothing.

    Lines may be in any order, and a pair that is repeated is one pair.
    """
    pairs = [np.zeros((0, 2), np.int64)]
    for first, chunk in line_chunks(path):
        fast = _fast_filter(ByteWords(chunk))
        if fast is None or (fast >= (rows, labels)).any():
            fast = _filter_slowly(chunk, (rows, labels), path, first)
        pairs.append(fast)
    all_pairs = np.concatenate(pairs)
    return from_pairs(all_pairs[:, 0], all_pairs[:, 1], (rows, labels))


def _parse_header(line: bytes, path: Path) -> _Header:
    numbers = line.split()
    if len(numbers) not in (2, 3) or not all(_is_index(number) for number in numbers):
        raise DataError(
            f"the first line must be `rows labels` or `rows features labels`, not {_shown(line.strip())}", path, 1
        )
    header = _Header(int(numbers[0]), int(numbers[-1]), int(numbers[1]) if len(numbers) == 3 else None)
    if header.labels > MOST_LABELS:
        raise DataError(f"the header promises {header.labels:,} labels; at most {MOST_LABELS:,} are possible", path, 1)
    return header


def _only_promised_rows(chunk: bytes, rows_left: int, path: Path, first: int, header: _Header) -> bytes:
    """Cuts off what follows the last row that the header promises, which must be empty lines."""
    if chunk.count(b"\n") <= rows_left:
        return chunk
    newlines = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
    cut = int(newlines[rows_left - 1]) + 1 if rows_left else 0
    for number, line in enumerate(chunk[cut:].split(b"\n"), first + rows_left):
        if line.strip():
            raise DataError(f"a row too many: the header promises {header.rows:,} rows", path, number)
    return chunk[:cut]


def _parse_chunk(chunk: bytes, header: _Header, path: Path, first: int) -> Rows:
    if not chunk:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    fast = _fast_pairs if header.features is None else _fast_label_lists
    rows = fast(ByteWords(chunk), header)
    return _read_slowly(chunk, header, path, first) if rows is None else rows


# The fast path: functions of one chunk; None means "something unusual here".


def _fast_pairs(chunk: ByteWords, header: _Header) -> Rows | None:
    """Rows of `label:relevance` words."""
    words = _numbered_words(chunk, chunk.kinds, header.labels)
    positive = None if words is None else _is_positive(chunk, words.colons + 1, words.ends)
    if words is None or positive is None:
        return None
    return chunk.words_per_line(words.starts[positive]), words.numbers[positive]


class _NumberedWords(NamedTuple):
    starts: Places
    colons: Places
    ends: Places
    numbers: NDArray[np.int64]
    """What stands before the colon."""


def _numbered_words(chunk: ByteWords, kinds: NDArray[np.uint8], count: int) -> _NumberedWords | None:
    """Words of the form number:something, each number below `count`."""
    starts, ends = chunk.words(kinds)
    colons = np.flatnonzero(kinds == COLON)
    if len(colons) != len(starts) or (starts >= colons).any() or (colons + 1 >= ends).any():
        return None
    numbers = chunk.decimal(starts, colons)
    if numbers is None or numbers.max(initial=-1) >= count:
        return None
    return _NumberedWords(starts, colons, ends, numbers)


def _is_positive(chunk: ByteWords, starts: Places, ends: Places) -> NDArray[np.bool_] | None:
    """Whether each relevance is above zero, [words]; `1` and `0.50` by their digits, other notations as floats."""
    within = chunk.kinds_within(starts, ends)
    if within is None or (within & ~np.uint8(ZERO | DIGIT | DOT | SIGN)).any():
        return None
    if (chunk.kinds == DOT).sum() != ((within & DOT) > 0).sum():
        return None  # two dots in one number, or one in a label
    positive = (within & DIGIT) > 0
    unclear = np.flatnonzero(~positive | ((within & SIGN) > 0))
    if len(unclear):
        relevance = chunk.floats(starts[unclear], ends[unclear])
        if relevance is None or not (relevance >= 0).all():
            return None
        positive[unclear] = relevance > 0
    return positive


def _fast_label_lists(chunk: ByteWords, header: _Header) -> Rows | None:
    """Rows that begin with `label,label`; of what follows the first space only the numbers of features are read."""
    line_starts = np.concatenate([[0], chunk.newlines[:-1] + 1])
    spaces = np.flatnonzero(chunk.kinds == SPACE)
    list_ends = spaces[np.searchsorted(spaces, line_starts)]
    step = np.zeros(len(chunk.text), np.int8)
    step[line_starts] += 1
    step[list_ends] -= 1
    in_list = np.cumsum(step, dtype=np.int8) > 0
    kinds = np.where(in_list, chunk.kinds, np.uint8(SPACE))
    commas = kinds == COMMA
    starts, ends = chunk.words(np.where(commas, np.uint8(SPACE), kinds))
    # n labels are joined by n - 1 commas, so `1,,2`, `,1` and `1,` have a word too few
    if len(starts) != commas.sum() + (list_ends > line_starts).sum():
        return None
    labels = chunk.decimal(starts, ends)
    if labels is None or labels.max(initial=-1) >= header.labels:
        return None
    behind = np.where(in_list, np.uint8(SPACE), chunk.kinds)
    if (behind == OTHER).any() or _numbered_words(chunk, behind, header.features or 0) is None:
        return None
    return chunk.words_per_line(starts), labels


def _fast_filter(chunk: ByteWords) -> NDArray[np.int64] | None:
    """Pairs [pairs, 2] of `row label` lines."""
    starts, ends = chunk.words(chunk.kinds)
    if not np.isin(chunk.words_per_line(starts), (0, 2)).all():
        return None
    numbers = chunk.decimal(starts, ends)
    return None if numbers is None else numbers.reshape(-1, 2)


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
            raise ValueError(f"{_shown(word)} is not of the form label:relevance")
        index = _index(label, header.labels, "label")
        if not _NUMBER.fullmatch(relevance):
            raise ValueError(f"relevance {_shown(relevance)} in {_shown(word)} is not a number")
        if float(relevance) < 0:
            raise ValueError(f"relevance {_shown(relevance)} in {_shown(word)} is negative")
        if float(relevance) > 0:
            _keep_new(seen, index)
    return list(seen)


def _label_list_of_line(line: bytes, header: _Header) -> list[int]:
    joined, *behind = re.split(rb"[ \t\r]", line, maxsplit=1)
    seen: dict[int, None] = {}
    for label in joined.split(b",") if joined else ():
        if b":" in label:
            raise ValueError(
                f"{_shown(label)} where labels joined by commas belong; a row without labels begins with a space"
            )
        _keep_new(seen, _index(label, header.labels, "label"))
    for word in behind[0].split() if behind else ():
        feature, _, value = word.partition(b":")
        if not value:
            raise ValueError(f"{_shown(word)} is not of the form feature:value")
        _index(feature, header.features or 0, "feature")
    return list(seen)


def _keep_new(seen: dict[int, None], label: int) -> None:
    if label in seen:
        raise ValueError(f"label {label} stands twice in this row")
    seen[label] = None


def _filter_slowly(chunk: bytes, shape: tuple[int, int], path: Path, first: int) -> NDArray[np.int64]:
    pairs = []
    for number, line in enumerate(chunk.split(b"\n")[:-1], first):
        words = line.split()
        try:
            if len(words) not in (0, 2):
                raise ValueError(f"expected two numbers, `row label`, not {_shown(line.strip())}")
            if words:
                pairs.append((_index(words[0], shape[0], "row"), _index(words[1], shape[1], "label")))
        except ValueError as error:
            raise DataError(str(error), path, number) from None
    return np.array(pairs, np.int64).reshape(-1, 2)


def _is_index(word: bytes) -> bool:
    return word.isdigit() and len(word) <= MOST_DIGITS


def _index(word: bytes, count: int, what: str) -> int:
    if not word.isdigit():
        raise ValueError(f"{what} {_shown(word)} is not a whole number from 0 on")
    if len(word) > MOST_DIGITS or int(word) >= count:
        raise ValueError(f"{what} {_shown(word)} is out of range: there are {count:,}, counted from 0")
    return int(word)


def _shown(text: bytes) -> str:
    shown = text[:40].decode("utf-8", "backslashreplace").replace("\0", "\\0")
    return f"{shown!r}" + ("..." if len(text) > 40 else "")
