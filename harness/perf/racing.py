"""The harness against an earlier version of itself: trainings to an accuracy, in processes that take turns.

The earlier version is taken from the history of this checkout. What is compared is the time of training, mining
included; every training must reach the accuracy that is asked for, or its time means nothing. What was known then is
the default training; now a shorter one is known to get there. How much of the difference is the code and how much are
the epochs is shown beside it, by the default training of both.
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
SHORT = 6
"""Epochs, of 15: 57.0 of the 57.9 points of P@1 on held-out rows of the train side."""
_TURNS = 2
_ROOT = Path(__file__).parents[2]


def rows() -> Iterator[Row]:
    """Training to an accuracy, now and before."""
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as folder:
        earlier = Path(folder) / "earlier"
        unpack(BEFORE, earlier)
        short: list[dict[str, Any]] = []
        now: list[dict[str, Any]] = []
        before: list[dict[str, Any]] = []
        sides = ((short, _ROOT, SHORT), (before, earlier, None), (now, _ROOT, None))
        with progress("trainings, now and before", 3 * _TURNS, "trainings") as advance:
            for turn in range(_TURNS):
                for place, (records, code, epochs) in enumerate(sides):
                    records.append(trained(code, Path(folder) / f"{turn}-{place}", epochs))
                    advance(1)
    what, version = f"training of unidec on {DATASET}", f"commit {BEFORE} of this repository"
    default = f"{now[0]['training']['epochs']} epochs"
    reference = f"{version}, its default of {default}"
    yield raced(f"{what} to P@1 of {WANTED:g}", f"{SHORT} epochs, seed 0", reference, short, before, AT_LEAST)
    yield raced(f"{what}, the same settings", f"{default}, seed 0", f"{version}, {default}", now, before)


def raced(
    what: str,
    size: str,
    reference: str,
    now: list[dict[str, Any]],
    before: list[dict[str, Any]],
    at_least: float | None = None,
) -> Row:
    """Seconds of training of the records of two sides; without `at_least` they are only shown.

    Raises:
        AssertionError: A side did not reach the accuracy.
    """
    accuracy = [min(record["metrics"]["P@1"] for record in records) for records in (now, before)]
    if min(accuracy) < WANTED:
        raise AssertionError(f"P@1 is below {WANTED:g}, so the times mean nothing: {accuracy}")
    seconds = (Sample(tuple(record["training"]["seconds"] for record in records), "s") for records in (now, before))
    detail = f"P@1 {accuracy[0]:.2f} now, {accuracy[1]:.2f} before"
    return compare(what, size, reference, *seconds, at_least=at_least, detail=detail)


def unpack(commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder.

    Raises:
        UserError: There is no git, or the history does not have the commit.
    """
    try:
        done = subprocess.run(["git", "archive", "--format=zip", commit], cwd=_ROOT, capture_output=True, check=False)  # noqa: S607  the git of the user
    except FileNotFoundError as error:
        raise UserError(f"git is not installed, and the earlier version is commit {commit} of the history") from error
    if done.returncode:
        raise UserError(f"no commit {commit} in the history of the checkout; take a full clone (git fetch --unshallow)")
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)


def trained(code: Path, out: Path, epochs: int | None) -> dict[str, Any]:
    """The record of a run of the code in a folder, with so many epochs, or with as many as it takes by default."""
    command = [sys.executable, "-m", "harness", "run", "--dataset", DATASET, "--track", "none", "--out", str(out)]
    command += [] if epochs is None else ["--set", f"epochs={epochs}"]
    surroundings = {"PYTHONPATH": str(code), "HARNESS_HOME": str(home().absolute()), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        command, cwd=code, env={**os.environ, **surroundings}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a run of {code.name} failed: {done.stderr.strip()[-2000:]}")
    (path,) = out.glob("*/record.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
