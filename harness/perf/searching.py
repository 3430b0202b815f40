"""Exact search against faiss's flat index, and the memory it takes on top of its input and its result.

Memory is measured in a fresh process, `python -m harness.perf.searching`, because a peak cannot be reset.
"""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.index import search
from harness.perf import Row, median_seconds

QUERIES, LABELS, DIMENSION, RETRIEVED = 20_000, 50_000, 256, 100
AT_MOST_TIME, AT_MOST_MEGABYTES = 1.2, 400.0
_SIZE = f"{QUERIES:,} queries x {LABELS:,} labels x {DIMENSION} dimensions, top-{RETRIEVED}"


def rows() -> Iterator[Row]:
    """Time, then memory."""
    yield _time()
    megabytes = float(
        subprocess.run(
            [sys.executable, "-m", "harness.perf.searching"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )
    yield Row(
        what="exact search, peak memory beyond its input",
        size=_SIZE,
        reference="a fixed bound; all scores at once would take "
        f"{QUERIES * LABELS * 4 / 2**20:,.0f} MB, the result alone {QUERIES * RETRIEVED * 8 / 2**20:.0f} MB",
        ours=f"{megabytes:.0f} MB",
        theirs=f"{AT_MOST_MEGABYTES:.0f} MB",
        ratio=megabytes / AT_MOST_MEGABYTES,
        target="at most 1x",
        met=megabytes <= AT_MOST_MEGABYTES,
    )


def unit_vectors(count: int, seed: int) -> NDArray[np.float32]:
    """Random directions, [count, DIMENSION], made without temporaries that would hide a later peak."""
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSION), dtype=np.float32)
    for part in np.array_split(vectors, 100):
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def _time() -> Row:
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "this benchmark needs faiss; install it with `pip install -c constraints.txt -e '.[cpu]'`"
        ) from error
    queries, labels = unit_vectors(QUERIES, 0), unit_vectors(LABELS, 1)
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(labels)
    _require_agreement(search(queries[:1000], labels, RETRIEVED).ids, index.search(queries[:1000], RETRIEVED)[1])
    ours, theirs = median_seconds(
        lambda: search(queries, labels, RETRIEVED), lambda: index.search(queries, RETRIEVED), repeats=3
    )
    return Row(
        what="exact search",
        size=_SIZE,
        reference=f"faiss {faiss.__version__} IndexFlatIP, {faiss.omp_get_max_threads()} threads, index ready built",
        ours=f"{ours:.2f} s",
        theirs=f"{theirs:.2f} s",
        ratio=ours / theirs,
        target=f"at most {AT_MOST_TIME}x",
        met=ours <= AT_MOST_TIME * theirs,
    )


def _require_agreement(ours: NDArray[np.int32], theirs: NDArray[np.int64]) -> None:
    """Both must have done the same work; neighbours whose scores differ in the last bit may be swapped by faiss."""
    if (ours == theirs).mean() < 0.999:
        raise AssertionError("the two searches disagree, so their times cannot be compared")


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss of a child starts at the size of its parent on Linux
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 2**10  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Prints how many megabytes one search adds to the peak of this process."""
    queries, labels = unit_vectors(QUERIES, 0), unit_vectors(LABELS, 1)
    search(queries[:1], labels[:1], 1)  # libraries are loaded and their thread pools started
    before = peak_megabytes()
    search(queries, labels, RETRIEVED)
    sys.stdout.write(f"{peak_megabytes() - before:.1f}\n")


if __name__ == "__main__":
    main()
