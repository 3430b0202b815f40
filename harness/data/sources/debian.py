"""Building datasets of Debian packages and the packages they name: `lf-debian` (long text), `lf-debiantitles` (short).

A row is a package; its labels are the packages in its Depends, Pre-Depends, Recommends, Suggests and Enhances fields.
Every alternative of `a | b` counts; versions and architecture qualifiers are ignored. A name counts only if it is a
package with a description, so virtual packages drop out. Labels on more than 1 % of the packages (such as libc6) are
dropped as well. If a name occurs more than once (foreign architectures), the alphabetically first Architecture counts,
and within it the stanza listed first.

The package index is copied to `data/debian-release/packages/` on first use (the English descriptions to
`data/debian-release/descriptions/`), and datasets are built from that copy; removing the folder takes a fresh one. Only
the release itself is copied, as of its last point release: lists of updates change daily, and measured figures would
too. Other archives, components, architectures and releases are left out for the same reason. Two machines of one
architecture with the same point release make the same copy. Nothing here needs root.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources.links import Links, one_line, without_frequent_targets, write_linked
from harness.errors import DataError, MissingDataError, UserError
from harness.io.files import build_once

PACKAGES = "packages.txt"
DESCRIPTIONS = "descriptions.txt"
_FOLDER = "debian-release"
"""Name of the folder with the copy of the package index, which the cards of this source share."""

_INSTEAD = "`lf-pydocstitles` and `lf-pydocs` are built from installed Python libraries and work anywhere."
_HELPER = Path("/usr/lib/apt/apt-helper")
_SECONDS = 300
_COMPONENTS = {"Debian": ("main",), "Ubuntu": ("main", "universe")}
"""Components that are part of a release, by origin."""
_UNKNOWN = re.compile(r"\$\([A-Z_]+\)")
"""Text that apt prints for a field that a list does not have."""

_FIELDS = re.compile(
    rb"^(?:Package|Architecture|Pre-Depends|Depends|Recommends|Suggests|Enhances|Description|Description-md5):"
    rb".*(?:\n[ \t].*)*",
    re.MULTILINE,
)


class Index(NamedTuple):
    """One package list of apt; fields that it does not have are empty."""

    filename: str
    label: str
    origin: str
    suite: str
    codename: str
    component: str
    architecture: str
    version: str

    @property
    def name(self) -> str:
        """Name of the list without mirror and version, the same for all mirrors."""
        return f"{self.origin} {self.codename} {self.component} {self.architecture}"

    @property
    def released(self) -> bool:
        """Whether the list is part of the release itself, not of its updates, which may share codename or suite."""
        known = self.component in _COMPONENTS.get(self.origin, ())
        return known and self.label == self.origin and "-" not in self.suite


_LINE = "\t".join(f"$({field.upper()})" for field in Index._fields)


def packages_snapshot(folder: Path) -> dict[str, Any]:
    """Copy the package index to `folder/packages/` if absent; return the manifest of the copy."""
    return build_once(folder / "packages", _copy_packages)


def keep_fields(dump: bytes) -> bytes:
    """Return an apt dump reduced to the fields that datasets are made of, stanzas separated by one empty line."""
    stanzas = dump.replace(b"\r\n", b"\n").split(b"\n\n")
    return b"\n\n".join(b"\n".join(_FIELDS.findall(stanza)) for stanza in stanzas if stanza.strip()) + b"\n"


def _copy_packages(folder: Path) -> dict[str, Any]:
    indexes = [read_index(line) for line in _targets("Packages", _LINE)]
    native = _run("dpkg", {}, "--print-architecture").decode().strip()
    try:
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        codename = ""
    chosen = release_indexes(indexes, codename, native)
    dump = b"\n".join(_run(str(_HELPER), {}, "cat-file", one.filename) for one in chosen)
    if b"Package: " not in dump:
        named = {f"{one.origin} {one.suite} {one.component}".strip() for one in indexes}
        held = ", ".join(sorted(filter(None, named))) or "nothing"
        raise MissingDataError(
            f"apt has no package list of a release on this machine (it has {held}); run `apt-get update` (as root) and "
            f"try again. {_INSTEAD}"
        )
    (folder / PACKAGES).write_bytes(keep_fields(dump))
    return {"releases": {one.name: one.version for one in chosen}}


def read_index(line: str) -> Index:
    """Parse a line printed in the format `_LINE` into one package list."""
    fields = [_UNKNOWN.sub("", field) for field in line.split("\t")]
    return Index(*(fields + [""] * len(Index._fields))[: len(Index._fields)])


def release_indexes(indexes: Sequence[Index], codename: str, architecture: str) -> list[Index]:
    """Return the package lists of one release: the machine's own, or else the first that apt lists.

    Args:
        indexes: All package lists of apt.
        codename: Codename of the machine's release, empty if unknown.
        architecture: Architecture of the machine.
    """
    released = [one for one in indexes if one.released and one.architecture in (architecture, "all")]
    own = [one for one in released if one.codename == codename] or released
    mirrored = {one.name: one for one in sorted(own, reverse=True) if one.codename == own[0].codename}
    return [mirrored[name] for name in sorted(mirrored)]


def _copy_descriptions(folder: Path) -> dict[str, Any]:
    files, fetched = _translations({}), False
    private = folder / "apt"
    if not files:
        files, fetched = _translations(_fetch_translations(private)), True
    if not files:
        raise MissingDataError(
            "the package archive offers no English descriptions (Translation-en); "
            f"`lf-debiantitles` needs only the package lists. {_INSTEAD}"
        )
    with (folder / DESCRIPTIONS).open("wb") as stream:
        for file in sorted(files):
            stream.write(_run(str(_HELPER), {}, "cat-file", file) + b"\n")
    shutil.rmtree(private, ignore_errors=True)
    return {"fetched": fetched}


def _translations(options: dict[str, str]) -> list[str]:
    lines = _targets("Translations", "$(LANGUAGE) $(FILENAME)", options)
    return [line.removeprefix("en ") for line in lines if line.startswith("en ")]


def _fetch_translations(private: Path) -> dict[str, str]:
    """Download the translation index alone into a private folder; return the apt options to read it there."""
    for part in ("lists/partial", "cache/archives/partial"):
        (private / part).mkdir(parents=True)
    options = {
        "Dir::State::Lists": str(private / "lists"),
        "Dir::Cache": str(private / "cache"),
        "Acquire::Languages": "en",
        "Acquire::Retries": "2",
        "Acquire::IndexTargets::deb::Packages::DefaultEnabled": "false",
        # without this option a failed download is only a warning with exit code 0
        "APT::Update::Error-Mode": "any",
        # apt's download user cannot write into a private folder of root
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    try:
        _run("apt-get", options, "update")
    except UserError as error:
        raise MissingDataError(
            "the long descriptions are not in the apt lists of this machine, and fetching them failed; try again when "
            f"the package archive can be reached. `lf-debiantitles` needs no download. {error}"
        ) from error
    return options


def _targets(created_by: str, form: str, options: dict[str, str] | None = None) -> list[str]:
    """Return one line in the given format for each of apt's index files of that kind."""
    out = _run("apt-get", options or {}, "indextargets", "--format", form, f"Created-By: {created_by}")
    return [line for line in out.decode("utf-8", "replace").split("\n") if line]


