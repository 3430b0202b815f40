"""Documents of the Extreme Classification Repository, streamed into text columns: JSON lines or plain lines.

    trn.json.gz   per line {"uid": .., "title": .., "content": .., "target_ind": [labels], "target_rel": [relevances]}
    trn_X.txt     one document per line

Text is UTF-8. A JSON line that is not is refused; a plain text file that is not, as a whole, is read as latin-1 with a
warning, because published tools write that. NUL characters become spaces. A row's labels are sorted, and one that it
repeats is kept once. `warnings` says what was odd.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.data.ragged import RaggedWriter
from harness.data.sources.lines import JsonRows, json_chunks, line_chunks
from harness.errors import DataError
from harness.progress import progress

Recipe = Literal["title", "title+content"]


def json_documents(
    path: Path, recipe: Recipe, column: RaggedWriter, warnings: list[str]
) -> Iterator[tuple[JsonRows, list[str]]]:
    """Writes the text of every row into `column`; yields the rows of each chunk with their uids.

    Rows that share a uid are refused once the whole file is read.
    """
    hashes, empty = [np.zeros(0, np.int64)], 0
    with progress(f"reading {path.name}") as advance:
        for rows in json_chunks(path):
            texts = plain_texts(_texts(rows, recipe))
            empty += count_empty(texts)
            column.extend_strings(texts)
            uids = list(map(str, rows.column("uid", str, int)))
            hashes.append(np.fromiter(map(hash, uids), np.int64, len(uids)))
            yield rows, uids
            advance(len(rows))
    _refuse_repeated_uid(path, np.concatenate(hashes))
    warn(warnings, path, empty, "empty texts")


def label_texts(path: Path, recipe: Recipe, column: RaggedWriter, warnings: list[str]) -> Iterator[list[str]]:
    """Writes label texts from JSON lines; yields the uids of each chunk."""
    for _, uids in json_documents(path, recipe, column, warnings):
        yield uids


def label_names(path: Path, column: RaggedWriter, warnings: list[str]) -> Iterator[list[str]]:
    """Writes label texts from lines `number->name`, line i being label i; yields the ids of each chunk."""
    encoding, empty = _encoding(path, warnings), 0
    for first, chunk in line_chunks(path):
        lines = chunk.decode(encoding).split("\n")[:-1]
        for line, text in enumerate(lines, first):
            if "->" not in text:
                raise DataError("expected number->name", path, line)
        names = plain_texts([text.partition("->")[2].strip() for text in lines])
        empty += count_empty(names)
        column.extend_strings(names)
        yield [str(label) for label in range(first - 1, first - 1 + len(lines))]
    warn(warnings, path, empty, "empty texts")


def _encoding(path: Path, warnings: list[str]) -> str:
    """UTF-8 if the whole file is, else latin-1 with a warning."""
    for first, chunk in line_chunks(path):
        try:
            chunk.decode()
        except UnicodeDecodeError as error:
            line = first + chunk.count(b"\n", 0, error.start)
            warnings.append(f"{path.name}: read as latin-1, because line {line} is not UTF-8")
            return "latin-1"
    return "utf-8"


def _texts(rows: JsonRows, recipe: Recipe) -> list[str]:
    titles: list[str] = rows.column("title", str)
    if recipe == "title":
        return titles
    contents: list[str] = rows.column("content", str, default="")
    return [
        f"{title} {content}" if title and content else title or content
        for title, content in zip(titles, contents, strict=True)
    ]


def plain_texts(texts: list[str]) -> list[str]:
    """Texts without NUL characters, which become spaces: tokenisers and terminals disagree about them."""
    return [text.replace("\0", " ") for text in texts] if any("\0" in text for text in texts) else texts


def count_empty(texts: list[str]) -> int:
    """How many texts hold nothing, or white space only."""
    return texts.count("") + sum(map(str.isspace, texts))


def _refuse_repeated_uid(path: Path, hashes: NDArray[np.int64]) -> None:
    """Eight bytes a row while reading; the uids themselves are compared only if two hashes are equal."""
    hashes.sort()
    if (hashes[1:] != hashes[:-1]).all():
        return
    line_of: dict[str, int] = {}
    for rows in json_chunks(path):
        for line, uid in enumerate(map(str, rows.column("uid", str, int)), rows.first):
            if uid in line_of:
                raise DataError(f"uid {uid!r} stands on line {line_of[uid]} already", path, line)
            line_of[uid] = line


def targets(rows: JsonRows, labels: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positive labels of a chunk: how many each row has [rows], and all of them [pairs]; zero relevance is dropped."""
    lengths, items = rows.lists("target_ind", int)
    if items and not (0 <= min(items) and max(items) < labels):
        row, label = _first(rows, "target_ind", lambda item: not 0 <= item < labels)
        raise rows.fault(row, f"label {label} in `target_ind` is out of range: there are {labels:,}, counted from 0")
    indices = np.array(items, np.int64)
    if not any("target_rel" in row for row in rows.rows):
        return lengths, indices
    relevance_lengths, values = rows.lists("target_rel", int, float)
    if (lengths != relevance_lengths).any():
        row = int(np.flatnonzero(lengths != relevance_lengths)[0])
        raise rows.fault(
            row, f"{lengths[row]} labels in `target_ind` but {relevance_lengths[row]} values in `target_rel`"
        )
    relevances = np.array(values, np.float64)
    if (relevances < 0).any():
        row, value = _first(rows, "target_rel", lambda item: item < 0)
        raise rows.fault(row, f"`target_rel` holds {value}; a relevance cannot be negative")
    positive = relevances > 0
    before = np.concatenate([[0], np.cumsum(positive)])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return np.diff(before[bounds]), indices[positive]


