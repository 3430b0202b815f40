"""Unpack untrusted archives: zip, tar (plain, gz, bz2, xz) and single compressed files.

Every entry is checked before a byte of it is written: it must be a plain file or folder, with a name that stays inside
the target, which is a new folder. A refused, truncated or interrupted archive leaves nothing. Claimed sizes are not
trusted: the bytes are counted as they come out of the decompressor.
"""

import bz2
import gzip
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from harness.errors import DataError, UserError

Kind = Literal["zip", "tar", "file"]
CHUNK = 1 << 20
_TAR_BLOCK = 512

_COMPRESSED: dict[bytes, tuple[str, Callable[[Path], Any]]] = {
    b"\x1f\x8b": (".gz", gzip.open),
    b"BZh": (".bz2", bz2.open),
    b"\xfd7zXZ\x00": (".xz", lzma.open),
}
"""First bytes of a compressed file -> (suffix, function that opens it)."""
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, struct.error, ValueError, OverflowError)
_CUT_SHORT = ("unexpected end", "not a zip file")
"""Parts of error messages for a truncated archive; a truncated zip lacks its directory, so it looks like no zip."""


@dataclass(frozen=True)
class Limits:
    """Limits on what an archive may unpack to."""

    total_bytes: int = 60_000_000_000
    """Most bytes of all unpacked files together."""
    ratio: int = 1000
    """Largest ratio of unpacked to packed size, enforced beyond `ratio_from` unpacked bytes."""
    ratio_from: int = 100_000_000
    entries: int = 10_000
    header_bytes: int = 16_000_000
    """Most bytes of a single read; a tar header can ask for any amount of memory."""


def explosion(path: Path, total: int, limits: Limits) -> str | None:
    """Return why `total` unpacked bytes are too many for a compressed file; None if they are not."""
    size = path.stat().st_size
    if total > limits.total_bytes:
        return f"it expands beyond {limits.total_bytes:,} bytes"
    if total > limits.ratio_from and total > limits.ratio * size:
        return f"it expands more than {limits.ratio:,} times ({size:,} bytes to over {total:,})"
    return None


