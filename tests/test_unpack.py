"""Archives of every kind, well-formed and hostile, against `harness.data.obtain.unpack`."""

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

from harness.data.obtain.unpack import Limits, archive_kind, check_compressed, unpack
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


@pytest.mark.parametrize("name", MAKERS)
def test_the_name_of_an_archive_does_not_matter(name: str, tmp_path: Path, folder: Path) -> None:
    archive = MAKERS[name](tmp_path / "download", CONTENTS)
    assert archive_kind(archive) == ("zip" if name == "a.zip" else "tar")
    unpack(archive, folder)
    assert tree(folder) == CONTENTS


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_single_compressed_file(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path, folder: Path
) -> None:
    archive = tmp_path / f"lbl.json.{suffix}"
    archive.write_bytes(compress(b"labels\n" * 1000))
    assert archive_kind(archive) == "file"
    assert unpack(archive, folder) == [folder / "lbl.json"]
    assert tree(folder) == {"lbl.json": b"labels\n" * 1000}


def test_what_is_no_archive_is_named(tmp_path: Path, folder: Path) -> None:
    plain = tmp_path / "a.zip"
    plain.write_bytes(b"just text")
    refused(plain, folder, "not an archive")
    refused(tmp_path / "absent.zip", folder, "not an archive")


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


HOSTILE_NAMES = ["../x", "a/../../x", "/etc/x", "//x", "..", "C:/x", "C:x", "a\\..\\x", "\\\\host\\x"]


@pytest.mark.parametrize("inner", HOSTILE_NAMES)
@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_names_that_lead_outside_are_refused(name: str, inner: str, tmp_path: Path, folder: Path) -> None:
    """fault 41."""
    archive = MAKERS[name](tmp_path / name, {"good.txt": b"good", inner: b"bad"})
    refused(archive, folder, "relative path|leaves the folder")


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "good.txt"),
        (tarfile.LNKTYPE, "good.txt"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, link: str, tmp_path: Path, folder: Path) -> None:
    """fault 41."""
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        add_member(opened, "good.txt", b"good")
        add_member(opened, "odd", kind=kind, link=link)
    refused(archive, folder, "'odd' is a link or a device")


def test_writing_through_a_link_is_impossible(tmp_path: Path, folder: Path) -> None:
    """fault 41: a link to a folder outside, then a file through it."""
    (tmp_path / "victim").mkdir()
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as opened:
        add_member(opened, "way", kind=tarfile.SYMTYPE, link=str(tmp_path / "victim"))
        add_member(opened, "way/x", b"bad")
    refused(archive, folder, "link")
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(mode: int, tmp_path: Path, folder: Path) -> None:
    """fault 41."""
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        entry = zipfile.ZipInfo("odd")
        entry.create_system, entry.external_attr = 3, (mode | 0o777) << 16
        opened.writestr(entry, "/etc/passwd")
    refused(archive, folder, "'odd' is a link or a device")


def test_an_encrypted_zip_is_named(tmp_path: Path, folder: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"x": b"data"})
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    refused(archive, folder, "encrypted")


@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("x", "X"), ("x", "x/y"), ("x/y", "x")])
@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_clash_are_refused(kind: str, names: tuple[str, str], tmp_path: Path, folder: Path) -> None:
    archive = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for name in names:
                opened.writestr(name, b"data")
    else:
        with tarfile.open(archive, "w") as opened_tar:
            for name in names:
                add_member(opened_tar, name, b"data")
    refused(archive, folder, "two entries|inside another entry")


def test_bombs_are_refused(tmp_path: Path, folder: Path) -> None:
    """fault 41: far more than 1000-fold, in every kind, with the limits that hold by default scaled to a small file."""
    limits = Limits(ratio_from=1_000_000)
    zeros = {"zeros": bytes(30_000_000)}
    for name in ("a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz"):
        refused(MAKERS[name](tmp_path / name, zeros), folder, "expands more than 1,000 times", limits)
    for suffix, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        single = tmp_path / f"zeros.{suffix}"
        single.write_bytes(compress(zeros["zeros"]))
        refused(single, folder, "expands more than 1,000 times", limits)


def test_the_default_limits_refuse_a_10000_fold_bomb(tmp_path: Path, folder: Path) -> None:
    """fault 41: 110 MB of zeros from a file of a few hundred bytes."""
    archive = make_tar(tmp_path / "a.tar.bz2", {"zeros": bytes(110_000_000)}, "w:bz2")
    assert archive.stat().st_size * 10_000 < 110_000_000
    refused(archive, folder, "expands more than 1,000 times")


