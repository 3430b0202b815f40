"""The harness against an earlier version of itself: the same run, the same seed, in processes that take turns.

The earlier version is taken from the history of this checkout. What is compared is the time of training, mining
included; both sides must reach the accuracy that is asked for, or their times mean nothing.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import home
from harness.perf import Row, Sample, compare
from harness.progress import progress

BEFORE = "63cdf62b"
"""The last commit before training was made fast."""
DATASET, WANTED, AT_LEAST = "lf-debiantitles", 54.0, 3.0
_TURNS = 2
_ROOT = Path(__file__).parents[2]


def rows() -> Iterator[Row]:
    """Training to an accuracy, now and before."""
    what = f"training of unidec on {DATASET} to P@1 of {WANTED:g}"
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as folder:
        earlier = Path(folder) / "earlier"
        unpack(BEFORE, earlier)
        now: list[dict[str, Any]] = []
        before: list[dict[str, Any]] = []
        with progress(what, 2 * _TURNS, "trainings") as advance:
            for turn in range(_TURNS):
                for code, runs in ((_ROOT, now), (earlier, before)):
                    runs.append(trained(code, Path(folder) / f"{code.name}-{turn}"))
                    advance(1)
    accuracy = {name: min(run["metrics"]["P@1"] for run in runs) for name, runs in (("now", now), ("before", before))}
    if min(accuracy.values()) < WANTED:
        raise AssertionError(f"P@1 is below {WANTED:g}, so the times mean nothing: {accuracy}")
    yield compare(
        what,
        f"{now[0]['training']['steps']:,} steps, default settings, seed 0",
        f"commit {BEFORE} of this repository, the same command",
        *(Sample(tuple(run["training"]["seconds"] for run in runs), "s") for runs in (now, before)),
        at_least=AT_LEAST,
        detail=f"P@1 {accuracy['now']:.2f} now, {accuracy['before']:.2f} before",
    )


def unpack(commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder.

    Raises:
        UserError: There is no git, or the history does not have the commit.
    """
    try:
        done = subprocess.run(["git", "archive", "--format=zip", commit], cwd=_ROOT, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UserError(f"git is not installed, and the earlier version is commit {commit} of the history") from error
    if done.returncode:
        raise UserError(f"no commit {commit} in the history of the checkout; take a full clone (git fetch --unshallow)")
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)


def trained(code: Path, out: Path) -> dict[str, Any]:
    """The record of a run of the code in a folder."""
    command = [sys.executable, "-m", "harness", "run", "--dataset", DATASET, "--track", "none", "--out", str(out)]
    surroundings = {"PYTHONPATH": str(code), "HARNESS_HOME": str(home().absolute()), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        command, cwd=code, env={**os.environ, **surroundings}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a run of {code.name} failed: {done.stderr.strip()[-2000:]}")
    (path,) = out.glob("*/record.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
