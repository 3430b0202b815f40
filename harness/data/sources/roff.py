r"""Plain text of manual pages, which are written in roff with the macros of man(7) or mdoc(7).

Only words matter, so layout is dropped: fonts, indentation, equations, lines of tables. A macro leaves its arguments as
text, and a heading (`.SH`, `.Sh`) begins a section. Of conditions (`.if`, `.ie`) the branch of a terminal is read: `n`
holds, `t` does not, and neither does a comparison. Macros that a page defines are not expanded, but their arguments are
text. What is unknown or unclosed is text or nothing, never an error.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

_CHARACTERS = {
    **{"aq": "'", "oq": "'", "cq": "'", "fm": "'", "lq": '"', "rq": '"', "dq": '"', "Bq": '"', "sd": '"', "ga": "`"},
    **{"hy": "-", "mi": "-", "en": "-", "em": " - ", "ha": "^", "ti": "~", "rs": "\\", "sl": "/", "at": "@", "sh": "#"},
    **{"Do": "$", "ul": "_", "ru": "_", "bv": "|", "ba": "|", "or": "|", "pl": "+", "eq": "=", "mu": "x", "**": "*"},
    **{
        "lB": "[",
        "rB": "]",
        "lC": "{",
        "rC": "}",
        "la": "<",
        "ra": ">",
        "->": "->",
        "<-": "<-",
        ">=": ">=",
        "<=": "<=",
    },
    **{"!=": "!=", "==": "==", "+-": "+-", "bu": " ", "co": "(c)", "rg": "(R)", "tm": "(TM)", "de": "°", "sc": "§"},
    **{"ss": "ß", "AE": "Æ", "ae": "æ", "OE": "Œ", "oe": "œ", "/O": "Ø", "/o": "ø", "oA": "Å", "oa": "å", "*m": "µ"},
}
r"""Named characters, `\(xx` or `\[xx]`; others are left out."""
_ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", ":": "\u0308", ",": "\u0327"}
_STRINGS = {
    **{
        "R": "(R)",
        "Tm": "(TM)",
        "lq": '"',
        "rq": '"',
        'L"': '"',
        'R"': '"',
        "--": "-",
        "Aq": "'",
        "Lt": "<",
        "Gt": ">",
    },
    **{"Le": "<=", "Ge": ">=", "Ba": "|", "Am": "&"},
}
r"""Strings of macro packages, `\*x`, `\*(xx` or `\*[xx]`; a page can define more (`.ds`)."""
_LONGEST_STRING, _LONGEST_REQUEST, _LONGEST_LINE = 100, 4_000, 20_000
"""Lengths at which a string, a request and a line of text are cut; no page that is meant to be read reaches them."""

_ESCAPE = re.compile(
    r"\\(?:(?P<comment>[\"#].*)"
    r"|\*(?:\((?P<string2>..)|\[(?P<string>[^\]]{0,99})\]|(?P<string1>.))"
    r"|\((?P<two>..)|\[(?P<long>[^\]]{0,99})\]|C'(?P<named>[^']{0,99})'"
    r"|[fFgkmMnVY](?:\(..|\[[^\]]{0,99}\]|[+-]?.)"
    r"|s(?:\(..|\[[^\]]{0,99}\]|'[^']{0,99}'|[+-]?(?:[1-3]\d|\d))"
    r"|[AbBDhHlLNoRSvwxXZ]'[^']{0,99}'"
    r"|(?P<other>.?))"
)
_PLAIN = {" ": " ", "~": " ", "0": " ", "t": " ", "e": "\\", "\\": "\\", **{mark: mark for mark in "-'`._+"}}
_HYPHENS = str.maketrans(dict.fromkeys("\u2010\u2011\u2212", "-"))

_COMMENT = re.compile(r"(?<!\\)\\[\"#].*")
_REQUEST = re.compile(r"[.'][ \t]*([^\s\\]+)[ \t]*(.*)")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_CONDITION = re.compile(r"""(!?)(?:([nt])(?![\w'"])|'[^']*'[^']*'|"[^"]*"[^"]*"|\S+)[ \t]*(.*)""")

_SKIPPED_UNTIL = {"EQ": "EN", "PS": "PE", "GS": "GE", "cstart": "cend", "de": ".", "de1": ".", "am": ".", "ig": "."}
_ALTERNATING = {"BI", "BR", "IB", "IR", "RB", "RI"}
_SILENT = set(
    # requests of roff
    "ad af as bp br cc ce char cs ec em eo ev fam fc fi fl fp ft hc hla hlm hpf hw hy in it lc lg ll ls lt mk mso na "
    "ne nf nh nm nn nop nr ns nx os pc pl pm pn po ps rd rm rn rr rs rt sp so ss sv ta tc ti tl tm tr uf ul vs warn wh "
    # macros of man, and what pod2man and Tcl define
    "AS AT BE BS CE CS DE DS DT EE EX HP IX LP MT P PD PP PU RE RS SO TE TH TP TQ UC UR VE VS Sp Vb Ve YS "
    # macros of mdoc
    "Bd Bf Bl Db Dd Dt Ed Ef Ek El Ex Lp Os Pp Re Rs Rv Sm St".split()
)
"""Requests and macros whose arguments are no text."""
_SYSTEMS = {"At": "AT&T UNIX", "Bsx": "BSD/OS", "Bx": "BSD", "Dx": "DragonFly", "Fx": "FreeBSD", "Nx": "NetBSD"}
_SYSTEMS |= {"Ox": "OpenBSD", "Ux": "UNIX"}
_CALLABLE = set(
    "Ac Ad An Ao Ap Aq Ar Bc Bk Bo Bq Brc Bro Brq Bt Cd Cm Dc Do Dq Dv Ec Em En Eo Er Ev Fa Fc Fd Fl Fn Fo Fr Ft Hf Ic "
    "In It Lb Li Lk Ms Mt Nd Nm No Ns Oc Oo Op Ot Pa Pc Pf Po Pq Qc Ql Qo Qq Sc So Sq Sx Sy Ta Tg Tn Ud Va Vt Xc Xo "
    "Xr".split()
)
"""Macros of mdoc that may stand among the arguments of others."""
_CLOSING, _OPENING = set(".,:;)]?!"), set("([")


class Section(NamedTuple):
    """A section of a page."""

    heading: str
    text: str
    """Words separated by one space."""


def sections(source: str) -> list[Section]:
    """Return the sections of a page; what stands before the first heading has an empty one."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for is_heading, text in _Reader(source).pieces():
        if is_heading:
            found.append((text, []))
        else:
            found[-1][1].append(text)
    return [Section(" ".join(heading.split()), " ".join(" ".join(texts).split())) for heading, texts in found]


def linked_file(source: str) -> str:
    """Return the file that a page refers to instead of having text (`.so man3/printf.3`), or an empty string."""
    lines = [line for line in source.splitlines() if line.strip() and not re.match(r"[.'][ \t]*\\[\"#]", line)]
    words = lines[0].split() if len(lines) == 1 else []
    return words[1] if len(words) == 2 and words[0] == ".so" else ""


class _Reader:
    """Reads a page line by line."""

    def __init__(self, source: str) -> None:
        joined = re.sub(r"(?<!\\)\\\n", "", source.removeprefix("\ufeff").replace("\r", "").translate(_HYPHENS))
        self._lines = deque(line[:_LONGEST_LINE] for line in joined.split("\n"))
        self._strings = dict(_STRINGS)
        self._mdoc = re.search(r"^\.[ \t]*Sh[ \t]", joined, re.MULTILINE) is not None
        self._name = ""
        self._otherwise: list[bool] = []
        """Whether the next `.el` holds, for every open `.ie`."""

    def pieces(self) -> Iterator[tuple[bool, str]]:
        """Yield (whether it is a heading, text) in the order of the page."""
        heading_follows = False
        while self._lines:
            line = self._lines.popleft()
            if line[:1] not in (".", "'"):
                yield heading_follows, self._text(line)
                heading_follows = False
                continue
            request = _REQUEST.fullmatch(_COMMENT.sub("", line[:_LONGEST_REQUEST]).replace("\\}", ""))
            if not request:
                continue
            name, rest = request.groups()
            if name in ("SH", "Sh"):
                heading = self._macro("No", rest) if self._mdoc else " ".join(self._arguments(rest))
                heading_follows = not heading
                if heading:
                    yield True, heading
            elif not self._control(name, rest) and name not in _SILENT:
                yield False, self._macro(name, rest)

    def _control(self, name: str, rest: str) -> bool:
        """Obey a request that decides which lines are read; return False if it is none."""
        if name in ("if", "ie", "el"):
            self._branch(name, rest)
        elif name in _SKIPPED_UNTIL:
            end = _SKIPPED_UNTIL[name]
            words = rest.split()
            if end == "." and len(words) > (name != "ig"):
                end = words[-1]
            self._skip_until(end)
        elif name == "ds":
            key, _, value = rest.partition(" ")
            self._strings[key] = self._text(value.lstrip().removeprefix('"'))[:_LONGEST_STRING]
        elif name == "TS":
            self._read_table()
        else:
            return False
        return True

    def _branch(self, name: str, rest: str) -> None:
        """Go on with the rest of a condition's line, and its block, if the condition holds; else skip both."""
        if name == "el":
            holds, body = bool(self._otherwise) and self._otherwise.pop(), rest
        else:
            condition = _CONDITION.fullmatch(rest)
            negated, kind, body = condition.groups() if condition else ("", "", "")
            holds = (kind == "n") != bool(negated) if kind else False
            if name == "ie":
                self._otherwise.append(not holds)
        if holds:
            self._lines.appendleft(body.replace("\\{", "", 1).lstrip() if "\\{" in body else body)
            return
        depth = body.count("\\{") - body.count("\\}")
        while depth > 0 and self._lines:
            line = self._lines.popleft()
            depth += line.count("\\{") - line.count("\\}")

    def _skip_until(self, end: str) -> None:
        ends = {f".{end}", f"'{end}"}
        while self._lines and "".join(self._lines.popleft().split()[:1]) not in ends:
            pass

    def _read_table(self) -> None:
        """Replace a table by its cells: formats and rules are removed, and its separators become blanks."""
        separator, cells, in_format = "\t", list[str](), True
        while self._lines:
            line = self._lines.popleft()
            words = line.split()
            if words[:1] == [".TE"]:
                break
            if words[:1] == [".T&"]:
                in_format = True
            elif in_format:
                if option := re.search(r"tab ?\((.)\)", line):
                    separator = option[1]
                in_format = not line.rstrip().endswith(".")
            elif line.strip() not in ("_", "=", ""):
                cells.append(re.sub(r"T[{}]", " ", line.replace(separator, " ")) if line[0] != "." else line)
        self._lines.extendleft(reversed(cells))

    def _text(self, line: str) -> str:
        """Return a line of text without escape sequences."""
        return _ESCAPE.sub(self._character, line) if "\\" in line else line

    def _character(self, escape: re.Match[str]) -> str:
        string = escape["string2"] or escape["string"] or escape["string1"]
        name = escape["two"] or escape["long"] or escape["named"]
        if string:
            return self._strings.get(string, "")
        if not name:
            return _PLAIN.get(escape["other"] or "", "")
        if name in _CHARACTERS:
            return _CHARACTERS[name]
        if len(name) == 2 and name[0] in _ACCENTS and name[1].isalpha():
            return unicodedata.normalize("NFC", name[1] + _ACCENTS[name[0]])
        code = re.fullmatch(r"u([0-9A-F]{4,6})", name)
        return chr(int(code[1], 16)) if code and int(code[1], 16) < 0x110000 else ""

    def _arguments(self, line: str) -> list[str]:
        """Return the arguments of a macro; one in quotes may have blanks."""
        found = _ARGUMENT.findall(line.replace("\\ ", "\\~"))
        return [self._text(quoted.replace('""', '"') or plain) for quoted, plain in found]

    def _macro(self, name: str, rest: str) -> str:
        """Return the text that a macro leaves."""
        if self._mdoc and (name in _CALLABLE or name in _SYSTEMS):
            return self._mdoc_line([name, *self._arguments(rest)])
        arguments = self._arguments(rest)
        if name == "IP":
            return arguments[0] if arguments else ""
        return ("" if name in _ALTERNATING else " ").join(arguments)

    def _mdoc_line(self, words: list[str]) -> str:
        """Return the text of a line of mdoc macros, which may stand among each other's arguments."""
        line, glued = "", True
        waiting = deque(words)
        while waiting:
            word = waiting.popleft()
            text, before, after = self._called(word, waiting) if word in _CALLABLE else _plain(word)
            if text or before:
                line += text if glued or before else f" {text}"
                glued = after
        return line

    def _called(self, macro: str, waiting: deque[str]) -> tuple[str, bool, bool]:
        """Return the text of a macro, and whether nothing stands before and after it; take its arguments."""
        following = waiting[0] if waiting else ""
        match macro:
            case "Xr" if following:
                text = waiting.popleft()
                section = f"({waiting.popleft()})" if waiting and waiting[0][:1].isalnum() else ""
                return text + section, False, False
            case "Nm" if not following or following in _CALLABLE or following in _CLOSING:
                return self._name, False, False
            case "Nm":
                self._name = self._name or following
            case "Pf" if following:
                return waiting.popleft(), False, True
            case "Fl":
                return "-", False, True
            case "Nd":
                return "- ", False, True
            case "Ns" | "Ap":
                return "'" if macro == "Ap" else "", True, True
        return "", False, False


def _plain(word: str) -> tuple[str, bool, bool]:
    """Return a word on a line of mdoc macros, and whether nothing stands before and after it."""
    if word in ("-nosplit", "-split"):  # how a list of authors is laid out
        return "", False, False
    return _SYSTEMS.get(word, word), word in _CLOSING, word in _OPENING
