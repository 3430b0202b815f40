"""What a Debian machine's apt gives to datasets: the package index of its release, descriptions, files of packages.

Each part is copied on first use into a folder of `data/debian-release/` in the workspace, and datasets are built from
that copy; removing the folder takes a fresh one:

    packages/, tags/        stanzas of the package index, reduced to the fields that a dataset needs
    descriptions/           English long descriptions
    <dataset>-<hash>/       packages (.deb) of a list with that hash, which are read and never installed

Only the release itself is copied, as of its last point release: lists of updates change daily, and measured figures
would too. Other archives, components, architectures and releases are left out for the same reason. Two machines of one
architecture with the same point release make the same copy. Nothing here needs root.
"""

import io
import os
import platform
import posixpath
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import DataError, MissingDataError, UserError
from harness.io.files import build_once, sha256_json, write_json

PACKAGES = "packages.txt"
DESCRIPTIONS = "descriptions.txt"
FOLDER = "debian-release"
"""Name of the folder with the copies, which all datasets made of them share."""

_INSTEAD = "`lf-pydocstitles` and `lf-pydocs` are built from installed Python libraries and work anywhere."
_HELPER = Path("/usr/lib/apt/apt-helper")
_SECONDS = 300
_DOWNLOAD_SECONDS = 3600
_COMPONENTS = {"Debian": ("main",), "Ubuntu": ("main", "universe")}
"""Components that are part of a release, by origin."""
_DOWNLOAD = {
    "Acquire::Retries": "2",
    # apt's download user cannot write into a folder of root
    "APT::Sandbox::User": "root",
}
_UNKNOWN = re.compile(r"\$\([A-Z_]+\)")
"""Text that apt prints for a field that a list does not have."""

