"""The YAML that is accepted: version 1.2 scalars (`1e-5` is a number, `no` a word), no tags, aliases or duplicate keys.

Cards, method defaults and run configs all come through `read_yaml`; `format_yaml` writes what it reads. A file is data:
nothing in it can name code, and a file that would expand in memory (anchors, 100 MB) is refused before it is parsed.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import DataError

_LIMIT_BYTES = 1_000_000
_PLAIN_WORD = re.compile(r"[A-Za-z_./][\w./@-]*", re.ASCII)
_LIMIT_DEPTH = 32
"""Most levels of nesting; the parser's time grows with their square, so a page of brackets would take hours."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping from a file; `DataError`, with the line if known, if it cannot be used."""
    if not path.is_file():
        raise DataError("a folder; name a file" if path.is_dir() else "no such file", path)
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
    """Parse any YAML value; `DataError` for tags, anchors and duplicate keys."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="safe", pure=True)
    loader.Parser = _plain_parser(path)
    try:
        value = loader.load(text)
    except DuplicateKeyError as error:
        mark = error.problem_mark
        raise DataError(str(error.problem).splitlines()[0], path, mark.line + 1 if mark else None) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise DataError(f"not valid YAML: {error.problem}", path, mark.line + 1 if mark else None) from error
    except (YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]  # for example a TypeError for a list as a key
        raise DataError(f"not valid YAML: {reason}", path) from error
    return value


def _plain_parser(path: Path | str) -> type[Any]:
    """Return the library's parser, made to refuse tags, anchors and deep nesting as soon as it meets one."""
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent
    from ruamel.yaml.parser import Parser

    class PlainParser(Parser):
        """Checks each parser event before a value is built from it."""

        depth = 0

        def peek_event(self) -> Any:
            event = super().peek_event()
            if getattr(event, "anchor", None):
                raise DataError(
                    "anchors and aliases (& and *) are not accepted; write the value out",
                    path,
                    event.start_mark.line + 1,
                )
            return event

        def get_event(self) -> Any:
            self.peek_event()
            event = super().get_event()
            line = event.start_mark.line + 1
            self.depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if self.depth > _LIMIT_DEPTH:
                raise DataError(f"nested more than {_LIMIT_DEPTH} levels deep", path, line)
            if getattr(event, "tag", None):
                raise DataError(f"tags such as {event.tag} are not accepted; plain values only", path, line)
            return event

    return PlainParser


def format_yaml(values: Mapping[str, Any]) -> str:
    """Return settings as YAML that `parse_yaml` reads back to the same values and types, one key a line.

    Numbers have all their digits; a string that could be read as anything else is quoted.
    """
    lines: list[str] = []
    _format_mapping(values, 0, lines)
    return "".join(f"{line}\n" for line in lines) or "{}\n"


def _format_mapping(values: Mapping[str, Any], depth: int, lines: list[str]) -> None:
    for key, value in values.items():
        start = f"{'  ' * depth}{format_flow(str(key))}:"
        if isinstance(value, Mapping) and value:
            lines.append(start)
            _format_mapping(value, depth + 1, lines)
        else:
            lines.append(f"{start} {format_flow(value)}")


def format_flow(value: Any) -> str:
    """Return a value as YAML on one line, lists and mappings in brackets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{format_flow(str(key))}: {format_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_flow, value)) + "]"
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return json.dumps(value)  # numbers, true, false and null are the same in YAML


def _format_text(text: str) -> str:
    """Return a string as YAML: plain if it reads back as the same string, else in double quotes with escapes."""
    if _PLAIN_WORD.fullmatch(text) and parse_yaml(text) == text:
        return text
    escaped = (
        f"\\{letter}" if letter in '"\\' else letter if " " <= letter <= "~" else f"\\U{ord(letter):08X}"
        for letter in text
    )
    return f'"{"".join(escaped)}"'
