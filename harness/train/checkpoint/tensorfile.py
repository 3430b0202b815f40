"""Named tensors to and from one .safetensors file, without a second copy of them in memory.

The library's writer holds a CPU copy of everything at once and refuses tensors that share memory. This one goes through
the tensors a piece at a time, so that a classifier table on a GPU costs the host one piece, and a tied or transposed
tensor is written like any other. The format: 8 bytes with the length of the header (little-endian), the header (JSON:
name -> dtype, shape, first and last byte), then the bytes of the tensors without gaps. Bytes are hashed on their way to
the file, in a second thread, so that they need not be read again.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from harness.errors import DataError
from harness.machine.threads import Threads

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ELEMENTS_PER_PIECE = 1 << 22


def write_tensors(path: Path, tensors: dict[str, Tensor], go_on: Callable[[], None] = lambda: None) -> str:
    """Write tensors of any shape and device; those that share memory are written once for every name.

    Args:
        path: File to write.
        tensors: Tensors by name.
        go_on: Called before every piece; an exception from it ends the writing.

    Returns:
        The sha256 of the file, in hex.
    """
    # wide elements first: then every tensor starts at a multiple of its element size, as readers that map the file want
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    with path.open("wb") as file, Threads(1, "sha256") as side:
        stream = _Hashed(file, side, go_on)
        stream.write(_header(names, tensors))
        for name in names:
            _write_elements(stream, tensors[name].detach())
    return stream.digest.hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file into CPU memory: writable, and independent of the file and of each other."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}
    except SafetensorError as error:
        raise DataError(f"not a safetensors file ({error})", path) from error


def _header(names: list[str], tensors: dict[str, Tensor]) -> bytes:
    entries, end = {}, 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or name == "__metadata__":
            raise ValueError(f"tensor {name!r} ({tensor.dtype}, {tensor.layout}) cannot be stored")
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class _Hashed:
    """A file whose bytes are hashed while they are written."""

    def __init__(self, file: BinaryIO, side: Threads, go_on: Callable[[], None]) -> None:
        self._file, self._side, self._go_on = file, side, go_on
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write and hash bytes, both at once."""
        self._go_on()
        hashed = self._side.submit(self.digest.update, data)
        written = self._file.write(data)
        hashed.result()
        return written


def _write_elements(stream: _Hashed, tensor: Tensor) -> None:
    elements = tensor.contiguous().view(-1)
    for start in range(0, len(elements), _ELEMENTS_PER_PIECE):
        piece = elements[start : start + _ELEMENTS_PER_PIECE]
        stream.write(piece.cpu().view(torch.uint8).numpy().data)
