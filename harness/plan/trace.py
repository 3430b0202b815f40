"""Run model code on tensors without memory, to count the bytes it would hold and the operations it would do.

    floating-point tensors    torch's fake tensors: a shape, a type, a device, no values
    integers and masks        real ones: they decide shapes (distinct tokens, padding, pairs of a block)

A storage counts from the operation that makes it until its last reference is gone, as it does in a real step. The
device is fake `cpu` memory, because autograd on fake CUDA tensors needs a torch that was built with CUDA; memory of the
host beside it is fake `meta` memory. What differs by device is set in `as_on`.

A call of a transformer is some hundred operations, and a step makes dozens of calls of the same few shapes. So the
encoder's own code runs once for each length of texts, with two numbers of rows; in a step its calls are replayed:

    bytes, FLOPs of a call = a + b rows          a, b measured at each length W
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.flop_counter import flop_registry

from harness.model.encoders.encoder import GROUPING, Encoder
from harness.model.tables import RowTable
from harness.plan.devices import Rates
from harness.train.objectives.ova import LABEL_BLOCK
from harness.train.optim.lazy import LAZY_BLOCK_ELEMENTS
from harness.train.optim.row_sparse import BLOCK_ELEMENTS

FAKE = FakeTensorMode(allow_non_fake_inputs=True)
"""The one mode for all fake tensors: those of two modes do not mix."""
HOST = "meta"
"""The fake device that stands for CPU memory beside a CUDA device."""
_BUS = 12e9
"""Bytes per second between CPU memory and a device; assumed, three quarters of PCIe 3 x16."""
_layer_norm = functional.layer_norm
_INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
_PARTIAL = ("index", "embedding", "gather", "scatter")
"""Parts of names of operations that touch only a few rows of their largest argument."""


@dataclass(frozen=True)
class Cost:
    """Arithmetic operations and moved bytes of some work."""

    half: float = 0.0
    """Multiplications and additions in bfloat16."""
    full: float = 0.0
    """Multiplications and additions in float32."""
    moved: float = 0.0
    """Bytes read and written in the device's memory."""
    carried: float = 0.0
    """Bytes copied between CPU memory and the device."""

    def __add__(self, other: "Cost") -> "Cost":
        return self.plus(other, 1.0)

    def __mul__(self, times: float) -> "Cost":
        return Cost().plus(self, times)

    def plus(self, other: "Cost", times: float) -> "Cost":
        """Return this cost plus `times` x another."""
        return Cost(
            self.half + times * other.half,
            self.full + times * other.full,
            self.moved + times * other.moved,
            self.carried + times * other.carried,
        )

    def seconds(self, rates: Rates) -> float:
        """Return the seconds this cost takes on a device of these rates."""
        arithmetic = self.half / rates.half + self.full / rates.full
        return (arithmetic + self.moved / rates.bandwidth) / rates.share + self.carried / _BUS


@contextmanager
def as_on(kind: str) -> Iterator[None]:
    """Use the block sizes and layer norm of a `cpu` or a `cuda` device inside the block."""
    with ExitStack() as stack:
        if kind == "cuda":
            for sizes in (GROUPING, LABEL_BLOCK, BLOCK_ELEMENTS, LAZY_BLOCK_ELEMENTS):
                stack.enter_context(patch.dict(sizes, cpu=sizes["cuda"]))
            stack.enter_context(patch.object(functional, "layer_norm", _cuda_layer_norm))
        yield


