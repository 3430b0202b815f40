"""Building datasets of manual pages and the pages in their SEE ALSO sections: `lf-manpages`, `lf-manpagestitles`.

A row is a page of the Debian packages in `PACKAGES`; its labels are the pages that its SEE ALSO section names. Files of
equal content, links between files, and pages that are only a link (`.so`), are further names of one page. A reference
is a name with a section, `printf(3)`, or in pages of Perl a name such as `File::Spec`. It means a page of the same
package if there is one, of several the one of that very section (3) rather than of a part of it (3ssl); else the first
in the order of `PACKAGES`.

Two pages that refer to each other across the splits keep one of the two references: such lists are nearly symmetric,
and train would tell most of the test pairs.
"""

import hashlib
import posixpath
import re
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources import apt, roff
from harness.data.sources.links import Links, one_line, one_way_across_splits, write_linked
from harness.io.files import sha256_json

BUILDER = 2
"""Version of the builder; raised whenever the same packages would give other rows, labels or texts."""

PACKAGES = tuple(
    """
    manpages manpages-dev allegro4-doc allegro5-doc amanda-common apertium ax25-tools cdist containers-storage
    coop-computing-tools coreutils dcmtk devscripts dnsjit dpkg-dev erlang-manpages firehol-doc flatpak
    freebsd-manpages freeradius-common git-man hxtools hylafax-server inn2 iproute2 ivtools-dev lei libace-perl
    libacl1-dev libarchive-dev libaudit-dev libauparse-dev libbio-db-gff-perl libbio-perl-perl libbobcat-dev
    libbsd-dev libc-ares-dev libcatmandu-marc-perl libcatmandu-perl libcdk5-dev libcgi-test-perl libck-dev
    libclass-makemethods-perl libconfig-model-perl libcryptx-perl libcurl4-doc libdate-manip-perl
    libdbix-class-schema-loader-perl libdevel-cover-perl libembperl-perl libexplain-dev libfabric-dev libgensio-dev
    libgfarm-dev libhtml-formfu-perl libhtml-microformats-perl libibverbs-dev libimager-perl libldap-dev
    liblowdown-dev libmath-planepath-perl libmemcached-dev libmodbus-dev libnbd-dev libnet-dbus-perl libnet-dns-perl
    libnet-ldap-perl libowfat-dev libpam0g-dev libpcap0.8-dev libpcp3-dev libperl-critic-perl libperl-critic-pulp-perl
    libplack-perl libpmem2-dev libpoe-perl librdmacm-dev librpma-dev libsane-common libsasl2-dev libsdl-perl
    libselinux1-dev libsql-translator-perl libssh2-1-dev libssl-doc libsystemd-dev libtemplate-perl
    libtest2-suite-perl libtickit-dev libtiff-dev libtirpc-dev libtracefs-doc libtspi-dev libtype-tiny-perl
    libunibilium-dev libur-perl liburing-dev libvistaio-dev libvm-ec2-perl libx11-doc libxt-dev libzip-dev libzmq3-dev
    lttng-tools nbdkit ncurses-doc ndctl netpbm nmh nut-server openafs-client openafs-fileserver openssl pcp perl-doc
    perl-tk pfstools plc-utils-extra postfix printer-driver-foo2zjs-common pslib-dev publib-dev pvm-dev pxlib-dev
    samtools slapd sympa systemd systemtap-doc tcl8.6-doc tcllib tk8.6-doc trace-cmd trafficserver-dev util-linux
    xymon
    """.split()
)
"""Packages with at least 30 pages that refer to others, but for those where most refer to one page, or each to all."""

