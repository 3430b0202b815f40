"""Building datasets of docstrings and the objects their "See Also" sections name: `lf-pydocs`, `lf-pydocstitles`.

    libraries -> docwalk (own process) -> Names -> See Also references -> Links -> rows, labels, filter pairs

A row is a public object whose docstring points at another one. Long text: its name as words and the docstring without
that section. Short text, and the text of every label: name as words and first sentence. The texts belong to the authors
of the libraries; they are read from what is installed here and stay in the workspace. Same versions, same digest.

The canonical name of an object is the best of the paths that lead to it: public before private packages, the defining
class before a class that inherits, packages around its module before others, fewer parts, fewer letters, then the
alphabet. Two objects of a library with the same last name and the same docstring are one item: for example a bound
method of a hidden instance. A reference is looked up in the object's class, its module, the packages around it, then as
an absolute name, and finally as the only item of the library whose name ends so.

The See Also section follows the numpydoc grammar: entries are flush left, names are separated by commas, a description
follows a colon or is on indented lines: `name_a, package.name_b : description`. A name may carry a role, as in
:func:`name_c`. Other lines are free text and name nothing.
"""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources.links import Links, one_line, write_linked
from harness.errors import MissingDataError, UserError, unknown_name

# modules that are public by name only; what users import from them is exported elsewhere
_PRIVATE = ("pandas.core.",)
SHORT_FORMS = {
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "nx": "networkx",
    "sp": "scipy",
    "emath": "numpy.lib.scimath",
}
# a class in a module, an accessor class in that class, a class within the accessor
_NESTING = 3

Rank = tuple[bool, bool, bool, int, int, str]


@dataclass(frozen=True)
class Node:
    """One object that `docwalk` found: a module, a class or a leaf (function, method, property)."""

    kind: str
    library: str
    module: str | None
    doc: str | None = None
    members: dict[str, int] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)


def _rank(name: str, *, inherited: bool = False, foreign: bool = False) -> Rank:
    return name.startswith(_PRIVATE), inherited, foreign, name.count("."), len(name), name


class Names:
    """Finds canonical names of documented objects, and looks up references to them."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._modules = {node.module: node for node in nodes if node.kind == "module" and node.module}
        self._best: dict[int, Rank] = {}
        self._endings: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
        self._name_module_members()
        for _ in range(_NESTING):
            self._name_class_members()
        self.items = self._merge()
        """Canonical name by node, for documented nodes that have one; nodes with equal names are one item."""
        for number, rank in self._best.items():
            self._note_ending(rank[-1], number)

    def resolve(self, reference: str, number: int) -> str | None:
        """Return the item that the docstring of node `number` means by `reference`; None if none or several.

        A reading that leads back to the object itself is skipped as long as another one is left.
        """
        own, node = self.items[number], self._nodes[number]
        itself = None
        for name in self._readings(reference, own, node):
            found = self.items.get(self._lookup(name))
            if found is not None and found != own:
                return found
            itself = itself or found
        candidates = self._endings.get((node.library, reference.rpartition(".")[2]), set())
        ends = {self.items.get(other) for name, other in candidates if name.endswith(f".{reference}")} - {None, own}
        return ends.pop() if len(ends) == 1 else itself

    def _readings(self, reference: str, own: str, node: Node) -> Iterator[str]:
        """Yield the absolute names that a reference may stand for, nearest place first."""
        around = list(_prefixes(own))
        for place in around:
            if place not in self._modules:
                yield f"{place}.{reference}"
        for place in _prefixes(node.module or ""):
            yield f"{place}.{reference}"
        for place in around:
            if place in self._modules:
                yield f"{place}.{reference}"
        head, dot, rest = reference.partition(".")
        yield reference
        if head in SHORT_FORMS:
            yield SHORT_FORMS[head] + dot + rest

    def _lookup(self, name: str) -> int:
        """Return the node of an absolute dotted name, trying its longest module first; -1 if absent."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            container: Node | None = self._modules.get(".".join(parts[:cut]))
            number = None
            for part in parts[cut:]:
                number = self._member(container, part) if container is not None else None
                container = self._nodes[number] if number is not None else None
            if number is not None:
                return number
        return -1

    def _member(self, container: Node, name: str) -> int | None:
        for holder in (container, *(self._nodes[base] for base in container.bases)):
            if name in holder.members:
                return holder.members[name]
        return None

    def _name_module_members(self) -> None:
        for node in self._modules.values():
            for name, number in node.members.items():
                member = self._nodes[number]
                if member.library == node.library:
                    foreign = member.module is not None and not f"{member.module}.".startswith(f"{node.module}.")
                    self._offer(number, _rank(f"{node.module}.{name}", foreign=foreign))
                    self._note_ending(f"{node.module}.{name}", number)

    def _name_class_members(self) -> None:
        """Propose names for the members of every class that has a name at the time of the call."""
        for number, rank in list(self._best.items()):
            cls = self._nodes[number]
            _, _, foreign, *_, path = rank
            for name, member in cls.members.items():
                self._offer(member, _rank(f"{path}.{name}", foreign=foreign))
            for base in cls.bases:
                if base in self._best and not self._best[base][0]:
                    continue
                for name, member in self._nodes[base].members.items():
                    if self._member(cls, name) == member:
                        self._offer(member, _rank(f"{path}.{name}", inherited=True, foreign=foreign))

    def _offer(self, number: int, rank: Rank) -> None:
        if number not in self._best or rank < self._best[number]:
            self._best[number] = rank

    def _note_ending(self, name: str, number: int) -> None:
        self._endings[self._nodes[number].library, name.rpartition(".")[2]].add((name, number))

    def _merge(self) -> dict[int, str]:
        """Return canonical names; nodes with equal library, last name and docstring share one."""
        alike: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for number, rank in self._best.items():
            node = self._nodes[number]
            # some versions of Python strip the indentation of docstrings, others keep it
            doc = " ".join((node.doc or "").split())
            if doc:
                alike[node.library, rank[-1].rpartition(".")[2], doc].append(number)
        items: dict[int, str] = {}
        for numbers in alike.values():
            best = min(self._best[number] for number in numbers)[-1]
            items.update(dict.fromkeys(numbers, best))
        return items


