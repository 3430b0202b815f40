"""Benches on generated data for tests: requests, answers, and runs that look finished or cut off."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.bench import Cell, Request
from harness.run import run
from harness.runs.record import RunRecord, runs_folder
from tests.support.commands import call
from tests.support.training_runs import DATASET

TINY = ["--datasets", DATASET, "--encoder", "tiny", "--track", "none"]
FIELDS = set("cell method variant dataset encoder seed status attempt run_id metrics seconds reason".split())


def request(methods: str = "zeroshot", seeds: str = "0", **changed: Any) -> Request:
    return Request(**{"methods": methods, "datasets": DATASET, "seeds": seeds, "encoder": "tiny"} | changed)


def statuses(*arguments: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Of a dry run."""
    capsys.readouterr()
    assert call("bench", *arguments, "--dry-run", "--json") == 0
    return [row["status"] for row in json.loads(capsys.readouterr().out)]


def answer(*arguments: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert call("bench", *arguments, "--json") == code
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == FIELDS for row in rows)
    return rows


def finished(cell: Cell) -> tuple[RunRecord, Path]:
    """Runs a cell in this process."""
    record = run(cell.config, track="none")
    return record, runs_folder() / record.run_id


def cut_off(folder: Path, *, step: int | None = None) -> Path:
    """Makes a finished run look like one that was killed."""
    for name in ("record.json", "manifest.json"):
        (folder / name).unlink()
    if step is not None:
        (folder / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    return folder


def run_in_fork(words: list[str]) -> int:
    """Does what a process of a bench would do: `harness run`."""
    return call(*words[words.index("run") :])
