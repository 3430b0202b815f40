"""Debian packages -> the packages they name: `lf-debian` (long text) and `lf-debiantitles` (short text).

A row is a package; its labels are the packages in its Depends, Pre-Depends, Recommends, Suggests and Enhances fields,
every alternative of `a | b` counting, versions and architecture qualifiers ignored. A name counts only if it is a
package with a description, so virtual packages drop out. Labels on more than 1 % of the packages (libc6 and its kind)
are dropped as well. If a name occurs more than once (foreign architectures), the alphabetically first Architecture
counts, and within it the stanza listed first.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources.apt import DESCRIPTIONS, PACKAGES, descriptions_snapshot, packages_snapshot
from harness.data.sources.linked import Links, one_line, without_frequent_targets, write_linked
from harness.errors import DataError

BUILDER = 1
"""Bumped whenever the same package index would give other rows, labels or texts."""

MAXIMAL_SHARE = 0.01
_RELATIONS = (b"Depends", b"Pre-Depends", b"Recommends", b"Suggests", b"Enhances")

_FIELD = re.compile(rb"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_NAME = rb"[A-Za-z0-9][A-Za-z0-9+.-]*"
_NAMED = re.compile(rb"(?:^|[,|])\s*(" + _NAME + rb")")


@dataclass(frozen=True)
class Package:
    """One package of the index."""

    name: str
    summary: str
    """The one-line description."""
    body: str
    """The long description where the index itself carries it, else empty."""
    md5: bytes
    """Identifies the long description in the translation index."""
    names: list[str]
    """What its relation fields name, in order, duplicates and virtual packages included."""


class DebianSource:
    """Builds a dataset from the release that apt knows here, of which `harness.data.sources.apt` keeps a copy."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """The copied index decides all of it: `Description-md5` pins the long texts too."""
        manifest = packages_snapshot(_folder(raw))
        return {"builder": BUILDER, "packages": manifest["files"][PACKAGES]["sha256"]}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Parses the copied index and writes every row, label and filter pair."""
        folder = _folder(raw)
        manifest = packages_snapshot(folder)
        versions = {**manifest["releases"], "package index": manifest["files"][PACKAGES]["sha256"][:16]}
        packages = parse_packages((folder / "packages" / PACKAGES).read_bytes())
        links, counts = package_links(packages)
        titles = [one_line(f"{package.name}: {package.summary}") for package in packages]
        texts = titles
        if card.text == "title+content":
            descriptions_snapshot(folder)
            bodies = parse_descriptions((folder / "descriptions" / DESCRIPTIONS).read_bytes())
            found = [package.body or bodies.get(package.md5, "") for package in packages]
            texts = [one_line(f"{title} {body}") for title, body in zip(titles, found, strict=True)]
            counts["packages_without_long_text"] = found.count("")
        return {"versions": versions, **counts, **write_linked(writer, links, texts, titles)}


def parse_packages(index: bytes) -> list[Package]:
    """The described packages of an apt dump (RFC 822 stanzas), one for each name, sorted by name."""
    chosen: dict[bytes, tuple[bytes, dict[bytes, bytes]]] = {}
    for stanza in index.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = dict(_FIELD.findall(stanza))
        name, architecture = fields.get(b"Package", b"").strip(), fields.get(b"Architecture", b"")
        if not re.fullmatch(_NAME, name) or not fields.get(b"Description", b"").strip():
            continue
        if name not in chosen or architecture < chosen[name][0]:
            chosen[name] = architecture, fields
    return [_package(name, chosen[name][1]) for name in sorted(chosen)]


def _package(name: bytes, fields: dict[bytes, bytes]) -> Package:
    summary, _, body = fields[b"Description"].decode("utf-8", "replace").partition("\n")
    relations = b",".join(fields[field] for field in _RELATIONS if field in fields)
    return Package(
        name=name.decode("ascii"),
        summary=summary,
        body=paragraphs(body),
        md5=fields.get(b"Description-md5", b"").strip(),
        names=named_packages(relations),
    )


def named_packages(relations: bytes) -> list[str]:
    """Package names of a relation field: `a (>= 1) | b:any, c` names a, b and c."""
    return [name.decode("ascii") for name in _NAMED.findall(relations)]


def parse_descriptions(index: bytes) -> dict[bytes, str]:
    """Long descriptions by their `Description-md5`, from a translation index."""
    bodies: dict[bytes, str] = {}
    for stanza in index.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = dict(_FIELD.findall(stanza))
        text = fields.get(b"Description-en", b"").decode("utf-8", "replace")
        bodies[fields.get(b"Description-md5", b"").strip()] = paragraphs(text.partition("\n")[2])
    bodies.pop(b"", None)
    return bodies


def paragraphs(body: str) -> str:
    """The continuation lines of a description as one text: a line that holds only ` .` separates paragraphs."""
    return one_line(" ".join(line for line in body.split("\n") if line.strip() != "."))


def package_links(packages: list[Package]) -> tuple[Links, dict[str, Any]]:
    """Pairs (package, package it names), with counts of what was left out."""
    if not packages:
        raise DataError("the package index holds no package with a description")
    position = {package.name: item for item, package in enumerate(packages)}
    pairs = [(item, position.get(name, -1)) for item, package in enumerate(packages) for name in package.names]
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    known = target >= 0
    links = Links(list(position), source[known], target[known])
    links, frequent = without_frequent_targets(links, MAXIMAL_SHARE)
    return links, {
        "relations": len(pairs),
        "relations_to_no_package": int((~known).sum()),
        "labels_too_frequent": frequent,
    }


def _folder(raw: Path) -> Path:
    """The copy of the index that the cards of this source share."""
    return raw.parent / "debian-release"
