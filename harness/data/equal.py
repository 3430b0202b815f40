"""Equal texts: those that differ in nothing but case and blanks, which most tokenisers drop.

They are found by a 64-bit hash of every row, over blocks of bytes. The hash of the bytes b_0 .. b_n of a row is
sum_i (b_i + 1) K^i mod 2^64 with K odd. As K has an inverse, the rows of a block are hashed at once: K^i is counted
from the start of the block, and the sum of a row whose first byte is at place s is multiplied by K^-s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.data.ragged import Texts
from harness.io.progress import Advance

Rows = NDArray[np.int64]
RowPairs = tuple[Rows, Rows]

_BLANKS = bytes(value for value in range(128) if chr(value).isspace())
_NUL = np.arange(256) == 0
_NOT_ASCII = np.arange(256) >= 128
_FOLDED = bytes(range(256)).lower().translate(bytes.maketrans(_BLANKS, b" " * len(_BLANKS)))
"""Every byte value with letters in lower case and a space for every blank."""
_SPACE = ord(" ")
_BLOCK, _AT_ONCE = 1 << 17, 1 << 13
_K = 0x9E3779B97F4A7C15


class _Block(NamedTuple):
    """Consecutive bytes of a column, with the rows that they belong to."""

    begin: int
    """Place of its first byte in the column."""
    rows: slice
    values: NDArray[np.uint8]
    cuts: Rows
    """Where each of the rows begins and ends within the block, [rows + 1]."""
    unfinished: bool
    """Whether the last row goes on behind the block."""


@cache
def _powers() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return K^i and K^-i for the places of a block, [_BLOCK + 1] each."""
    powers = [np.full(_BLOCK + 1, base, np.uint64) for base in (_K, pow(_K, -1, 1 << 64))]
    for power in powers:
        power[0] = 1
        np.cumprod(power, out=power)
    return powers[0], powers[1]


def _blocks(texts: Texts, block: int) -> Iterator[_Block]:
    offsets, end = texts.offsets, int(texts.offsets[-1])
    for begin in range(int(offsets[0]), end, block):
        stop = min(begin + block, end)
        first, last = int(np.searchsorted(offsets, begin, "right")) - 1, int(np.searchsorted(offsets, stop))
        cuts = np.clip(offsets[first : last + 1], begin, stop) - begin
        yield _Block(begin, slice(first, last), np.asarray(texts.values[begin:stop]), cuts, int(offsets[last]) > stop)


def row_hashes(texts: Texts, block: int = _BLOCK) -> NDArray[np.uint64]:
    """Return a hash of every text without its case and with one space between words, [N]; 0 for a blank one.

    `block` is the number of bytes that are hashed at once, at most `_BLOCK`.
    """
    hashes = _ascii_hashes(texts, block)
    others = np.flatnonzero(row_counts(texts, _NOT_ASCII))
    for start in range(0, len(others), _AT_ONCE):
        rows = others[start : start + _AT_ONCE]
        hashes[rows] = _ascii_hashes(Texts.from_strings(fold(texts[row]) for row in rows.tolist()), block)
    return hashes


def fold(text: str) -> str:
    """Return a text without its case and with one space between words."""
    return " ".join(text.casefold().split())


def _ascii_hashes(texts: Texts, block: int) -> NDArray[np.uint64]:
    """Return hashes of every text, [N], for which only ASCII letters have a case and only ASCII blanks are blank."""
    powers, inverses = _powers()
    hashes = np.zeros(len(texts), np.uint64)
    before = 0  # bytes that were hashed of the row that the last block left unfinished
    for found in _blocks(texts, block):
        values, cuts = _folded(found, texts, before)
        sums = np.zeros(len(values) + 1, np.uint64)
        np.cumsum((values.astype(np.uint64) + np.uint64(1)) * powers[: len(values)], out=sums[1:])
        factors = inverses[cuts[:-1]]
        factors[0] *= np.uint64(pow(_K, before, 1 << 64))
        hashes[found.rows] += (sums[cuts[1:]] - sums[cuts[:-1]]) * factors
        alone = found.rows.stop - found.rows.start == 1
        before = (int(cuts[-1] - cuts[-2]) + before * alone) if found.unfinished else 0
    return hashes


