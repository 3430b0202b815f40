"""The process beside a run: reads its log as it grows and writes to MLflow; `python -m harness.tracking.follow FOLDER`.

It knows the run by its parent process. If that is gone and the log has no end, the run was killed, and MLflow is told
so. While the store is out it tries again with growing pauses, from the first event on; what the store has is left out.
It ends when everything is sent, or some minutes after the run if the store stays out: `harness sync` can take over.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from harness.errors import Terminated, UserError, terminate
from harness.printable import printable
from harness.record import utc_now
from harness.runlock import this_process
from harness.tracking.events import LOG, LogReader, has_ended
from harness.tracking.follower import SAID, SENT, follow_lock, how_to_sync, hurry, step_back, told_mark
from harness.tracking.places import reason, tracking_uri

if TYPE_CHECKING:
    from harness.tracking.mlflow_run import MlflowRun

_LOOK_SECONDS = 0.25
_FLUSH_SECONDS = 10.0
_HEARTBEAT_SECONDS = 30.0
_AFTER_DEATH_SECONDS = 600.0
"""How long a store is tried after the process of the run is gone."""
_AFTER_END_SECONDS = 3.0
"""The same while that process waits for us."""


def main(arguments: list[str] | None = None) -> int:
    """Follows one run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="harness.tracking.follow", description="Send the log of a run to MLflow.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--writer", type=int, required=True, help="process that writes the log; our parent")
    given = parser.parse_args(arguments)
    step_back()
    following = Following(given.folder, given.writer, Parent(given.writer).lives)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from the run, which has waited long enough
    signal.signal(signal.SIGTERM, following.terminate)
    try:
        return following.run()
    except (Terminated, KeyboardInterrupt, Timeout):
        return SAID if following.said else 1
    except OSError as error:  # the log is gone, or the workspace cannot be written, not even a lock
        following.say(reason(error))
        return SAID


class Parent:
    """The process that started this one."""

    def __init__(self, pid: int) -> None:
        self._pid, self._missed = pid, False

    def lives(self) -> bool:
        """Whether it is still there; once it is not, there is nobody to spare, and nobody to speak to."""
        if os.getppid() == self._pid:
            return True
        if not self._missed:
            self._missed = True
            hurry(os.getpid())
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # whoever reads its standard error waits for the end of it
        return False


class Following:
    """One log on its way to MLflow."""

    def __init__(self, folder: Path, writer: int, writer_lives: Callable[[], bool]) -> None:
        """Prepares to follow the log in `folder`.

        Args:
            folder: Of a run or a group.
            writer: Process that writes the log.
            writer_lives: Whether it still does.
        """
        self.said = False
        """Whether the user knows that something is missing."""
        self._folder, self._log = folder, folder / LOG
        self._writer, self._writer_lives = writer, writer_lives
        self._lock = follow_lock(folder)
        self._told: Callable[[], None] = lambda: None
        self._died: tuple[float, int] | None = None
        """When the writer was found dead, and how long the log was then."""

    def run(self) -> int:
        """Sends everything, across outages; returns the exit code."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._lock, timeout=_AFTER_DEATH_SECONDS), told_mark(self._folder) as self._told:
            pause, gave_up_at = 0.5, None
            while True:
                try:
                    return self._attempt()
                except UserError as error:  # the log or the store's state: trying again does not help
                    self.say(str(error).splitlines()[0])
                    return SAID
                except Exception as error:
                    self.say(reason(error))
                gave_up_at = self._deadline(gave_up_at)
                if gave_up_at is not None and time.monotonic() > gave_up_at:
                    return SAID
                self._rest(pause)
                pause = min(2 * pause, 30.0)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handler for SIGTERM; a scheduler sends it to all processes of a job, and the end of the run must be sent."""
        if not self._writer_lives():
            terminate(number, frame)

    def _attempt(self) -> int:
        """One connection: the whole log, from its first event to its last."""
        from harness.tracking.mlflow_run import MlflowRun
        from harness.tracking.mlflow_store import open_store

        run = MlflowRun(open_store(tracking_uri()), self._folder, self._lock.touch)
        reader = LogReader(self._log)
        self._catch_up(run, reader)
        if not run.ended:
            run.tag(self._who())
            run.go_on()
            self._accompany(run, reader)
        run.settle()
        if not run.is_group:
            self._wait_for_record()
        faults = run.complete(self._told)
        if faults:
            self.say("not sent: " + "; ".join(faults))
        return SAID if faults else SENT

    @staticmethod
    def _catch_up(run: "MlflowRun", reader: LogReader) -> None:
        while events := reader.read():
            for event in events:
                run.handle(event)

    def _accompany(self, run: "MlflowRun", reader: LogReader) -> None:
        """Sends events as they come, until the end or until nobody writes any more."""
        flushed = beaten = time.monotonic()
        while not run.ended:
            lives = self._writer_lives()  # asked before reading: what it wrote before its death is read after it
            self._catch_up(run, reader)
            if not lives:
                return
            now = time.monotonic()
            if now - beaten > _HEARTBEAT_SECONDS:
                run.tag({"harness.heartbeat": utc_now()})
                beaten = now
            if now - flushed > _FLUSH_SECONDS:
                run.flush()
                flushed = now
            if not run.ended:
                time.sleep(_LOOK_SECONDS)

    def _who(self) -> dict[str, str]:
        """What `harness runs reap` needs to know whether the run is alive."""
        writer = this_process(self._writer)
        return {
            "harness.host": writer.host,
            "harness.pid": str(writer.pid),
            "harness.namespace": writer.namespace,
            "harness.process_start": str(writer.process_start),
            "harness.heartbeat": utc_now(),
        }

    def _wait_for_record(self) -> None:
        """The run writes its record and its manifest after its last event."""
        deadline = time.monotonic() + _AFTER_DEATH_SECONDS
        while self._writer_lives() and not (self._folder / "manifest.json").exists() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS / 5)

    def _deadline(self, before: float | None) -> float | None:
        """When to give up; None while the run is at work."""
        now = time.monotonic()
        if not self._writer_lives():
            size = self._log.stat().st_size
            moment, length = self._died = self._died or (now, size)
            # a log that grows again belongs to a run that was taken up, and that one has a follower of its own
            return moment + _AFTER_DEATH_SECONDS if size == length else -math.inf
        if has_ended(self._log):
            return before or now + _AFTER_END_SECONDS
        return None

    def _rest(self, seconds: float) -> None:
        """Sleeps, but not past the end of the run."""
        until, lived, ended = time.monotonic() + seconds, self._writer_lives(), has_ended(self._log)
        while time.monotonic() < until:
            if (lived and not self._writer_lives()) or (not ended and has_ended(self._log)):
                return
            time.sleep(_LOOK_SECONDS)

    def say(self, why: str) -> None:
        """Tells the user once that something is missing."""
        if not self.said:
            print(  # noqa: T201
                f"warning: MLflow is out ({printable(why)}); the run goes on, events.jsonl has everything, and if it "
                f"stays out `{how_to_sync(self._folder)}` sends it later",
                file=sys.stderr,
            )
        self.said = True


if __name__ == "__main__":
    sys.exit(main())
