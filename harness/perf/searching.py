"""Exact search against faiss's flat index, and the memory it takes on top of its input and its result.

Memory is measured in a process of its own, because a peak cannot be reset.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.index import search
from harness.perf import Row, Sample, bound, compare, turns
from harness.perf.child import in_child
from harness.repro import peak_memory_gib

QUERIES, LABELS, DIMENSION, RETRIEVED = 20_000, 50_000, 256, 100
AT_MOST_TIME, AT_MOST_BYTES = 1.2, 400 * 2**20
_SIZE = f"{QUERIES:,} queries x {LABELS:,} labels x {DIMENSION} dimensions, top-{RETRIEVED}"


def rows() -> Iterator[Row]:
    """Time, then memory."""
    yield _time()
    yield bound(
        "exact search, peak memory beyond its input",
        _SIZE,
        Sample((in_child(extra_memory),), "B"),
        at_most=AT_MOST_BYTES,
        detail=f"all scores at once would take {QUERIES * LABELS * 4 / 2**20:,.0f} MiB, "
        f"the result alone takes {QUERIES * RETRIEVED * 8 / 2**20:.0f} MiB",
    )


def faiss_library() -> Any:
    """faiss, which some of these references need."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "this benchmark needs faiss; install it with `pip install -c constraints.txt -e '.[cpu]'`"
        ) from error
    return faiss


def unit_vectors(count: int, seed: int) -> NDArray[np.float32]:
    """Random directions, [count, DIMENSION], made without temporaries that would hide a later peak."""
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSION), dtype=np.float32)
    for part in np.array_split(vectors, 100):
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def _time() -> Row:
    faiss = faiss_library()
    queries, labels = unit_vectors(QUERIES, 0), unit_vectors(LABELS, 1)
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(labels)
    _require_agreement(search(queries[:1000], labels, RETRIEVED).ids, index.search(queries[:1000], RETRIEVED)[1])
    ours, theirs = turns(
        lambda: search(queries, labels, RETRIEVED), lambda: index.search(queries, RETRIEVED), repeats=3
    )
    return compare(
        "exact search",
        _SIZE,
        f"faiss {faiss.__version__} IndexFlatIP, {faiss.omp_get_max_threads()} threads, index ready built",
        ours,
        theirs,
        at_most=AT_MOST_TIME,
    )


def _require_agreement(ours: NDArray[np.int32], theirs: NDArray[np.int64]) -> None:
    """Both must have done the same work; neighbours whose scores differ in the last bit may be swapped by faiss."""
    if (ours == theirs).mean() < 0.999:
        raise AssertionError("the two searches disagree, so their times cannot be compared")


def extra_memory() -> float:
    """How many bytes one search adds to the peak of this process."""
    queries, labels = unit_vectors(QUERIES, 0), unit_vectors(LABELS, 1)
    search(queries[:1], labels[:1], 1)  # libraries are loaded and their thread pools started
    before = peak_memory_gib()
    search(queries, labels, RETRIEVED)
    return (peak_memory_gib() - before) * 2**30
