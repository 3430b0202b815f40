"""The packages of a Debian release, frozen in the workspace the first time somebody asks.

Only the release itself counts, as of its last point release: lists of security and other updates change by the day, and
so would every figure measured on them. For the same reason other archives, components, architectures and releases that
a machine may know are left out. The index is copied to `data/debian-release/packages/` (the English descriptions to
`data/debian-release/descriptions/`), and datasets are built from those copies; removing the folder takes a fresh one.
Two machines of one architecture with the same point release make the same copy. Nothing here needs root.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import MissingDataError, UserError
from harness.files import build_once

PACKAGES = "packages.txt"
DESCRIPTIONS = "descriptions.txt"

_INSTEAD = "`lf-pydocstitles` and `lf-pydocs` are built from installed Python libraries and work anywhere."
_HELPER = Path("/usr/lib/apt/apt-helper")
_SECONDS = 300
_COMPONENTS = {"Debian": ("main",), "Ubuntu": ("main", "universe")}
"""What makes up the release of an archive."""
_UNKNOWN = re.compile(r"\$\([A-Z_]+\)")
"""What apt prints for a field that a list does not have."""

_FIELDS = re.compile(
    rb"^(?:Package|Architecture|Pre-Depends|Depends|Recommends|Suggests|Enhances|Description|Description-md5):"
    rb".*(?:\n[ \t].*)*",
    re.MULTILINE,
)


class Index(NamedTuple):
    """A list of packages that apt holds; what a list does not say is empty."""

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
        """Without place and version: of two mirrors the same."""
        return f"{self.origin} {self.codename} {self.component} {self.architecture}"

    @property
    def released(self) -> bool:
        """Part of a release as such: Ubuntu's updates share its codename, Debian's older ones even its suite."""
        known = self.component in _COMPONENTS.get(self.origin, ())
        return known and self.label == self.origin and "-" not in self.suite


_LINE = "\t".join(f"$({field.upper()})" for field in Index._fields)


def packages_snapshot(folder: Path) -> dict[str, Any]:
    """Copies the package index to `folder/packages/` unless it is there; returns the manifest of that copy."""
    return build_once(folder / "packages", _copy_packages)


def descriptions_snapshot(folder: Path) -> dict[str, Any]:
    """Copies the English long descriptions to `folder/descriptions/` unless they are there; returns the manifest."""
    return build_once(folder / "descriptions", _copy_descriptions)


def keep_fields(dump: bytes) -> bytes:
    """An apt dump reduced to the fields that a dataset is made of, stanzas separated by one empty line."""
    stanzas = dump.replace(b"\r\n", b"\n").split(b"\n\n")
    return b"\n\n".join(b"\n".join(_FIELDS.findall(stanza)) for stanza in stanzas if stanza.strip()) + b"\n"


def _copy_packages(folder: Path) -> dict[str, Any]:
    indexes = [read_index(line) for line in _targets("Packages", _LINE)]
    native = _run("dpkg", {}, "--print-architecture").decode().strip()
    chosen = release_indexes(indexes, _codename(), native)
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
    """One list from a line of `_LINE`."""
    fields = [_UNKNOWN.sub("", field) for field in line.split("\t")]
    return Index(*(fields + [""] * len(Index._fields))[: len(Index._fields)])


def release_indexes(indexes: Sequence[Index], codename: str, architecture: str) -> list[Index]:
    """Those of one release: the machine's own, or the first that apt lists where it has none of its own.

    Args:
        indexes: All that apt holds.
        codename: Of the machine's release, empty if unknown.
        architecture: The machine's own.
    """
    released = [one for one in indexes if one.released and one.architecture in (architecture, "all")]
    own = [one for one in released if one.codename == codename] or released
    mirrored = {one.name: one for one in sorted(own, reverse=True) if one.codename == own[0].codename}
    return [mirrored[name] for name in sorted(mirrored)]


def _codename() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


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
    """Downloads the translation index alone into a private folder; returns the options that make apt look there."""
    options = {"Dir::State::Lists": str(private / "lists"), "Dir::Cache": str(private / "cache")}
    for part in ("lists/partial", "cache/archives/partial"):
        (private / part).mkdir(parents=True)
    options |= {
        "Acquire::Languages": "en",
        "Acquire::Retries": "2",
        "Acquire::IndexTargets::deb::Packages::DefaultEnabled": "false",
        # a failed download is otherwise a warning with exit code 0
        "APT::Update::Error-Mode": "any",
        # the download user of apt cannot write into a private folder of root
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
    """One line in the given format for each index file of that kind that apt holds."""
    out = _run("apt-get", options or {}, "indextargets", "--format", form, f"Created-By: {created_by}")
    return [line for line in out.decode("utf-8", "replace").split("\n") if line]


def _run(program: str, options: dict[str, str], *arguments: str) -> bytes:
    """Standard output of an apt program."""
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
        said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise UserError(f"{Path(program).name} {arguments[0]} failed and said: {said[-1]}")
    return result.stdout
