"""Hostile input, judged: a reader of the harness is given bytes that somebody else may have made.

A reader may return, or say what is wrong (`UserError`, or a usage error of the command line). Anything else is a
finding: another exception, seconds without an answer, memory beyond a bound, a file touched outside the folder it was
given, a process started, a name looked up by a pickle.
"""

import io
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import click

from harness.errors import UserError
from tests.faults.mutations import Form

__all__ = ["Form", "Judgement", "Target", "judged", "may_refuse", "put"]

ALLOWED = (UserError, click.ClickException)
CPU_SECONDS = 4.0
"""Most processor time that a reader may take for one small input; the clock would count other processes, too."""
WALL_SECONDS = 60.0
"""Most seconds by the clock that a reader may take for one small input, in case it waits."""
MEMORY = 2**30
"""Bytes of address space that reading one small input may take beyond what the process has."""


@dataclass(frozen=True)
class Target:
    """One reader of the harness."""

    name: str
    read: Callable[[bytes, Path], object]
    """Writes the bytes where the reader looks, inside an empty folder, and calls the reader."""
    make_seeds: Callable[[], list[bytes]]
    """Makes a few small valid inputs."""
    form: Form = "bytes"
    words: tuple[bytes, ...] = ()
    """Tokens of the format, which mutations insert anywhere."""

    @cached_property
    def seeds(self) -> list[bytes]:
        """A few small valid inputs, made once."""
        return self.make_seeds()


@dataclass(frozen=True)
class Judgement:
    """Outcome of one input: accepted, refused with a message, or a finding."""

    accepted: bool
    finding: str = ""
    """What went wrong, in one line; empty if nothing did."""
    detail: str = ""
    """Traceback of the finding, or the paths that were touched outside the folder."""


def put(folder: Path, name: str, data: bytes) -> Path:
    """Write a file into a folder; return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def may_refuse(use: Callable[..., object], *arguments: Any) -> None:
    """Call a reader that may refuse the input, so that the next reader gets it all the same."""
    with suppress(*ALLOWED):
        use(*arguments)


class TooSlow(BaseException):
    """Raised when a reader takes too long."""


# ---------------------------------------------------------------- the sandbox

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TOUCHES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
_RUNS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "socket.connect"}


class _Watch:
    """Records what a reader touches; an audit hook cannot be removed, so there is one, which is mostly inactive."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.strayed: list[str] = []
        self._hooked = False

    @contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        if not self._hooked:
            sys.addaudithook(self._heard)
            self._hooked = True
        self.folder, self.strayed = os.path.realpath(folder), []
        try:
            yield
        finally:
            self.folder = None

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in _RUNS:
            self.strayed.append(f"{event} {str(args)[:200]}")
        elif event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            self._judge(event, args[0])
        elif event in _TOUCHES:
            inside = args[-1] if event != "os.truncate" and isinstance(args[-1], int) else -1
            for path in args[:2]:
                self._judge(event, path, inside)

    def _judge(self, event: str, path: Any, inside: int = -1) -> None:
        """Record a path, maybe one relative to an opened folder, that is outside the folder of the input."""
        if not isinstance(path, str | bytes | os.PathLike):  # an open file, or a mode
            return
        name = os.fsdecode(path)
        if name == os.devnull or "\0" in name:  # which no file is called
            return
        whole = Path(f"/proc/self/fd/{inside}", name) if inside >= 0 else Path(name)
        if not f"{os.path.realpath(whole.parent)}/{whole.name}/".startswith(f"{self.folder}/"):
            self.strayed.append(f"{event} {name}")


_WATCH = _Watch()


def _empty_folder(root: Path) -> Path:
    """Make and return the folder of an input, inside folders that no reader may touch."""
    folder = root / "not" / "to" / "be" / "touched" / "inside"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def _limited() -> Iterator[None]:
    """Limit time and memory inside the block."""

    def too_slow(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"no answer after {CPU_SECONDS:g} s of work or {WALL_SECONDS:g} s in all")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    handlers = {number: signal.signal(number, too_slow) for number in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for number, handler in handlers.items():
            signal.signal(number, handler)


_WARM: set[str] = set()


def _warm_up(target: Target, root: Path) -> None:
    """Read a valid input without watching: importing a library for it may take memory and open files."""
    if target.name in _WARM:
        return
    _WARM.add(target.name)
    folder = _empty_folder(root)
    with mock.patch.dict(os.environ, {"HARNESS_HOME": str(folder / "home")}), redirect_stderr(io.StringIO()):
        try:
            target.read(target.seeds[0], folder)
        except BaseException:  # which is found again when it is given as an input
            return


def judged(target: Target, data: bytes, root: Path) -> Judgement:
    """Give one input to a reader, in an empty folder below `root`; return the outcome."""
    _warm_up(target, root)
    folder = _empty_folder(root)
    accepted, what, detail, quiet = False, "", "", io.StringIO()
    surroundings = {"HARNESS_HOME": str(folder / "home"), "TMPDIR": str(folder)}
    try:
        with (
            mock.patch.dict(os.environ, surroundings),
            mock.patch("tempfile.tempdir", str(folder)),
            mock.patch.object(sys, "dont_write_bytecode", True),
            redirect_stdout(quiet),
            redirect_stderr(quiet),
            _WATCH.over(folder),
            _limited(),
        ):
            target.read(data, folder)
            accepted = True
    except ALLOWED as error:
        if not str(getattr(error, "message", error)).strip():
            what = f"{type(error).__name__} without a word"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it is, a person would see a traceback
        what = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        detail = "".join(traceback.format_tb(error.__traceback__)[-6:])
    if _WATCH.strayed:
        what, detail = "left its folder: " + _WATCH.strayed[0], "\n".join(_WATCH.strayed)
    return Judgement(accepted, what, detail)
