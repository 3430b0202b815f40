"""The one exception that a person is meant to read.

A `UserError` says what is wrong, where (file and line where there is one) and what to do next. The command line
prints it as one line without a traceback and exits with code 2; anything else that escapes is a bug of ours.
"""

import difflib
import signal
from collections.abc import Iterable
from pathlib import Path
from types import FrameType


class UserError(Exception):
    """Something the user can put right: bad input, a missing file, a wrong name."""


class DataError(UserError):
    """Input data that does not hold together; names the file and, where known, the line."""

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        place = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(place + message)
        self.path = path
        self.line = line


class MissingDataError(UserError):
    """The dataset is not on this machine; the message says what to place where."""


class Pruned(Exception):
    """Raised to end a trial of a sweep early; the message says at which validation and why."""


class Terminated(BaseException):
    """SIGTERM arrived; unwinds like Ctrl-C so that every `with` block closes properly."""


def terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM: raise `Terminated`; a second signal ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on a device or the host; torch often raises only `RuntimeError`."""
    words = (
        "can't allocate memory",
        "could not create a primitive",  # oneDNN, which has no memory for its scratch pad
        "_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory",
        "MPS backend out of memory",
    )
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or (isinstance(error, RuntimeError) and any(word in str(error) for word in words))


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that is not registered; it suggests the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return UserError(f"unknown {kind} {name!r}{hint} known: {', '.join(names) or 'none'}")
