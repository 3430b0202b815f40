"""Candidates by scoring every label: blocked matrix products, then a tournament instead of a sort.

For a block of queries the scores of up to `label_block` labels are in memory as tiles [tiles, B, tile]; those of all
pairs never are. Each tile is cut into chunks of neighbouring labels. The best C scores of a row lie in the C chunks
with the largest maxima: a score in any other chunk is no larger than C maxima, and each of these is a score itself. So
a row costs one maximum per chunk, a top-C over the maxima, and a top-C over C x chunk gathered scores. The argument
holds for any grouping; `top_positions` uses it again to keep every top-C narrow.
"""

import logging
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError, out_of_memory
from harness.index.ranking import Candidates, ordered_bits
from harness.index.task import Pending, Task

_LOG = logging.getLogger(__name__)

# A tournament of groups of 6 beats a plain top-C from about 16 C entries on (measured at C = 114).
_FAN, _DIRECT = 6, 16

# queries of all threads together, labels, and scores per tile: larger tiles leave the processor's cache
_BLOCKS = {"cpu": (1 << 10, 1 << 16, 1 << 19), "cuda": (1 << 12, 1 << 16, 1 << 26)}
_SCRATCH = {"cpu": 48 << 20, "cuda": 640 << 20}
"""Bytes of gathered chunks and rescored pairs; measured on a CPU, estimated for CUDA."""
_GATHER_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}


def working_bytes(kind: str, queries: int, labels: int) -> float:
    """Return the bytes of scores, maxima and gathered chunks of a search on `cpu` or `cuda`, all threads together."""
    most_queries, most_labels, _ = _BLOCKS[kind]
    scores = 4 * min(queries, most_queries) * min(labels, most_labels)
    return scores * 33 / 32 + _SCRATCH[kind]


def candidates(task: Task, pending: Pending, *, tile: int | None = None, chunk: int = 32) -> Iterator[Candidates]:
    """Propose the best `task.width` labels of every query by float32 score; halve the blocks when memory runs out.

    Args:
        task: the search.
        pending: the queries not taken yet; several threads may share it.
        tile: labels per matrix product.
        chunk: neighbouring labels that share one maximum.
    """
    scorer = _Scorer(task, tile, chunk)
    while len(at := pending.take(scorer.query_block)):
        while len(at):
            try:
                found = scorer(at[: scorer.query_block])
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                scorer.shrink()
                continue
            yield found
            at = at[len(found.at) :]