def _folded(found: _Block, texts: Texts, before: int) -> tuple[NDArray[np.uint8], Rows]:
    """Return the bytes of a block that are left when case and blanks do not count, and where its rows begin and end.

    A blank is left if a word follows it in its row and, as `before` says of an unfinished row, one precedes it.
    """
    values = np.frombuffer(found.values.tobytes().translate(_FOLDED), np.uint8)
    blank = values == _SPACE
    kept = ~blank
    solid = kept.copy()
    kept[:-1] |= solid[1:]
    kept[found.cuts[1:-1] - 1] = solid[found.cuts[1:-1] - 1]  # what follows the last byte of a row is another row
    kept[-1] = solid[-1] or (found.unfinished and texts.values[found.begin + len(values)] not in _BLANKS)
    if kept.all() and not blank[found.cuts[:-1]].any():
        return values, found.cuts
    seen, lengths = np.concatenate([[0], np.cumsum(solid)]), np.diff(found.cuts)
    earlier = seen[found.cuts[:-1]]
    earlier[0] -= before
    kept &= solid | (seen[:-1] > np.repeat(earlier, lengths))
    return values[kept], np.concatenate([[0], np.cumsum(kept)])[found.cuts]


def first_equals(texts: Texts) -> Rows:
    """Return for every text the first row that is equal, [N]; itself if it is met once. Blank texts are equal."""
    _, first, kind = np.unique(row_hashes(texts), return_index=True, return_inverse=True)
    return first[kind].astype(np.int64)


def row_counts(texts: Texts, counted: NDArray[np.bool_], block: int = _BLOCK) -> Rows:
    """Return how many bytes of every text are of the values that count, [N]; `counted` is [256]."""
    counts = np.zeros(len(texts), np.int64)
    for found in _blocks(texts, block):
        counts[found.rows] += np.diff(np.concatenate([[0], np.cumsum(counted[found.values])])[found.cuts])
    return counts


@dataclass(frozen=True)
class RowScan:
    """Properties of every row of a column."""

    hashes: NDArray[np.uint64]
    """Hash of each text, [N]: equal for equal texts."""
    solid: NDArray[np.bool_]
    """Whether the text has a character that is not blank, [N]."""
    nul: NDArray[np.bool_]
    """Whether the text has a NUL byte, [N]."""


def scan_rows(texts: Texts, advance: Advance | None = None) -> RowScan:
    """Return hashes and properties of every row of a column."""
    hashes = row_hashes(texts)
    scan = RowScan(hashes, hashes != 0, row_counts(texts, _NUL) > 0)
    if advance:
        advance(len(texts.values))
    return scan


def equal_rows(left: Texts, left_scan: RowScan, right: Texts, right_scan: RowScan) -> RowPairs:
    """Return pairs (row of left, row of right) of equal texts, at most one per row of right; blanks are left out."""
    rows = np.flatnonzero(left_scan.solid)
    rows = rows[np.argsort(left_scan.hashes[rows], kind="stable")]
    hashes, wanted = left_scan.hashes[rows], np.flatnonzero(right_scan.solid)
    place = np.searchsorted(hashes, right_scan.hashes[wanted])
    hit = place < len(rows)
    hit[hit] = hashes[place[hit]] == right_scan.hashes[wanted[hit]]
    return _confirmed(left, rows[place[hit]], right, wanted[hit])


def repeated_rows(texts: Texts, scan: RowScan) -> RowPairs:
    """Return pairs (first row of a text, later row with the same text), by later row; blanks are left out."""
    rows = np.flatnonzero(scan.solid)
    _, first, kind = np.unique(scan.hashes[rows], return_index=True, return_inverse=True)
    earlier = rows[first[kind]]
    later = earlier != rows
    return _confirmed(texts, earlier[later], texts, rows[later])


def _confirmed(left: Texts, i: NDArray[np.int64], right: Texts, j: NDArray[np.int64]) -> RowPairs:
    """Return those pairs of rows (i, j) whose texts are equal, not only their hashes."""
    equal = np.fromiter((fold(left[a]) == fold(right[b]) for a, b in zip(i, j, strict=True)), bool, len(i))
    return i[equal], j[equal]
