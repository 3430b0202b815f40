"""Picking the label pool of a batch, at the size of LF-AmazonTitles-1.3M.

The reference goes through the batch one query after the other, the way the definition reads: `Generator.choice` draws,
`np.isin` removes positives and filter pairs from the hard list and finds the positives in the pool. Both sides use one
core. Labels follow Zipf's law within the cluster that a query belongs to, so that queries of a batch share labels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.batching import LabelPool
from harness.batching.pool import LabelPicker
from harness.perf import Row, bound, compare, turns

ROWS, LABELS, BATCH, LABELS_PER_ROW = 50_000, 1_305_265, 1098, 22
BETA, ETA, LISTED, POOL_SIZE = 2, 6, 30, 3000
AT_MOST_SECONDS, AT_LEAST = 0.010, 20.0
_SIZE = (
    f"{BATCH:,} queries, {LABELS:,} labels, {LABELS_PER_ROW} labels a row, beta {BETA}, eta {ETA} of {LISTED} listed"
)


def rows() -> Iterator[Row]:
    """The fixed bound without and with a cap on the pool, then the loop without and with it."""
    train, filtered, hard = random_case(np.random.default_rng(0))
    batch = np.random.default_rng(1).permutation(np.arange(2 * BATCH))[:BATCH]
    everything = partial(loop, batch, train, filtered, hard, beta=train.shape[1], eta=LISTED)
    for cap in (None, POOL_SIZE):
        _require_equal(_picker(train, filtered, hard, cap, train.shape[1], LISTED), batch, everything(pool_size=cap))
    for cap in (None, POOL_SIZE):
        picker = _picker(train, filtered, hard, cap, BETA, ETA)
        size = f"{_SIZE}, {'no cap' if cap is None else f'pool of {cap:,}'}"
        pick = partial(picker.pick, batch, np.random.default_rng(2), np.random.default_rng(3))
        plain = partial(loop, batch, train, filtered, hard, beta=BETA, eta=ETA, pool_size=cap)
        ours, theirs = turns(pick, plain, repeats=9)
        yield bound("picking a label pool", size, ours, at_most=AT_MOST_SECONDS)
        reference = "loop over queries with Generator.choice and np.isin"
        yield compare("picking a label pool", size, reference, ours, theirs, at_least=AT_LEAST)


def random_case(generator: np.random.Generator) -> tuple[csr_array, csr_array, NDArray[np.int32]]:
    """Train labels [N, L], one filter pair a row [N, L] and hard lists [N, H] of distinct labels."""
    row = np.repeat(np.arange(ROWS), generator.poisson(1.33 * LABELS_PER_ROW, ROWS))  # a quarter are repeats
    # 1098 x 22 pairs fall on about 6,400 labels of a cluster: most are in one or two queries, the first in nearly all
    near = (generator.zipf(1.2, len(row)) - 1) % 20_000
    label = (row // BATCH * 20_000 + near) % LABELS
    train = csr_array((np.ones(len(row), np.float32), (row, label)), shape=(ROWS, LABELS))
    own = np.arange(ROWS)
    self_pair = (own // BATCH * 20_000 + generator.integers(20_000, size=ROWS)) % LABELS
    filtered = csr_array((np.ones(ROWS, np.float32), (own, self_pair)), shape=(ROWS, LABELS))
    # a run of consecutive ids holds no label twice
    start = own[:, None] // BATCH * 20_000 + generator.integers(20_000, size=(ROWS, 1))
    return train, filtered, ((start + np.arange(LISTED)) % LABELS).astype(np.int32)


def loop(
    batch: NDArray[np.int64],
    train: csr_array,
    filtered: csr_array,
    hard: NDArray[np.int32],
    *,
    beta: int,
    eta: int,
    pool_size: int | None,
) -> LabelPool:
    """The same pool as `LabelPicker` would pick, one query at a time, drawing other random numbers."""
    generator = np.random.default_rng(4)
    drawn: list[int] = []
    against: list[int] = []
    known = [train.indices[train.indptr[row] : train.indptr[row + 1]] for row in batch]
    masked = [filtered.indices[filtered.indptr[row] : filtered.indptr[row + 1]] for row in batch]
    for row, positives, hidden in zip(batch, known, masked, strict=True):
        drawn += generator.choice(positives, min(beta, len(positives)), replace=False).tolist()
        listed = hard[row][~np.isin(hard[row], positives) & ~np.isin(hard[row], hidden) & (hard[row] >= 0)]
        against += generator.choice(listed, min(eta, len(listed)), replace=False).tolist()
    further = [] if pool_size is None else np.concatenate(known).tolist()
    labels = np.array(sorted(_first(pool_size, (drawn, against, further))), dtype=np.int64)
    positive, ignored = np.zeros((2, len(batch), len(labels)), np.bool_)
    for place, (positives, hidden) in enumerate(zip(known, masked, strict=True)):
        positive[place] = np.isin(labels, positives)
        ignored[place] = np.isin(labels, hidden) & ~positive[place]
    return LabelPool(labels, positive, ignored if ignored.any() else None)


def _first(size: int | None, kinds: Iterable[list[int]]) -> set[int]:
    """Up to `size` distinct labels, one kind after the other, the most frequent of a kind first."""
    chosen: dict[int, None] = {}
    for labels in kinds:
        count = Counter(labels)
        chosen |= dict.fromkeys(sorted(count, key=lambda label: (-count[label], label)))
    return set(list(chosen)[:size])


def _picker(
    train: csr_array, filtered: csr_array, hard: NDArray[np.int32], pool_size: int | None, beta: int, eta: int
) -> LabelPicker:
    picker = LabelPicker(train, filtered, beta=beta, eta=eta, pool_size=pool_size)
    picker.hard = hard
    return picker


def _require_equal(picker: LabelPicker, batch: NDArray[np.int64], expected: LabelPool) -> None:
    """Both sides must do the same work; when every query draws all it has, chance plays no part."""
    pool = picker.pick(batch, np.random.default_rng(5), np.random.default_rng(6))
    if not (
        np.array_equal(pool.labels, expected.labels)
        and np.array_equal(pool.positive, expected.positive)
        and pool.ignored is not None
        and np.array_equal(pool.ignored, expected.ignored)  # type: ignore[arg-type]
    ):
        raise AssertionError("the two sides pick different pools, so their times mean nothing")
