"""Building a dataset of Debian packages and their tags: `lf-debtags`.

A row is a package that has tags; its labels are those tags, such as `works-with::image:raster`. A tag is described by
the vocabulary in the package debtags, or by its own words if it is not there. Labels are not items here, unlike in
`debian`: no row is its own label, and nothing has to be filtered.

Packages built from one source (libfoo1, libfoo-dev, libfoo-doc), or from versions of it (gcc-11, gcc-12), share tags
and most of their description, so the split is by the name of the source without digits. Marks of unfinished work
(`facet::TODO`, `special::`) are no tags.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.data.card import DatasetCard
from harness.data.pattern import from_pairs
from harness.data.prepare import DatasetWriter
from harness.data.sources import apt
from harness.data.sources.debian import Package, long_texts, parse_packages, short_texts
from harness.data.sources.links import in_train, one_line
from harness.errors import DataError

BUILDER = 2
"""Version of the builder; raised whenever the same package index would give other rows, labels or texts."""

FIELDS = ("Package", "Architecture", "Source", "Tag", "Description", "Description-md5")
PACKAGES = ("debtags",)
_VOCABULARY = "usr/share/debtags/vocabulary"
_VERSION = re.compile(r"\d[\d.]*")


class DebtagsSource:
    """Builds a dataset from the tags in the package index of this machine's release."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return the hash of the copied index and the version of the vocabulary."""
        folder = raw.parent / apt.FOLDER
        manifest = apt.package_list(folder, "tags", FIELDS)
        versions = apt.packages(folder, "debtags", PACKAGES, optional=True)[1]["versions"]
        return {"builder": BUILDER, "packages": manifest["files"][apt.PACKAGES]["sha256"], "versions": versions}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Parse the copied index and write every row and label; return the provenance."""
        folder = raw.parent / apt.FOLDER
        manifest = apt.package_list(folder, "tags", FIELDS)
        debs, vocabulary = apt.packages(folder, "debtags", PACKAGES, optional=True)
        described: dict[str, str] = {}
        for deb in debs.values():
            for file in apt.packed_files(deb, re.compile(_VOCABULARY)).values():
                described = parse_vocabulary(file.content)
        packages = parse_packages((folder / "tags" / apt.PACKAGES).read_bytes())
        tagged = [package for package in packages if real_tags(package)]
        texts, without = short_texts(tagged), 0
        if card.text == "title+content":
            texts, without = long_texts(tagged, folder)
        labels = _write(writer, tagged, texts, described)
        unknown = [tag for tag in labels if tag not in described]
        warnings = [f"tags that the vocabulary does not describe: {len(unknown):,}"] if unknown else []
        index = {"package index": manifest["files"][apt.PACKAGES]["sha256"][:16]}
        return {
            "versions": {**manifest["releases"], **index, **vocabulary["versions"]},
            "packages": len(packages),
            "packages_with_tags": len(tagged),
            "packages_without_long_text": without,
            "tags_not_described": unknown,
            "warnings": warnings,
        }


def parse_vocabulary(content: bytes) -> dict[str, str]:
    """Return the text of every tag of a vocabulary: what facet and tag are called, `User Interface: Command Line`."""
    facets: dict[str, str] = {}
    tags: dict[str, str] = {}
    for fields in apt.stanzas(content):
        values = {key: value.decode("utf-8", "replace") for key, value in fields.items()}
        called = values.get(b"Description", "").partition("\n")[0].strip()
        if called:
            facets[values.get(b"Facet", "").strip()] = called
            tags[values.get(b"Tag", "").strip()] = called
    tags.pop("", None)
    facets.pop("", None)
    return {tag: one_line(f"{facets.get(facet_of(tag), facet_of(tag))}: {called}") for tag, called in tags.items()}


def facet_of(tag: str) -> str:
    """Return the facet of a tag: `works-with` for `works-with::image:raster`."""
    return tag.partition("::")[0]


def real_tags(package: Package) -> list[str]:
    """Return the tags of a package without marks of unfinished work."""
    return [tag for tag in package.tags if not tag.endswith(":TODO") and facet_of(tag) != "special"]


def _write(writer: DatasetWriter, packages: list[Package], texts: list[str], described: dict[str, str]) -> list[str]:
    """Write rows and labels in the order of their names; return the tags that became labels.

    Labels are the tags of train rows; a test row without any of them is left out.
    """
    trains = in_train([_VERSION.sub("", package.source) for package in packages])
    chosen = {real for package, train in zip(packages, trains, strict=True) if train for real in real_tags(package)}
    labels = sorted(chosen)
    position = {tag: label for label, tag in enumerate(labels)}
    known = [[position[tag] for tag in real_tags(package) if tag in position] for package in packages]
    has_labels = np.array([bool(found) for found in known], bool)
    for split, rows in (("train", np.flatnonzero(trains)), ("test", np.flatnonzero(~trains & has_labels))):
        if not len(rows):
            raise DataError(f"{len(packages):,} packages with tags leave no {split} rows")
        with writer.texts(f"{split}.text") as stream:
            stream.extend_strings([texts[row] for row in rows.tolist()])
        writer.matrix(
            f"{split}.labels", from_pairs(*_pairs([known[row] for row in rows.tolist()]), (len(rows), len(labels)))
        )
    with writer.texts("labels.text") as stream:
        stream.extend_strings(
            [described.get(tag) or one_line(tag.replace("::", ": ").replace("-", " ")) for tag in labels]
        )
    with writer.texts("labels.id") as stream:
        stream.extend_strings(labels)
    return labels


def _pairs(labels: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and the label of every pair, given the labels of each row."""
    rows = np.repeat(np.arange(len(labels)), [len(found) for found in labels])
    return rows, np.array([label for found in labels for label in found], np.int64)