class _Unpacking:
    """State of unpacking one archive into a new folder: names used and bytes written so far."""

    def __init__(self, archive: Path, folder: Path, limits: Limits) -> None:
        self.archive, self.folder, self.limits = archive, folder, limits
        self._is_folder: dict[str, bool] = {}
        """Whether each entry is a folder, by path in lower case, since some disks do not tell A from a."""
        self._entries = self._written = 0

    def refuse(self, reason: str) -> DataError:
        return DataError(f"refused, nothing was unpacked: {reason}", self.archive)

    def admit(self, name: str, *, folder: bool) -> Path:
        """Return the path of an entry inside the target; raise `DataError` if the entry is refused."""
        self._entries += 1
        if self._entries > self.limits.entries:
            raise self.refuse(f"more than {self.limits.entries:,} entries")
        if "\0" in name or "\\" in name or re.match(r"[A-Za-z]:", name) or name.startswith("/"):
            raise self.refuse(f"entry {name!r} is not a relative path")
        path = PurePosixPath(name)
        if ".." in path.parts:
            raise self.refuse(f"entry {name!r} leaves the folder")
        for parent in path.parents:
            if self._is_folder.setdefault(str(parent).casefold(), True) is False:
                raise self.refuse(f"entry {name!r} lies inside another entry that is a file")
        key = str(path).casefold()
        if key in self._is_folder and not (folder and self._is_folder[key]):
            raise self.refuse(f"two entries are called {name!r}")
        self._is_folder[key] = folder
        return self.folder / path

    def require_bounded(self, total: int) -> None:
        """Raise `DataError` if `total` unpacked bytes are too many for the archive."""
        if reason := explosion(self.archive, total, self.limits):
            raise self.refuse(reason)

    def write(self, source: IO[bytes], target: Path) -> None:
        """Write one entry; raise if it exceeds the limits."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as stream:
            while chunk := source.read(CHUNK):
                self._written += len(chunk)
                self.require_bounded(self._written)
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())


class _Bounded:
    """A seekable reader of a decompressor that refuses reads and seeks beyond the limits."""

    def __init__(self, raw: IO[bytes], unpacking: _Unpacking) -> None:
        self._raw, self._unpacking = raw, unpacking
        self.tell = raw.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._unpacking.limits.header_bytes:
            raise self._unpacking.refuse(f"a header asks for {size:,} bytes of memory")
        data = self._raw.read(size)
        self._unpacking.require_bounded(self._raw.tell())
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        if whence == 0:
            self._unpacking.require_bounded(position)
        return self._raw.seek(position, whence)


def archive_kind(path: Path) -> Kind | None:
    """Return the kind of an archive by its content, not its name: `file` is one compressed file, None no archive."""
    with path.open("rb") as stream:
        start = stream.read(_TAR_BLOCK)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    compressed = start.startswith(tuple(_COMPRESSED))
    try:
        with _decompressed(path) as (_, inner):
            tarfile.TarInfo.frombuf(inner.read(_TAR_BLOCK), tarfile.ENCODING, "surrogateescape")
        return "tar"
    except (EOFError, OSError, *_DAMAGED):
        return "file" if compressed else None


@contextmanager
def _decompressed(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Open a file, decompressed if need be; yield the suffix of its compression (empty for none) and the stream."""
    with path.open("rb") as stream:
        start = stream.read(8)
    suffix, opener = next((found for magic, found in _COMPRESSED.items() if start.startswith(magic)), ("", None))
    with opener(path) if opener else path.open("rb") as content:
        yield suffix, content


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> list[Path]:
    """Unpack an archive into a new folder, all of it or nothing.

    Args:
        archive: A zip, a tar in any of its compressions, or a single file compressed with gzip, bzip2 or xz.
        folder: Target folder, which must not exist; it is removed again if the archive is refused.
        limits: Limits against archives made to fill a disk.

    Returns:
        The files that were written, sorted.

    Raises:
        DataError: The archive is truncated, damaged, hostile or empty.
    """
    kind = archive_kind(archive) if archive.is_file() else None
    if kind is None:
        raise DataError("not an archive that can be unpacked (zip, tar, tar.gz, tar.bz2, tar.xz, gz)", archive)
    folder.mkdir(parents=True)
    try:
        with _damage_named(archive):
            {"zip": _unpack_zip, "tar": _unpack_tar, "file": _unpack_file}[kind](
                _Unpacking(archive, folder, limits or Limits())
            )
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            raise DataError("the archive holds no files", archive)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return files


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Raise `DataError` or `UserError` that names the archive in place of what the decompressors raise."""
    try:
        yield
    except NotImplementedError as error:
        raise DataError(f"cannot be unpacked here: {error}", archive) from error
    except (EOFError, *_DAMAGED) as error:
        if isinstance(error, EOFError) or any(words in str(error) for words in _CUT_SHORT):
            raise DataError("truncated: it ends in the middle of its data; fetch it again", archive) from error
        raise DataError(f"damaged: {error}; fetch it again", archive) from error
    except OSError as error:
        if error.errno is None:  # gzip and bz2 report bad data as an OSError without a number
            raise DataError(f"damaged: {error}; fetch it again", archive) from error
        raise UserError(f"{archive} could not be unpacked: {error.strerror}") from error


def _unpack_zip(unpacking: _Unpacking) -> None:
    with zipfile.ZipFile(unpacking.archive) as opened:
        targets = {}
        for entry in opened.infolist():
            mode = entry.external_attr >> 16  # the upper half holds the Unix file type, 0 where the archiver wrote none
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise unpacking.refuse(f"entry {entry.filename!r} is a link or a device")
            if entry.flag_bits & 1:
                raise unpacking.refuse(f"entry {entry.filename!r} is encrypted")
            targets[entry] = unpacking.admit(entry.orig_filename, folder=entry.is_dir())
        unpacking.require_bounded(sum(entry.file_size for entry in targets))
        for entry, target in targets.items():
            if not entry.is_dir():
                with opened.open(entry) as source:
                    unpacking.write(source, target)


def _unpack_tar(unpacking: _Unpacking) -> None:
    with _decompressed(unpacking.archive) as (_, raw):
        bounded: Any = _Bounded(raw, unpacking)
        with tarfile.open(fileobj=bounded, mode="r:") as opened:
            for entry in opened:
                if not (entry.isreg() or entry.isdir()):
                    raise unpacking.refuse(f"entry {entry.name!r} is a link or a device")
                target = unpacking.admit(entry.name, folder=entry.isdir())
                source = opened.extractfile(entry)
                if source is not None:
                    unpacking.write(source, target)
            # tarfile also stops, silently, at a cut between entries or at a header it cannot read
            bounded.seek(opened.offset)
            if bounded.read(_TAR_BLOCK) != bytes(_TAR_BLOCK):
                raise EOFError
        while bounded.read(CHUNK):  # to the end of the stream, where the decompressor verifies its checksum
            pass


def _unpack_file(unpacking: _Unpacking) -> None:
    with _decompressed(unpacking.archive) as (suffix, source):
        name = unpacking.archive.name
        inner = name.removesuffix(suffix)
        unpacking.write(source, unpacking.folder / (inner if inner != name else f"{name}.unpacked"))


def check_compressed(path: Path) -> None:
    """Read a compressed file to its end without keeping anything; raise `DataError` if it is truncated or damaged."""
    unpacking, total = _Unpacking(path, path.parent, Limits()), 0
    with _damage_named(path), _decompressed(path) as (_, stream):
        while chunk := stream.read(CHUNK):
            total += len(chunk)
            unpacking.require_bounded(total)
