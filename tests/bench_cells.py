"""Benches on generated data for tests: requests, answers, and runs that look finished or cut off."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from harness.bench import Cell, Request
from harness.record import RunRecord, runs_folder
from harness.run import run
from tests.commands import call
from tests.training_runs import DATASET, limit_lifetime

TINY = ["--datasets", DATASET, "--encoder", "tiny", "--track", "none"]
FIELDS = {
    "cell",
    "method",
    "variant",
    "dataset",
    "encoder",
    "seed",
    "status",
    "attempt",
    "run_id",
    "metrics",
    "seconds",
    "reason",
}


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


class Forked:
    """Takes the place of `subprocess.Popen` for `harness run`: a process that need not import torch again."""

    def __init__(self, words: list[str], stdout: IO[bytes], stderr: IO[bytes], env: dict[str, str], **ignored: Any):
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                for number in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.dup2(stdout.fileno(), 1)
                os.dup2(stderr.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
                os.environ.update(env)
                limit_lifetime()
                code = call(*words[words.index("run") :])
                sys.stdout.flush()
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        return self.wait(os.WNOHANG)

    def wait(self, options: int = 0) -> int | None:
        """Exit code."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode
