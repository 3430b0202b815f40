"""Archives of every kind, well-formed and hostile, against `harness.data.archive`."""

import bz2
import gzip
import io
import lzma
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.archive import Limits, archive_kind, check_compressed, unpack
from harness.errors import DataError

CONTENTS = {"set/trn.json.gz": b"train " * 5000, "set/inner/tst.txt": b"test", "top.txt": b""}


def make_zip(path: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return path


def make_tar(path: Path, contents: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in contents.items():
            add_member(archive, name, data)
    return path


def add_member(
    archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, len(data), link
    archive.addfile(member, io.BytesIO(data))


MAKERS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "a.zip": make_zip,
    "a.tar": make_tar,
    "a.tar.gz": lambda path, contents: make_tar(path, contents, "w:gz"),
    "a.tar.bz2": lambda path, contents: make_tar(path, contents, "w:bz2"),
    "a.tar.xz": lambda path, contents: make_tar(path, contents, "w:xz"),
}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive: Path, folder: Path, match: str, limits: Limits | None = None) -> None:
    """The archive is refused and leaves nothing: not in the folder, not beside it, not above it."""
    before = {path for path in folder.parent.parent.rglob("*")}
    with pytest.raises(DataError, match=match) as caught:
        unpack(archive, folder, limits)
    assert str(archive) in str(caught.value)
    assert {path for path in folder.parent.parent.rglob("*")} == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work" / "data"


@pytest.mark.parametrize("name", MAKERS)
def test_archives_unpack_to_what_went_in(name: str, tmp_path: Path, folder: Path) -> None:
    archive = MAKERS[name](tmp_path / name, CONTENTS)
    files = unpack(archive, folder)
    assert tree(folder) == CONTENTS
    assert files == sorted(folder / inner for inner in CONTENTS)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_single_compressed_file(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path, folder: Path
) -> None:
    archive = tmp_path / f"lbl.json.{suffix}"
    archive.write_bytes(compress(b"labels\n" * 1000))
    assert archive_kind(archive) == "file"
    assert unpack(archive, folder) == [folder / "lbl.json"]
    assert tree(folder) == {"lbl.json": b"labels\n" * 1000}


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.lists(
            st.text("abcäß z.", min_size=1, max_size=6).filter(lambda part: part.strip(". ")), min_size=1, max_size=3
        )
        .map("/".join)
        .filter(lambda name: ".." not in name),
        st.binary(max_size=300),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(sorted(MAKERS)),
)
def test_any_tree_survives_or_is_refused_whole(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], name: str
) -> None:
    place = tmp_path_factory.mktemp("tree")
    archive = MAKERS[name](place / name, contents)
    clash = len({inner.casefold() for inner in contents}) < len(contents) or any(
        other.casefold().startswith(inner.casefold() + "/") for inner in contents for other in contents
    )
    if clash:
        with pytest.raises(DataError):
            unpack(archive, place / "data")
        assert not (place / "data").exists()
    else:
        unpack(archive, place / "data")
        assert tree(place / "data") == contents


@pytest.mark.parametrize(
    "inner", ["../x", "a/../../x", "/etc/x", "//x", "..", "C:/x", "C:x", "a\\..\\x", "\\\\host\\x"]
)
def test_names_that_lead_outside_are_refused(inner: str, tmp_path: Path, folder: Path) -> None:
    """fault 41; a tar may give the name in an extended header."""
    for name in ("a.zip", "a.tar", "a.tar.gz"):
        archive = MAKERS[name](tmp_path / name, {"good.txt": b"good", inner: b"bad"})
        refused(archive, folder, "relative path|leaves the folder")
    with tarfile.open(tmp_path / "pax.tar", "w", format=tarfile.PAX_FORMAT) as opened:
        member = tarfile.TarInfo("harmless")
        member.pax_headers = {"path": inner}
        opened.addfile(member)
    refused(tmp_path / "pax.tar", folder, "relative path|leaves the folder")


