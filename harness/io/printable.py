"""Printing texts from outside with control characters escaped, so that none breaks a line or reverses its direction.

Everything that prints or writes a name from outside passes it through here. Joiners and variation selectors stay,
because words and emoji are spelt with them. Two texts that look alike need not be the same.
"""

import json
import re
import unicodedata

_LINE_ENDS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
"""Characters that some program treats as the end of a line, column or page."""
_ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories to escape: controls, formats such as right-to-left override, lone surrogates, line ends."""
_JOINERS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
"""Not escaped: scripts and emoji are spelt with them, and they affect only their neighbours."""
_SEEN = {*map(chr, range(0x600, 0x606)), "\u06dd", "\u070f", "\u08e2"}
"""Not escaped: format characters that are visible, Arabic signs of numbers, years and verses, Syriac abbreviation."""


def printable(text: str) -> str:
    """Return the text on one line; control characters are replaced by their code points, for example `[U+202E]`."""
    if text.isprintable():
        return text
    return "".join(f"[U+{ord(one):04X}]" if _acts(one) else one for one in _LINE_ENDS.sub(" ", text))


def printable_lines(text: str) -> str:
    """Return a text of several lines with each line made printable."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Return JSON text of the same value with control characters escaped; line ends, only between values, stay."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(json.dumps(one)[1:-1] if one != "\n" and _acts(one) else one for one in text)


def _acts(character: str) -> bool:
    visible = character in _JOINERS or character in _SEEN
    return not visible and unicodedata.category(character) in _ACTING
