"""How long a person waits for the command line itself: a fresh process each time, against a fixed bound."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from harness.perf import Row, median_seconds

HELP_SECONDS = 0.7


def rows() -> Iterator[Row]:
    """`--help` and a listing of methods."""
    for arguments in (["--help"], ["ls", "methods"]):
        command = [sys.executable, "-m", "harness", *arguments]
        (seconds,) = median_seconds(partial(subprocess.run, command, check=True, capture_output=True), repeats=5)
        yield Row(
            what=f"harness {' '.join(arguments)}",
            size="fresh process",
            reference="fixed bound",
            ours=f"{seconds:.2f} s",
            theirs=f"{HELP_SECONDS} s",
            ratio=seconds / HELP_SECONDS,
            target="at most 1.0",
            met=seconds <= HELP_SECONDS,
        )