class _Scorer:
    """Block sizes, and the score buffer that all blocks share: the first touch of fresh memory is slow."""

    def __init__(self, task: Task, tile: int | None, chunk: int) -> None:
        queries, labels, tile_scores = _BLOCKS[task.queries.device.type]
        self._task, self._chunk = task, chunk
        share = -(-len(task.rows) // task.workers)
        self.query_block = min(task.query_block or queries // task.workers, share)
        self.label_block = min(task.label_block or labels, task.labels.count)
        self._tile = tile or max(1, tile_scores // self.query_block)
        self._storage: Tensor | None = None

    def shrink(self) -> None:
        """Halve the queries of a block, or the labels once it has one query; results do not depend on either."""
        self._storage = None
        if self.query_block > 1:
            self.query_block //= 2
        elif self.label_block > 1:
            self.label_block //= 2
        else:
            raise UserError("not enough memory to score one query against one label; free some memory and start again")
        sizes = (self.query_block, self.label_block)
        _LOG.warning("out of memory: searching on with blocks of %d queries and %d labels", *sizes)

    def __call__(self, at: NDArray[np.int64]) -> Candidates:
        """Return the proposed labels of the queries with the indices `at` [B]."""
        tiles, tile = _tile_shape(self.label_block, self._tile, self._chunk)
        if self._storage is None:
            self._storage = torch.empty(tiles * self.query_block * tile, device=self._task.queries.device)
        scores = self._storage[: tiles * len(at) * tile].view(tiles, len(at), tile)
        return _best_labels(self._task, at, scores, self._chunk)


def _tile_shape(labels: int, tile: int, chunk: int) -> tuple[int, int]:
    """Return number and width of the tiles for the scores of `labels` labels; the width is a multiple of `chunk`."""
    tile = -(-min(tile, labels) // chunk) * chunk
    return -(-labels // tile), tile


def _best_labels(task: Task, at: NDArray[np.int64], scores: Tensor, chunk: int) -> Candidates:
    """Return proposed labels of the queries with the indices `at` [B]; `scores` [tiles, B, tile] is a buffer."""
    queries, mask = task.query_vectors(at), task.masker(at)
    tiles, rows, tile = scores.shape
    best = torch.empty((rows, 0), device=queries.device)
    ids = torch.empty((rows, 0), dtype=torch.int64, device=queries.device)
    for first in range(0, task.labels.count, tiles * tile):
        starts = range(first, min(first + tiles * tile, task.labels.count), tile)
        maxima = torch.empty((rows, len(starts), tile // chunk), device=queries.device)
        for part, begin, part_maxima in zip(scores, starts, maxima.unbind(1), strict=False):
            labels = task.labels.block(begin, begin + tile)
            torch.mm(queries, labels.T, out=part[:, : len(labels)])
            part[:, len(labels) :] = -math.inf
            mask(part, begin)
            torch.amax(part.view(rows, -1, chunk), 2, out=part_maxima)
        block_best, positions = _best_of_tiles(scores, maxima.flatten(1), chunk, task.width)
        best, ids = torch.cat([best, block_best], 1), torch.cat([ids, positions + first], 1)
        if best.shape[1] > task.width:
            best, kept = best.topk(task.width, 1, sorted=False)
            ids = ids.gather(1, kept)
    return Candidates.of(at, best, ids, left_out=task.width < task.labels.count)


def _best_of_tiles(scores: Tensor, maxima: Tensor, chunk: int, width: int) -> tuple[Tensor, Tensor]:
    """Find the best entries of every row of `scores` [tiles, B, tile] by the maxima [B, chunks] of the tiles in use.

    Returns scores and positions [B, <= width]; a position counts along the row's tiles laid end to end.
    """
    _, rows, tile = scores.shape
    per_tile = tile // chunk
    by_chunk = scores.view(-1, chunk)
    best, positions = [], []
    step = max(1, _GATHER_ELEMENTS[scores.device.type] // (width * chunk))
    for start in range(0, rows, step):
        chunks = top_positions(ordered_bits(maxima[start : start + step]), width)
        row = torch.arange(start, start + len(chunks), device=scores.device)[:, None]
        line = ((chunks // per_tile) * rows + row) * per_tile + chunks % per_tile
        values = by_chunk.index_select(0, line.view(-1)).view(len(chunks), -1)
        winners = top_positions(ordered_bits(values), width)
        best.append(values.gather(1, winners))
        positions.append(chunks.gather(1, winners // chunk) * chunk + winners % chunk)
    return torch.cat(best), torch.cat(positions)


def top_positions(values: Tensor, width: int) -> Tensor:
    """Return the positions [B, min(width, W)] of the largest entries of every row of `values` [B, W], in any order."""
    rows, total = values.shape
    if total <= _DIRECT * width:
        return values.topk(min(width, total), 1, sorted=False).indices
    groups = total // _FAN
    # group g holds positions g, g + groups, g + 2 groups, ...: its maxima are then a plain maximum of _FAN long rows
    maxima = values[:, : groups * _FAN].view(rows, _FAN, groups).amax(1)
    winners = top_positions(maxima, width)
    members = torch.arange(0, groups * _FAN, groups, device=values.device)[None, :, None]
    entries = (winners[:, None, :] + members).view(rows, -1)
    rest = torch.arange(groups * _FAN, total, device=values.device).expand(rows, -1)
    entries = torch.cat([entries, rest], 1)
    return entries.gather(1, values.gather(1, entries).topk(width, 1, sorted=False).indices)
