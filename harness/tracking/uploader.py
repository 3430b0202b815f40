"""The process that sends the log of a run to MLflow while the run goes on: first the run's side, then the process.

`Uploader` is the tracker that a run sees. Starting the process (`python -m harness.tracking.uploader FOLDER`) costs
milliseconds. It has a session of its own, so Ctrl-C does not reach it, and the lowest priority. The run waits for it
only at its end, and only as long as it makes progress.

`Upload` is what that process does. The run is its parent process. If that is gone and the log has no `end`, the run was
killed, and it gets that status. If the store does not answer, it retries with growing pauses, from the first event on;
what the store has already is left out. It ends when everything is sent, or some minutes after the run if the store
still does not answer: `harness sync` can take over.
"""

import argparse
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from filelock import Timeout

from harness.errors import Terminated, UserError, terminate
from harness.io.files import home, locked
from harness.io.printable import printable
from harness.runs.events import LOG, LogReader, has_ended
from harness.runs.lock import this_process
from harness.runs.record import utc_now
from harness.tracking.store import reason, tracking_uri

if TYPE_CHECKING:
    from harness.tracking.mlflow_run import MlflowRun

PATIENCE_SECONDS = 20.0
"""How long a run, at its end, waits for an uploader that makes no progress."""
_LONGEST_SECONDS = 120.0
"""How long a run, at its end, waits for an uploader at most."""
_LAST_WORDS_SECONDS = 2.0

SENT = 0
INCOMPLETE = 75
"""Exit code of an uploader that has not sent everything and has printed a warning."""

_LOOK_SECONDS = 0.25
_FLUSH_SECONDS = 10.0
_HEARTBEAT_SECONDS = 30.0
_AFTER_DEATH_SECONDS = 600.0
"""How long an uploader retries after the process of the run is gone."""
_AFTER_END_SECONDS = 3.0
"""How long an uploader retries while the ended run waits for it."""


def upload_lock(folder: Path) -> Path:
    """Return the path that a process locks (`harness.io.files.locked`) while it sends the run in `folder`."""
    # a folder for these locks alone: a study may have the name of another lock
    return home() / "locks" / "upload" / folder.name


def _progress_file(folder: Path) -> Path:
    """Return the file of the upload lock; it is touched after every successful transfer."""
    return upload_lock(folder).with_name(f"{folder.name}.lock")


def mark_file(folder: Path, uploader: int) -> Path:
    """Return a file that exists once metrics and files are sent, while the uploader with that pid sends the model.

    The uploader of a killed run may still be at work when the run is resumed, so each has a mark of its own.
    """
    return upload_lock(folder).with_name(f"{folder.name}.{uploader}.sent")


def _how_to_sync(folder: Path) -> str:
    """Return the command that sends a log later: `harness sync`, with the folder if it is outside the workspace."""
    return "python -m harness sync" + ("" if folder.is_relative_to(home()) else f" {shlex.quote(str(folder))}")