def _first(rows: JsonRows, key: str, wrong: Callable[[float], bool]) -> tuple[int, float]:
    return next((i, item) for i, row in enumerate(rows.rows) for item in row[key] if wrong(item))


class _NotUtf8(Exception):
    def __init__(self, line: int) -> None:
        self.line = line


def line_documents(path: Path, open_column: Callable[[], RaggedWriter], warnings: list[str]) -> int:
    """Writes every line of a text file as one document; returns how many there are.

    `open_column` starts the column afresh: it is called again if the file turns out not to be UTF-8.
    """
    try:
        return _copy_lines(path, open_column(), "utf-8", warnings)
    except _NotUtf8 as error:
        warnings.append(f"{path.name}: read as latin-1, because line {error.line} is not UTF-8")
        return _copy_lines(path, open_column(), "latin-1", warnings)


def _copy_lines(path: Path, column: RaggedWriter, encoding: str, warnings: list[str]) -> int:
    total = empty = 0
    with column, progress(f"reading {path.name}") as advance:
        for first, chunk in line_chunks(path):
            try:
                text = chunk.decode(encoding).encode() if encoding != "utf-8" or not chunk.isascii() else chunk
            except UnicodeDecodeError as error:
                raise _NotUtf8(first + chunk.count(b"\n", 0, error.start)) from None
            lengths, blank = _append_lines(column, text.replace(b"\0", b" ").replace(b"\r\n", b"\n"))
            total += len(lengths)
            empty += blank
            advance(len(lengths))
    warn(warnings, path, empty, "empty texts")
    return total


def _append_lines(column: RaggedWriter, text: bytes) -> tuple[NDArray[np.int64], int]:
    """Appends whole lines; returns their lengths and how many hold white space only."""
    values = np.frombuffer(text, np.uint8)
    newline = values == ord("\n")
    ends = np.flatnonzero(newline)
    lengths = np.diff(ends, prepend=-1) - 1
    column.extend(values[~newline], lengths)
    visible = np.concatenate([[0], np.cumsum(values > ord(" "))])[ends]
    return lengths, int((np.diff(visible, prepend=0) == 0).sum())


def warn(warnings: list[str], path: Path, count: int, what: str) -> None:
    """Notes something odd about a file, if there was any of it."""
    if count:
        warnings.append(f"{path.name}: {count:,} {what}")
