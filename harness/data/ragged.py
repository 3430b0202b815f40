"""Rows of different length in two flat arrays: the format on disk of texts (bytes) and tokens (ids).

Row i is `values[offsets[i]:offsets[i + 1]]`. Both arrays are plain .npy files opened as memory maps, so a column of
two million documents costs no memory until it is read, and nothing is ever padded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError
from harness.io.arrays import load_array, save_array


@dataclass(frozen=True)
class Ragged:
    """Rows of different length as flat values [T] and row offsets [N + 1]."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of values in every row, [N]."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.int64]) -> "Ragged":
        """Return the given rows, in that order, as a new column in memory."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # position j of the result lies (start of its source row - start of its result row) further on in the source
        shift = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.values[np.arange(offsets[-1]) + shift], offsets)

    def blocks(self, rows: int, values: int) -> Iterator[tuple[int, int]]:
        """Yield consecutive ranges (start, stop) of at most so many rows and values, but of one row at least."""
        start = 0
        while start < len(self):
            within = int(np.searchsorted(self.offsets, self.offsets[start] + values, side="right")) - 1
            stop = max(start + 1, min(within, start + rows, len(self)))
            yield start, stop
            start = stop

    def joined(self, other: "Ragged") -> "Ragged":
        """Return the rows of this column followed by those of another."""
        values = np.concatenate([self.values, other.values])
        return Ragged(values, np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]))

    def save(self, folder: Path, name: str) -> None:
        """Write `<name>.values.npy` and `<name>.offsets.npy`."""
        save_array(folder / f"{name}.values.npy", self.values)
        save_array(folder / f"{name}.offsets.npy", self.offsets)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Memory-map what `save` or `RaggedWriter` wrote; `DataError` if the two files do not match."""
        values = load_array(folder / f"{name}.values.npy", 1, mapped=True)
        offsets = load_array(folder / f"{name}.offsets.npy", 1, "i")
        if not len(offsets) or offsets[0] < 0 or offsets[-1] > len(values) or (offsets[1:] < offsets[:-1]).any():
            raise DataError(f"no boundaries of rows of {len(values):,} values", folder / f"{name}.offsets.npy")
        return cls(values, offsets)


class Texts(Ragged):
    """A column of UTF-8 strings, [N]."""

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> "Texts":
        """Encode strings as UTF-8 into one byte array."""
        encoded = [string.encode("utf-8", "replace") for string in strings]
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in encoded])]).astype(np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets)

    @overload  # type: ignore[override]  # a row of this column is a string, of its base an array
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            bounds = self.offsets[start : stop + 1]
            blob = self.values[bounds[0] : bounds[-1]].tobytes() if stop > start else b""
            cuts = (bounds - bounds[0]).tolist() if stop > start else [0]
            return [blob[a:b].decode("utf-8", "replace") for a, b in pairwise(cuts)]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        for _, chunk in self.chunks():
            yield from chunk

    def chunks(self, rows: int = 8192) -> Iterator[tuple[int, list[str]]]:
        """Yield (first row, strings) for consecutive blocks of at most `rows` rows."""
        for start in range(0, len(self), rows):
            yield start, self[start : start + rows]


class RaggedWriter:
    """Writes a ragged column to disk chunk by chunk; a context manager.

    The .npy header is written again on close, with the final length: numpy reserves space for its digits, so that the
    values can be written right after it.
    """

    def __init__(self, folder: Path, name: str, dtype: Any) -> None:
        self._folder, self._name, self._dtype = folder, name, np.dtype(dtype)
        self._lengths = [np.zeros(0, np.int64)]
        self._stream = (folder / f"{name}.values.npy").open("wb")
        self._write_header(0)

    def extend(self, values: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append rows, given as their concatenated values and their lengths."""
        self._stream.write(np.ascontiguousarray(values, self._dtype).data)
        self._lengths.append(np.asarray(lengths, dtype=np.int64))

    def extend_strings(self, strings: list[str]) -> None:
        """Append strings as UTF-8, for a column of type uint8."""
        texts = Texts.from_strings(strings)
        self.extend(texts.values, texts.lengths)

    def _write_header(self, length: int) -> None:
        values = {"descr": self._dtype.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._stream, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            if kind is not None:
                return
            offsets = np.concatenate([[0], np.cumsum(np.concatenate(self._lengths))]).astype(np.int64)
            self._stream.seek(0)
            self._write_header(int(offsets[-1]))
        save_array(self._folder / f"{self._name}.offsets.npy", offsets)
