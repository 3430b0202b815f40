"""Damaged and hostile files: one bit flipped at random, and objects that leave a trace when they are unpickled."""

import random
from pathlib import Path
from typing import Any


def flip_bit(file: Path, seed: int) -> int:
    """Flip one bit; return its position, which is a function of the seed and of the size of the file."""
    content = bytearray(file.read_bytes())
    place = random.Random(seed).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)
    return place


class Payload:
    """An object that writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "ran")
