"""NumPy-style docstrings taken apart: what the "See Also" section names, and the plain text of the rest.

The section follows the numpydoc grammar: entries are flush left, several names are separated by commas, a description
stands behind a colon or on indented lines. An entry looks like `name_a, package.name_b : description`, and a name may
carry a role, as in :func:`name_c`. Lines that are no such entry are free text and name nothing.
"""

import inspect
import re
import textwrap
from collections.abc import Iterable

from harness.data.sources.docnames import SHORT_FORMS
from harness.data.sources.linked import one_line

_UNDERLINE = re.compile(r"\s*([-=~])\1{2,}\s*")
_SEE_ALSO = re.compile(r"\s*see also:?\s*", re.IGNORECASE)

_ROLE = r"(?::[\w:.+-]+:)?"
_QUOTED = r"`{1,2}(?:[^`<>]*<)?[~!.]*([A-Za-z_][\w.]*)(?:\(\))?>?`{1,2}"
_PLAIN = r"~?([A-Za-z_][\w.]*)(?:\(\))?"
_NAME = re.compile(rf"{_ROLE}{_QUOTED}|{_PLAIN}")
_ENTRY = re.compile(
    rf"((?:{_ROLE}{_QUOTED}|{_PLAIN})(?:\s*,\s*(?:{_ROLE}{_QUOTED}|{_PLAIN}))*)\s*,?\.?\s*(?::(?:\s.*)?)?"
)

_SIGNATURE = re.compile(r"[\w.]+\(.*\)(?:\s*->.*)?", re.DOTALL)
_DOCTEST = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*", re.MULTILINE)
_ROLE_MARKUP = re.compile(r":[\w:.+-]+:`(?:[^`<>]*<)?[~!]?([^`<>]*)>?`")
_DIRECTIVE = re.compile(r"^[ \t]*\.\. [\w-]+::|\[[\w#*]+\]_", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[^\W\d_][\w)\]'\"])(?<!e\.g)(?<!i\.e)(?<!cf)(?<!vs)\.\s+(?=[A-Z])")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def split_docstring(doc: str) -> tuple[list[str], str]:
    """(names in the See Also sections, docstring without those sections), each name once, in order of appearance."""
    names: dict[str, None] = {}
    kept: list[str] = []
    for heading, lines in sections(doc):
        if _SEE_ALSO.fullmatch(heading):
            names.update(dict.fromkeys(_entries(lines)))
        else:
            kept += [heading, *lines]
    return list(names), "\n".join(kept).strip()


def sections(doc: str) -> list[tuple[str, list[str]]]:
    """(heading, lines) of a docstring; the text before the first heading has an empty one, underlines are dropped."""
    found: list[tuple[str, list[str]]] = [("", [])]
    lines = inspect.cleandoc(doc).split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.strip() and _UNDERLINE.fullmatch(following) and not _UNDERLINE.fullmatch(line):
            found.append((line, []))
        elif not _UNDERLINE.fullmatch(line):
            found[-1][1].append(line)
    return found


def _entries(lines: list[str]) -> list[str]:
    names: list[str] = []
    for line in textwrap.dedent("\n".join(lines)).split("\n"):
        entry = _ENTRY.fullmatch(re.sub(r"^[*-] +", "", line))
        if entry:
            names += [quoted or plain for quoted, plain in _NAME.findall(entry[1])]
    return [name.rstrip(".") for name in names]


def plain_text(doc: str, libraries: Iterable[str] = ()) -> str:
    """A docstring as one line of text.

    Doctest blocks go (their output varies), so do a signature line and markup. Absolute names such as `numpy.dot` of
    the given libraries go too: they are the ids of labels, and a text must not spell out its answer.
    """
    text = _DIRECTIVE.sub("", _ROLE_MARKUP.sub(r"\1", _without_signature(_DOCTEST.sub("", doc)))).replace("`", "")
    roots = "|".join(re.escape(library) for library in (*libraries, *SHORT_FORMS))
    return one_line(re.sub(rf"[~!]?(?<![\w./])(?:{roots})(?:\.[A-Za-z_]\w*)+(?:\(\))?", "", text))


def summary_line(doc: str, libraries: Iterable[str] = ()) -> str:
    """The first sentence of a docstring, behind a signature line if there is one."""
    text = _without_signature(split_docstring(doc)[1])
    first = plain_text(_SENTENCE_END.split(text.split("\n\n", 1)[0], maxsplit=1)[0], libraries)
    return first.rstrip(". ")


def _without_signature(doc: str) -> str:
    """Objects written in C carry their signature as a first paragraph of its own."""
    first, _, rest = doc.strip().partition("\n\n")
    return rest.strip() if rest.strip() and _SIGNATURE.fullmatch(first.strip()) else doc.strip()


def words(name: str) -> str:
    """A dotted name as words: `sklearn.svm.LinearSVC.fit_intercept` -> `sklearn svm Linear SVC fit intercept`."""
    return _CAMEL.sub(" ", name.replace(".", " ").replace("_", " ")).strip()
