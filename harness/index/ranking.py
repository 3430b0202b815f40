"""From candidates to the one right order: score descending, equal scores by the smaller label id.

The score of a pair is its inner product summed in float64 and rounded once to float32. A float32 matrix product differs
from it by at most e = D u ||q|| ||l||, u = 2^-24, in whatever order its kernel adds. So a backend proposes C labels,
a few more than K. These are scored again, and their order is final if every label left out lies more than e below the
K-th: (largest float32 score left out) + e < (K-th score). The few rows without that proof, such as those with many
equal scores, are searched once more against all labels in float64. So ids and scores depend on no block size or kernel.

Score and id share one integer, so that a plain top-k breaks ties:
key = order-preserving int32 of the score * 2^32 + (2^32 - 1 - id).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError
from harness.index.task import Pending, Task, plain_arithmetic
from harness.io.progress import Advance
from harness.machine.threads import Threads

_LOW = 0xFFFFFFFF
_LARGEST = float(np.finfo(np.float32).max)
_RESCORE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
_EXHAUSTIVE_ROWS, _EXHAUSTIVE_ELEMENTS = 256, 1 << 21


@dataclass(frozen=True)
class Candidates:
    """Labels proposed for some queries."""

    at: NDArray[np.int64]
    """Indices of the queries among the task's finite queries, [B]."""
    ids: Tensor
    """Proposed labels in any order, -1 for none, [B, C]."""
    floor: Tensor | None
    """Largest float32 score that a label left out can have, [B]; None if the backend cannot say (approximate)."""

    @classmethod
    def of(cls, at: NDArray[np.int64], scores: Tensor, ids: Tensor, *, left_out: bool, proven: bool = True) -> Self:
        """Return candidates `ids` [B, C] with float32 scores [B, C]; -inf marks labels that must not be returned.

        `left_out` says whether there are labels beyond these C, `proven` whether all of them score lower.
        """
        floor = scores.amin(1) if left_out else scores.new_full((len(scores),), -math.inf)
        return cls(at, ids.masked_fill(scores == -math.inf, -1), floor if proven else None)


Proposer = Callable[[Task, Pending], Iterable[Candidates]]


class _Result:
    """Ids and scores found so far, and the rows to be searched once more."""

    def __init__(self, task: Task) -> None:
        shape = (len(task.rows), task.k)
        try:
            self.ids = np.full(shape, -1, np.int32)
            self.scores = np.full(shape, -math.inf, np.float32)
        except MemoryError as error:
            raise UserError(f"the best {shape[1]:,} of {shape[0]:,} queries do not fit into memory; lower k") from error
        self.doubtful: list[NDArray[np.int64]] = []
        self.lock = Lock()

    def store(self, at: NDArray[np.int64], keys: Tensor) -> None:
        """Write keys [B, <= K], best first, as ids and scores of the rows `at` [B]."""
        scores, ids = unpack(keys)
        self.ids[at, : keys.shape[1]] = ids.cpu().numpy()
        self.scores[at, : keys.shape[1]] = scores.cpu().numpy()