def test_links_and_devices_are_refused(tmp_path: Path, folder: Path) -> None:
    """fault 41; with nothing written through a link, even if a file behind it follows."""
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
    for kind in kinds:
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as opened:
            add_member(opened, "good.txt", b"good")
            add_member(opened, "odd", kind=kind, link=str(tmp_path))
            add_member(opened, "odd/x", b"bad")
        refused(tmp_path / "a.tar.gz", folder, "'odd' is a link or a device")
    for mode in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            entry = zipfile.ZipInfo("odd")
            entry.create_system, entry.external_attr = 3, (mode | 0o777) << 16
            archive.writestr(entry, "/etc/passwd")
        refused(tmp_path / "a.zip", folder, "'odd' is a link or a device")


@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("x", "X"), ("x", "x/y"), ("x/y", "x")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_clash_are_refused(names: tuple[str, str], tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as opened, tarfile.open(tmp_path / "a.tar", "w") as opened_tar:
        for name in names:
            opened.writestr(name, b"data")
            add_member(opened_tar, name, b"data")
    for kind in ("zip", "tar"):
        refused(tmp_path / f"a.{kind}", folder, "two entries|inside another entry")


def test_bombs_are_refused(tmp_path: Path, folder: Path) -> None:
    """fault 41: more than 500-fold, in every kind, and in a zip whose table of contents claims 10 bytes."""
    limits, zeros = Limits(ratio=500, ratio_from=100_000), bytes(4_000_000)
    for name in ("a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz"):
        refused(MAKERS[name](tmp_path / name, {"zeros": zeros}), folder, "expands more than 500 times", limits)
    for suffix, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        single = tmp_path / f"zeros.{suffix}"
        single.write_bytes(compress(zeros))
        refused(single, folder, "expands more than 500 times", limits)
    lying = bytearray((tmp_path / "a.zip").read_bytes())
    entry = lying.index(b"PK\x01\x02")
    lying[entry + 24 : entry + 28] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(lying)
    refused(tmp_path / "a.zip", folder, "damaged|expands", limits)


def test_the_total_and_the_number_of_entries_are_limited(tmp_path: Path, folder: Path) -> None:
    """fault 41."""
    many = {f"f{i}": b"x" for i in range(30)}
    for name in MAKERS:
        refused(MAKERS[name](tmp_path / name, many), folder, "more than 20 entries", Limits(entries=20))
    for name in MAKERS:
        big = MAKERS[name](tmp_path / name, {"a": b"ab" * 50_000, "b": b"cd" * 50_000})
        refused(big, folder, "beyond 150,000 bytes", Limits(total_bytes=150_000))


def test_a_tar_header_cannot_ask_for_memory_or_for_holes(tmp_path: Path, folder: Path) -> None:
    """fault 41: an extended header of 20 MB, which the reader would take whole, and a member of 8 GB of holes."""
    archive = tmp_path / "a.tar.gz"
    with gzip.open(archive, "wb") as stream:
        header = tarfile.TarInfo("pax")
        header.type, header.size = tarfile.XHDTYPE, 20_000_000
        stream.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(20_000_000))
    refused(archive, folder, "asks for .* bytes of memory")
    header = tarfile.TarInfo("holes")
    header.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.map": "0,0", "GNU.sparse.size": str(8 * 10**9)}
    archive.write_bytes(header.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    refused(archive, folder, "expands more than", Limits(ratio_from=10_000_000))


@pytest.mark.parametrize("name", MAKERS)
def test_a_truncated_archive_is_named(name: str, tmp_path: Path, folder: Path) -> None:
    """fault 40; a tar cut between two entries, which the standard library takes for whole, too."""
    noise = random.Random(0).randbytes(59_904)  # 117 blocks of a tar
    archive = MAKERS[name](tmp_path / name, {"a": noise, "b": noise[::-1]})
    whole = archive.read_bytes()
    for length in (len(whole) * 9 // 10, len(whole) // 2, len(whole) // 10, 512 + len(noise)):
        archive.write_bytes(whole[:length])
        refused(archive, folder, "truncated")


def test_check_compressed_reads_to_the_end(tmp_path: Path) -> None:
    """fault 40: a compressed data file that is kept as it is."""
    path = tmp_path / "trn.json.gz"
    whole = gzip.compress(b"row\n" * 100_000)
    path.write_bytes(whole)
    check_compressed(path)
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="truncated"):
        check_compressed(path)
    path.write_bytes(whole[:-8] + b"\0\0\0\0" + whole[-4:])
    with pytest.raises(DataError, match="damaged"):
        check_compressed(path)
