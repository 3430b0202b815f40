"""Other people's names and texts, made so that a reader sees every character that is in them.

Some characters are not seen and yet act: they steer a terminal, end a line of a file, or turn the order around in which
what follows is read. Whatever prints or writes a name that came from outside passes it through here.
"""

import json
import re
import unicodedata

_LINE_ENDS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
"""What ends a line, a column or a page, for some reader."""
_ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode: controls, formats such as the right-to-left override, half surrogate pairs, line ends."""
_JOINERS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
"""Scripts and emoji are spelt with them, and they act on their neighbours alone."""


def printable(text: str) -> str:
    """The text on one line; a character that would act instead of being seen becomes its code point: `[U+202E]`."""
    if text.isprintable():
        return text
    return "".join(f"[U+{ord(one):04X}]" if _acts(one) else one for one in _LINE_ENDS.sub(" ", text))


def printable_json(text: str) -> str:
    """JSON of the same value in which such characters are escaped; line ends stay, they are between values alone."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(json.dumps(one)[1:-1] if one != "\n" and _acts(one) else one for one in text)


def _acts(character: str) -> bool:
    return unicodedata.category(character) in _ACTING and character not in _JOINERS
