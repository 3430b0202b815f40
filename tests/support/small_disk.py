"""A disk of a few mebibytes that really fills up, and one that really is read-only.

It is a tmpfs, mounted below the test's folder and gone with the test; root alone may mount. Anybody else gets a limit
on the size of every file that this process and its children write (RLIMIT_FSIZE): writes fail where they would on a
full disk, with another error number. What is printed meanwhile goes through pipes, because pytest keeps it in files.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 2**20
PAGE = 4096
"""Bytes of a page, the unit in which a tmpfs allocates."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _REMOUNT = 1, 32
_DETACH = 2


class SmallDisk:
    """Use `folder`; `leave` and `read_only` take effect at once, and `room_again` takes them back."""

    def __init__(self, mount: Path, size: int, *, mounted: bool) -> None:
        self.folder = mount / "disk"
        self.complaint = "No space left on device" if mounted else "File too large"
        self.apart = mounted or bool(os.geteuid())
        """Whether `read_only` affects this disk alone; for root without the right to mount it affects every file."""
        self._mount, self._size, self._mounted = mount, size, mounted
        self._ballast = mount / "ballast"
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._redirected: list[tuple[int, int, int]] = []
        """Descriptors of an output stream, of the file behind it, and of the pipe that replaces it."""
        self.folder.mkdir()

    def leave(self, room: int) -> None:
        """Fill the disk so that only `room` bytes, rounded down to pages, can still be written."""
        self.room_again()
        if not self._mounted:
            self._limit_files(room)
            return
        free = os.statvfs(self._mount)
        with self._ballast.open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, max(1, free.f_bavail * free.f_bsize - room // PAGE * PAGE))

    def read_only(self) -> None:
        """Make the disk read-only, for root, too."""
        if self._mounted:
            _mount(self._mount, self._size, _READ_ONLY | _REMOUNT)
        elif os.geteuid():
            self._set_modes(0o555, 0o444)
        else:
            self.leave(0)

    def room_again(self) -> None:
        """Make the disk writable and empty the filler."""
        if self._mounted:
            _mount(self._mount, self._size, _REMOUNT)
        else:
            self._set_modes(0o755, 0o644)
            self._lift_the_limit()
        self._ballast.unlink(missing_ok=True)

    def _set_modes(self, folders: int, files: int) -> None:
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(folders if path.is_dir() else files)

    def _limit_files(self, size: int) -> None:
        for stream in (1, 2):
            end, beginning = os.pipe()
            os.set_blocking(end, False)
            self._redirected.append((stream, os.dup(stream), end))
            os.dup2(beginning, stream)
            os.close(beginning)
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, self._limits[1]))

    def _lift_the_limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        if self._redirected:
            sys.stdout, sys.stderr = self._streams
        while self._redirected:
            stream, file, pipe = self._redirected.pop()
            os.dup2(file, stream)
            with suppress(BlockingIOError):  # empty, and a child has it open still
                while printed := os.read(pipe, MIB):
                    (sys.stdout if stream == 1 else sys.stderr).write(printed.decode())
            os.close(file)
            os.close(pipe)


@contextmanager
def small_disk(folder: Path, mebibytes: int = 16) -> Iterator[SmallDisk]:
    """Mount a small empty disk below `folder`; its content is lost after the block."""
    place, size, mounted = folder / "small-disk", mebibytes * MIB, True
    place.mkdir()
    try:
        _mount(place, size, 0)
    except PermissionError:
        mounted = False
    disk = SmallDisk(place, size, mounted=mounted)
    try:
        yield disk
    finally:
        with suppress(OSError):
            disk.room_again()
        # detached, because a test that failed may still hold an array that is mapped to a file there
        if mounted and _LIBC.umount2(os.fsencode(place), _DETACH):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


def _mount(place: Path, size: int, flags: int) -> None:
    options = f"size={size}".encode()
    if _LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