def test_a_zip_that_lies_about_its_sizes_is_caught(tmp_path: Path, folder: Path) -> None:
    """fault 41: a table of contents that claims 10 bytes for 30 million."""
    archive = make_zip(tmp_path / "a.zip", {"zeros": bytes(30_000_000)})
    data = bytearray(archive.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (10).to_bytes(4, "little")
    archive.write_bytes(data)
    refused(archive, folder, "damaged|expands")


def test_the_total_and_the_number_of_entries_are_limited(tmp_path: Path, folder: Path) -> None:
    """fault 41."""
    many = {f"f{i}": b"x" for i in range(30)}
    for name in MAKERS:
        refused(MAKERS[name](tmp_path / name, many), folder, "more than 20 entries", Limits(entries=20))
    for name in MAKERS:
        big = MAKERS[name](tmp_path / name, {"a": b"ab" * 50_000, "b": b"cd" * 50_000})
        refused(big, folder, "beyond 150,000 bytes", Limits(total_bytes=150_000))


def test_a_tar_header_cannot_ask_for_memory(tmp_path: Path, folder: Path) -> None:
    """fault 41: an extended header of 40 MB of zeros, which the reader would take into memory whole."""
    archive = tmp_path / "a.tar.gz"
    with gzip.open(archive, "wb") as stream:
        header = tarfile.TarInfo("pax")
        header.type, header.size = tarfile.XHDTYPE, 40_000_000
        stream.write(header.tobuf(tarfile.USTAR_FORMAT))
        stream.write(bytes(40_000_000))
    refused(archive, folder, "asks for .* bytes of memory")


def test_a_sparse_file_counts_what_it_would_write(tmp_path: Path, folder: Path) -> None:
    """fault 41: a member that claims 8 GB of holes."""
    archive = tmp_path / "a.tar"
    with archive.open("wb") as stream:
        header = tarfile.TarInfo("holes")
        header.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.map": "0,0", "GNU.sparse.size": str(8 * 10**9)}
        stream.write(header.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    refused(archive, folder, "expands more than", Limits(ratio_from=10_000_000))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_archive_is_named(name: str, share: float, tmp_path: Path, folder: Path) -> None:
    """fault 40."""
    noise = random.Random(0).randbytes(60_000)
    archive = MAKERS[name](tmp_path / name, {"a": noise, "b": noise[::-1]})
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * share)])
    refused(archive, folder, "truncated")


def test_a_tar_cut_between_two_entries_is_named(tmp_path: Path, folder: Path) -> None:
    """fault 40: the one cut that the standard library takes for a complete archive."""
    archive = make_tar(tmp_path / "a.tar", {"a": bytes(512), "b": bytes(512)})
    archive.write_bytes(archive.read_bytes()[:1024])
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["a"]
    refused(archive, folder, "truncated")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_a_flipped_bit_is_named(name: str, tmp_path: Path, folder: Path) -> None:
    noise = random.Random(0).randbytes(60_000)
    archive = MAKERS[name](tmp_path / name, {"a": noise})
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 8
    archive.write_bytes(data)
    refused(archive, folder, "damaged|truncated")


def test_files_that_are_there_are_not_overwritten(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "top.txt").write_text("mine")
    archive = make_zip(tmp_path / "a.zip", CONTENTS)
    refused(archive, folder, r"already has top\.txt")
    assert tree(folder) == {"top.txt": b"mine"}
    (folder / "top.txt").rename(folder / "other.txt")
    unpack(archive, folder)
    assert tree(folder) == {**CONTENTS, "other.txt": b"mine"}


def test_unpacked_files_are_plain(tmp_path: Path, folder: Path) -> None:
    """An archive cannot hand out execute, set-user-id or foreign permissions."""
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as opened:
        member = tarfile.TarInfo("tool")
        member.mode, member.uid, member.size = 0o6777, 12345, 1
        opened.addfile(member, io.BytesIO(b"x"))
    (file,) = unpack(archive, folder)
    assert file.stat().st_mode & 0o7111 == 0


def test_an_archive_without_files_is_named(tmp_path: Path, folder: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.mkdir("empty")
    refused(archive, folder, "holds no files")


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
