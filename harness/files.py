"""How anything reaches the disk: names that stay inside their folder, whole files or none, and hashes to prove it.

A cached folder is built under a temporary name and renamed into place together with `manifest.json`, which lists
the sha256 and size of every file. A folder without a valid manifest does not exist as far as readers are concerned, so
a process killed half-way, or a full disk, can never leave a cache that is believed later.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.errors import DataError, UserError
from harness.printable import printable

MANIFEST = "manifest.json"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_SEAL = "sealed"
_LONGEST_NAME = 255
_LIMIT_DEPTH = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_RESERVED = {"con", "prn", "aux", "nul", "ls", "all", "none"}


def home() -> Path:
    """The workspace folder: `$HARNESS_HOME`, or `workspace/` in the current folder."""
    return Path(os.environ.get("HARNESS_HOME") or "workspace").expanduser().absolute()


def checked_name(kind: str, name: str) -> str:
    """Returns `name` if it is safe as one path component, else raises."""
    if not _SAFE_NAME.fullmatch(name) or name.lower() in _RESERVED or ".." in name or name.endswith(".lock"):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise UserError(
            f"{kind} name {shown!r} cannot be used; take letters, digits and . _ + -, at most 100, "
            f"starting with a letter or digit, not ending in .lock, and none of: {', '.join(sorted(_RESERVED))}"
        )
    return name


def is_file_name(name: str) -> bool:
    """Whether a name out of somebody's file is one path component of characters that can be shown as they are."""
    whole = len(name.encode("utf-8", "replace")) <= _LONGEST_NAME and printable(name) == name
    return whole and name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")


def is_folder(path: Path | str) -> bool:
    """Whether there is a folder of that name; one that no file can have, too long say, is that of none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def place_inside(folder: Path, name: str) -> Path:
    """The file that a manifest or a log calls `name`; `DataError` if that is outside `folder`, also through a link."""
    path = folder / name
    try:
        place, within = path.resolve(), folder.resolve()
        inside = place.is_relative_to(within) and place != within
        path.is_file()  # a name that no file can have raises
    except (OSError, ValueError, RuntimeError):  # the last one for links in a circle
        inside = False
    if not inside:
        raise DataError(f"names the file {name[:100]!r}, which is not inside; refused", folder)
    return path


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex sha256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes a whole file of UTF-8 or nothing."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a whole file or nothing: temporary name, flush to disk, rename."""
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
    """Writes JSON with sorted keys, whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads JSON; a broken file is a `DataError` with its line."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON ({error.msg})", path, error.lineno) from error
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text", path) from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"not JSON of this harness ({error})", path) from error


def parse_json(text: str) -> Any:
    """A JSON value that can be shown, compared and written again; otherwise `ValueError` or `RecursionError`.

    Refused are half of a surrogate pair, which no file can hold, numbers of thousands of digits, and deep nesting.
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
    facts: dict[str, Any],
    leave_out: tuple[str, ...] = (),
    hashes: Mapping[str, str] | None = None,
    *,
    sealed: bool = False,
) -> None:
    """Hashes every file of `folder` and writes the manifest last, so that its presence means completeness.

    Subfolders named in `leave_out` are not part of it. Files whose sha256 is among `hashes` are not read. A `sealed`
    manifest has a hash of itself, so that facts with a wrong byte are not believed either.
    """
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST and path.relative_to(folder).parts[0] not in leave_out
    ]
    for path in paths:
        with path.open("rb") as stream:  # what a manifest vouches for must survive a power cut
            os.fsync(stream.fileno())
    names, known = {str(path.relative_to(folder)): path for path in paths}, hashes or {}
    files = {
        name: {"sha256": known.get(name) or sha256_file(path), "bytes": path.stat().st_size}
        for name, path in names.items()
    }
    values = {"files": files, **facts}
    seal = {_SEAL: sha256_json(json.loads(json.dumps(values)))} if sealed else {}
    write_json(folder / MANIFEST, values | seal)


def read_manifest(folder: Path, verify: bool = False) -> dict[str, Any] | None:
    """The manifest of a complete folder, or None if the folder is absent, partial or damaged.

    Sizes are always compared; `verify` also recomputes every hash.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = read_json(path)
        if not manifest["files"] or not _unbroken(manifest):
            return None
        for name, expected in manifest["files"].items():
            file = place_inside(folder, name)
            if not file.is_file() or file.stat().st_size != expected["bytes"]:
                return None
            if verify and sha256_file(file) != expected["sha256"]:
                return None
    except (DataError, KeyError, TypeError, AttributeError):
        return None
    return manifest


def _unbroken(manifest: dict[str, Any]) -> bool:
    """Whether a manifest is as it was sealed; one without a seal, of an earlier version, counts as unbroken."""
    rest = {key: value for key, value in manifest.items() if key != _SEAL}
    return _SEAL not in manifest or manifest[_SEAL] == sha256_json(rest)


def require_listed(folder: Path, name: str) -> None:
    """Refuses a file of a run folder whose bytes are not those that the run's manifest lists."""
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
def locked(path: Path) -> Iterator[None]:
    """Holds an inter-process lock named after `path` (a sibling `.lock` file)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        yield


def build_once(folder: Path, build: Callable[[Path], dict[str, Any]], *, verify: bool = True) -> dict[str, Any]:
    """Returns the manifest of `folder`, calling `build(temporary folder) -> facts` if it is not there yet.

    Two processes that ask at once agree: one builds, the other waits on the lock and reads. A folder whose hashes do
    not match its manifest counts as not there; without `verify` only its sizes are compared.
    """
    manifest = read_manifest(folder, verify)
    if manifest is not None:
        return manifest
    with locked(folder):
        manifest = read_manifest(folder, verify)
        if manifest is not None:
            return manifest
        _sweep(folder)
        try:
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            write_manifest(temporary, build(temporary), sealed=True)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.chmod(0o755)
            temporary.replace(folder)
        except BaseException:
            _sweep(folder)  # by pattern: a signal can arrive between making the folder and knowing its name
            raise
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(f"{folder} was damaged while it was written; is the disk full?")
        return manifest


def _sweep(folder: Path) -> None:
    """Removes half-built copies of `folder`, ours or those of a killed process; the caller holds its lock."""
    for orphan in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(orphan, ignore_errors=True)
