"""YAML as we accept it: version 1.2 scalars (`1e-5` is a number, `no` is a word), no tags, no aliases, no duplicates.

Cards, method defaults and run configs all come through `read_yaml`. A file is data: nothing in it can name code, and a
file that would expand in memory (anchors, 100 MB) is refused before it is parsed.
"""

from pathlib import Path
from typing import Any

from harness.errors import DataError

_LIMIT_BYTES = 1_000_000
_LIMIT_DEPTH = 32
"""The parser's time grows with the square of the nesting, so a page of brackets would keep it busy for hours."""


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file; every fault is a `DataError` with the line."""
    if not path.is_file():
        raise DataError("no such file", path)
    if path.stat().st_size > _LIMIT_BYTES:
        raise DataError(f"larger than {_LIMIT_BYTES:,} bytes; a config is a page of text", path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text", path) from error
    value = parse_yaml(text, path)
    if not isinstance(value, dict):
        raise DataError("expected `key: value` lines at the top level", path, 1)
    return value


def parse_yaml(text: str, path: Path | str = "<text>") -> Any:
    """Any YAML value; refuses tags, anchors and duplicate keys."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

    loader, depth = YAML(typ="safe", pure=True), 0
    try:
        for event in loader.parse(text):
            line = event.start_mark.line + 1
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > _LIMIT_DEPTH:
                raise DataError(f"nested more than {_LIMIT_DEPTH} levels deep", path, line)
            if getattr(event, "anchor", None):
                raise DataError("anchors and aliases (& and *) are not accepted; write the value out", path, line)
            if getattr(event, "tag", None):
                raise DataError(f"tags such as {event.tag} are not accepted; plain values only", path, line)
        value = YAML(typ="safe", pure=True).load(text)
    except DuplicateKeyError as error:
        mark = error.problem_mark
        raise DataError(str(error.problem).splitlines()[0], path, mark.line + 1 if mark else None) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise DataError(f"not valid YAML: {error.problem}", path, mark.line + 1 if mark else None) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"not valid YAML: {str(error).splitlines()[0]}", path) from error
    return value
