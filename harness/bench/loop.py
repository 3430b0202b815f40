"""Cells through processes, a few side by side, until all are done or somebody says stop."""

import signal
import tempfile
import time
from collections import deque
from pathlib import Path

from harness.bench import State, log_path
from harness.bench.children import Child, command
from harness.bench.claim import Claim
from harness.bench.display import Display
from harness.bench.parents import Parents
from harness.bench.shelf import Shelf, key_of
from harness.processes import STOP_SECONDS, Interrupts, share_of_cores

_LOOK_SECONDS = 0.1
_REFUSED = 2
"""Exit code of a command that found something wrong before it did anything."""


class Loop:
    """Works through the states of a bench; `states` tell what became of each cell."""

    def __init__(
        self, states: list[State], shelf: Shelf, display: Display, parents: Parents, *, workers: int, track: str
    ) -> None:
        self._states, self._parents = states, parents
        self._waiting = deque(state for state in states if state.status == "waiting")
        self._shelf, self._display = shelf, display
        self._workers, self._track = workers, track
        self._environment = share_of_cores(workers)
        self._children: list[Child] = []
        self._deadline: float | None = None
        """When processes that were told to stop are killed; None while nobody said stop."""

    def run(self) -> signal.Signals | None:
        """Runs every waiting cell; returns the signal that cut this short, if one did."""
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch, self._display, Interrupts() as interrupts:
            try:
                while self._children or (self._waiting and self._deadline is None):
                    self._fill(Path(scratch))
                    self._display.tick()
                    time.sleep(_LOOK_SECONDS)
                    self._pass_on(interrupts)
                    self._collect()
                self._look_elsewhere()
            finally:
                for child in self._children:  # only after a fault of our own: no process outlives it
                    child.kill()
                    child.claim.release()
        return interrupts.first

    def _changed(self, state: State) -> None:
        self._display.changed(state)
        self._parents.changed(state)

    def _look_elsewhere(self) -> None:
        """Takes what other processes have finished meanwhile."""
        for state in self._states:
            if state.status == "running elsewhere" and (record := self._shelf.look(state.cell).done):
                state.finish(record)
                self._changed(state)

    def _pass_on(self, interrupts: Interrupts) -> None:
        """Tells the processes what the bench was told."""
        for number in interrupts.take():
            self._display.say(
                f"{number.name}: waiting for what runs ({len(self._children)}) to save; once more to hurry"
            )
            self._deadline = self._deadline or time.monotonic() + STOP_SECONDS
            for child in self._children:
                child.send(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        if self._deadline is not None and time.monotonic() > self._deadline:
            for child in self._children:
                child.kill()

    def _fill(self, scratch: Path) -> None:
        while self._waiting and len(self._children) < self._workers and self._deadline is None:
            state = self._waiting.popleft()
            claim = Claim.take(log_path(self._shelf.folder, state.cell).with_suffix(".lock"))
            if claim is None:
                state.status, state.reason = "running elsewhere", "another bench works on it, or a process of one"
                self._changed(state)
                continue
            child = self._begin(state, scratch, claim)
            if child is None:
                claim.release()
            else:
                self._children.append(child)
            self._changed(state)

    def _begin(self, state: State, scratch: Path, claim: Claim) -> Child | None:
        """Starts the process of a cell, unless somebody else has done or is doing its work by now."""
        cell = state.cell
        found = self._shelf.look(cell, anew=state.refused)
        if found.done:
            state.finish(found.done)
            return None
        if found.elsewhere:
            state.status, state.reason = "running elsewhere", found.elsewhere
            return None
        state.status, state.attempt = ("resumed", "resumed") if found.resumable else ("running", "new")
        state.run_id = found.resumable
        parent = self._parents.file_of(cell)
        words = command(cell, self._shelf.folder, self._track, found.resumable, scratch, parent)
        try:
            return Child(state, words, log_path(self._shelf.folder, cell), scratch, self._environment, claim)
        except OSError as error:  # no memory for another process, no space for its log
            state.status, state.reason = "failed", f"could not be started: {error.strerror or error}"
            return None

    def _collect(self) -> None:
        for child in list(self._children):
            code = child.ended()
            if code is None:
                continue
            self._children.remove(child)
            self._judge(child, code)
            child.claim.release()
            self._changed(child.state)

    def _judge(self, child: Child, code: int) -> None:
        """What became of a cell whose process has ended."""
        state, record = child.state, child.record() if code == 0 else None
        state.seconds = state.took = time.monotonic() - state.began
        if record is not None:
            encoder = record.encoder.get("identity")
            if key_of(record.config, record.dataset, record.metric_version, encoder) == state.cell.key:
                state.finish(record)
            else:
                state.status, state.reason = "failed", "its data or its encoder changed meanwhile; bench again"
            return
        state.reason = child.reason(code)
        if self._deadline is not None:
            state.status = "stopped"
        elif code == _REFUSED and state.attempt == "resumed":
            self._display.say(f"{state.cell}: {state.run_id} cannot be taken up ({state.reason}); beginning anew")
            state.status, state.refused, state.reason = "waiting", True, ""
            self._waiting.appendleft(state)
            return
        else:
            state.status = "failed"
        state.run_id = self._shelf.newest(state.cell.key)
