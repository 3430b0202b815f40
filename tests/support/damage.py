"""Damage and malice for files: a bit flipped where a seed says, and objects that tell when they are unpickled."""

import random
from pathlib import Path
from typing import Any


def flip_bit(file: Path, seed: int) -> int:
    """Flips one bit; returns its place, which is a function of the seed and of the size of the file."""
    content = bytearray(file.read_bytes())
    place = random.Random(seed).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)
    return place


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "ran")