def _cuda_layer_norm(values: Tensor, *arguments: Any) -> Tensor:
    """Normalise as autocast does on CUDA, in float32; on a CPU it keeps the input's type."""
    return _layer_norm(values.float() if torch.is_autocast_enabled("cpu") else values, *arguments)


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes alive, bytes moved and FLOPs of the code inside; serves as a `harness.train.timing.Timer`.

    Attributes:
        cost: Cost of all code inside.
        peak: Bytes by part at the moment when the device holds most; parts are those that `part` names.
        host_peak: Peak bytes in CPU memory.
    """

    def __init__(self, standing: Iterable[Tensor] = ()) -> None:
        """Start with all counts at zero.

        Args:
            standing: Tensors that exist before and after; they are not counted.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost, self.host_peak = Cost(), 0
        self.peak: Counter[str] = Counter()
        self._device, self._host, self._extra = Counter[str](), 0, 0
        self._part = "rest"
        self._known = {tensor.untyped_storage()._cdata for tensor in standing}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what is allocated inside the block for this part."""
        before, self._part = self._part, name
        try:
            yield
        finally:
            self._part = before

    @property
    def alive(self) -> int:
        """Bytes on the device now."""
        return self._device.total()

    def begin(self) -> int:
        """Reset peak and cost; return the bytes on the device now."""
        self.cost, self.peak = Cost(), Counter(self._device)
        return self.alive

    def spend(self, cost: Cost, extra: int = 0) -> None:
        """Add a known cost of work that holds `extra` bytes beside those that are counted."""
        self.cost += cost
        self._see(extra)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # reading `.device` of a fake tensor ends here, and is frequent
            return args[0].fake_device
        flat, shape = tree_flatten((args, kwargs or {}))
        tensors = [one for one in flat if isinstance(one, Tensor)]
        fakes = [one for one in tensors if isinstance(one, FakeTensor)]
        for tensor in tensors:
            self._note(tensor)
        if func is torch.ops.aten._local_scalar_dense.default and fakes:
            return 1.0
        if func._overloadpacket in _INDEXED and fakes:
            args = (args[0], _places(args[1]), *args[2:])
            flat, shape = tree_flatten((args, kwargs or {}))
            tensors = [one for one in flat if isinstance(one, Tensor)]
            fakes = [one for one in tensors if isinstance(one, FakeTensor)]
        if not fakes and not _makes_fake(func, args, kwargs or {}, tensors):
            kept = {name: value for name, value in (kwargs or {}).items() if name != "device"}
            made = func(*args, **kept)
        else:
            if fakes and len(fakes) < len(tensors):
                flat = [_as_fake(one, fakes[0].fake_device) if isinstance(one, Tensor) else one for one in flat]
                args, kwargs = tree_unflatten(flat, shape)
            made = FAKE.__torch_dispatch__(func, types, args, kwargs or {})
            self._count(func, args, kwargs or {}, tensors, made)
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return made

    def _note(self, tensor: Tensor) -> None:
        """Count a tensor's storage, if it is new, until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        place, part = _place(tensor), self._part
        finalize(storage, self._freed, key, place, part, size)
        if place == HOST:
            self._host += size
            self.host_peak = max(self.host_peak, self._host)
        else:
            self._device[part] += size
            self._see(0)

    def _freed(self, key: int, place: str, part: str, size: int) -> None:
        self._known.discard(key)
        if place == HOST:
            self._host -= size
        else:
            self._device[part] -= size

    def _see(self, extra: int) -> None:
        if self._device.total() + extra > self.peak.total():
            self.peak = self._device + Counter({self._part: extra})

    def _count(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], made: Any) -> None:
        """Add the cost of an operation on fake tensors."""
        results = [one for one in tree_leaves(made) if isinstance(one, Tensor)]
        stores = {one.untyped_storage()._cdata for one in tensors}
        if all(one.untyped_storage()._cdata in stores for one in results) and not func._schema.is_mutable:
            return  # a view
        name = func._overloadpacket.__name__
        sizes = [one.nbytes for one in [*tensors, *results]]
        moved = sum(sizes) - (max(sizes, default=0) if any(word in name for word in _PARTIAL) else 0)
        places = {_place(one) for one in [*tensors, *results]} if "copy" in name else ()
        carried = results[0].nbytes if len(places) > 1 else 0
        counted = name.rstrip("_").replace("_for_cpu", "")  # in place or fused: the same operations
        flops = flop_registry.get(getattr(torch.ops.aten, counted, None))
        count = float(flops(*args, **kwargs, out_val=made)) if flops else 0.0
        half = bool(tensors) and tensors[-1].dtype == torch.bfloat16
        self.cost += Cost(count if half else 0.0, 0.0 if half else count, moved, carried)


