"""How long a person waits for the command line itself: a fresh process each time, against fixed bounds in seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.race import Race, size

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("words", "at_most"), [("--help", 0.7), ("ls methods", 0.7)])
def test_command(race: Race, words: str, at_most: float) -> None:
    def call() -> None:
        subprocess.run([sys.executable, "-m", "harness", *words.split()], cwd=ROOT, check=True, capture_output=True)

    race.alone(f"harness {words}", "fresh process", call, at_most=at_most, rounds=size(5, 1))


def test_first_run(race: Race, tmp_path: Path) -> None:
    """A whole run of the smallest kind in a fresh process: libraries, data, encoder, search, record."""
    command = "run --method zeroshot --dataset synthetic --encoder tiny --track none".split()
    environment = {**os.environ, "HARNESS_HOME": str(tmp_path / "home")}

    def call() -> None:
        subprocess.run(
            [sys.executable, "-m", "harness", *command], cwd=ROOT, env=environment, check=True, capture_output=True
        )

    race.alone("harness run, zero-shot on synthetic data", "fresh process", call, at_most=12.0, rounds=size(3, 1))
