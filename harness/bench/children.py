"""One process per cell: how it is started, and what it leaves."""

import subprocess
import sys
import time
from pathlib import Path

from pydantic import ValidationError

from harness.bench import Cell, State
from harness.bench.claim import Claim
from harness.files import write_json
from harness.processes import ChildProcess
from harness.record import RunRecord


def command(
    cell: Cell, runs: Path, track: str, resume: str | None, scratch: Path, parent: Path | None = None
) -> list[str]:
    """The command line of a cell's process; settings go through a file, so that they arrive as they are.

    A run that is taken up keeps the parent it began with.
    """
    place = ["--out", str(runs), "--track", track, "--json"]
    start = [sys.executable, "-m", "harness", "run"]
    config = cell.config
    if resume is not None:
        folders = {"--dataset": config.dataset, "--encoder": config.encoder}
        where = [part for option, value in folders.items() if "/" in value for part in (option, value)]
        return [*start, "--resume", resume, *where, *place]
    settings = scratch / cell.name / "bench.json"  # a record says of each setting which file it came from
    write_json(settings, cell.given)
    named = ["--method", config.method, "--dataset", config.dataset, "--seed", str(config.seed)]
    belongs = ["--parent", str(parent)] if parent else []
    return [*start, *named, "--config", str(settings), *belongs, *place]


class Child(ChildProcess):
    """The process of a cell."""

    def __init__(
        self, state: State, words: list[str], log: Path, scratch: Path, environment: dict[str, str], claim: Claim
    ) -> None:
        """Starts it; `log` takes what it writes to standard error, a file in `scratch` its record.

        It holds the claim too, for the case that it outlives the bench.
        """
        self.state = state
        self.claim = claim
        self._output = scratch / f"{state.cell.name}.out"
        with self._output.open("wb") as output:
            super().__init__(
                words, log, environment, stdin=subprocess.DEVNULL, stdout=output, pass_fds=(claim.descriptor,)
            )
        state.began = time.monotonic()

    def record(self) -> RunRecord | None:
        """The record it printed, if it did."""
        try:
            return RunRecord.model_validate_json(self._output.read_bytes())
        except (OSError, ValidationError):
            return None
