"""Readers of data: label files, JSON lines, archives, cards, package indexes, docstrings, and texts to predict for."""

import bz2
import gzip
import io
import json
import lzma
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from harness.cli.checks import check_card
from harness.data.archive import Limits, archive_kind, check_compressed, unpack
from harness.data.card import CARD_FOLDER, DatasetCard, load_card, read_card
from harness.data.download import UnusableLink, _confirmation, refuse_page
from harness.data.prepare import DatasetWriter, Source, load_prepared, prepared_folders
from harness.data.sources import apt
from harness.data.sources.apt import PackedFile, keep_fields
from harness.data.sources.debian import FIELDS, package_links, parse_descriptions, parse_packages
from harness.data.sources.debtags import parse_vocabulary
from harness.data.sources.jsonl import JsonlSource, import_folder
from harness.data.sources.manpages import Library
from harness.data.sources.pydocs import plain_text, split_docstring, summary_line, words
from harness.data.sources.repository import RepositorySource
from harness.data.sources.sparse_text import read_filter, read_labels
from harness.data.sources.wordnet import parse_synsets, related
from harness.errors import DataError
from harness.infer.predict import read_labels as read_new_labels
from harness.infer.predict import read_texts
from harness.io.files import read_manifest, write_manifest
from harness.report.collect import collect
from harness.report.explorer.predictions import open_prepared
from tests.faults.judge import Form, Target, may_refuse, put
from tests.faults.world import chosen, numbered, world
from tests.support.fake_apt import packed

_SPARSE = [
    b"3 4\n0:1 2:1.0\n\n3:1\n",
    b"2 9 4\n0,3 1:0.5 2:1\n 1:2\n",
    b"1 2\n0:1e0 1:0\n\n\n",
    gzip.compress(b"1 2\n1:1\n"),
]
_FILTER = [b"0 1\n2 3\n", b"", b"4 6\r\n0 0\n", gzip.compress(b"1 1\n")]


def _lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# ---------------------------------------------------------------- datasets of the repository, and a user's own

_REPOSITORY = {
    "lbl.json": _lines({"uid": "a", "title": "one"}, {"uid": "b", "title": "two", "content": "more"}),
    "trn.json": _lines(
        {"uid": "r", "title": "text", "content": "long", "target_ind": [0, 1], "target_rel": [1.0, 0]},
        {"uid": 7, "title": "", "target_ind": [], "target_rel": []},
    ),
    "tst.json": _lines({"uid": "s", "title": "text", "target_ind": [1]}),
}
_TEXTS = {
    "Y.txt": b"one\ntwo\n",
    "trn_X.txt": b"a text\nanother, na\xc3\xafve\n",
    "tst_X.txt": b"a third\n",
    "trn_X_Y.txt": b"2 2\n0:1\n0:1 1:1\n",
    "tst_X_Y.txt": b"1 2\n1:1\n",
    "filter_labels_train.txt": b"0 1\n",
}
_NAMES = {"Yf.txt": b"0->one\n1->two\n", **{name: _REPOSITORY[name] for name in ("trn.json", "tst.json")}}
_IMPORTED = _lines(*({"text": f"text {place}", "labels": ["hw-7"], "id": place} for place in range(9)))
_NEW = _lines({"id": "hw-8", "text": "scanners"}, {"text": "fax"})
_OWN = {
    "train.jsonl": _lines({"text": "fire", "labels": ["hw-7", 2], "id": 1}, {"text": "", "labels": []}),
    "test.jsonl": _lines({"text": "smoke", "labels": ["hw-7"], "id": "t"}),
    "labels.jsonl": _lines({"id": "hw-7", "text": "printers"}, {"id": 2, "text": ""}),
    "filter.jsonl": _lines({"split": "train", "id": 1, "label": 2}, {"split": "test", "id": "t", "label": "hw-7"}),
}


def _dataset(name: str, files: dict[str, bytes], hostile: str, source: Source) -> Target:
    """Return the target for a dataset with one hostile file, which is compressed in some seeds."""
    card = DatasetCard.model_validate(
        {"name": "x", "title": "x", "summary": "x", "source": "repository", "text": "title+content"}
    )

    def read(data: bytes, folder: Path) -> None:
        for each, content in files.items():
            put(folder, f"raw/{each}", data if each == hostile else content)
        source.fingerprint(card, folder / "raw")
        (folder / "prepared").mkdir()
        writer = DatasetWriter(folder / "prepared")
        source.write(card, folder / "raw", writer)
        writer.finish()

    form: Form = "lines" if "json" in hostile else "text"
    return Target(name, read, lambda: [files[hostile], gzip.compress(files[hostile])], form)


def _read_imported(data: bytes, folder: Path) -> None:
    for each, content in _OWN.items():
        if each not in ("test.jsonl", "filter.jsonl"):
            put(folder, f"given/{each}", data if each == "train.jsonl" else content)
    import_folder(folder / "given", "mine", test_fraction=0.5)


# ---------------------------------------------------------------- archives