class Uploader:
    """Tracker that starts an uploader process for a run, and waits for it at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path) -> None:
        """Start the uploader; the log in `folder` has its first event. If it cannot be started, only warn."""
        package = Path(__file__).parents[2]
        paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        # one thread and no GPU: it computes next to nothing
        frugal = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.tracking.uploader", str(folder), "--writer", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | frugal,
                start_new_session=True,
            )
            mark_file(folder, self._process.pid).unlink(missing_ok=True)  # left by a killed uploader with the same pid
        except OSError as error:
            print(  # noqa: T201
                f"warning: no process could be started for MLflow ({error.strerror or error}); the run goes on, "
                f"events.jsonl has everything, and `{_how_to_sync(folder)}` sends it",
                file=sys.stderr,
            )

    def finish(self, folder: Path, wait: bool = True) -> None:
        """Wait until all metrics and files are sent; a model is sent while the caller goes on.

        An uploader that makes no progress is stopped; `harness sync` can send the rest later.
        """
        process, self._process = self._process, None
        if process is None:
            return
        code = None
        if wait:
            _raise_priority(process.pid)
            code = _wait(process, folder)
        if not wait or (code is None and mark_file(folder, process.pid).exists()):
            _left[:] = [earlier for earlier in (*_left, process) if earlier.poll() is None]
            return
        if code is None:
            process.send_signal(signal.SIGINT)
            code = _exit_code(process, _LAST_WORDS_SECONDS)
        if code is None:
            process.kill()
            process.wait()
        if code not in (SENT, INCOMPLETE):
            print(  # noqa: T201
                f"warning: MLflow does not have everything of run {printable(folder.name)}; events.jsonl does, and "
                f"`{_how_to_sync(folder)}` sends it",
                file=sys.stderr,
            )


_left: "list[subprocess.Popen[bytes]]" = []
"""Uploaders that are not waited for; polled now and then, so that none stays behind as a zombie process."""


def wait_for(folders: Iterable[Path], seconds: float = PATIENCE_SECONDS) -> list[Path]:
    """Wait up to `seconds` until the runs in these folders are sent; return the folders of those that are not."""
    deadline, late = time.monotonic() + seconds, []
    for folder in folders:
        if not _progress_file(folder).exists():
            continue
        try:
            with locked(upload_lock(folder), timeout=max(0.0, deadline - time.monotonic())):
                pass
        except Timeout:
            late.append(folder)
    return late


def _wait(process: "subprocess.Popen[bytes]", folder: Path) -> int | None:
    """Return the exit code, or None once metrics and files are sent or there was no progress for too long."""
    import psutil

    def progress() -> tuple[int, int]:
        """Return the time of the last transfer, and processor seconds; waiting for a server takes none."""
        touched = computed = 0
        with suppress(OSError):
            touched = _progress_file(folder).stat().st_mtime_ns
        with suppress(psutil.Error):
            times = psutil.Process(process.pid).cpu_times()
            computed = int(times.user + times.system)
        return touched, computed

    started = moved = time.monotonic()
    before = progress()
    while (now := time.monotonic()) < min(moved + PATIENCE_SECONDS, started + _LONGEST_SECONDS):
        code = _exit_code(process, 0.1)
        if code is not None or mark_file(folder, process.pid).exists():
            return code
        if (seen := progress()) != before:
            before, moved = seen, now
    return None


def _exit_code(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _lower_priority() -> None:
    """Give this process the lowest priority, and its session too where Linux schedules by session (autogroup).

    `HARNESS_TRACKING_NICE` overrides it for machines that are always busy; 0 is the priority of the run.
    """
    wanted = os.environ.get("HARNESS_TRACKING_NICE", "")
    nice = min(int(wanted), 19) if wanted.isdecimal() else 19
    with suppress(OSError):
        os.nice(nice)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def _raise_priority(pid: int) -> None:
    """Restore the normal priority of an uploader whose run is over, as far as permitted."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("0")
    with suppress(OSError):  # only root may
        os.setpriority(os.PRIO_PROCESS, pid, 0)


# ---------------------------------------------------------------- in the process beside the run


def main(arguments: list[str] | None = None) -> int:
    """Upload one run; return the exit code."""
    parser = argparse.ArgumentParser(prog="harness.tracking.uploader", description="Send the log of a run to MLflow.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--writer", type=int, required=True, help="process that writes the log; our parent")
    given = parser.parse_args(arguments)
    _lower_priority()
    upload = Upload(given.folder, given.writer, _Parent(given.writer).lives)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # sent by the run when it has waited long enough
    signal.signal(signal.SIGTERM, upload.terminate)
    try:
        return upload.run()
    except (Terminated, KeyboardInterrupt, Timeout):
        return INCOMPLETE if upload.warned else 1
    except OSError as error:  # the log is gone, or the workspace cannot be written, not even a lock
        upload.warn(reason(error))
        return INCOMPLETE


class _Parent:
    """The process that started this one."""

    def __init__(self, pid: int) -> None:
        self._pid, self._missed = pid, False

    def lives(self) -> bool:
        """Return whether the parent still runs; once it does not, raise our priority and drop standard error."""
        if os.getppid() == self._pid:
            return True
        if not self._missed:
            self._missed = True
            _raise_priority(os.getpid())
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a reader of the run's standard error waits for its end
        return False