def _run(program: str, options: dict[str, str], *arguments: str) -> bytes:
    """Run an apt program; return its standard output."""
    if shutil.which(program) is None:
        raise MissingDataError(
            f"no {Path(program).name} on this machine; this dataset needs a Debian system. {_INSTEAD}"
        )
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    try:
        result = subprocess.run(
            [program, *flags, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{Path(program).name} {arguments[0]} gave no answer within {_SECONDS} seconds") from error
    if result.returncode:
        printed = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise UserError(f"{Path(program).name} {arguments[0]} failed: {printed[-1]}")
    return result.stdout


BUILDER = 1
"""Version of the builder; raised whenever the same package index would give other rows, labels or texts."""

MAXIMAL_SHARE = 0.01
_RELATIONS = (b"Depends", b"Pre-Depends", b"Recommends", b"Suggests", b"Enhances")

_FIELD = re.compile(rb"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_NAME = rb"[A-Za-z0-9][A-Za-z0-9+.-]*"
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


class DebianSource:
    """Builds a dataset from a copy of the package index that apt has on this machine."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return the hash of the copied index; its `Description-md5` fields identify the long texts too."""
        manifest = packages_snapshot(raw.parent / _FOLDER)
        return {"builder": BUILDER, "packages": manifest["files"][PACKAGES]["sha256"]}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Parse the copied index and write every row, label and filter pair; return the provenance."""
        folder = raw.parent / _FOLDER
        manifest = packages_snapshot(folder)
        versions = {**manifest["releases"], "package index": manifest["files"][PACKAGES]["sha256"][:16]}
        packages = parse_packages((folder / "packages" / PACKAGES).read_bytes())
        links, counts = package_links(packages)
        titles = [one_line(f"{package.name}: {package.summary}") for package in packages]
        texts = titles
        if card.text == "title+content":
            build_once(folder / "descriptions", _copy_descriptions)
            bodies = parse_descriptions((folder / "descriptions" / DESCRIPTIONS).read_bytes())
            found = [package.body or bodies.get(package.md5, "") for package in packages]
            texts = [one_line(f"{title} {body}") for title, body in zip(titles, found, strict=True)]
            counts["packages_without_long_text"] = found.count("")
        return {"versions": versions, **counts, **write_linked(writer, links, texts, titles)}


def _stanzas(index: bytes) -> Iterator[dict[bytes, bytes]]:
    """Yield the fields of every stanza of an apt dump (RFC 822)."""
    for stanza in index.replace(b"\r\n", b"\n").split(b"\n\n"):
        yield dict(_FIELD.findall(stanza))


def parse_packages(index: bytes) -> list[Package]:
    """Return the packages of an apt dump that have a description, one for each name, sorted by name."""
    chosen: dict[bytes, tuple[bytes, dict[bytes, bytes]]] = {}
    for fields in _stanzas(index):
        name, architecture = fields.get(b"Package", b"").strip(), fields.get(b"Architecture", b"")
        if not re.fullmatch(_NAME, name) or not fields.get(b"Description", b"").strip():
            continue
        if name not in chosen or architecture < chosen[name][0]:
            chosen[name] = architecture, fields
    return [_package(name, chosen[name][1]) for name in sorted(chosen)]


def _package(name: bytes, fields: dict[bytes, bytes]) -> Package:
    summary, _, body = fields[b"Description"].decode("utf-8", "replace").partition("\n")
    relations = b",".join(fields[field] for field in _RELATIONS if field in fields)
    md5 = fields.get(b"Description-md5", b"").strip()
    return Package(name.decode("ascii"), summary, _paragraphs(body), md5, named_packages(relations))


def named_packages(relations: bytes) -> list[str]:
    """Return the package names in a relation field: a, b and c for `a (>= 1) | b:any, c`."""
    return [name.decode("ascii") for name in _NAMED.findall(relations)]


def parse_descriptions(index: bytes) -> dict[bytes, str]:
    """Return the long descriptions of a translation index, by their `Description-md5`."""
    bodies: dict[bytes, str] = {}
    for fields in _stanzas(index):
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
