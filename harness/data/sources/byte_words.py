"""Words and numbers of many lines at once, on the byte array of a chunk.

Nothing here loops over rows or words: bytes are classified by a table, a word is a run of bytes other than white space,
and a number is summed over its decimal places, one place of all words at a time. A method answers None where the
bytes are not what it reads; the caller then takes a slower road.
"""

import numpy as np
from numpy.typing import NDArray

ZERO, DIGIT, DOT, SIGN, COLON, SPACE, COMMA, OTHER = (1 << bit for bit in range(8))
_KINDS = bytearray([OTHER]) * 256
for _bytes, _kind in (
    (b"0", ZERO),
    (b"123456789", DIGIT),
    (b".", DOT),
    (b"+-eE", SIGN),
    (b":", COLON),
    (b" \t\r\n", SPACE),
    (b",", COMMA),
):
    for _byte in _bytes:
        _KINDS[_byte] = _kind

MOST_DIGITS = 18
"""Decimal numbers of up to 18 digits fit int64."""
LONGEST_FLOAT = 32

Places = NDArray[np.int64]
"""Positions in a chunk."""


class ByteWords:
    """The bytes of some lines [T], the kind of each byte [T], and the words: runs of bytes that are not white space."""

    def __init__(self, chunk: bytes) -> None:
        self.text = np.frombuffer(chunk, np.uint8)
        self.kinds = np.frombuffer(chunk.translate(_KINDS), np.uint8)
        self.newlines = np.flatnonzero(self.text == ord("\n"))

    def words(self, kinds: NDArray[np.uint8]) -> tuple[Places, Places]:
        """Starts and ends of the words; the last byte is a newline, so every word ends."""
        inside = kinds != SPACE
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
        if inside[0]:
            edges = np.concatenate([[0], edges])
        return edges[0::2], edges[1::2]

    def words_per_line(self, starts: Places) -> NDArray[np.int64]:
        """How many words start in each line, [rows]."""
        return np.diff(np.searchsorted(starts, self.newlines), prepend=0)

    def decimal(self, starts: Places, ends: Places) -> NDArray[np.int64] | None:
        """Words of digits as whole numbers, one decimal place of all words at a time."""
        lengths = ends - starts
        longest = int(lengths.max(initial=0))
        if longest > MOST_DIGITS:
            return None
        numbers = np.zeros(len(starts), np.int64)
        for place in range(longest):
            # a word shorter than this place finds a byte outside itself, which the mask then drops
            digits = self.text.take(ends - (1 + place), mode="wrap") - np.uint8(ord("0"))
            digits *= lengths > place
            if digits.max() > 9:
                return None
            numbers += digits * np.int64(10**place)
        return numbers

    def kinds_within(self, starts: Places, ends: Places) -> NDArray[np.uint8] | None:
        """Which kinds of byte occur in each word, [words]."""
        lengths = ends - starts
        longest = int(lengths.max(initial=0))
        if longest > LONGEST_FLOAT:
            return None
        within = np.zeros(len(starts), np.uint8)
        for place in range(longest):
            within |= self.kinds.take(starts + place, mode="clip") * (lengths > place)
        return within

    def floats(self, starts: Places, ends: Places) -> NDArray[np.float64] | None:
        """Words as numbers in any notation, by way of strings of one width."""
        places = starts[:, None] + np.arange(int((ends - starts).max()))
        letters = np.where(places < ends[:, None], self.text.take(places, mode="clip"), np.uint8(0))
        try:
            return letters.view(f"S{letters.shape[1]}").ravel().astype(np.float64)
        except ValueError:
            return None
