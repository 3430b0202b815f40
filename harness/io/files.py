"""Writing to disk: names that stay inside their folder, files written whole or not at all, and hashes to verify them.

A folder that is read again (a cache, a checkpoint, a model) is written by `whole_folder`: under a temporary name, with
a `manifest.json` that lists the sha256 and size of every file, flushed to disk and renamed. So a process killed
half-way, or a full disk, leaves what was there before, and never a folder that is believed later.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.errors import DataError, UserError
from harness.io.printable import printable

MANIFEST = "manifest.json"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_SEAL = "sealed"
_LONGEST_NAME = 255
_LIMIT_DEPTH = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_RESERVED = {"con", "prn", "aux", "nul", "ls", "all", "none"}


def home() -> Path:
    """Return the workspace folder: `$HARNESS_HOME`, or `workspace/` in the current folder."""
    return Path(os.environ.get("HARNESS_HOME") or "workspace").expanduser().absolute()


def checked_name(kind: str, name: str) -> str:
    """Return `name` if it is safe as one path component; raise `UserError` if not. `kind` is for the message."""
    if not _SAFE_NAME.fullmatch(name) or name.lower() in _RESERVED or ".." in name or name.endswith(".lock"):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise UserError(
            f"{kind} name {shown!r} cannot be used; take letters, digits and . _ + -, at most 100, "
            f"starting with a letter or digit, not ending in .lock, and none of: {', '.join(sorted(_RESERVED))}"
        )
    return name


def is_file_name(name: str) -> bool:
    """Return whether a name read from a file is a valid path component without control characters."""
    whole = len(name.encode("utf-8", "replace")) <= _LONGEST_NAME and printable(name) == name
    return whole and name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")


def is_folder(path: Path | str) -> bool:
    """Return whether the folder exists; False for a name that no file can have, for example one too long."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def place_inside(folder: Path, name: str) -> Path:
    """Return the path of file `name` in `folder`; `DataError` if it lies outside, also through a symbolic link."""
    path = folder / name
    try:
        place, within = path.resolve(), folder.resolve()
        inside = place.is_relative_to(within) and place != within
        path.is_file()  # a name that no file can have raises
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
        inside = False
    if not inside:
        raise DataError(f"names the file {name[:100]!r}, which is not inside; refused", folder)
    return path


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the hex sha256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8: the whole file or nothing."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: under a temporary name, flushed to disk, then renamed."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; a broken file is a `DataError` with its line."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON ({error.msg})", path, error.lineno) from error
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text", path) from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"not JSON of this harness ({error})", path) from error


def parse_json(text: str) -> Any:
    """Parse JSON; `ValueError` or `RecursionError` for a value that could not be printed, compared or written again.

    Refused are lone surrogates, which UTF-8 cannot encode, numbers of thousands of digits, and deep nesting.
    """
    value = json.loads(text)
    if _nested_deeply(value):
        raise ValueError(f"nested more than {_LIMIT_DEPTH} levels deep")
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _nested_deeply(value: Any) -> bool:
    level = [value]
    for _ in range(_LIMIT_DEPTH):
        inside = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [child for children in inside for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def write_manifest(
    folder: Path,
    metadata: dict[str, Any],
    leave_out: tuple[str, ...] = (),
    hashes: Mapping[str, str] | None = None,
    *,
    sealed: bool = False,
) -> None:
    """Hash every file of `folder` and write the manifest last, so that its presence means completeness.

    Subfolders named in `leave_out` are not listed. Files whose sha256 is in `hashes` are not read. A `sealed`
    manifest also holds a hash of itself, so that damaged metadata is detected too.
    """
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST and path.relative_to(folder).parts[0] not in leave_out
    ]
    for path in paths:
        with path.open("rb") as stream:  # files that a manifest lists must survive a power cut
            os.fsync(stream.fileno())
    names, known = {str(path.relative_to(folder)): path for path in paths}, hashes or {}
    files = {
        name: {"sha256": known.get(name) or sha256_file(path), "bytes": path.stat().st_size}
        for name, path in names.items()
    }
    values = {"files": files, **metadata}
    seal = {_SEAL: sha256_json(json.loads(json.dumps(values)))} if sealed else {}
    write_json(folder / MANIFEST, values | seal)


def read_manifest(folder: Path, verify: bool = False) -> dict[str, Any] | None:
    """Return the manifest of a complete folder, or None if the folder is absent, partial or damaged.

    Sizes are always compared; `verify` also recomputes every hash.
    """
    if (folder / MANIFEST).is_file():
        with suppress(DataError):
            return _checked_manifest(folder, verify=verify)
    return None


