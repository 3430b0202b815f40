"""Archives from elsewhere, unpacked without trusting them: zip, tar (plain, gz, bz2, xz) and single compressed files.

Every entry is judged before a byte of it is written: a plain file or folder, with a name that stays inside the target.
All is written into a temporary folder beside the target and moved into place only when the whole archive is well, so a
refused, truncated or interrupted archive leaves nothing behind. What an entry claims about its size is not believed:
the bytes are counted as they come out of the decompressor.
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
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
"""First bytes -> (suffix, opener)."""
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, struct.error, ValueError, OverflowError)
_CUT_SHORT = ("unexpected end", "not a zip file")
"""What the readers say of a cut archive; a zip has its table of contents at the end, so a cut one looks like no zip."""


@dataclass(frozen=True)
class Limits:
    """How far an archive may go."""

    total_bytes: int = 60_000_000_000
    """Size of everything unpacked."""
    ratio: int = 1000
    """Expansion over the archive's own size, enforced beyond `ratio_from` bytes."""
    ratio_from: int = 100_000_000
    entries: int = 10_000
    header_bytes: int = 16_000_000
    """Longest single piece of metadata; a tar header can ask for any amount of memory."""


def explosion(path: Path, total: int, limits: Limits) -> str | None:
    """Why `total` bytes are too much to come out of a compressed file; None if they are not."""
    size = path.stat().st_size
    if total > limits.total_bytes:
        return f"it expands beyond {limits.total_bytes:,} bytes"
    if total > limits.ratio_from and total > limits.ratio * size:
        return f"it expands more than {limits.ratio:,} times ({size:,} bytes to over {total:,})"
    return None


@dataclass
class _Ledger:
    """What has been accepted so far: names taken, bytes written."""

    archive: Path
    limits: Limits
    names: dict[str, bool] = field(default_factory=dict)
    """Path parts joined and case-folded, since some disks do not tell A from a -> whether it is a folder."""
    written: int = 0
    entries: int = 0

    def refuse(self, reason: str) -> DataError:
        return DataError(f"refused, nothing was unpacked: {reason}", self.archive)

    def admit(self, name: str, *, folder: bool) -> PurePosixPath:
        """The entry's path inside the target, or a refusal."""
        self.entries += 1
        if self.entries > self.limits.entries:
            raise self.refuse(f"more than {self.limits.entries:,} entries")
        if "\0" in name or "\\" in name or re.match(r"[A-Za-z]:", name) or name.startswith("/"):
            raise self.refuse(f"entry {name!r} is not a relative path")
        path = PurePosixPath(name)
        if ".." in path.parts:
            raise self.refuse(f"entry {name!r} leaves the folder")
        self._take(path, name, folder)
        return path

    def _take(self, path: PurePosixPath, name: str, folder: bool) -> None:
        for parent in path.parents:
            if self.names.setdefault(str(parent).casefold(), True) is False:
                raise self.refuse(f"entry {name!r} lies inside another entry that is a file")
        key = str(path).casefold()
        if key in self.names and not (folder and self.names[key]):
            raise self.refuse(f"two entries are called {name!r}")
        self.names[key] = folder

    def expanded(self, total: int) -> None:
        """Judges the number of bytes that have come out so far."""
        if reason := explosion(self.archive, total, self.limits):
            raise self.refuse(reason)

    def copy(self, source: IO[bytes], target: Path) -> None:
        """Writes one entry, counting."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as stream:
            while chunk := source.read(CHUNK):
                self.written += len(chunk)
                self.expanded(self.written)
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())


class _Bounded:
    """A seekable view of a decompressor in which nothing can be asked for, or skipped over, beyond the limits."""

    def __init__(self, raw: IO[bytes], ledger: _Ledger) -> None:
        self._raw, self._ledger = raw, ledger

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._ledger.limits.header_bytes:
            raise self._ledger.refuse(f"a header asks for {size:,} bytes of memory")
        data = self._raw.read(size)
        self._ledger.expanded(self._raw.tell())
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        if whence == 0:
            self._ledger.expanded(position)
        return self._raw.seek(position, whence)

    def tell(self) -> int:
        return self._raw.tell()


def archive_kind(path: Path) -> Kind | None:
    """What a file is by its content, whatever it is called: `file` is one compressed file, None is no archive."""
    with path.open("rb") as stream:
        start = stream.read(_TAR_BLOCK)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    opener = _decompressor(start)
    if opener is None:
        return "tar" if _is_tar_header(start) else None
    try:
        with opener[1](path) as inner:
            return "tar" if _is_tar_header(inner.read(_TAR_BLOCK)) else "file"
    except (EOFError, OSError, *_DAMAGED):
        return "file"


def _decompressor(start: bytes) -> tuple[str, Callable[[Path], Any]] | None:
    return next((entry for magic, entry in _COMPRESSED.items() if start.startswith(magic)), None)


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> list[Path]:
    """Unpacks an archive into `folder` (created if need be), all of it or nothing.

    Args:
        archive: A zip, a tar in any of its compressions, or a single file compressed with gzip, bzip2 or xz.
        folder: Where the entries go; files that are already there are never overwritten.
        limits: Bounds against archives made to fill a disk.

    Returns:
        The files that were written, sorted.

    Raises:
        DataError: The archive is truncated, damaged, hostile, or would overwrite a file.
    """
    ledger = _Ledger(archive, limits or Limits())
    kind = archive_kind(archive) if archive.is_file() else None
    if kind is None:
        raise DataError("not an archive that can be unpacked (zip, tar, tar.gz, tar.bz2, tar.xz, gz)", archive)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with _damage_named(archive):
            {"zip": _unpack_zip, "tar": _unpack_tar, "file": _unpack_file}[kind](archive, temporary, ledger)
        return _move_into(temporary, folder, archive)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Turns what the decompressors raise into one line about the archive."""
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


