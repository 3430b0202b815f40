"""JSON that can stand inside a `<script>` element, whatever texts are in it."""

import json
import math
from typing import Any

_DIGITS = 5
"""Significant digits that are kept of a figure: two more than anyone reads."""
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""What could end the element, open another or be taken for an entity; all other trouble is outside ASCII."""


def script_json(value: Any) -> str:
    """A value as JSON in plain ASCII without `<`, `>` and `&`; keys sorted, infinities and NaN as null."""
    text = json.dumps(rounded(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for character, escaped in _ESCAPED.items():
        text = text.replace(character, escaped)
    return text


def rounded(value: Any) -> Any:
    """The same value with its floats cut to five significant digits, and None for those that are not finite."""
    if isinstance(value, float):
        short = float(f"{value:.{_DIGITS}g}")
        if not math.isfinite(short):
            return None
        return int(short) if short.is_integer() and abs(short) < 2**53 else short
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