def _makes_fake(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> bool:
    """Return whether a call without fake arguments makes a fake tensor: new floating-point numbers, or a host copy."""
    kind = kwargs.get("dtype")
    if tensors:
        return "device" in kwargs and str(kwargs["device"]) == HOST and tensors[0].is_floating_point()
    name = func._overloadpacket.__name__
    if name.startswith("rand"):  # real and few numbers: they decide which pairs count
        return False
    if kind is None:
        return not (name == "arange" and all(isinstance(one, int) for one in args))
    return bool(kind.is_floating_point) or kind == torch.uint8


def _places(indices: Any) -> list[Tensor | None]:
    """Replace masks among indices by the indices they select; a fake mask selects everything."""
    found: list[Tensor | None] = []
    for one in indices:
        if one is None or one.dtype != torch.bool:
            found.append(one)
        else:
            mask = torch.ones(one.shape, dtype=torch.bool) if isinstance(one, FakeTensor) else one
            found += mask.nonzero().unbind(1)
    return found


def _as_fake(tensor: Tensor, device: Any) -> Tensor:
    """Return a fake tensor of the same shape, strides and type on a device; a fake one is returned as it is."""
    if isinstance(tensor, FakeTensor):
        return tensor
    with FAKE:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _place(tensor: Tensor) -> str:
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return str(device.type)


_MEASURED_TOKENS = 2048


@dataclass(frozen=True)
class Call:
    """Memory and cost of one call of an encoder, or of one further row in it."""

    kept: float
    """Bytes that autograd keeps for the backward pass."""
    forward_extra: float
    """Further bytes at the peak of the forward pass, beside `kept` and the output vectors."""
    backward_extra: float
    """Further bytes at the peak of the backward pass, beside `kept` and the gradients of the weights."""
    forward: Cost
    backward: Cost

    def plus(self, slope: "Call", rows: float) -> "Call":
        """Return this call plus `rows` x `slope`; bytes never fall below zero."""
        return Call(
            max(0.0, self.kept + rows * slope.kept),
            max(0.0, self.forward_extra + rows * slope.forward_extra),
            max(0.0, self.backward_extra + rows * slope.backward_extra),
            self.forward.plus(slope.forward, rows),
            self.backward.plus(slope.backward, rows),
        )


@dataclass(frozen=True)
class Calls:
    """Costs of the calls of one encoder of fake tensors on one kind of device."""

    encoder: Encoder
    half: bool
    """Whether products are in bfloat16."""
    kind: str
    """Kind of device: cpu or cuda."""

    def of(self, rows: int, width: int, *, train: bool) -> Call:
        """Return the cost of a call with `rows` texts of `width` tokens."""
        base, slope = _line(self, width, train)
        return base.plus(slope, rows)

    def passing(self, rows: int, width: int) -> Call:
        """Return the cost of the same call in training mode without gradients."""
        call = self.of(rows, width, train=True)
        return Call(0, call.forward_extra, 0, call.forward, Cost())

    def measured(self, rows: int, width: int, train: bool) -> Call:
        """Measure a call by running the encoder's code once on fake tensors."""
        dense = [one for one in self.encoder.parameters() if one.requires_grad]
        copies = half_copies(self) if train else 0
        with self._ready(train) as trace:
            for parameter in dense if train else ():
                parameter.grad = torch.empty_like(parameter)
            start = trace.begin()
            vectors = self._encode(rows, width)
            own = start + vectors.nbytes + copies
            kept, held, forward = trace.alive - own, trace.peak.total() - own, trace.cost
            if not train:
                return Call(0, max(kept, held), 0, forward, Cost())
            held -= kept
            before = trace.begin()
            with torch.autocast("cpu", enabled=False):
                torch.autograd.backward(vectors, torch.empty(vectors.shape))
            found = Call(kept, held, trace.peak.total() - before, forward, trace.cost)
        self.encoder.zero_grad()
        return found

    @contextmanager
    def _ready(self, train: bool) -> Iterator[Trace]:
        encoder = self.encoder.train(train)
        tensors = [*encoder.parameters(), *encoder.buffers()]
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half)
        with _without_dropout_of_attention(encoder, self.kind), as_on(self.kind), Trace(tensors) as trace:
            with torch.set_grad_enabled(train), autocast:
                yield trace
        for part in encoder.modules():
            if isinstance(part, RowTable):
                part.forget()

    def _encode(self, rows: int, width: int) -> Tensor:
        lengths = np.full(rows, width)
        lengths[1:2] = max(1, width - 1)  # padded, as batches are
        words = self.encoder.tokenizer.vocab_size
        ids = np.random.default_rng(0).integers(words // 2, words, int(lengths.sum()))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        vectors: Tensor = self.encoder(torch.from_numpy(ids), torch.from_numpy(offsets))
        return vectors.float()


@cache
def half_copies(calls: Calls) -> int:
    """Return the bytes of the bfloat16 copies of weights that autocast makes once per step."""
    if not calls.half:
        return 0
    with calls._ready(True) as trace:
        calls._encode(2, 4)
        return trace.alive


@cache
def _line(calls: Calls, width: int, train: bool) -> tuple[Call, Call]:
    """Return the cost of a call as a line: fixed part, and part per row."""
    rows = max(2, -(-_MEASURED_TOKENS // width))
    nothing, small = Call(0, 0, 0, Cost(), Cost()), calls.measured(rows, width, train)
    if not train:  # only gradients do not grow with the rows, and there are none
        return nothing, nothing.plus(small, 1 / rows)
    slope = nothing.plus(calls.measured(2 * rows, width, train).plus(small, -1), 1 / rows)
    return small.plus(slope, -rows), slope


@contextmanager
def _without_dropout_of_attention(encoder: nn.Module, kind: str) -> Iterator[None]:
    """On CUDA, trace attention without dropout: there a fused kernel keeps no probabilities either."""
    with ExitStack() as stack:
        if kind == "cuda" and getattr(getattr(encoder, "model", None), "config", None) is not None:
            for part in encoder.modules():
                drop = getattr(part, "dropout", None)
                if "Attention" in type(part).__name__ and isinstance(drop, nn.Dropout):
                    stack.enter_context(patch.object(drop, "p", 0.0))
        yield


@contextmanager
def replayed(encoder: Encoder, calls: Calls, trace: Trace) -> Iterator[None]:
    """Inside the block, count calls of the encoder without computing them, if it is one that takes micro-batches."""
    if not encoder.micro_batched:
        yield
        return
    dense = [one for one in encoder.parameters() if one.requires_grad]

    def forward(ids: Tensor, offsets: Tensor) -> Tensor:
        lengths = offsets.diff()
        rows, width = len(lengths), max(1, int(lengths.max()))
        call = calls.of(rows, width, train=True) if torch.is_grad_enabled() else calls.passing(rows, width)
        vectors: Tensor = _Replay.apply(dense[0], dense, encoder.dim, rows, call, trace)  # type: ignore[no-untyped-call]
        return vectors

    with patch.object(encoder, "forward", forward):
        yield


class _Replay(torch.autograd.Function):
    """Memory and cost of a call, without its arithmetic."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, dense: list[nn.Parameter], dim: int, rows: int, call: Call, trace: Trace
    ) -> Tensor:
        trace.spend(call.forward, round(call.kept + call.forward_extra))
        ctx.save_for_backward(torch.empty(round(call.kept), dtype=torch.uint8))
        ctx.dense, ctx.call, ctx.trace = dense, call, trace
        return torch.empty(rows, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        with ctx.trace.part("gradients"):
            for parameter in ctx.dense:
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
        ctx.trace.spend(ctx.call.backward, round(ctx.call.backward_extra))
        return (None,) * 6
