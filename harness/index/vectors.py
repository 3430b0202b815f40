"""Vectors in float32 blocks on one device, from arrays, memory maps and tensors of any float type.

A matrix is never copied as a whole: a block of a memory map is read when it is asked for, converted to float32 and
moved to the device.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError

_SURVEY_ELEMENTS = 1 << 20


def as_tensor(values: Any, what: str) -> Tensor:
    """A [rows, D] tensor over the same memory, or a float32 copy where torch cannot read it."""
    if not isinstance(values, np.ndarray | Tensor):
        raise UserError(f"{what} must be a numpy array or a torch tensor, not {type(values).__name__}")
    if values.ndim != 2 or values.shape[1] == 0:
        raise UserError(f"{what} must have the shape [rows, dimension], not {list(values.shape)}")
    if isinstance(values, Tensor):
        if not values.is_floating_point():
            raise UserError(f"{what} must hold floating-point numbers, not {values.dtype}")
        return values.detach()
    if values.dtype.kind != "f":
        raise UserError(f"{what} must hold floating-point numbers, not {values.dtype}")
    readable = values.dtype in (np.float16, np.float32, np.float64)
    if not readable or any(stride < 0 or stride % values.itemsize for stride in values.strides):
        values = np.ascontiguousarray(values, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about read-only memory maps; nothing here writes to them
        return torch.from_numpy(values)


class Vectors:
    """A [rows, D] matrix of any float type, read as float32 on `device`."""

    def __init__(self, values: Tensor, device: torch.device) -> None:
        self.device = device
        self.count, self.dimension = values.shape
        self._values = self._resident(values)

    def _resident(self, values: Tensor) -> Tensor:
        """Moves the matrix to the GPU once if that takes at most a quarter of its free memory."""
        if self.device.type != "cuda" or values.device == self.device:
            return values
        free, _ = torch.cuda.mem_get_info(self.device)
        return values.to(self.device) if values.numel() * values.element_size() <= free // 4 else values

    def block(self, start: int, stop: int) -> Tensor:
        """Rows start..stop, [stop - start, D]; a view where no conversion is needed."""
        return self._values[start:stop].to(self.device, torch.float32)

    def take(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows of an index tensor [R], as [R, D]; written to `out` if it is given."""
        rows = rows.to(self._values.device)
        if out is None:
            return self._values.index_select(0, rows).to(self.device, torch.float32)
        if (self._values.dtype, self._values.device) == (out.dtype, out.device):
            return torch.index_select(self._values, 0, rows, out=out)
        return out.copy_(self._values.index_select(0, rows))

    def survey(self) -> tuple[NDArray[np.bool_], float]:
        """Which rows are finite, [rows], and the largest Euclidean norm among those."""
        finite, largest = np.ones(self.count, np.bool_), 0.0
        step = max(1, _SURVEY_ELEMENTS // self.dimension)
        for start in range(0, self.count, step):
            # float64 holds the square of every float32, so a norm is finite exactly if its vector is
            norms = torch.linalg.vector_norm(self.block(start, start + step).double(), dim=1)
            good = torch.isfinite(norms)
            finite[start : start + step] = good.cpu().numpy()
            largest = max(largest, float(torch.where(good, norms, 0.0).amax()))
        return finite, largest


@contextmanager
def full_precision() -> Iterator[None]:
    """Full float32 products in the whole process: no tf32 or bf16 shortcuts, whatever training has switched on."""
    switches = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No gradients and no autocast in this thread."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield
