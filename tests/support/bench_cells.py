"""Benches on generated data for tests: requests, answers, and runs that look finished or cut off."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.bench import Cell, Request
from harness.experiments.bench import run as running
from harness.experiments.bench.run import command
from harness.run import run
from harness.runs.record import RunRecord, runs_folder
from tests.support.commands import call
from tests.support.training_runs import DATASET

TINY = ["--datasets", DATASET, "--encoder", "tiny", "--track", "none"]
FIELDS = set("cell method variant dataset encoder seed status attempt run_id metrics seconds reason".split())


def request(methods: str = "zeroshot", seeds: str = "0", **changed: Any) -> Request:
    return Request(**{"methods": methods, "datasets": DATASET, "seeds": seeds, "encoder": "tiny"} | changed)


def statuses(*arguments: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the status of every cell in a dry run of a bench."""
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
    """Run a cell in this process; return its record and its run folder."""
    record = run(cell.config, track="none")
    return record, runs_folder() / record.run_id


def cut_off(folder: Path, *, step: int | None = None) -> Path:
    """Make a finished run look like one that was killed, with a checkpoint of `step` if given."""
    for name in ("record.json", "manifest.json"):
        (folder / name).unlink()
    if step is not None:
        (folder / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    return folder


def run_in_fork(words: list[str]) -> int:
    """Call `harness run` as a process of a bench would; return the exit code."""
    return call(*words[words.index("run") :])


def printing(cell: Cell) -> tuple[RunRecord, str]:
    """Run a cell and move its run folder away; return its record and a script that prints the record."""
    record, folder = finished(cell)
    kept = folder.parents[1] / "kept"
    shutil.move(folder, kept)
    return record, f"print(open({str(kept / 'record.json')!r}).read())"


def in_place_of_runs(patch: pytest.MonkeyPatch, **scripts: str) -> list[list[str]]:
    """Replace the commands of a bench by scripts, by method, or `resume` for a resumed run; return these commands."""
    seen = []

    def stand_in(
        cell: Cell, runs: Path, track: str, resume: str | None, scratch: Path, parent: Path | None
    ) -> list[str]:
        seen.append(command(cell, runs, track, resume, scratch, parent))
        return [sys.executable, "-S", "-c", scripts["resume" if resume else cell.config.method.replace("-", "_")]]

    patch.setattr(running, "command", stand_in)
    return seen
