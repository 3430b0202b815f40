"""How the explorer's folder is replaced: built under another name and renamed, and never over what is not ours."""

import glob
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UserError
from harness.files import home, locked

_DATASET = re.compile(r"d\d+")


@contextmanager
def replaced(folder: Path, witness: str) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `folder` when the block ends with the file `witness` in it.

    Without the witness, or after an error in the block, everything stays as it was. Two processes that write to one
    place take turns.
    """
    folder = folder.absolute()
    # not beside the folder: that is where reports are committed from
    key = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    with locked(home() / "locks" / f"explorer-{key}"):
        _require_ours(folder, witness)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        try:
            temporary = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
            yield temporary
            if (temporary / witness).is_file():
                temporary.chmod(0o755)
                if folder.exists():
                    folder.rename(temporary.with_name(f"{temporary.name}.old"))
                temporary.rename(folder)
        finally:
            _sweep(folder)


def _sweep(folder: Path) -> None:
    """Removes what is left of this or of a killed process; the caller holds the lock."""
    for orphan in folder.parent.glob(f"{glob.escape(_prefix(folder))}*"):
        shutil.rmtree(orphan, ignore_errors=True)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.build-"


def _require_ours(folder: Path, witness: str) -> None:
    """Refuses a folder with anything in it that the explorer did not write."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the explorer")
    names = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in names if name != witness and not _DATASET.fullmatch(name)]
    if names and (foreign or witness not in names):
        raise UserError(
            f"{folder} holds {(foreign or names)[0]!r}, which the explorer did not write; name an empty folder, "
            "because everything in it is replaced"
        )
