"""Debian packages: parsing of apt metadata, and the dataset built from a frozen copy of it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.data import prepare
from harness.data.card import DatasetCard
from harness.data.ragged import Texts
from harness.data.sources import apt, debian
from harness.errors import DataError, MissingDataError, UserError
from tests.support.fake_apt import NEXT, OLD, RELEASE, FakeApt, listed, stanza


def ring(size: int = 60) -> str:
    """Every package depends on the next two, so both splits have rows."""
    return "\n".join(
        stanza(
            f"pkg-{i}", f"pkg-{(i + 1) % size} (>= 1), pkg-{(i + 2) % size}", f"number {i}", Description_md5=f"{i:032x}"
        )
        for i in range(size)
    )


def card(name: str = "small", text: str = "title") -> DatasetCard:
    return DatasetCard.model_validate({"name": name, "title": name, "summary": "", "source": "debian", "text": text})


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b"libc6 (>= 2.34), libfoo1", ["libc6", "libfoo1"]),
        (b"lpr | rlpr|cups-client (<< 2)", ["lpr", "rlpr", "cups-client"]),
        (b"python3:any (>= 3.9~), libstdc++6:amd64", ["python3", "libstdc++6"]),
        (b"a,\n b,\n c (= 1:2.0-1+b1)", ["a", "b", "c"]),
        (b"", []),
    ],
)
def test_relation_fields_name_every_alternative(field: bytes, expected: list[str]) -> None:
    assert debian.named_packages(field) == expected


def test_packages_of_an_index() -> None:
    """fault 44: CRLF, invalid UTF-8, NUL, a body in the index itself; of one name the first architecture, listed first.

    All five relations count and no other; stanzas without name or description do not.
    """
    fields = {"Pre_Depends": "b", "Recommends": "c", "Suggests": "d", "Enhances": "e", "Breaks": "f", "Conflicts": "g"}
    stanzas = [
        stanza("b", summary="foreign", architecture="i386"),
        stanza("b", "a", summary="native", architecture="amd64", **fields),
        stanza("b", summary="listed later", architecture="amd64"),
        "Package: bare\nVersion: 1\n",
        "Version: 2\nDescription: nameless\n",
        "Package: Bad Name\nDescription: x\n",
    ]
    odd = b"Package: odd\r\nDescription: caf\xe9 \0 bar\r\n first line\r\n .\r\n second\r\nHomepage: none\r\n\r\n"
    native, strange = debian.parse_packages("\n".join(stanzas).encode() + b"\n" + odd)
    assert (native.name, native.summary, native.names) == ("b", "native", ["a", "b", "c", "d", "e"])
    assert (strange.name, strange.summary, strange.body) == ("odd", "caf\ufffd \0 bar", "first line second")
    with pytest.raises(DataError, match="no package with a description"):
        debian.package_links([])


def test_virtual_and_frequent_names_are_no_labels() -> None:
    dump = "\n".join(stanza(f"p{i}", "libc6, mail-transport-agent, p0") for i in range(3)) + "\n" + stanza("libc6")
    packages = debian.parse_packages(dump.encode())
    links, counts = debian.package_links(packages)
    assert counts["relations_to_no_package"] == 3
    # three of four packages are more than one percent
    assert counts["labels_too_frequent"] == ["libc6", "p0"]
    assert len(links.source) == 0


@pytest.fixture
def lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 1 % rule is lifted: in a ring of 60 every package is named by two others."""
    monkeypatch.setattr(debian, "MAXIMAL_SHARE", 1.0)


def test_dataset_of_a_fake_index(monkeypatch: pytest.MonkeyPatch, lifted: None) -> None:
    """Also faults 45, 46 and 48."""
    monkeypatch.setattr(apt, "run", FakeApt(ring()))
    folder, manifest = prepare.prepare(card())
    figures = manifest["statistics"]
    assert figures["train"] + figures["test"] <= 60
    empty = ("train_rows_without_labels", "test_rows_without_labels", "labels_without_train_rows")
    assert [figures[name] for name in empty] == [0, 0, 0]
    assert figures["test_filter_pairs"] > 0
    versions = manifest["provenance"]["versions"]
    assert versions["Debian bookworm main amd64"] == "12.15"
    assert manifest["fingerprint"]["packages"].startswith(versions["package index"])
    texts = Texts.load(folder, "train.text")[:]
    assert texts == sorted(texts, key=lambda text: text.partition(":")[0])
    assert all(text.startswith("pkg-") and ": number " in text for text in texts)


