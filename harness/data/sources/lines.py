"""Reading text files in chunks of whole lines: plain or gzip, any size, bounded memory.

All text files of users are read through this module. A chunk is some bytes that end in a newline, with the number (from
1) of its first line. gzip is recognised by its first bytes, not by its name. A byte order mark is dropped, a missing
last newline is added. The next block is read ahead in a thread, because decompression releases the interpreter lock.

`json_chunks` parses each chunk as JSON lines; `JsonRows` takes columns out of it and names the line of any fault.
"""

import difflib
import re
import sys
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.data.archive import Limits, explosion
from harness.errors import DataError
from harness.machine.threads import Threads

CHUNK_BYTES = 1 << 20
"""Size of a chunk: its temporaries stay in the processor's cache; 16 MB chunks parse a quarter slower."""
LONGEST_LINE_BYTES = 64 << 20
LIMITS = Limits(total_bytes=sys.maxsize)
"""Limits on decompression: any length, but no real text compresses a thousandfold."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_GZIP_MAGIC = b"\x1f\x8b"
UNKNOWN_CHARACTER = "\ufffd"
HALF_CHARACTER = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A surrogate, half of a character, as three bytes; no UTF-8 text has them."""
HALVES = "rows with half a character (a lone surrogate), now U+FFFD"
"""What a warning says of the lines that `json_chunks` mended."""
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""An escape in JSON: two surrogates that are one character, one without the other, or anything else."""
_REQUIRED: Any = object()
_JSON_WORDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def line_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line, whole lines); nothing for an empty file."""
    for line, chunk in _whole_lines(path, size):
        if line == 1 and chunk.startswith(_UTF16_MARKS):
            raise DataError("UTF-16 text; convert it to UTF-8", path)
        yield line, chunk.removeprefix(_BYTE_ORDER_MARK) if line == 1 else chunk


def _whole_lines(path: Path, size: int) -> Iterator[tuple[int, bytes]]:
    line, rest = 1, b""
    with closing(_blocks(path, size)) as blocks:
        for block in blocks:
            cut = block.rfind(b"\n") + 1
            if cut:
                chunk, rest = rest + block[:cut], block[cut:]
                yield line, chunk
                line += chunk.count(b"\n")
            else:
                rest += block
            if len(rest) > LONGEST_LINE_BYTES:
                raise DataError(f"a line of more than {LONGEST_LINE_BYTES >> 20} MB; is this a text file?", path, line)
    if rest and (line, rest) != (1, _BYTE_ORDER_MARK):
        yield line, rest + b"\n"


def _blocks(path: Path, size: int) -> Generator[bytes]:
    """Yield decompressed blocks of at most `size` bytes; `DataError` if the file cannot be read."""
    try:
        with path.open("rb") as stream, Threads(1) as reader:
            packed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            stream.seek(0)
            read = _Gunzip(stream).read if packed else stream.read
            block, total = read(size), 0
            while block:
                total += len(block)
                if packed and (reason := explosion(path, total, LIMITS)):
                    raise DataError(f"refused: {reason}; if you know it to be right, unpack it first", path)
                ahead = reader.submit(read, size)
                yield block
                block = ahead.result()
    except EOFError as error:
        raise DataError("the gzip file ends too early; download or copy it again", path) from error
    except zlib.error as error:
        raise DataError(f"damaged gzip file ({error}); download or copy it again", path) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from error


