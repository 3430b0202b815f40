"""Data as scripts: one call of a function of the page, with JSON for its arguments, and nothing else.

A page that was opened from a file may not fetch, but it may load scripts. The texts in them are other people's, so the
JSON is plain ASCII: line separators that end a JavaScript string, lone surrogates and control characters are escaped
by that alone, and `<`, `>` and `&` are escaped too, so that nothing reads as markup wherever a script is put.
"""

import json
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.data.ragged import Texts

LONGEST = 300
"""Characters of a text; whole documents would make the shards a copy of the dataset."""
LARGEST = 390_000
"""Bytes of the rows of one file."""
DIGITS = 5
"""Significant digits of a score."""
_BYTES = 4 * (LONGEST + 1)
"""The first `LONGEST + 1` characters of a text are never longer than this, in UTF-8."""
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\x7f": "\\u007f"}
_POWERS = np.array([float(f"1e{power}") for power in range(64)])
"""Powers of ten as the literals give them; those of `**` may be off in the last bit."""


def as_json(value: Any) -> str:
    """JSON in ASCII that is safe inside a script; NaN and infinity are refused."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def numbers(values: NDArray[Any] | list[list[int]]) -> str:
    """JSON of an array of numbers of any shape; what is not finite becomes null."""
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode("ascii")


def call(function: str, *arguments: str) -> bytes:
    """A script that calls a function; the arguments are JSON already."""
    return f"{function}({','.join(arguments)});\n".encode("ascii")


def rounded(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Scores to `DIGITS` significant digits, as the doubles whose shortest text has no more; same shape.

    With x = d * 10^-p and a whole number d of `DIGITS` digits, the quotient d / 10^p is the double nearest to the
    decimal, because both are exact (up to p = 22: for |x| < 1e-18 the text may be longer). NaN and infinity stay.
    """
    exact = np.asarray(scores, np.float64)
    finite = np.where(np.isfinite(exact), exact, 0.0)
    size = np.where(finite == 0, 1.0, np.abs(finite))
    power = DIGITS - 1 - np.floor(np.log10(size)).astype(np.int64)
    scale = _POWERS[np.minimum(np.abs(power), len(_POWERS) - 1)]
    small = power >= 0
    whole = np.rint(np.where(small, finite * scale, finite / scale))
    return np.where(np.isfinite(exact), np.where(small, whole / scale, whole * scale), exact)


def beginnings(texts: Texts, rows: int) -> list[str]:
    """The first rows of a column, cut to `LONGEST` characters and an ellipsis; long texts are never read whole."""
    values = np.asarray(texts.values)
    starts, ends = texts.offsets[:rows], texts.offsets[1 : rows + 1]
    bounds = zip(starts.tolist(), np.minimum(ends, starts + _BYTES).tolist(), strict=True)
    decoded = (values[start:end].tobytes().decode("utf-8", "replace") for start, end in bounds)
    return [text if len(text) <= LONGEST else f"{text[:LONGEST]}…" for text in decoded]


def rows_per_file(row_bytes: NDArray[np.int64], usual: int) -> int:
    """How many rows go into one file: the usual number, halved until no file is larger than `LARGEST`.

    Args:
        row_bytes: What each row takes, [R].
        usual: Rows of a file if they are short.
    """
    before = np.concatenate([[0], np.cumsum(row_bytes)])
    while usual > 1:
        cuts = np.append(np.arange(0, len(row_bytes), usual), len(row_bytes))
        if np.diff(before[cuts]).max(initial=0) <= LARGEST:
            break
        usual //= 2
    return usual
