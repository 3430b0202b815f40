"""Watch which files a piece of code opens, by the interpreter's audit events."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_watchers: list[tuple[Path, list[str]]] = []
_hooked: list[bool] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir", "shutil.copyfile"):
        return
    for folder, seen in _watchers:
        seen += [f"{event} {one}" for one in arguments[:2] if isinstance(one, str) and one.startswith(str(folder))]


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Fail if this process opens, lists, moves, makes or removes anything in `folder` inside the block."""
    if not _hooked:
        sys.addaudithook(_note)  # for good: a hook cannot be taken back
        _hooked.append(True)
    seen: list[str] = []
    _watchers.append((folder.resolve(), seen))
    try:
        yield
    finally:
        _watchers.remove((folder.resolve(), seen))
    assert seen == []