class _Gunzip:
    """Decompresses gzip in large steps; the standard reader waits for the interpreter lock every 8 KB."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._pending = b""
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def read(self, size: int) -> bytes:
        """Return at most `size` further bytes, none at the end; the file may have several gzip members."""
        while True:
            packed = self._pending or self._stream.read(size)
            if self._member.eof and not packed:
                return b""
            if self._member.eof:
                packed, self._pending = packed.lstrip(b"\0"), b""  # zero padding after a member
                if not packed:
                    continue
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            block = self._member.decompress(packed, size)
            self._pending = self._member.unused_data or self._member.unconsumed_tail
            if block:
                return block
            if not packed and not self._member.eof:
                raise EOFError


@dataclass(frozen=True)
class JsonRows:
    """The JSON objects of consecutive lines of one file."""

    path: Path
    first: int
    """Line number of the first object."""
    rows: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def fault(self, row: int, message: str) -> DataError:
        """Return an error that names the file and line of a row."""
        return DataError(message, self.path, self.first + row)

    def column(self, key: str, *kinds: type, default: Any = _REQUIRED) -> list[Any]:
        """Return the value of `key` in every row, of one of the types `kinds`; `default` if missing or null."""
        if default is not _REQUIRED:
            values = [default if (value := row.get(key)) is None else value for row in self.rows]
        else:
            try:
                values = list(map(itemgetter(key), self.rows))
            except KeyError:
                row = next(i for i, row in enumerate(self.rows) if key not in row)
                raise self.fault(row, _missing_key(key, self.rows[row])) from None
        accepted = {*kinds} if default is _REQUIRED else {*kinds, type(default)}
        if not accepted.issuperset(map(type, values)):
            row = next(i for i, value in enumerate(values) if type(value) not in accepted)
            found = values[row] if type(values[row]) is float else _JSON_WORDS[type(values[row])]
            raise self.fault(row, f"`{key}` must be {_either(kinds)}, not {found}")
        return values

    def lists(self, key: str, *kinds: type) -> tuple[NDArray[np.int64], list[Any]]:
        """Return the lists under `key` as their lengths [rows] and all items in one list."""
        values = self.column(key, list)
        items = list(chain.from_iterable(values))
        if not {*kinds}.issuperset(map(type, items)):
            row = next(i for i, value in enumerate(values) if not {*kinds}.issuperset(map(type, value)))
            wrong = next(item for item in values[row] if type(item) not in kinds)
            shown = _JSON_WORDS[type(wrong)] if isinstance(wrong, list | dict) else orjson.dumps(wrong).decode()[:40]
            raise self.fault(row, f"`{key}` holds {shown}; every item must be {_either(kinds)}")
        return np.fromiter(map(len, values), np.int64, len(values)), items


def _either(kinds: tuple[type, ...]) -> str:
    return " or ".join(_JSON_WORDS[kind] for kind in kinds)


def _missing_key(key: str, row: dict[str, Any]) -> str:
    near = difflib.get_close_matches(key, row, n=1, cutoff=0.6)
    hint = f"; there is `{near[0]}`: rename it" if near else ""
    return f"no `{key}` in this row (keys: {', '.join(sorted(row))[:200] or 'none'}){hint}"


def json_chunks(path: Path, mended: list[int] | None = None) -> Iterator[JsonRows]:
    """Parse a file of one JSON object per line; empty lines are accepted only at the end of the file.

    Args:
        path: The file.
        mended: Given a list, lone surrogates become U+FFFD, and the numbers of their lines are added to it; without
            one they are a fault.
    """
    empty_line = None
    for first, chunk in line_chunks(path):
        lines = chunk.split(b"\n")[:-1]
        count = len(lines)
        while lines and not lines[-1].strip():
            lines.pop()
        if lines and empty_line is not None:
            raise DataError("an empty line between JSON objects; remove it", path, empty_line)
        if empty_line is None and len(lines) < count:
            empty_line = first + len(lines)
        if lines:
            yield _parsed(path, first, lines, mended)


def _parsed(path: Path, first: int, lines: list[bytes], mended: list[int] | None) -> JsonRows:
    try:
        rows = JsonRows(path, first, list(map(orjson.loads, lines)))
    except orjson.JSONDecodeError:
        whole = lines if mended is None else list(map(_mended, lines))
        if mended is None or whole == lines:
            raise _first_broken(path, first, lines) from None
        rows = _parsed(path, first, whole, None)
        mended += [number for number, (old, new) in enumerate(zip(lines, whole, strict=True), first) if old != new]
    if not {dict}.issuperset(map(type, rows.rows)):
        row = next(i for i, value in enumerate(rows.rows) if type(value) is not dict)
        raise rows.fault(row, f"expected one JSON object per line, found {_JSON_WORDS[type(rows.rows[row])]}")
    return rows


def _mended(line: bytes) -> bytes:
    """Return a line of JSON with U+FFFD for every half of a character, as an escape or as three bytes."""
    unknown = UNKNOWN_CHARACTER.encode()
    return _ESCAPE.sub(lambda found: unknown if found["half"] else found[0], HALF_CHARACTER.sub(unknown, line))


def _first_broken(path: Path, first: int, lines: list[bytes]) -> DataError:
    for number, line in enumerate(lines, first):
        if not line.strip():
            return DataError("an empty line between JSON objects; remove it", path, number)
        try:
            line.decode("utf-8")
            orjson.loads(line)
        except UnicodeDecodeError as error:
            return DataError(f"not UTF-8 text (byte {error.start + 1} of the line); convert the file", path, number)
        except orjson.JSONDecodeError as error:
            if number == 1 and line.lstrip()[:1] in (b"<", b"["):
                what = "a web page instead of data; download it again" if line.lstrip()[:1] == b"<" else "a JSON array"
                return DataError(f"{what}: expected one JSON object per line", path, number)
            return DataError(f"not valid JSON ({error.msg}, column {error.colno})", path, number)
    raise AssertionError("every line parses on its own")