def verified_manifest(folder: Path, advice: str, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the manifest of a folder after checking the hash of every file; `DataError` if one differs.

    Args:
        folder: A folder written by `whole_folder`.
        advice: End of the error message: what to do about a damaged folder.
        names: The files that the manifest must list; None for any.
    """
    try:
        return _checked_manifest(folder, verify=True, sealed=True, names=names)
    except DataError as error:
        raise DataError(f"{error}; {advice}") from error


def _checked_manifest(
    folder: Path, *, verify: bool, sealed: bool = False, names: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the manifest after checking sizes, with `verify` also hashes; `sealed` requires a hash of itself."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError("missing", path)
    try:
        manifest: dict[str, Any] = read_json(path)
        files = {name: (kept["sha256"], kept["bytes"]) for name, kept in manifest["files"].items()}
        whole = _unbroken(manifest, required=sealed) and (names is None or files.keys() == set(names))
    except (DataError, KeyError, TypeError, AttributeError) as error:
        raise DataError("damaged", path) from error
    if not whole or not (files or sealed):
        raise DataError("damaged", path)
    faults: dict[Path, str] = {}
    for name, (sha256, length) in files.items():
        file = place_inside(folder, name)
        if not file.is_file():
            faults[file] = "missing"
        elif (size := file.stat().st_size) != length:
            faults[file] = f"{size:,} bytes, {length} by its manifest"
        elif verify and sha256_file(file) != sha256:
            faults[file] = "its sha256 is not that of its manifest"
    if faults:
        (first, fault), *others = faults.items()
        raise DataError("; ".join([fault, *(f"{file.name}: {what}" for file, what in others)]), first)
    return manifest


def _unbroken(manifest: dict[str, Any], required: bool = False) -> bool:
    """Return whether a manifest matches its seal; one without a seal passes unless `required`.

    Earlier versions wrote checkpoints and models with a hash of their metadata in place of the seal.
    """
    if _SEAL in manifest:
        return bool(manifest[_SEAL] == sha256_json({key: value for key, value in manifest.items() if key != _SEAL}))
    if "facts" in manifest and "digest" in manifest:
        return bool(manifest["digest"] == sha256_json(manifest["facts"]))
    return not required


def require_listed(folder: Path, name: str) -> None:
    """Raise `DataError` if the hash of a run folder's file is not the one in the run's manifest."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise DataError(f"missing, so nothing vouches for {name}; run it again", manifest)
    try:
        expected = read_json(manifest)["files"][name]["sha256"]
    except (KeyError, TypeError) as error:
        raise DataError(f"does not list {name}; run it again", manifest) from error
    if sha256_file(place_inside(folder, name)) != expected:
        raise DataError(f"its bytes are not those that {MANIFEST} lists; copy it anew, or run it again", folder / name)


@contextmanager
def locked(path: Path, timeout: float = -1) -> Iterator[None]:
    """Hold an inter-process lock named after `path` (a sibling `.lock` file); the system frees it if the process dies.

    Wait up to `timeout` seconds, then raise `filelock.Timeout`; a negative number waits for ever.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock"), timeout=timeout):
        yield


@dataclass
class Draft:
    """A folder while `whole_folder` writes it."""

    path: Path
    """Temporary folder to write the files into."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """JSON values that the manifest will hold beside the files."""
    hashes: dict[str, str] = field(default_factory=dict)
    """Known sha256 by file name; these files are not read again for the manifest."""


@contextmanager
def whole_folder(folder: Path) -> Iterator[Draft]:
    """Write a folder whole or not at all; an existing one stays until the new one is on disk.

    The caller must be the only writer of `folder`. Leftovers of a killed writer are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    try:
        draft = Draft(Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)))
        yield draft
        write_manifest(draft.path, draft.metadata, hashes=draft.hashes, sealed=True)
        draft.path.chmod(0o755)
        _flush_names(draft.path)
        if folder.exists():
            folder.replace(_aside(folder))
        draft.path.replace(folder)
        _flush_names(folder.parent)
    finally:
        sweep(folder)  # by pattern, since a signal can arrive after the folder was made and before its name is known


def sweep(folder: Path) -> None:
    """Remove the leftovers of an interrupted write or removal of `folder`, and undo a half-done replacement."""
    if _aside(folder).exists() and not folder.exists():
        _aside(folder).replace(folder)
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder: rename it first, so that a half-removed folder never has its name."""
    folder.replace(folder.with_name(f".{folder.name}.removed"))
    sweep(folder)


def _aside(folder: Path) -> Path:
    """Return where the old folder waits while the new one is renamed; temporary names have no hyphen."""
    return folder.with_name(f".{folder.name}.set-aside")


def _flush_names(folder: Path) -> None:
    """Flush the directory entries of a folder to disk, so that renames survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def build_once(folder: Path, build: Callable[[Path], dict[str, Any]], *, verify: bool = True) -> dict[str, Any]:
    """Return the manifest of `folder`, calling `build(temporary folder) -> metadata` if it is not there yet.

    If two processes call at once, one builds, and the other waits on the lock and reads. A folder whose hashes do not
    match its manifest is built again; without `verify` only the sizes of its files are compared.
    """
    manifest = read_manifest(folder, verify)
    if manifest is not None:
        return manifest
    with locked(folder):
        manifest = read_manifest(folder, verify)
        if manifest is not None:
            return manifest
        with whole_folder(folder) as draft:
            draft.metadata = build(draft.path)
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(f"{folder} was damaged while it was written; is the disk full?")
        return manifest
