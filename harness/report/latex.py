"""Escape text for LaTeX; the tables around it are `templates/table.tex.j2`.

Texts are other people's, so every character is either one that LaTeX prints as it is, a macro that prints it, or its
code point: nothing in a name can start a macro, end an argument or stop the compiler. The fonts of a bare
installation are enough.
"""

import re
import unicodedata
from collections.abc import Iterator

from harness.report.cells import Table

_LONG = 40
"""Characters of the longest text in a column above which its texts are broken into lines."""
_LONG_WORD = 24
"""Characters of a word that surely fit on such a line."""

_TEXT_MACROS = (
    "\\ textbackslash ~ textasciitilde ^ textasciicircum < textless > textgreater | textbar ` textasciigrave "
    "\N{EN DASH} textendash \N{EM DASH} textemdash … ldots • textbullet § S © copyright "
    "\N{LEFT SINGLE QUOTATION MARK} textquoteleft \N{RIGHT SINGLE QUOTATION MARK} textquoteright "
    "\N{LEFT DOUBLE QUOTATION MARK} textquotedblleft \N{RIGHT DOUBLE QUOTATION MARK} textquotedblright "
    "ß ss æ ae Æ AE ø o Ø O å aa Å AA œ oe Œ OE ł l Ł L \N{LATIN SMALL LETTER DOTLESS I} i"
)
"""Pairs of a character and the macro that prints it; those of `_MATHS_MACROS` are for maths mode."""
_MATHS_MACROS = (
    "± pm \N{MULTIPLICATION SIGN} times ÷ div · cdot ⊕ oplus \N{UNION} cup ≠ neq ≤ leq ≥ geq ≈ approx ∞ infty "
    "→ rightarrow ← leftarrow µ mu"
)
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)


def _pairs(words: str) -> Iterator[tuple[str, str]]:
    """Return the words of a text two by two."""
    every = iter(words.split())
    return zip(every, every, strict=True)


def _greek(name: str) -> str:
    """Return the Greek letter that a macro prints; Unicode spells lambda without b."""
    case = "CAPITAL" if name[0].isupper() else "SMALL"
    return unicodedata.lookup(f"GREEK {case} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}")


_MACROS = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    **{character: rf"\{name}{{}}" for character, name in _pairs(_TEXT_MACROS)},
    **{character: rf"$\{name}$" for character, name in _pairs(_MATHS_MACROS)},
    **{_greek(name): rf"$\{name}$" for name in _GREEK.split()},
    # after the end of a row these two would be read as its options
    "[": "{[}",
    "*": "{*}",
    "\N{MINUS SIGN}": "$-$",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
    "°": r"$^{\circ}$",
}
_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING MACRON}": "=",
    "\N{COMBINING BREVE}": "u",
    "\N{COMBINING DOT ABOVE}": ".",
    "\N{COMBINING DOUBLE ACUTE ACCENT}": "H",
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING RING ABOVE}": "r",
    "\N{COMBINING CEDILLA}": "c",
}


def latex_text(text: str) -> str:
    """Escape text so that LaTeX prints it as it is; a character that its fonts lack becomes `[U+1F600]`."""
    characters = unicodedata.normalize("NFC", " ".join(text.split()))
    # LaTeX would join pairs of these into one sign, as -- into a dash
    return re.sub(r"([-',])(?=\1)", r"\1{}", "".join(map(_character, characters)))


def _character(character: str) -> str:
    if character in _MACROS:
        return _MACROS[character]
    if " " <= character <= "~":
        return character
    decomposed = unicodedata.normalize("NFD", character)
    letter, accent = decomposed[0], decomposed[1:]
    if accent in _ACCENTS and letter.isascii() and letter.isalpha():
        return rf"\{_ACCENTS[accent]}{{{letter}}}"
    return f"{{[}}U+{ord(character):04X}]"


def column_types(table: Table) -> str:
    """Return LaTeX column types: text left, in lines if long and every word fits a line; numbers right."""
    types = []
    for place in range(len(table.columns)):
        texts = [row[place].main for row in table.rows]
        longest_word = max((len(word) for text in texts for word in text.split()), default=0)
        many = max(map(len, texts), default=0) > _LONG and longest_word <= _LONG_WORD
        broken = r">{\raggedright\arraybackslash}p{55mm}" if many else "l"
        types.append(broken if place < table.words else "r")
    return "".join(types)