class Upload:
    """Sends one log to MLflow."""

    def __init__(self, folder: Path, writer: int, writer_lives: Callable[[], bool]) -> None:
        """Prepare to send the log in `folder`.

        Args:
            folder: Folder of a run or a group.
            writer: Pid of the process that writes the log.
            writer_lives: Returns whether that process still runs.
        """
        self.warned = False
        """Whether the user was warned that something is missing."""
        self._folder, self._log = folder, folder / LOG
        self._writer, self._writer_lives = writer, writer_lives
        self._died: tuple[float, int] | None = None
        """Time when the writer was found dead, and the size of the log then, in bytes."""

    def run(self) -> int:
        """Send everything, retrying after outages; return the exit code."""
        mark = mark_file(self._folder, os.getpid())
        with locked(upload_lock(self._folder), timeout=_AFTER_DEATH_SECONDS):
            mark.unlink(missing_ok=True)
            try:
                return self._send(mark)
            finally:
                mark.unlink(missing_ok=True)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: ignore it while the writer runs, because a scheduler sends it to all processes of a job."""
        if not self._writer_lives():
            terminate(number, frame)

    def warn(self, why: str) -> None:
        """Warn the user once that something is missing."""
        if not self.warned:
            print(  # noqa: T201
                f"warning: MLflow is out ({printable(why)}); the run goes on, events.jsonl has everything, and if it "
                f"stays out `{_how_to_sync(self._folder)}` sends it later",
                file=sys.stderr,
            )
        self.warned = True

    def _send(self, mark: Path) -> int:
        """Retry until everything is sent or it is time to give up; return the exit code."""
        pause, give_up_at = 0.5, None
        while True:
            try:
                return self._attempt(mark)
            except UserError as error:  # a fault of the log or the store that retrying does not help
                self.warn(str(error).splitlines()[0])
                return INCOMPLETE
            except Exception as error:
                self.warn(reason(error))
            give_up_at = self._deadline(give_up_at)
            left = math.inf if give_up_at is None else give_up_at - time.monotonic()
            if left < 0:
                return INCOMPLETE
            self._rest(min(pause, left))
            pause = min(2 * pause, 30.0)

    def _attempt(self, mark: Path) -> int:
        """Connect and send the whole log, from its first event to its last; return the exit code."""
        from harness.tracking.mlflow_run import MlflowRun
        from harness.tracking.store import open_store

        run = MlflowRun(open_store(tracking_uri()), self._folder, _progress_file(self._folder).touch)
        reader = LogReader(self._log)
        run.replay(reader)
        if not run.ended:
            run.tag(self._writer_tags())
            run.go_on()
            self._follow(run, reader)
        run.settle()
        deadline = time.monotonic() + _AFTER_DEATH_SECONDS
        while not run.is_group and self._record_is_due() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS / 5)
        faults = run.complete(mark.touch)
        if faults:
            self.warn("not sent: " + "; ".join(faults))
        return INCOMPLETE if faults else SENT

    def _record_is_due(self) -> bool:
        """Return whether the run has yet to write its manifest, which it does after its last event."""
        return self._writer_lives() and not (self._folder / "manifest.json").exists()

    def _follow(self, run: "MlflowRun", reader: LogReader) -> None:
        """Send events as they come, until the `end` or until the writer is gone."""
        flushed = beaten = time.monotonic()
        while not run.ended:
            lives = self._writer_lives()  # checked before reading, so that its last events are read
            run.replay(reader)
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

    def _writer_tags(self) -> dict[str, str]:
        """Return the tags from which `harness runs reap` finds out whether the run is alive."""
        writer = this_process(self._writer)
        return {
            "harness.host": writer.host,
            "harness.pid": str(writer.pid),
            "harness.namespace": writer.namespace,
            "harness.process_start": str(writer.process_start),
            "harness.heartbeat": utc_now(),
        }

    def _deadline(self, before: float | None) -> float | None:
        """Return the time, of `time.monotonic`, at which to give up; None while the run goes on."""
        now = time.monotonic()
        if not self._writer_lives():
            size = self._log.stat().st_size
            moment, length = self._died = self._died or (now, size)
            # a log that grows again belongs to a run that was resumed, and that one has an uploader of its own
            return moment + _AFTER_DEATH_SECONDS if size == length else -math.inf
        if has_ended(self._log):
            return before or now + _AFTER_END_SECONDS
        return None

    def _rest(self, seconds: float) -> None:
        """Sleep up to `seconds`; wake early when the run ends or its process is gone."""
        until, lived, ended = time.monotonic() + seconds, self._writer_lives(), has_ended(self._log)
        while time.monotonic() < until:
            if (lived and not self._writer_lives()) or (not ended and has_ended(self._log)):
                return
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
