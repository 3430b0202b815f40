"""Cuts long work into blocks of bounded memory."""

import numpy as np
from numpy.typing import NDArray


def blocks(work: NDArray[np.int64], limit: int) -> list[slice]:
    """Consecutive ranges of items that together cost about `limit`; an item that costs more may stand alone.

    Every range costs less than `limit` without its last item.

    Args:
        work: What every item costs, [n].
        limit: Cost of a block.
    """
    if not len(work):
        return []
    before = np.cumsum(work, dtype=np.int64) - work
    starts = np.flatnonzero(np.diff(before // limit, prepend=-1))
    return [slice(int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(work)], strict=True)]
