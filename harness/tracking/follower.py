"""The tracker that a run sees: a process beside it that reads its log and writes to MLflow.

Starting it costs milliseconds. It has a session of its own, so Ctrl-C does not reach it, and the lowest priority. The
run waits for it only at its end, and only as long as it gets anywhere.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from harness.files import home
from harness.printable import printable

PATIENCE_SECONDS = 20.0
"""How long the end of a run waits for a follower that gets nowhere."""
_LONGEST_SECONDS = 120.0
"""How long it waits in any case."""
_LAST_WORDS_SECONDS = 2.0

SENT = 0
SAID = 75
"""Exit code of a follower that has sent less than everything, and has said so."""


def follow_lock(folder: Path) -> Path:
    """The file that a process locks while it sends the run in `folder`; touched whenever something got through."""
    # in a folder of their own: a study may be called as any other lock is
    return home() / "locks" / "follow" / f"{folder.name}.lock"


def told_file(folder: Path, follower: int) -> Path:
    """Is there when MLflow has the figures and files of a run, and that follower makes curves and a model of it.

    The follower of a killed process may still be at work when the run is taken up: its mark is not that of the next.
    """
    return follow_lock(folder).with_suffix(f".{follower}.told")


@contextmanager
def told_mark(folder: Path) -> Iterator[Callable[[], None]]:
    """What a follower calls to set that mark, which goes when the follower does."""
    mark = told_file(folder, os.getpid())
    mark.unlink(missing_ok=True)
    try:
        yield mark.touch
    finally:
        mark.unlink(missing_ok=True)


def how_to_sync(folder: Path) -> str:
    """The command that sends a log later; one outside the workspace has to be named."""
    return "python -m harness sync" + ("" if folder.is_relative_to(home()) else f" {shlex.quote(str(folder))}")


class Follower:
    """Starts a follower for a run, and waits for it at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path) -> None:
        """Starts the process; the log in `folder` has its first event. The run goes on if there is no room for it."""
        package = Path(__file__).parents[2]
        paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        # it draws a chart and packs a model at most: one thread, no device
        frugal = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.tracking.follow", str(folder), "--writer", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | frugal,
                start_new_session=True,
            )
            told_file(folder, self._process.pid).unlink(missing_ok=True)  # of a killed one with the same number
        except OSError as error:
            print(  # noqa: T201
                f"warning: no process could be started for MLflow ({error.strerror or error}); the run goes on, "
                f"events.jsonl has everything, and `{how_to_sync(folder)}` sends it",
                file=sys.stderr,
            )

    def finish(self, folder: Path, wait: bool = True) -> None:
        """Waits until MLflow has all figures and files; curves and a model follow while the caller goes on.

        A follower that gets nowhere is stopped, and `sync` can do its work later.
        """
        process, self._process = self._process, None
        if process is None:
            return
        hurried = False
        if wait:
            hurry(process.pid)
            code = _wait(process, folder)
            hurried = code is None and told_file(folder, process.pid).exists()
        if not wait or hurried:
            _left[:] = [earlier for earlier in (*_left, process) if earlier.poll() is None]
            return
        if code is None:
            process.send_signal(signal.SIGINT)
            code = _exit_code(process, _LAST_WORDS_SECONDS)
        if code is None:
            process.kill()
            process.wait()
        if code not in (SENT, SAID):
            print(  # noqa: T201
                f"warning: MLflow does not have everything of run {printable(folder.name)}; events.jsonl does, and "
                f"`{how_to_sync(folder)}` sends it",
                file=sys.stderr,
            )


_left: "list[subprocess.Popen[bytes]]" = []
"""Followers that nobody waits for; asked now and then, so that none stays behind as a dead process."""


def wait_for(folders: Iterable[Path], seconds: float = PATIENCE_SECONDS) -> list[Path]:
    """Waits until the runs in these folders are sent, so many seconds at most; returns those that are not."""
    deadline, late = time.monotonic() + seconds, []
    for folder in folders:
        lock = follow_lock(folder)
        if not lock.exists():
            continue
        try:
            with FileLock(lock, timeout=max(0.0, deadline - time.monotonic())):
                pass
        except Timeout:
            late.append(folder)
    return late


def step_back() -> None:
    """Gives this process the lowest priority; where sessions share the processor evenly, its session too.

    On a machine that is always busy that may be too low; `HARNESS_TRACKING_NICE` is another, 0 for that of the run.
    """
    wanted = os.environ.get("HARNESS_TRACKING_NICE", "")
    nice = min(int(wanted), 19) if wanted.isdecimal() else 19
    with suppress(OSError):
        os.nice(nice)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def hurry(pid: int) -> None:
    """Takes that back for a follower whose run is over, as far as one may."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("0")
    with suppress(OSError):  # the right of root alone
        os.setpriority(os.PRIO_PROCESS, pid, 0)


def _wait(process: "subprocess.Popen[bytes]", folder: Path) -> int | None:
    """The exit code, or None if the follower has told the most, or got nowhere for too long."""
    lock, told = follow_lock(folder), told_file(folder, process.pid)
    started = moved = time.monotonic()
    before = _progress(process.pid, lock)
    while (now := time.monotonic()) < min(moved + PATIENCE_SECONDS, started + _LONGEST_SECONDS):
        code = _exit_code(process, 0.1)
        if code is not None or told.exists():
            return code
        seen = _progress(process.pid, lock)
        if seen != before:
            before, moved = seen, now
    return None


def _progress(pid: int, lock: Path) -> tuple[int, int]:
    """What changes while a follower gets anywhere: the time of its last success, and seconds of computing.

    One that waits for a server that does not answer computes nothing.
    """
    import psutil

    try:
        touched = lock.stat().st_mtime_ns
    except OSError:
        touched = 0
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return touched, 0
    return touched, int(times.user + times.system)


def _exit_code(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
