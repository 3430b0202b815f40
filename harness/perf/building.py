"""How long the builders of real data take, from nothing to a prepared folder, against fixed bounds in seconds.

Each build has a fresh workspace, so nothing is reused. There is no other program that builds these datasets, so the
reference is the bound itself: what a person waits for on the first use without wondering.
"""

import shutil
import time
from collections.abc import Iterator

from harness.perf import Row, Sample, bound, fresh_workspace

BOUNDS = {"lf-debiantitles": 60.0, "lf-pydocstitles": 40.0}
"""Seconds, on two busy cores."""


def rows() -> Iterator[Row]:
    """One row a dataset; without apt the Debian row is left out, and the reference of the other one says so."""
    from harness.data import load

    reference = "fixed bound"
    for name, most in BOUNDS.items():
        if name == "lf-debiantitles" and shutil.which("apt-cache") is None:
            reference = f"fixed bound; {name} not measured: no apt on this machine"
            continue
        with fresh_workspace():
            started = time.perf_counter()
            dataset = load(name)
            seconds = time.perf_counter() - started
            size = f"{dataset.train.shape[0]:,} + {dataset.test.shape[0]:,} rows, {dataset.train.shape[1]:,} labels"
            del dataset
        yield bound(f"prepare {name} from nothing", size, Sample((seconds,), "s"), at_most=most, reference=reference)
