"""Mutations that make valid input hostile.

All of it draws from a `random.Random`, so that a plain loop and libFuzzer can drive it alike. A tree of JSON or YAML is
changed as a tree, the header of a tensor file as JSON with its length put right, the arrays in an archive one by one:
changes that a parser refuses at once find nothing behind it.
"""

import gzip
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal

Form = Literal["bytes", "text", "json", "lines", "yaml", "tensors", "arrays"]

WORDS = (
    *(b"0", b"-1", b"1e999", b"-1e999", b"1e-400", b"NaN", b"nan", b"Infinity", b".inf", b".nan", b"0x10", b"1_000"),
    *(str(2**31).encode(), str(2**63).encode(), str(-(2**63) - 1).encode(), str(2**64).encode(), b"9" * 5_000),
    *(b"null", b"true", b'""', b"[]", b"{}", b'"', b"'", b",", b":", b": ", b"=", b"#", b"|", b">", b"- ", b"%"),
    *(b"\\ud800", b"\\u0000", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\xff", b"\x80", b"\x1f\x8b"),
    *(b"\n", b"\r\n", b"\r", b" ", b"\t", b"\n\n", b"\x0b", b"\xc2\x85", b"\xe2\x80\xa8"),
    *("\u0663".encode(), "\u00b2".encode(), "\U0001f600".encode(), "\u202e".encode(), "\u0130".encode()),
    *(b"..", b"../../x", b"/etc/passwd", b"./", b"\\", b"~", b"CON", b".lock"),
    *(b"!!python/object/apply:os.system ['true']", b"&a ", b"*a", b"<<: ", b"--- ", b"? ", b"!!binary "),
    *(b"[" * 3_000, b'{"a":' * 3_000, b"(" * 200, b"a" * 70_000, b"=" * 400, b"`" * 400, b", " * 400),
)
"""Byte strings that readers are known to fail on."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, float("inf"), float("nan"), 2**31, 2**63, -(2**63) - 1, 2**64),
    *("", "0", "-1", "nan", "1e999", "\ud800", "\0", "..", "../../x", "/etc/passwd", "a" * 300, "\U0001f600", "auto"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": {}}}, [0, 0], ["a", "a"], 10**400),
    *(reduce(lambda inner, _: [inner], range(300), 0), reduce(lambda inner, _: {"a": inner}, range(300), 0)),
)
"""Values that replace a value of a tree."""


def mutated(seeds: Sequence[bytes], form: Form, words: Sequence[bytes], draw: random.Random) -> bytes:
    """Return a hostile variant of one of the seeds."""
    data = draw.choice(seeds)
    shaped = _SHAPED.get(form)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        if shaped is not None and draw.random() < 0.7:
            data = shaped(data, draw)
        else:
            data = _scarred(data, seeds, [*words, *WORDS] if not words or draw.random() < 0.5 else words, draw)
    return gzip.compress(data, 1, mtime=0) if form in ("lines", "text") and draw.random() < 0.03 else data


# ---------------------------------------------------------------- bytes


def _scarred(data: bytes, seeds: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> bytes:
    """Make one change of bytes, whatever the format."""
    start = draw.randrange(len(data) + 1)
    stop = min(len(data), start + draw.choice((1, 1, 2, 4, 8, 32, 200)))
    kind = draw.randrange(8)
    if kind == 0:
        return data[:start] + data[stop:]
    if kind == 1:
        return data[:start]
    if kind == 2:
        return data[:stop] + data[start:stop] * draw.choice((1, 2, 50)) + data[stop:]
    if kind == 3:
        other = draw.choice(seeds)
        return data[:start] + other[draw.randrange(len(other) + 1) :]
    if kind == 4 and data:
        place = min(start, len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
    word = draw.choice(words)
    if kind == 5:  # in the place of what was there, so that lengths and offsets still hold
        return data[:start] + word[: len(data) - start] + data[start + len(word) :]
    if kind == 6:
        return data[:start] + word + data[stop:]
    return data[:start] + word + data[start:]


# ---------------------------------------------------------------- trees


def _changed_tree(value: Any, draw: random.Random) -> Any:
    """Return the tree with one change at a random place."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if inner and draw.random() < 0.8:
        key, child = draw.choice(inner)
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        kind = draw.randrange(10)
        if kind == 0:
            del copy[key]
        elif kind == 1 and isinstance(copy, dict):
            copy[draw.choice(("", "..", "\ud800", "x", f"{key} ", str(key).upper(), draw.choice(inner)[0]))] = child
            copy.pop(key, None) if draw.random() < 0.5 else None
        elif kind == 1:
            copy += [child] * draw.choice((1, 40))
        elif kind == 2:
            copy[key] = draw.choice(inner)[1]
        else:
            copy[key] = _changed_tree(child, draw)
        return copy
    kind = draw.randrange(8)
    if kind == 0:
        return [value]
    if kind == 1:
        return str(value)
    if kind == 2 and isinstance(value, int | float):
        return draw.choice((-value, value + 1, value * 2.5, value - 0.5)) if abs(value) < 1e9 else 0
    if kind == 3 and isinstance(value, str):
        return draw.choice((value + "\0", value + "\ud800", value.upper(), value[:-1], value * 30, f"../{value}"))
    return draw.choice(VALUES)


def _written(value: Any, draw: random.Random) -> bytes:
    text = json.dumps(value, ensure_ascii=draw.random() < 0.7, indent=draw.choice((None, None, 1)))
    return text.encode("utf-8", "surrogatepass")


def _shaped_json(data: bytes, draw: random.Random) -> bytes:
    try:
        return _written(_changed_tree(json.loads(data), draw), draw)
    except (ValueError, RecursionError):
        return data


def _shaped_lines(data: bytes, draw: random.Random) -> bytes:
    """JSON lines: one line changed as a tree, or lines taken out, doubled or swapped."""
    lines = data.split(b"\n")
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(8)
    if kind == 0:
        lines.insert(place, lines[other])
    elif kind == 1:
        del lines[place]
    elif kind == 2:
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = _shaped_json(lines[place], draw).replace(b"\n", b" ")
    return b"\n".join(lines)


def _shaped_yaml(data: bytes, draw: random.Random) -> bytes:
    """Change a tree of YAML and write it as JSON, which is YAML but for the names of NaN and infinity."""
    from harness.io.yaml import parse_yaml

    try:
        changed = _written(_changed_tree(parse_yaml(data.decode()), draw), draw)
    except Exception:  # no tree any more, which is somebody else's finding
        return data
    return changed.replace(b"-Infinity", b"-.inf").replace(b"Infinity", b".inf").replace(b"NaN", b".nan")


# ---------------------------------------------------------------- binary files with a header


def _shaped_tensors(data: bytes, draw: random.Random) -> bytes:
    """Change the header of a safetensors file and correct its length."""
    try:
        length = struct.unpack_from("<Q", data)[0]
        header = _shaped_json(data[8 : 8 + length], draw)
    except struct.error:
        return data
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def _shaped_arrays(data: bytes, draw: random.Random) -> bytes:
    """Change one member of an .npz and correct the checksums; change the header of an .npy."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = draw.choice(sorted(members))
    except Exception:  # no archive any more, in one of a hundred ways
        return _other_header(data, draw)
    content = members.pop(name)
    members[draw.choice((name, name, name, "x.npy", "../x.npy", "\ud800".encode("utf-8", "replace").decode()))] = (
        _other_header(content, draw) if draw.random() < 0.7 else _scarred(content, [content], WORDS, draw)
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, inside in members.items():
            archive.writestr(each, inside)
    return stream.getvalue()


_DTYPES = ("<f4", ">f4", "<i8", "|O", "|V8", "<U9", "|S0", "<M8[s]", "<c16", "|b1", "(2,)<f4", "f4,f4", "<f4'")
_SHAPES = ("()", "(0,)", "(3,)", "(-1,)", "(2, 3)", "(0, 3)", "(2, 3, 1)", "(4294967296, 4294967296)", "(10**3, 2)")


def _other_header(data: bytes, draw: random.Random) -> bytes:
    """Change type or shape of an .npy file, or replace its header."""
    if not data.startswith(b"\x93NUMPY"):
        return _scarred(data, [data], WORDS, draw)
    length = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + length], data[10 + length :]
    if draw.random() < 0.6:
        shape = draw.choice((*_SHAPES, "(99999999999,)", "(250000000, 1)"))
        order = draw.choice(("False", "False", "True", "None"))
        header = f"{{'descr': {draw.choice(_DTYPES)!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    else:
        header = _scarred(header, [header], WORDS, draw)[:60_000]
    return data[:8] + len(header).to_bytes(2, "little") + header + body


_SHAPED: dict[Form, Callable[[bytes, random.Random], bytes]] = {
    "json": _shaped_json,
    "lines": _shaped_lines,
    "yaml": _shaped_yaml,
    "tensors": _shaped_tensors,
    "arrays": _shaped_arrays,
}
