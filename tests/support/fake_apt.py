"""Stands in for apt and dpkg: package lists, translations and packages made in the test."""

import io
import tarfile
from pathlib import Path

from harness.errors import UserError


def stanza(name: str, depends: str = "", summary: str = "a package", **fields: str) -> str:
    lines = [f"Package: {name}", "Version: 1.0-1", f"Architecture: {fields.pop('architecture', 'amd64')}"]
    lines += [f"Depends: {depends}"] if depends else []
    lines += [f"{field.replace('_', '-')}: {value}" for field, value in fields.items()]
    return "\n".join([*lines, f"Description: {summary}", "Filename: pool/x.deb"]) + "\n"


def listed(file: str, words: str) -> str:
    """A line of apt's: label, origin, suite, codename, component, architecture and version; `-` is not there."""
    fields = zip(
        ("LABEL", "ORIGIN", "SUITE", "CODENAME", "COMPONENT", "ARCHITECTURE", "VERSION"), words.split(), strict=True
    )
    return "\t".join([f"/lists/{file}", *(f"$({name})" if word == "-" else word for name, word in fields)])


RELEASE = "Debian Debian oldstable bookworm main amd64 12.15"
NEXT, OLD = "Debian Debian stable trixie main amd64 13.4", "Debian Debian oldold buster main amd64 10"
LISTS = [
    listed("security", "Debian-Security Debian oldstable-security bookworm-security main amd64 12"),
    listed("release", RELEASE),
    listed("contrib", RELEASE.replace("main", "contrib")),
]


class FakeApt:
    """Answers the questions that `harness.data.sources.apt.run` asks of apt and dpkg.

    A package downloaded here is the tar archive that `dpkg-deb --fsys-tarfile` would print.
    """

    def __init__(
        self,
        dump: str,
        translation: str | None = None,
        update_works: bool = True,
        packages: dict[str, bytes] | None = None,
        unreachable: str = "",
    ) -> None:
        self.dump, self.translation, self.update_works = dump, translation, update_works
        self.packages, self.unreachable = packages or {}, unreachable
        self.calls: list[str] = []

    def __call__(
        self, program: str, options: dict[str, str], *arguments: str, folder: Path | None = None, seconds: int = 0
    ) -> bytes:
        self.calls.append(arguments[0])
        if arguments[0] == "cat-file":
            return {"/lists/release": self.dump, "/lists/en": self.translation or ""}[arguments[1]].encode()
        if arguments[0] == "update":
            if not self.update_works:
                raise UserError("apt-get update failed: no network")
            return b""
        if arguments[0] == "download":
            self._download(arguments[1:], folder)
            return b""
        if arguments[0] == "--fsys-tarfile":
            return Path(arguments[1]).read_bytes()
        if arguments[-1] == "Created-By: Packages":
            return "\n".join(LISTS).encode() if self.dump else b""
        if arguments[0] == "--print-architecture":
            return b"amd64\n"
        held = self.translation is not None and "update" in self.calls
        return b"de /lists/de\nen /lists/en\n" if held else b""

    def _download(self, chosen: tuple[str, ...], folder: Path | None) -> None:
        assert folder is not None
        for package in chosen:
            name, _, version = package.partition("=")
            if name == self.unreachable:
                raise UserError("apt-get download failed: E: Failed to fetch it: 404 Not Found")
            (folder / f"{name}_{version.replace(':', '%3a')}_all.deb").write_bytes(self.packages[name])


def packed(files: dict[str, bytes | str], hard_links: dict[str, str] | None = None) -> bytes:
    """Return a tar archive of files by path; a string is what a symbolic link leads to."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(f"./{path}")
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        for path, target in (hard_links or {}).items():
            member = tarfile.TarInfo(f"./{path}")
            member.type, member.linkname = tarfile.LNKTYPE, f"./{target}"
            tar.addfile(member)
    return stream.getvalue()