def _prefixes(name: str) -> Iterator[str]:
    """Yield the prefixes of a dotted name, longest first: a.b.c, a.b and a for `a.b.c`."""
    while name:
        yield name
        name = name.rpartition(".")[0]


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
    """Return the names in the See Also sections, each once, in order, and the docstring without these sections."""
    names: dict[str, None] = {}
    kept: list[str] = []
    for heading, lines in sections(doc):
        if _SEE_ALSO.fullmatch(heading):
            names.update(dict.fromkeys(_entries(lines)))
        else:
            kept += [heading, *lines]
    return list(names), "\n".join(kept).strip()


def sections(doc: str) -> list[tuple[str, list[str]]]:
    """Return the (heading, lines) of a docstring without underlines; text before the first heading has an empty one."""
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
    """Return a docstring as one line of text.

    Doctest blocks are removed (their output varies), and a signature line and markup. Absolute names such as
    `numpy.dot` of the given libraries are removed too: they are ids of labels, and a text must not contain its answer.
    """
    text = _DIRECTIVE.sub("", _ROLE_MARKUP.sub(r"\1", _without_signature(_DOCTEST.sub("", doc)))).replace("`", "")
    roots = "|".join(re.escape(library) for library in (*libraries, *SHORT_FORMS))
    return one_line(re.sub(rf"[~!]?(?<![\w./])(?:{roots})(?:\.[A-Za-z_]\w*)+(?:\(\))?", "", text))


def summary_line(doc: str, libraries: Iterable[str] = ()) -> str:
    """Return the first sentence of a docstring, after a signature line if there is one."""
    text = _without_signature(split_docstring(doc)[1])
    first = plain_text(_SENTENCE_END.split(text.split("\n\n", 1)[0], maxsplit=1)[0], libraries)
    return first.rstrip(". ")


def _without_signature(doc: str) -> str:
    """Remove the signature that objects written in C have as the first paragraph of their docstring."""
    first, _, rest = doc.strip().partition("\n\n")
    return rest.strip() if rest.strip() and _SIGNATURE.fullmatch(first.strip()) else doc.strip()


def words(name: str) -> str:
    """Return a dotted name as words: `sklearn.LinearSVC.fit_intercept` -> `sklearn Linear SVC fit intercept`."""
    return _CAMEL.sub(" ", name.replace(".", " ").replace("_", " ")).strip()


BUILDER = 1
"""Version of the builder; raised whenever the same libraries would give other rows, labels or texts."""

LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "matplotlib", "networkx", "sympy", "sklearn")
"""Libraries, each before those that depend on it: an object without a module belongs to the first that has it."""

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
_PROJECT = Path(__file__).parents[3]
_SECONDS = 600
# settings of the libraries that change what a docstring says
_ENVIRONMENT = ("PYTHON", "MPL", "NETWORKX", "NUMPY", "PANDAS", "SCIPY", "SKLEARN", "SYMPY")


