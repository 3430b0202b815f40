"""Which files a piece of code opens, as the interpreter itself tells it."""

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
    """Fails if anything in `folder` is opened, listed, moved, made or removed meanwhile, by this process."""
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