_ROOT = "usr/share/man"
_FILE = re.compile(rf"{_ROOT}/man[1-9ln]/[^/]+\.[1-9ln]\w*(?:\.gz)?")
_LARGEST_PAGE = 4 << 20
_NAME = re.compile(r"NAMES?:?", re.IGNORECASE)
_SEE_ALSO = re.compile(r"SEE[ _-]*ALSO:?", re.IGNORECASE)
_DASH = re.compile(r"\s*(?:-{1,3}|\u2013|\u2014)(?:\s+|$)")
_REFERENCE = re.compile(
    r"(?<![\w.:+/@\[-])(?:(?P<name>\d*[A-Za-z_\[][\w.:+@\[-]*) ?\((?P<section>[1-9ln][A-Za-z]\w{0,8}|[1-9ln])\)"
    r"|(?P<module>\w+(?:::\w+)+|perl\w+)(?![\w:(]))"
)
_COUNTED = {
    "pages_unreadable": "files that cannot be read (empty, no gzip data, or larger than 4 MiB), left out",
    "pages_without_name": "pages without a NAME section, left out",
    "pages_in_latin_1": "pages that are not UTF-8, read as Latin-1",
    "links_to_no_page": "links that lead to no page of their package",
    "references_dropped": "references that name no page of these packages",
    "references_to_itself": "references that lead back to their own page",
}


class Page(NamedTuple):
    """A manual page."""

    id: str
    """Name and section of its first file, such as printf(3)."""
    order: int
    """Place of its package in the list of packages."""
    title: str
    """Its names and its purpose, from the NAME section."""
    text: str
    """All other sections but SEE ALSO."""
    references: list[tuple[str, str]]
    """Names and sections in SEE ALSO, in order; the section is empty where none is given."""


@dataclass(frozen=True)
class Place:
    """A file that leads to a page."""

    order: int
    """Place of its package in the list of packages."""
    section: str
    page: int
    """Index of the page."""