def _zip(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _tar(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _archives() -> list[bytes]:
    """Return good archives, and one whose names leave the folder; links and devices come from changed bytes."""
    good = {"data/trn.txt": b"1 2\n0:1\n", "data/lbl.txt": b"one\n" * 40}
    long = {"d/" * 60 + "x": b"y", "n\u00e9": b""}
    link = tarfile.TarInfo("data/link")
    link.type, link.linkname = tarfile.SYMTYPE, "../../x"
    return [
        *(_zip(good), _zip({"../../x": b"y"}), _zip({"/tmp/x": b"y"}), _zip({"a": b"y", "a/b": b"y"})),
        *(_tar(good), _tar(long), _tar(long, tarfile.GNU_FORMAT), _tar({"../x": b"y"}), link.tobuf() + bytes(1024)),
        *(gzip.compress(_tar(good)), bz2.compress(_tar(good)), lzma.compress(_tar(good))),
        *(gzip.compress(b"text\n" * 50), bz2.compress(b"text\n"), lzma.compress(b"text\n")),
        b"<!DOCTYPE html><html><title>Google Drive - Quota exceeded</title></html>",
    ]


def _read_archive(data: bytes, folder: Path) -> None:
    path = put(folder, "downloads/archive.gz", data)
    try:
        refuse_page(data[:1024], "")
    except UnusableLink as error:  # which `data fetch` turns into a sentence, beside the other links
        raise DataError(str(error)) from error
    archive_kind(path)
    try:
        check_compressed(path)
    finally:
        unpack(path, folder / "unpacked", Limits(total_bytes=10**7, ratio_from=10**6))


_PAGE = b"""<!DOCTYPE html><html><body><form id="download-form" action="https://drive.usercontent.google.com/download">
<input type="hidden" name="id" value="1a"><input name="confirm" value="t"></form></body></html>"""


def _read_page(data: bytes, folder: Path) -> None:
    try:
        _confirmation(data, "https://drive.google.com/uc?id=1a")
    except UnusableLink as error:
        raise DataError(str(error)) from error


# ---------------------------------------------------------------- what a Debian machine or a Python library says

_PACKAGES = b"""Package: apt
Architecture: amd64
Depends: libc6 (>= 2.34), gpgv | gpgv2:any
Pre-Depends: dpkg
Description: commandline package manager
 This package
 .
 provides tools.
Description-md5: 9fb97a88cb7383934ef963352b53b4a7

Package: gpgv
Description: GNU privacy guard
"""
_TRANSLATION = b"Package: apt\nDescription-md5: 9fb97a88\nDescription-en: manager\n A text\n .\n and more.\n\n"
_VOCABULARY = b"Facet: role\nDescription: Role\n\nTag: role::program\nDescription: Program\n Executable.\n"

_DOCSTRINGS = [
    b"dot(a, b, out=None)\n\nDot product.\n\nSee Also\n--------\nnumpy.vdot : complex\ntensordot, einsum\n    Sums.\n",
    b"Return.\n\n    Parameters\n    ----------\n    x : array\n\n    See also\n    --------\n    :func:`~numpy.dot`, "
    b"`a <b.c>`.\n\n    Examples\n    --------\n    >>> f(1)\n    2\n\n    .. note:: text [1]_, numpy.linalg.norm()\n",
]


_PACKAGE = packed({"usr/share/man/man1/a.1": b".SH NAME\n", "usr/b": "../c"}, {"usr/d": "usr/share/man/man1/a.1"})
_MANUAL = [
    b".TH A 1\n.SH NAME\na \\- a \\fBpage\\fP\n.TS\ntab(:);\nl l.\nx:T{\ny\nT}\n.TE\n.SH SEE ALSO\n.BR b (1), C::D\n",
    b".Dd May\n.Sh NAME\n.Nm a\n.Nd page\n.ie n \\{\\\n. ds x \\(co\n.\\}\n.el .B no\n\\*x\n"
    b".Sh SEE ALSO\n.Xr b 1 ,\n.Fl v Ns Ar x\n",
    b".so man1/b.1\n",
]
_SYNSETS = b"""  1 licence
00000001 03 n 02 hot_dog 0 frank 1 002 @ 00000002 n 0000 ;c 00000003 n 0000 | a sausage; "two hot dogs"
00000002 03 n 01 meat 0 000 | food
"""


def _read_packages(data: bytes, folder: Path) -> None:
    kept = keep_fields(data, FIELDS)
    package_links(parse_packages(kept))
    parse_packages(data)
    parse_descriptions(data)
    parse_vocabulary(data)


def _read_package_file(data: bytes, folder: Path) -> None:
    """The archive inside a package, as dpkg-deb prints it."""
    (folder / "small.tar").write_bytes(data)
    with mock.patch.object(apt, "run", lambda *arguments: Path(arguments[-1]).read_bytes()):
        apt.packed_files(folder / "small.tar", re.compile(".*"))


def _read_page_of_a_manual(data: bytes, folder: Path) -> None:
    library = Library()
    library.add("small", {"usr/share/man/man1/a.1": PackedFile(data), "usr/share/man/man1/b.1.gz": PackedFile(data)})
    library.links()


def _read_synsets(data: bytes, folder: Path) -> None:
    related(sorted(parse_synsets(data, "data.noun")))


def _read_docstring(data: bytes, folder: Path) -> None:
    doc = data.decode("utf-8", "surrogateescape")
    names, rest = split_docstring(doc)
    plain_text(rest, ("numpy", "scipy"))
    summary_line(doc, ("numpy",))
    for name in names:
        words(name)


# ---------------------------------------------------------------- texts and labels of `predict`


def _read_predicted(name: str, reader: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda data, folder: reader(str(put(folder, name, data)))


def _read_standard_input(data: bytes, folder: Path) -> None:
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(data))):
        read_texts("-")


def _read_card(data: bytes, folder: Path) -> None:
    read_card.cache_clear()
    check_card(put(folder, "home/cards/hostile.yaml", data))
    if load_card("hostile").source in ("repository", "jsonl"):  # others would build something
        may_refuse(load_prepared, "hostile")


def _card_seeds() -> list[bytes]:
    own = b"title: mine\nsummary: imported\nsource: jsonl\noptions: {test_fraction: 0.2}\n"
    full = [(CARD_FOLDER / name).read_bytes() for name in ("lf-amazontitles-131k.yaml", "lf-pydocs.yaml")]
    return [own + b"statistics: {train: 2, labels: 3}\npropensity: {a: 0.5, b: 1.5}\n", *full]


def _read_prepared(data: bytes, folder: Path) -> None:
    """Read a prepared dataset with one array replaced and a manifest that matches it."""
    cached = folder / "home" / "cache" / "datasets" / "mine-0"
    shutil.copytree(world().prepared, cached)
    metadata = read_manifest(cached) or {}
    file, content = chosen(data, metadata.pop("files"))
    (cached / file).write_bytes(content)
    write_manifest(cached, metadata)
    collect([], None, ["mine"], folder / "reports")
    for found in prepared_folders().values():
        opened = open_prepared(found)
        list(opened.texts)
        list(opened.label_text)


def _prepared_seeds() -> list[bytes]:
    return numbered({path.name: path.read_bytes() for path in world().prepared.glob("*.npy")})


TARGETS = (
    Target("sparse-labels", lambda data, folder: read_labels(put(folder, "file", data)), lambda: _SPARSE, "text"),
    Target("filter-file", lambda data, folder: read_filter(put(folder, "file", data), 5, 7), lambda: _FILTER, "text"),
    _dataset("repository-labels", _REPOSITORY, "lbl.json", RepositorySource()),
    _dataset("repository-rows", _REPOSITORY, "trn.json", RepositorySource()),
    _dataset("repository-names", _NAMES, "Yf.txt", RepositorySource()),
    _dataset("repository-texts", _TEXTS, "trn_X.txt", RepositorySource()),
    _dataset("repository-matrix", _TEXTS, "trn_X_Y.txt", RepositorySource()),
    _dataset("own-rows", _OWN, "train.jsonl", JsonlSource()),
    _dataset("own-labels", _OWN, "labels.jsonl", JsonlSource()),
    _dataset("own-filter", _OWN, "filter.jsonl", JsonlSource()),
    Target("import", _read_imported, lambda: [_IMPORTED], "lines"),
    Target("prepared-data", _read_prepared, _prepared_seeds, "arrays"),
    Target("dataset-card", _read_card, _card_seeds, "yaml", (b"options: ", b"defaults: ", b"recommended: {unidec: {")),
    Target("archive", _read_archive, _archives),
    Target("download-page", _read_page, lambda: [_PAGE], "text", (b'action="', b"http://[", b"//", b"<form id=")),
    Target(
        "apt",
        _read_packages,
        lambda: [_PACKAGES, _TRANSLATION, _VOCABULARY],
        "text",
        (b"Package: ", b"Description: ", b"\n .\n"),
    ),
    Target("package", _read_package_file, lambda: [_PACKAGE]),
    Target(
        "manual-page", _read_page_of_a_manual, lambda: _MANUAL, "text", (b"\n.if n ", b"\n.TS\n", b"\\*a", b"\n.ds a ")
    ),
    Target("synsets", _read_synsets, lambda: [_SYNSETS], "lines"),
    Target("docstring", _read_docstring, lambda: _DOCSTRINGS, "text", (b"See Also\n---\n", b"\n----\n", b"`", b":a:`")),
    Target("predict-texts", _read_predicted("t.txt", read_texts), lambda: [b"one\ntwo\r\n", b"\xef\xbb\xbfx"], "text"),
    Target("predict-rows", _read_predicted("t.jsonl", read_texts), lambda: [_OWN["train.jsonl"]], "lines"),
    Target("predict-standard-input", _read_standard_input, lambda: [b"one\ntwo\n"], "text"),
    Target("new-labels", _read_predicted("l.txt", read_new_labels), lambda: [b"one\n\ntwo\n"], "text"),
    Target("new-label-rows", _read_predicted("l.jsonl", read_new_labels), lambda: [_NEW], "lines"),
)