def rank(task: Task, propose: Proposer, advance: Advance) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Order the labels that a backend proposes; return ids [rows, K] (-1 = none) and scores [rows, K] (-inf = none)."""
    result, pending = _Result(task), Pending(len(task.rows))
    share = partial(_rank_share, task, propose, pending, result, advance)
    if task.workers == 1:
        share()
    else:
        # Threads that each search their own queries never wait for each other, as the threads inside an operation do.
        threads = torch.get_num_threads()
        with Threads(task.workers) as pool:
            try:
                running = [pool.submit(share, threads // task.workers) for _ in range(task.workers)]
                for future in running:
                    future.result()
            finally:
                pending.cancel()
                torch.set_num_threads(threads)
    again = np.sort(np.concatenate([np.zeros(0, np.int64), *result.doubtful]))
    with plain_arithmetic(task.queries.device):
        for start in range(0, len(again), _EXHAUSTIVE_ROWS):
            at = again[start : start + _EXHAUSTIVE_ROWS]
            result.store(at, exhaustive(task, at))
    return result.ids, result.scores


def _rank_share(
    task: Task, propose: Proposer, pending: Pending, result: _Result, advance: Advance, threads: int | None = None
) -> None:
    """Search until no query is pending; this is the work of one thread."""
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with plain_arithmetic(task.queries.device):
            rescore = Rescorer(task)
            for proposed in propose(task, pending):
                _settle(task, proposed, rescore, result)
                with result.lock:
                    advance(len(proposed.at))
    except BaseException:
        pending.cancel()
        raise


def _settle(task: Task, proposed: Candidates, rescore: "Rescorer", result: _Result) -> None:
    queries = task.query_vectors(proposed.at)
    keys = pack(rescore(queries, proposed.ids), proposed.ids)
    keys = keys.topk(min(task.k, proposed.ids.shape[1]), 1).values
    result.store(proposed.at, keys)
    if proposed.floor is not None:
        doubtful = ~proven(queries, task, proposed.floor, keys)
        result.doubtful.append(proposed.at[doubtful.cpu().numpy()])


class Rescorer:
    """Computes exact scores of given pairs. Buffers are kept between calls: fresh memory costs as much as the sums."""

    def __init__(self, task: Task) -> None:
        self._labels = task.labels
        self._step = max(1, _RESCORE_ELEMENTS[task.labels.device.type] // (task.width * task.labels.dimension))
        shape, device = (self._step * task.width, task.labels.dimension), task.labels.device
        self._vectors = torch.empty(shape, device=device)
        self._products = torch.empty(shape, device=device, dtype=torch.float64)

    def __call__(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Score queries [B, D] against their own labels `ids` [B, C]; return [B, C], -inf where the id is -1."""
        scores = torch.empty(ids.shape, device=queries.device)
        for start in range(0, len(ids), self._step):
            part, rows = ids[start : start + self._step], slice(start, start + self._step)
            vectors = self._labels.take(part.reshape(-1).clamp(min=0), out=self._vectors[: part.numel()])
            products = self._products[: part.numel()].copy_(vectors).view(*part.shape, -1)
            scores[rows] = to_float32(products.mul_(queries[rows, None, :].double()).sum(2))
        return scores.masked_fill_(ids < 0, -math.inf)


def to_float32(scores: Tensor) -> Tensor:
    """Round float64 scores once; too large ones become the largest float32, and -0.0 becomes 0.0."""
    return scores.clamp(-_LARGEST, _LARGEST).float() + 0.0


def ordered_bits(scores: Tensor) -> Tensor:
    """Map float32 to int32 of the same order, which sorts faster; on the bits the map is its own inverse."""
    bits = scores.view(torch.int32)
    return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)  # negative floats count backwards in their bits


def pack(scores: Tensor, ids: Tensor) -> Tensor:
    """Return keys (int64) that sort by score, then by smaller id; an id of -1 comes last."""
    return (ordered_bits(scores).to(torch.int64) << 32) | (_LOW - (ids & _LOW))


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and ids of keys; the id is -1 where the score is -inf."""
    scores = ordered_bits((keys >> 32).to(torch.int32)).view(torch.float32)
    return scores, (_LOW - (keys & _LOW)).masked_fill(scores == -math.inf, -1)


def proven(queries: Tensor, task: Task, floor: Tensor, keys: Tensor) -> Tensor:
    """Return which rows cannot have lost one of their best K labels to rounding, bool [B]."""
    dimension = task.labels.dimension
    # (D + 2): D roundings of the product's sum, one of the exact score, one of this comparison; then flushed subnormals
    relative, absolute = 1.01 * (dimension + 2) * 2.0**-24, dimension * 2.0**-126
    norms: Tensor = torch.linalg.vector_norm(queries.double(), dim=1)
    error = relative * norms * task.label_norm + absolute
    overflow_free = norms * task.label_norm < _LARGEST
    kth = unpack(keys[:, -1])[0].double()
    return overflow_free & ((floor == -math.inf) | (floor.double() + error < kth))


def exhaustive(task: Task, at: NDArray[np.int64]) -> Tensor:
    """Return keys [B, K] of the best labels of the queries `at` [B], every score computed in float64."""
    queries, mask = task.query_vectors(at).double(), task.masker(at)
    step = max(1, min(8192, _EXHAUSTIVE_ELEMENTS // task.labels.dimension))
    best = torch.empty((len(at), 0), dtype=torch.int64, device=queries.device)
    for first in range(0, task.labels.count, step):
        labels = task.labels.block(first, min(first + step, task.labels.count))
        scores = to_float32(queries @ labels.double().T)
        mask(scores, first)
        keys = pack(scores, torch.arange(first, first + len(labels), device=queries.device).expand_as(scores))
        best = torch.cat([best, keys.topk(min(task.k, len(labels)), 1).values], 1)
        best = best.topk(min(task.k, best.shape[1]), 1).values
    return best