class ManpagesSource:
    """Builds a dataset from the manual pages of Debian packages."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return the versions of the packages."""
        _, manifest = apt.packages(raw.parent / apt.FOLDER, "manpages", PACKAGES)
        return {"builder": BUILDER, "versions": manifest["versions"]}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Read all pages and write every row, label and filter pair; return the provenance."""
        debs, manifest = apt.packages(raw.parent / apt.FOLDER, "manpages", PACKAGES)
        library = Library()
        for package, deb in debs.items():
            library.add(package, apt.packed_files(deb, _FILE))
        links, titles, texts = library.links()
        if card.text == "title":
            texts = titles
        written = write_linked(writer, one_way_across_splits(links), texts, titles)
        warnings = [f"{what}: {library.counts[name]:,}" for name, what in _COUNTED.items() if library.counts[name]]
        if manifest["absent"]:
            warnings.append(f"packages that this release does not have: {', '.join(manifest['absent'])}")
        versions = {**manifest["releases"], "packages": sha256_json(manifest["versions"])[:16]}
        packages = {"packages": manifest["versions"], "packages_absent": manifest["absent"]}
        return {"versions": versions, **packages, **library.counts, **written, "warnings": warnings}


class Library:
    """The pages of packages, the files that lead to each, and counts of what was found."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.counts: Counter[str] = Counter()
        self._places: dict[str, list[Place]] = defaultdict(list)
        """Files by the name that they give a page."""
        self._known: dict[bytes, int] = {}
        """Pages by the hash of their source."""
        self._ids: set[str] = set()
        self._packages = 0

    def add(self, package: str, files: dict[str, apt.PackedFile]) -> None:
        """Add the pages of a package, given its files by path."""
        page_at: dict[str, int] = {}
        target_of: dict[str, str] = {}
        for path, file in sorted(files.items()):
            self.counts["files"] += 1
            place = path.removesuffix(".gz")
            source = "" if file.link else self._source(path, file.content)
            target = file.link or roff.linked_file(source)
            if target:
                around = "" if file.link else _ROOT if "/" in target else posixpath.dirname(path)
                target_of[place] = posixpath.normpath(posixpath.join(around, target)).removesuffix(".gz")
            elif source and (page := self._page(path, package, source)) is not None:
                page_at[place] = page
        for place in target_of:
            end, steps = place, 0
            while end in target_of and steps < len(target_of):
                end, steps = target_of[end], steps + 1
            if end in page_at:
                page_at.setdefault(place, page_at[end])
            else:
                self.counts["links_to_no_page"] += 1
        for place, page in page_at.items():
            name, _, section = posixpath.basename(place).rpartition(".")
            self._places[name].append(Place(self._packages, section, page))
        self._packages += 1

    def _source(self, path: str, content: bytes) -> str:
        """Return the text of a file; empty if it cannot be read."""
        if path.endswith(".gz"):
            stream = zlib.decompressobj(wbits=31)
            try:
                content = stream.decompress(content, _LARGEST_PAGE)
            except zlib.error:
                content = b""
            content = content if stream.eof else b""
        if not content or len(content) > _LARGEST_PAGE:
            self.counts["pages_unreadable"] += 1
            return ""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            self.counts["pages_in_latin_1"] += 1
            return content.decode("latin-1")

    def _page(self, path: str, package: str, source: str) -> int | None:
        """Return the index of the page with this source, added if it is new; None if it has no NAME section."""
        key = hashlib.sha256(source.encode()).digest()
        if key in self._known:
            self.counts["files_of_equal_content"] += 1
            return self._known[key]
        sections = roff.sections(source)
        title = _title(" ".join(section.text for section in sections if _NAME.fullmatch(section.heading)))
        if not title:
            self.counts["pages_without_name"] += 1
            return None
        name, _, part = posixpath.basename(path.removesuffix(".gz")).rpartition(".")
        ids = (f"{name}({part})", f"{name}({part}) of {package}", f"{path} of {package}")
        own = next(one for one in ids if one not in self._ids)
        others = [section for section in sections if not _NAME.fullmatch(section.heading)]
        related = " ".join(section.text for section in others if _SEE_ALSO.fullmatch(section.heading))
        text = " ".join(section.text for section in others if not _SEE_ALSO.fullmatch(section.heading))
        self._ids.add(own)
        self._known[key] = len(self.pages)
        self.pages.append(Page(own, self._packages, title, _without_references(text), named_pages(related)))
        return self._known[key]

    def links(self) -> tuple[Links, list[str], list[str]]:
        """Return the links between pages, and the short and the long text of every page, in the order of their ids."""
        order = sorted(range(len(self.pages)), key=lambda page: self.pages[page].id)
        item_of = {page: item for item, page in enumerate(order)}
        pairs: list[tuple[int, int]] = []
        for number, page in enumerate(self.pages):
            for name, section in page.references:
                self.counts["references"] += 1
                found = self._resolve(name, section, page.order)
                if found is None:
                    self.counts["references_dropped"] += 1
                elif found == number:
                    self.counts["references_to_itself"] += 1
                else:
                    pairs.append((item_of[number], item_of[found]))
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        pages = [self.pages[page] for page in order]
        titles = [page.title for page in pages]
        texts = [one_line(f"{page.title} {page.text}") for page in pages]
        return Links([page.id for page in pages], ends[:, 0], ends[:, 1]), titles, texts

    def _resolve(self, name: str, section: str, package: int) -> int | None:
        """Return the page that a reference in a page of `package` means; None if there is none."""
        named, wanted = self._places.get(name, []), section or "3"
        places = [place for place in named if not section or place.section[0] == section[0]]
        # some pages are in another section than others say: lsort(n) is the file lsort.3tcl
        places = places or [place for place in named if place.order == package]

        def rank(at: Place) -> tuple[bool, bool, bool, int, str]:
            return at.order != package, at.section != wanted, at.section[0] != wanted[0], at.order, at.section

        return min(places, key=rank).page if places else None


def named_pages(text: str) -> list[tuple[str, str]]:
    """Return the (name, section) of the references in a text, each once, in order: `a(3), b (1ssl), C::D`."""
    found = [(match["name"] or match["module"], match["section"] or "") for match in _REFERENCE.finditer(text)]
    return list(dict.fromkeys(found))


def _without_references(text: str) -> str:
    """Return a text without references such as printf(3) or File::Spec: they are labels, and would tell the answer."""
    return one_line(_REFERENCE.sub("", text))


def _title(name: str) -> str:
    """Return `open, creat: open a file` for a NAME section `open, creat(2) - open a file`; empty if it has no word."""
    title = one_line(_DASH.sub(": ", _REFERENCE.sub(lambda match: match["name"] or match[0], name), count=1))
    return title if re.search(r"\w", title) else ""