def test_same_index_same_digest_under_any_name_and_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lifted: None
) -> None:
    """fault 53; the order of the stanzas in the index does not matter either."""
    digests = []
    changed = ring().replace("number 7", "number 8")
    for place, dump in {"a": ring(), "b": "\n\n".join(ring().split("\n\n")[::-1]), "c": changed}.items():
        monkeypatch.setenv("HARNESS_HOME", str(tmp_path / place))
        monkeypatch.setattr(apt, "run", FakeApt(dump))
        digests.append(prepare.prepare(card(name=f"set-{place}"))[1]["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_the_index_is_frozen_until_its_copy_is_removed(
    monkeypatch: pytest.MonkeyPatch, workspace: Path, lifted: None
) -> None:
    fake = FakeApt("\n")
    monkeypatch.setattr(apt, "run", fake)
    with pytest.raises(MissingDataError, match="run `apt-get update`"):  # an empty list is not kept
        prepare.prepare(card())
    fake.dump = ring()
    before = prepare.prepare(card())[1]["digest"]
    moved = FakeApt(ring(70))
    monkeypatch.setattr(apt, "run", moved)
    assert prepare.prepare(card())[1]["digest"] == before
    assert moved.calls == []
    shutil.rmtree(workspace / "data" / "debian-release")
    assert prepare.prepare(card())[1]["digest"] != before


def test_long_text_comes_from_the_fetched_translation(
    monkeypatch: pytest.MonkeyPatch, workspace: Path, lifted: None
) -> None:
    """Without a network it says what works; nothing of apt's own folders stays, whose file names would name hosts."""
    monkeypatch.setattr(apt, "run", FakeApt(ring(), None, update_works=False))
    with pytest.raises(MissingDataError, match=r"`lf-debiantitles` needs no download.*no network"):
        prepare.prepare(card(text="title+content"))
    assert not (workspace / "data/debian-release/descriptions").exists()
    translation = "\n\n".join(
        f"Package: pkg-{i}\nDescription-md5: {i:032x}\nDescription-en: number {i}\n All about {i}." for i in range(59)
    )
    fake = FakeApt(ring(), translation)
    monkeypatch.setattr(apt, "run", fake)
    folder, manifest = prepare.prepare(card(text="title+content"))
    assert manifest["provenance"]["packages_without_long_text"] == 1
    texts = [text for split in ("train", "test") for text in Texts.load(folder, f"{split}.text")]
    assert "pkg-3: number 3 All about 3." in texts
    assert all("All about" not in text for text in Texts.load(folder, "labels.text"))
    assert fake.calls.count("update") == 1
    assert not list(workspace.rglob("lists"))


UPDATES = "Debian Debian oldstable-updates bookworm-updates main amd64 12-updates"
SECURITY = "Debian-Security Debian oldstable-security bookworm-security main amd64 12"
NOBLE = "Ubuntu Ubuntu noble noble main amd64 24.04"


@pytest.mark.parametrize(
    ("lists", "codename", "chosen"),
    [
        ([RELEASE, UPDATES, SECURITY], "bookworm", [0]),
        ([NEXT, RELEASE, RELEASE.replace("main", "non-free")], "bookworm", [1]),
        ([NEXT, "n n nodistro nodistro main amd64 -"], "bookworm", [0]),
        ([NEXT, RELEASE], "", [0]),  # one release, never two
        ([NOBLE.replace("main", "universe"), NOBLE, NOBLE.replace("noble", "noble-updates", 1)], "noble", [1, 0]),
        ([OLD, OLD.replace("Debian", "Debian-Security", 1)], "buster", [0]),
        (["Debian Debian unstable sid main amd64 -", "Debian Debian rc-buggy experimental main amd64 -"], "sid", [0]),
        ([RELEASE, RELEASE.replace("amd64", "i386"), RELEASE], "bookworm", [0]),  # a foreign one and a second mirror
        ([SECURITY, "- - - - - - -"], "bookworm", []),
    ],
)
def test_only_the_release_counts(lists: list[str], codename: str, chosen: list[int]) -> None:
    """Lists that change by the day, other archives and other components would move the data under its figures."""
    indexes = [apt.read_index(listed(str(place), line)) for place, line in enumerate(lists)]
    found = apt.release_indexes(indexes, codename, "amd64")
    assert found == [indexes[place] for place in chosen]
    assert all("$" not in "".join(one) for one in indexes)


def test_a_machine_without_apt_or_with_a_failing_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"needs a Debian system.*lf-pydocstitles"):
        prepare.prepare(card())
    program = tmp_path / "apt-get"
    program.write_text("#!/bin/sh\necho 'W: noise' >&2\necho 'E: lists are broken' >&2\nexit 100\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match="apt-get indextargets failed: E: lists are broken"):
        prepare.prepare(card())


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="needs apt")
def test_real_metadata_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two million bytes of what apt holds here."""
    run = apt.run

    def some(*arguments: Any) -> bytes:
        found = run(*arguments)
        return found[: found.rfind(b"\n\n", 0, 2_000_000)] if "cat-file" in arguments else found

    monkeypatch.setattr(apt, "run", some)
    try:
        manifest = apt.package_list(tmp_path, "packages", debian.FIELDS)
    except MissingDataError:
        pytest.skip("apt has no package list of a release")
    dump = (tmp_path / "packages" / apt.PACKAGES).read_bytes()
    names = {line.removeprefix("Package: ") for line in dump.decode().split("\n") if line.startswith("Package: ")}
    packages = debian.parse_packages(dump)
    assert {package.name for package in packages} == names
    assert sum(len(package.names) for package in packages) > len(packages)
    assert all("-" not in name.split()[1] for name in manifest["releases"])
