"""Building datasets of Debian packages and the packages they name: `lf-debian` (long text), `lf-debiantitles` (short).

A row is a package; its labels are the packages in its Depends, Pre-Depends, Recommends, Suggests and Enhances fields.
Every alternative of `a | b` counts; versions and architecture qualifiers are ignored. A name counts only if it is a
package with a description, so virtual packages drop out. Labels on more than 1 % of the packages (such as libc6) are
dropped as well. If a name occurs more than once (foreign architectures), the alphabetically first Architecture counts,
and within it the stanza listed first.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources import apt
from harness.data.sources.links import Links, one_line, without_frequent_targets, write_linked
from harness.errors import DataError

BUILDER = 1
"""Version of the builder; raised whenever the same package index would give other rows, labels or texts."""

MAXIMAL_SHARE = 0.01
_RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances")
FIELDS = ("Package", "Architecture", *_RELATIONS, "Description", "Description-md5")

_NAME = rb"[A-Za-z0-9][A-Za-z0-9+.-]*"
_TAG = re.compile(r"([a-z][a-z0-9-]*)::(?:\{([^{}]*)\}|([^\s,{}]+))")
_NAMED = re.compile(rb"(?:^|[,|])\s*(" + _NAME + rb")")


@dataclass(frozen=True)
class Package:
    """One package of the package index."""

    name: str
    summary: str
    """The one-line description."""
    body: str
    """The long description if it is in the package index, else empty."""
    md5: bytes
    """MD5 that identifies the long description in the translation index."""
    names: list[str]
    """Packages that its relation fields name, in order, with duplicates and virtual packages."""
    source: str
    """Name of the source package that it was built from."""
    tags: list[str]
    """Its tags, in order."""


class DebianSource:
    """Builds a dataset from a copy of the package index that apt has on this machine."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return the hash of the copied index; its `Description-md5` fields identify the long texts too."""
        manifest = apt.package_list(raw.parent / apt.FOLDER, "packages", FIELDS)
        return {"builder": BUILDER, "packages": manifest["files"][apt.PACKAGES]["sha256"]}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Parse the copied index and write every row, label and filter pair; return the provenance."""
        folder = raw.parent / apt.FOLDER
        manifest = apt.package_list(folder, "packages", FIELDS)
        versions = {**manifest["releases"], "package index": manifest["files"][apt.PACKAGES]["sha256"][:16]}
        packages = parse_packages((folder / "packages" / apt.PACKAGES).read_bytes())
        links, counts = package_links(packages)
        titles = short_texts(packages)
        texts = titles
        if card.text == "title+content":
            texts, counts["packages_without_long_text"] = long_texts(packages, folder)
        return {"versions": versions, **counts, **write_linked(writer, links, texts, titles)}


def short_texts(packages: list[Package]) -> list[str]:
    """Return name and one-line description of every package."""
    return [one_line(f"{package.name}: {package.summary}") for package in packages]


def long_texts(packages: list[Package], folder: Path) -> tuple[list[str], int]:
    """Return name and full description of every package, and the number of packages without a long one."""
    bodies = parse_descriptions(apt.descriptions(folder))
    found = [package.body or bodies.get(package.md5, "") for package in packages]
    texts = [one_line(f"{title} {body}") for title, body in zip(short_texts(packages), found, strict=True)]
    return texts, found.count("")


def parse_packages(index: bytes) -> list[Package]:
    """Return the packages of an apt dump that have a description, one for each name, sorted by name."""
    chosen: dict[bytes, tuple[bytes, dict[bytes, bytes]]] = {}
    for fields in apt.stanzas(index):
        name, architecture = fields.get(b"Package", b"").strip(), fields.get(b"Architecture", b"")
        if not re.fullmatch(_NAME, name) or not fields.get(b"Description", b"").strip():
            continue
        if name not in chosen or architecture < chosen[name][0]:
            chosen[name] = architecture, fields
    return [_package(name, chosen[name][1]) for name in sorted(chosen)]


def _package(name: bytes, fields: dict[bytes, bytes]) -> Package:
    summary, _, body = fields[b"Description"].decode("utf-8", "replace").partition("\n")
    relations = b",".join(fields.get(field.encode(), b"") for field in _RELATIONS)
    md5 = fields.get(b"Description-md5", b"").strip()
    own = name.decode("ascii")
    source = fields.get(b"Source", b"").decode("ascii", "replace").split()[:1]
    tags = fields.get(b"Tag", b"").decode("ascii", "replace")
    return Package(
        own, summary, _paragraphs(body), md5, named_packages(relations), "".join(source) or own, named_tags(tags)
    )


def named_packages(relations: bytes) -> list[str]:
    """Return the package names in a relation field: a, b and c for `a (>= 1) | b:any, c`."""
    return [name.decode("ascii") for name in _NAMED.findall(relations)]


def named_tags(field: str) -> list[str]:
    """Return the tags in a Tag field; `works-with::{text,image}` are two."""
    found = []
    for facet, several, one in _TAG.findall(field):
        found += [f"{facet}::{name.strip()}" for name in (several.split(",") if several else [one]) if name.strip()]
    return list(dict.fromkeys(found))


def parse_descriptions(index: bytes) -> dict[bytes, str]:
    """Return the long descriptions of a translation index, by their `Description-md5`."""
    bodies: dict[bytes, str] = {}
    for fields in apt.stanzas(index):
        text = fields.get(b"Description-en", b"").decode("utf-8", "replace")
        bodies[fields.get(b"Description-md5", b"").strip()] = _paragraphs(text.partition("\n")[2])
    bodies.pop(b"", None)
    return bodies


def _paragraphs(body: str) -> str:
    """Return the continuation lines of a description as one text; a line of only ` .` separates paragraphs."""
    return one_line(" ".join(line for line in body.split("\n") if line.strip() != "."))


def package_links(packages: list[Package]) -> tuple[Links, dict[str, Any]]:
    """Return links (package, package it names), and counts of what was left out."""
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