_FIELD = re.compile(rb"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)


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


def package_list(folder: Path, name: str, fields: Sequence[str]) -> dict[str, Any]:
    """Copy the package index, reduced to these fields, to `folder/name/` if absent; return the manifest of the copy."""

    def copy(temporary: Path) -> dict[str, Any]:
        dump, versions = _read_release()
        (temporary / PACKAGES).write_bytes(keep_fields(dump, fields))
        return {"releases": versions}

    return build_once(folder / name, copy)


def keep_fields(dump: bytes, fields: Sequence[str]) -> bytes:
    """Return an apt dump reduced to the given fields, stanzas separated by one empty line."""
    names = "|".join(fields).encode("ascii")
    pattern = re.compile(rb"^(?:" + names + rb"):.*(?:\n[ \t].*)*", re.MULTILINE)
    stanzas = dump.replace(b"\r\n", b"\n").split(b"\n\n")
    return b"\n\n".join(b"\n".join(pattern.findall(stanza)) for stanza in stanzas if stanza.strip()) + b"\n"


def stanzas(dump: bytes) -> Iterator[dict[bytes, bytes]]:
    """Yield the fields of every stanza of an apt dump (RFC 822)."""
    for stanza in dump.replace(b"\r\n", b"\n").split(b"\n\n"):
        yield dict(_FIELD.findall(stanza))


def _read_release() -> tuple[bytes, dict[str, str]]:
    """Return the package index of the release, and the version of each of its lists by name."""
    indexes = [read_index(line) for line in _targets("Packages", _LINE)]
    native = run("dpkg", {}, "--print-architecture").decode().strip()
    try:
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        codename = ""
    chosen = release_indexes(indexes, codename, native)
    dump = b"\n".join(run(str(_HELPER), {}, "cat-file", one.filename) for one in chosen)
    if b"Package: " not in dump:
        named = {f"{one.origin} {one.suite} {one.component}".strip() for one in indexes}
        held = ", ".join(sorted(filter(None, named))) or "nothing"
        raise MissingDataError(
            f"apt has no package list of a release on this machine (it has {held}); run `apt-get update` (as root) and "
            f"try again. {_INSTEAD}"
        )
    return dump, {one.name: one.version for one in chosen}


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


def descriptions(folder: Path) -> bytes:
    """Return the English long descriptions, copied or downloaded to `folder/descriptions/` if absent."""
    build_once(folder / "descriptions", _copy_descriptions)
    return (folder / "descriptions" / DESCRIPTIONS).read_bytes()


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
            stream.write(run(str(_HELPER), {}, "cat-file", file) + b"\n")
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
        run("apt-get", options, "update")
    except UserError as error:
        raise MissingDataError(
            "the long descriptions are not in the apt lists of this machine, and fetching them failed; try again when "
            f"the package archive can be reached. `lf-debiantitles` needs no download. {error}"
        ) from error
    return options


def _targets(created_by: str, form: str, options: dict[str, str] | None = None) -> list[str]:
    """Return one line in the given format for each of apt's index files of that kind."""
    out = run("apt-get", options or {}, "indextargets", "--format", form, f"Created-By: {created_by}")
    return [line for line in out.decode("utf-8", "replace").split("\n") if line]


def packages(
    folder: Path, name: str, wanted: Sequence[str], *, optional: bool = False
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Download packages of the release if they are not there yet; nothing is installed.

    Args:
        folder: Folder of the copies.
        name: First part of the name of the folder inside, which ends with a hash of `wanted`.
        wanted: Names of packages. Those that the release does not have are left out.
        optional: Accept a release that has none of them.

    Returns:
        The .deb file of each package, in the order of `wanted`, and the manifest of the folder: `versions` by package,
        and the `absent` packages.
    """
    place = folder / f"{name}-{sha256_json(list(wanted))[:8]}"

    def download(temporary: Path) -> dict[str, Any]:
        dump, releases = _read_release()
        offered: dict[str, str] = {}
        for fields in stanzas(keep_fields(dump, ("Package", "Version"))):
            package, version = (fields.get(field, b"").decode("ascii", "replace") for field in (b"Package", b"Version"))
            offered.setdefault(package, version)
        versions = {package: offered[package] for package in wanted if offered.get(package)}
        absent = [package for package in wanted if package not in versions]
        if not (versions or optional):
            raise MissingDataError(f"{', '.join(releases)} has none of the packages {', '.join(wanted)}. {_INSTEAD}")
        chosen = [f"{package}={version}" for package, version in versions.items()]
        try:
            if chosen:
                run("apt-get", _DOWNLOAD, "download", *chosen, folder=temporary, seconds=_DOWNLOAD_SECONDS)
        except UserError as error:
            others = f" and {len(chosen) - 1} others" if len(chosen) > 1 else ""
            raise MissingDataError(
                f"downloading {chosen[0]}{others} failed, and nothing was kept; try again when the package archive can "
                f"be reached, after `apt-get update` (as root) if the lists of apt are old. {error}"
            ) from error
        for package in versions:
            _deb_file(temporary, package)
        write_json(temporary / "versions.json", versions)
        return {"releases": releases, "versions": versions, "absent": absent}

    manifest = build_once(place, download)
    return {package: _deb_file(place, package) for package in wanted if package in manifest["versions"]}, manifest


def _deb_file(folder: Path, package: str) -> Path:
    found = sorted(folder.glob(f"{package}_*.deb"))
    if len(found) != 1:
        raise DataError(f"{len(found)} files {package}_*.deb instead of one; remove the folder and try again", folder)
    return found[0]


class PackedFile(NamedTuple):
    """A regular file of a package, or a symbolic link."""

    content: bytes
    """Bytes of a file; empty for a link."""
    link: str = ""
    """Path that a symbolic link leads to, like those of files relative to the root; empty for a file."""


def packed_files(deb: Path, path: re.Pattern[str]) -> dict[str, PackedFile]:
    """Return the files of a package whose path, such as `usr/share/man/man1/ls.1.gz`, matches as a whole.

    They are read in memory: nothing is written, so no path of an archive can lead anywhere. A hard link is a file with
    the content of its target.
    """
    found: dict[str, PackedFile] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(run("dpkg-deb", {}, "--fsys-tarfile", str(deb)))) as tar:
            for member in tar:
                name = posixpath.normpath(member.name)
                if not path.fullmatch(name):
                    continue
                if member.issym():
                    target = posixpath.join("/", posixpath.dirname(name), member.linkname)
                    found[name] = PackedFile(b"", posixpath.normpath(target).lstrip("/"))
                elif (stream := tar.extractfile(member)) is not None:
                    found[name] = PackedFile(stream.read())
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise DataError(f"not a package that can be read ({error}); remove its folder and try again", deb) from error
    return found


def run(
    program: str, options: dict[str, str], *arguments: str, folder: Path | None = None, seconds: int = _SECONDS
) -> bytes:
    """Run a program of apt or dpkg, in `folder` if given; return its standard output."""
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
            timeout=seconds,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{Path(program).name} {arguments[0]} gave no answer within {seconds} seconds") from error
    if result.returncode:
        printed = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise UserError(f"{Path(program).name} {arguments[0]} failed: {printed[-1]}")
    return result.stdout