def _unpack_zip(archive: Path, folder: Path, ledger: _Ledger) -> None:
    with zipfile.ZipFile(archive) as opened:
        paths = [(entry, _judge_zip_entry(entry, ledger)) for entry in opened.infolist()]
        ledger.expanded(sum(entry.file_size for entry, _ in paths))
        for entry, path in paths:
            if not entry.is_dir():
                with opened.open(entry) as source:
                    ledger.copy(source, folder / path)


def _judge_zip_entry(entry: zipfile.ZipInfo, ledger: _Ledger) -> PurePosixPath:
    mode = entry.external_attr >> 16  # the upper half holds the Unix file type, 0 where the archiver wrote none
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ledger.refuse(f"entry {entry.filename!r} is a link or a device")
    if entry.flag_bits & 1:
        raise ledger.refuse(f"entry {entry.filename!r} is encrypted")
    return ledger.admit(entry.orig_filename, folder=entry.is_dir())


def _second_opinion(entry: tarfile.TarInfo, folder: Path, ledger: _Ledger) -> None:
    """The standard library's own judgement, where it has one: Python 3.11.4 and newer."""
    if not hasattr(tarfile, "data_filter"):
        return
    try:
        tarfile.data_filter(entry, str(folder))
    except tarfile.FilterError as error:
        raise ledger.refuse(str(error)) from error


def _unpack_tar(archive: Path, folder: Path, ledger: _Ledger) -> None:
    with _decompressed(archive) as raw:
        bounded: Any = _Bounded(raw, ledger)
        with tarfile.open(fileobj=bounded, mode="r:") as opened:
            for entry in opened:
                if not (entry.isreg() or entry.isdir()):
                    raise ledger.refuse(f"entry {entry.name!r} is a link or a device")
                path = ledger.admit(entry.name, folder=entry.isdir())
                _second_opinion(entry, folder, ledger)
                source = opened.extractfile(entry)
                if source is not None:
                    ledger.copy(source, folder / path)
            # tarfile also stops, silently, at a cut between entries or at a header it cannot read
            bounded.seek(opened.offset)
            if bounded.read(_TAR_BLOCK) != bytes(_TAR_BLOCK):
                raise EOFError
        while bounded.read(CHUNK):  # to the end of the stream, where the decompressor verifies its checksum
            pass


def _unpack_file(archive: Path, folder: Path, ledger: _Ledger) -> None:
    with archive.open("rb") as stream:
        found = _decompressor(stream.read(8))
    name = archive.name.removesuffix(found[0]) if found else archive.name
    with _decompressed(archive) as source:
        ledger.copy(source, folder / (name if name != archive.name else f"{name}.unpacked"))


@contextmanager
def _decompressed(archive: Path) -> Iterator[IO[bytes]]:
    with archive.open("rb") as stream:
        found = _decompressor(stream.read(8))
    with found[1](archive) if found else archive.open("rb") as raw:
        yield raw


def _move_into(temporary: Path, folder: Path, archive: Path) -> list[Path]:
    """Renames the unpacked files into `folder`; takes back what it moved if a rename fails."""
    names = sorted(path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file())
    if not names:
        raise DataError("the archive holds no files", archive)
    there = [str(name) for name in names if os.path.lexists(folder / name)]
    if there:
        raise DataError(f"{folder} already has {', '.join(there[:5])}; remove what should be replaced", archive)
    moved: list[Path] = []
    try:
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).rename(target)
            moved.append(target)
    except OSError as error:
        for target in moved:
            target.unlink(missing_ok=True)
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    return moved


def check_compressed(path: Path) -> None:
    """Reads a compressed file to its end without keeping anything; raises `DataError` if it is truncated or damaged."""
    ledger, total = _Ledger(path, Limits()), 0
    with _damage_named(path), _decompressed(path) as stream:
        while chunk := stream.read(CHUNK):
            total += len(chunk)
            ledger.expanded(total)
