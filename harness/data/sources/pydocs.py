"""Docstrings of installed libraries -> the objects their "See Also" sections name: `lf-pydocs`, `lf-pydocstitles`.

    libraries -> docwalk (own process) -> Names -> See Also references -> Links -> rows, labels, filter pairs

A row is a public object whose docstring points at another one. Long text: its name as words and the docstring without
that section. Short text, and the text of every label: name as words and first sentence. The texts belong to the authors
of the libraries; they are read from what is installed here and stay in the workspace. Same versions, same digest.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources.docnames import Names, Node
from harness.data.sources.linked import Links, one_line, write_linked
from harness.data.sources.seealso import plain_text, split_docstring, summary_line, words
from harness.errors import MissingDataError, UserError, unknown_name

BUILDER = 1
"""Bumped whenever the same libraries would give other rows, labels or texts."""

LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "matplotlib", "networkx", "sympy", "sklearn")
"""In order of dependence: an object that names no module belongs to the first library that shows it."""

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
_PROJECT = Path(__file__).parents[3]
_SECONDS = 600
# settings of the libraries that change what a docstring says
_ENVIRONMENT = ("PYTHON", "MPL", "NETWORKX", "NUMPY", "PANDAS", "SCIPY", "SKLEARN", "SYMPY")


@dataclass(frozen=True)
class Documents:
    """The objects that point or are pointed at."""

    docs: list[str]
    """Docstring of every item of `links`, [I]."""
    links: Links
    counts: dict[str, int]


class PydocsSource:
    """Builds a dataset from the docstrings of the libraries that are installed here."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """The versions of the libraries decide, and that of Python, which strips docstrings since 3.13."""
        return {"builder": BUILDER, "python": _python(), "versions": installed_versions(card)}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Walks the libraries and writes every row, label and filter pair."""
        versions = installed_versions(card)
        nodes, failed = walk(list(versions))
        found = documents(nodes)
        names = [words(name) for name in found.links.names]
        titles = _joined(names, (summary_line(doc, versions) for doc in found.docs))
        texts = titles
        if card.text == "title+content":
            texts = _joined(names, (plain_text(split_docstring(doc)[1], versions) for doc in found.docs))
        named = {_DISTRIBUTIONS.get(library, library): version for library, version in versions.items()}
        return {
            "versions": {**named, "python": _python()},
            "modules_that_failed_to_import": failed,
            **found.counts,
            **write_linked(writer, found.links, texts, titles),
        }


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def installed_versions(card: DatasetCard) -> dict[str, str]:
    """Version of every library of the card that is installed, by import name.

    The card may ask for some of `LIBRARIES`, never for another module: walking one imports it, and a card is only data.
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
    """The nodes of the libraries and the modules that could not be imported, from a process of its own."""
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
        said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise UserError(
            f"walking {', '.join(libraries)} ended with exit code {result.returncode}; its last line was: {said[-1]}"
        )
    return [Node(**json.loads(line)) for line in lines[:-1]], json.loads(lines[-1])["failed"]


def documents(nodes: list[Node]) -> Documents:
    """The links of all See Also sections, and the docstrings of the objects they join."""
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
    return Documents(docs, Links(names, ends[:, 0], ends[:, 1]), counts)


def _joined(names: list[str], texts: Iterable[str]) -> list[str]:
    return [one_line(f"{name}: {text}").rstrip(": ") for name, text in zip(names, texts, strict=True)]
