"""Equal texts: those that differ in nothing but case, accents, blanks and characters without a shape.

BERT's uncased tokeniser drops all of these, and most others drop some. A text of which nothing is left is blank.
"""

from functools import cache
from itertools import pairwise
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from harness.data.ragged import Texts

Rows = NDArray[np.int64]
RowPairs = tuple[Rows, Rows]

_ROWS_AT_ONCE = 4096
_DROPPED = ("Mn", "Cc", "Cf")
"""Unicode's categories of accents, control and format characters."""
_SPACE, _ODD = ord(" "), 128
_PLAIN = bytes(
    _SPACE if char.isspace() else ord(char.lower()) if char.isprintable() else _ODD for char in map(chr, range(128))
) + bytes(range(128, 256))
"""ASCII letters in lower case, a space for every ASCII blank, and `_ODD` for other control characters."""


class _Translation(dict[int, str]):
    """What is left of a character, by its number; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        # each character is taken apart alone: for a text of nothing but accents `normalize` needs quadratic time
        parts = normalize("NFD", chr(code))
        self[code] = "".join(char for char in parts if category(char) not in _DROPPED or char.isspace())
        return self[code]


_translation = cache(_Translation)


def fold(text: str) -> str:
    """Return a text without case, accents, control and format characters, and with one space between words."""
    if not (text.isascii() and text.isprintable()):
        text = text.translate(_translation())
    return " ".join(text.casefold().split())


def row_hashes(texts: Texts, block: int = 1 << 20) -> Rows:
    """Return a hash of every text as folded, [N]; 0 for a blank one. Another process has other hashes.

    `block` is the number of bytes that are read at once; a longer text is read alone.
    """
    hashes = np.zeros(len(texts), np.int64)
    for start, stop in texts.blocks(_ROWS_AT_ONCE, block):
        bounds = texts.offsets[start : stop + 1]
        plain, cuts = texts.values[bounds[0] : bounds[-1]].tobytes().translate(_PLAIN), bounds - bounds[0]
        found = [hash(plain[begin:end].strip()) for begin, end in pairwise(cuts.tolist())]
        for row in _odd_rows(plain, cuts).tolist():
            found[row] = hash(fold(texts[start + row]).encode())
        hashes[start:stop] = found
    return hashes


def _odd_rows(plain: bytes, cuts: Rows) -> Rows:
    """Return the rows of a block that need more than `_PLAIN` and a strip to be folded, and a few that do not."""
    values = np.frombuffer(plain, np.uint8)
    odd, blank = np.append(values >= _ODD, False), values == _SPACE
    odd[1:-1] |= blank[1:] & blank[:-1]
    return np.flatnonzero(np.logical_or.reduceat(odd, cuts[:-1]))


def count_blank(texts: list[str]) -> int:
    """Return the number of blank texts."""
    return int((row_hashes(Texts.from_strings(texts)) == 0).sum())


def first_equals(texts: Texts) -> Rows:
    """Return for every text the first row that is equal, [N]; itself if it is met once. Blank texts are equal."""
    _, first, kind = np.unique(row_hashes(texts), return_index=True, return_inverse=True)
    return first[kind].astype(np.int64)


def equal_rows(left: Texts, left_hashes: Rows, right: Texts, right_hashes: Rows) -> RowPairs:
    """Return pairs (row of left, row of right) of equal texts, at most one per row of right; blanks are left out."""
    rows = np.flatnonzero(left_hashes)
    rows = rows[np.argsort(left_hashes[rows], kind="stable")]
    hashes, wanted = left_hashes[rows], np.flatnonzero(right_hashes)
    place = np.searchsorted(hashes, right_hashes[wanted])
    hit = place < len(rows)
    hit[hit] = hashes[place[hit]] == right_hashes[wanted[hit]]
    return _confirmed(left, rows[place[hit]], right, wanted[hit])


def repeated_rows(texts: Texts, hashes: Rows) -> RowPairs:
    """Return pairs (first row of a text, later row with the same text), by later row; blanks are left out."""
    rows = np.flatnonzero(hashes)
    _, first, kind = np.unique(hashes[rows], return_index=True, return_inverse=True)
    earlier = rows[first[kind]]
    later = earlier != rows
    return _confirmed(texts, earlier[later], texts, rows[later])


def _confirmed(left: Texts, i: Rows, right: Texts, j: Rows) -> RowPairs:
    """Return those pairs of rows (i, j) whose texts are equal, not only their hashes."""
    equal = np.fromiter((fold(left[a]) == fold(right[b]) for a, b in zip(i, j, strict=True)), bool, len(i))
    return i[equal], j[equal]
