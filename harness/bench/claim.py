"""Which bench works on a cell: a locked file, held by the bench and by the process that it started.

The process inherits the lock. If the bench is killed (SIGKILL, out of memory), the process goes on and finishes, and no
other bench begins the same cell beside it, not even in the seconds before there is a run folder with a lock of its own.
"""

import fcntl
import os
from pathlib import Path


class Claim:
    """The lock of one cell; the kernel drops it when the last process that has it ends."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """To be passed to the process of the cell."""

    @classmethod
    def take(cls, path: Path) -> "Claim | None":
        """Locks the file at `path`; None if somebody else has it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Unlocks it, for every process that has it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)
