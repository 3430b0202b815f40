"""Arrays on their way to the disk and back.

A file of numbers may come from somebody else: its header can ask for more memory than there is, for a pickle, or for
numbers that are none. `load_array` goes by the size of the file and takes plain numbers only.
"""

import math
import os
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError

DAMAGED = (
    ValueError,
    TypeError,
    EOFError,
    MemoryError,
    OverflowError,
    RecursionError,
    SyntaxError,
    tokenize.TokenError,
)
"""Exceptions that numpy raises for a file that is not an array."""
_NUMBERS = "biuf"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array of at least one dimension as a .npy file, without pickles; `OSError` if the disk is full.

    `np.save` is not used: it ignores errors of its last buffer, so that on a full disk it may return as if all bytes
    were written, and its other errors have no number.
    """
    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        raise ValueError("objects would be pickled")
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(array.data)


def load_array(path: Path, dimensions: int, kinds: str = _NUMBERS, *, mapped: bool = False) -> NDArray[Any]:
    """Return the array of a .npy file; `DataError` if it is damaged or has another number of dimensions or type.

    Args:
        path: The file.
        dimensions: Number of dimensions that it must have.
        kinds: Allowed types, as letters of `dtype.kind`.
        mapped: Return a read-only memory map instead of an array in memory.
    """
    try:
        shape, dtype = _header(path)
        if dtype.kind not in kinds or len(shape) != dimensions:
            raise DataError(f"{dtype} of shape {shape}, not numbers in {dimensions} dimensions; make it anew", path)
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGED as error:
        raise DataError(f"not an array of numbers ({error})", path) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from error
    return array if mapped else np.array(array)


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of a .npy file; `ValueError` if they do not match its length.

    They are checked before the file is mapped: numpy divides by the element size, and a size of 0 crashes the process.
    """
    with path.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"version {version}")
        shape, _, dtype = _HEADERS[version](stream)
        held = os.fstat(stream.fileno()).st_size - stream.tell()
    if min(shape, default=0) < 0 or dtype.hasobject or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"{held:,} bytes do not hold {dtype} of shape {shape}")
    return shape, dtype
