"""One process per cell: how it is started, stopped, and understood when it has ended."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from harness.bench import Cell, State
from harness.bench.claim import Claim
from harness.files import write_json
from harness.record import RunRecord
from harness.repro import available_cores
from harness.tracking import without_paths

_TAIL_BYTES = 8192
_WIDTH = 300
"""Characters of a line that is told; a terminal shows less."""


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


def share_of_cores(workers: int) -> dict[str, str]:
    """Environment that gives each of several processes its share of the cores; one alone is left as `run` would be."""
    if workers == 1:
        return {}
    cores = available_cores()
    share = max(1, cores // workers)
    own = os.environ.get("OMP_NUM_THREADS", "")
    return {"OMP_NUM_THREADS": str(min(share, int(own)) if own.isascii() and own.isdigit() and int(own) else share)}


class Child:
    """A running process; in a group of its own, so that Ctrl-C reaches it through the bench alone."""

    def __init__(
        self, state: State, words: list[str], log: Path, scratch: Path, environment: dict[str, str], claim: Claim
    ) -> None:
        """Starts it; `log` takes what it writes to standard error, a file in `scratch` its record.

        It holds the claim too, for the case that it outlives the bench.
        """
        self.state = state
        self.claim = claim
        self.log = log
        self._output = scratch / f"{state.cell.name}.out"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment},
                process_group=0,
                pass_fds=(claim.descriptor,),
            )
        state.began = time.monotonic()

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Sends a signal to it and to what it has started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Ends it at once and waits until it is gone."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def record(self) -> RunRecord | None:
        """The record it printed, if it did."""
        try:
            return RunRecord.model_validate_json(self._output.read_bytes())
        except (OSError, ValidationError):
            return None

    def reason(self, code: int) -> str:
        """Why it ended, in one line."""
        return why_ended(code, self.log)


def why_ended(code: int, log: Path) -> str:
    """Why a process ended, in one line, from its exit code and what it wrote last."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
        return f"ended by {name}{hint}"
    lines = tail(log)
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
    return without_paths(told[-1]) if told else f"ended with exit code {code}"


def tail(log: Path) -> list[str]:
    """The last lines of a log, without empty ones and without what would steer a terminal."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = ("".join(letter for letter in line if letter.isprintable()).rstrip() for line in text.splitlines())
    return [line[:_WIDTH] for line in lines if line.strip()]