class PydocsSource:
    """Builds a dataset from the docstrings of the installed libraries."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return the versions of the libraries and of Python, which strips indentation of docstrings since 3.13."""
        return {"builder": BUILDER, "python": _python(), "versions": installed_versions(card)}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Walk the libraries and write every row, label and filter pair; return the provenance."""
        versions = installed_versions(card)
        nodes, failed = walk(list(versions))
        links, docs, counts = documents(nodes)
        names = [words(name) for name in links.names]
        titles = _joined(names, (summary_line(doc, versions) for doc in docs))
        texts = titles
        if card.text == "title+content":
            texts = _joined(names, (plain_text(split_docstring(doc)[1], versions) for doc in docs))
        named = {_DISTRIBUTIONS.get(library, library): version for library, version in versions.items()}
        return {
            "versions": {**named, "python": _python()},
            "modules_that_failed_to_import": failed,
            **counts,
            **write_linked(writer, links, texts, titles),
        }


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def installed_versions(card: DatasetCard) -> dict[str, str]:
    """Return the versions of the card's libraries that are installed, by import name.

    A card may name some of `LIBRARIES`, never another module: walking a module imports it, and a card is only data.
    """
    wanted = str(card.options.get("libraries", " ".join(LIBRARIES))).split()
    versions = {}
    for library in dict.fromkeys(wanted):
        if library not in LIBRARIES:
            raise unknown_name("documented library", library, LIBRARIES)
        if importlib.util.find_spec(library) is not None:
            try:
                versions[library] = metadata.version(_DISTRIBUTIONS.get(library, library))
            except metadata.PackageNotFoundError:
                versions[library] = "unknown"
    if not versions:
        raise MissingDataError(
            f"{card.name} is built from installed libraries, and none of these is: {', '.join(wanted)}"
        )
    return versions


def walk(libraries: list[str]) -> tuple[list[Node], list[str]]:
    """Return the nodes of the libraries and the modules that failed to import, found in a separate process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_ENVIRONMENT)}
    environment |= {
        # not the current folder, which `python -m` puts first: a numpy.py lying there must not stand for numpy
        "PYTHONPATH": os.pathsep.join(
            [str(_PROJECT), *(p for p in sys.path if p and Path(p).absolute() != Path.cwd())]
        ),
        # docstrings that print a set are otherwise different in every process
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
        "MPLBACKEND": "agg",
    }
    command = [sys.executable, "-P", "-m", "harness.data.sources.docwalk", *libraries]
    try:
        result = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"importing {', '.join(libraries)} took longer than {_SECONDS} seconds") from error
    lines = result.stdout.splitlines()
    if result.returncode or not lines:
        printed = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise UserError(
            f"walking {', '.join(libraries)} ended with exit code {result.returncode}; its last line was: {printed[-1]}"
        )
    return [Node(**json.loads(line)) for line in lines[:-1]], json.loads(lines[-1])["failed"]


def documents(nodes: list[Node]) -> tuple[Links, list[str], dict[str, int]]:
    """Return the links of all See Also sections, the docstring of every linked item [I], and counts of references."""
    known = Names(nodes)
    owner: dict[str, int] = {}
    for number, name in known.items.items():
        owner.setdefault(name, number)
    pairs: list[tuple[str, str | None]] = []
    for name, number in sorted(owner.items()):
        doc = nodes[number].doc or ""
        references = split_docstring(doc)[0] if "see also" in doc.lower() else []
        pairs += [(name, known.resolve(reference, number)) for reference in references]
    linked = [(name, target) for name, target in pairs if target is not None and target != name]
    names = sorted({name for pair in linked for name in pair})
    position = {name: item for item, name in enumerate(names)}
    ends = np.array([[position[name], position[target]] for name, target in linked], dtype=np.int64).reshape(-1, 2)
    counts = {
        "objects": len(owner),
        "references": len(pairs),
        "references_dropped": sum(target is None for _, target in pairs),
        "references_to_itself": sum(target == name for name, target in pairs),
    }
    docs = [nodes[owner[name]].doc or "" for name in names]
    return Links(names, ends[:, 0], ends[:, 1]), docs, counts


def _joined(names: list[str], texts: Iterable[str]) -> list[str]:
    return [one_line(f"{name}: {text}").rstrip(": ") for name, text in zip(names, texts, strict=True)]
