"""WordNet: its data files, the relations that count, and the dataset built from a package."""

import re
import shutil
from pathlib import Path

import pytest

from harness.data import prepare
from harness.data.card import DatasetCard
from harness.data.sources import apt, wordnet
from harness.errors import DataError, MissingDataError
from tests.support.fake_apt import FakeApt, packed, stanza

LICENCE = "  1 This software and database is being provided to you, the LICENSEE\n"


def line(place: int, words: str, gloss: str, *relations: str, kind: str = "n") -> str:
    """A synset as in a data file; a relation is a symbol and a place, `@ 12` or `+ 12 v`."""
    named = words.split()
    parts = [relation.split() for relation in relations]
    pointers = [f"{symbol} {int(to):08d} {part[0] if part else 'n'} 0000" for symbol, to, *part in parts]
    fields = [f"{place:08d} 03 {kind} {len(named):02x}", *(f"{word} 0" for word in named), f"{len(pointers):03d}"]
    return " ".join([*fields, *pointers]) + f" | {gloss}  \n"


def card(name: str = "small") -> DatasetCard:
    values = {"name": name, "title": name, "summary": "", "source": "wordnet"}
    return DatasetCard.model_validate(values)


def related_ids(*lines: str) -> set[tuple[str, str]]:
    synsets = sorted(wordnet.parse_synsets("".join(lines).encode(), "data.noun"))
    links, _ = wordnet.related(synsets)
    return {(links.names[a], links.names[b]) for a, b in zip(links.source, links.target, strict=True)}


def test_a_synset_is_its_words_and_definition() -> None:
    content = LICENCE + line(
        7, "hot_dog frank(a)", 'a sausage; in a bun; "two hot dogs, please"', "& 8 a", ";c 9", kind="s"
    )
    (synset,) = wordnet.parse_synsets(content.encode() + b"\n", "data.adj")
    assert synset.id == "a00000007"
    assert synset.words == ["hot dog", "frank"]
    assert synset.definition == "a sausage; in a bun"
    assert synset.relations == [("&", "a00000008"), (";c", "n00000009")]


@pytest.mark.parametrize(
    "bad",
    ["<html>sign in</html>", "00000001 03 n zz dog 0 000 | x", "00000001 03 n 01 dog 0 002 @ 00000002 n 0000 | x"],
)
def test_a_line_that_is_no_synset_is_named(bad: str) -> None:
    with pytest.raises(DataError, match="not a synset") as caught:
        wordnet.parse_synsets(f"{LICENCE}{bad}\n".encode(), "data.noun")
    assert (caught.value.path, caught.value.line) == ("data.noun", 2)


def test_relations_hold_both_ways_and_domains_do_not_count() -> None:
    assert related_ids(line(1, "a", "x", "! 2", ";c 3"), line(2, "b", "y"), line(3, "c", "z", "-c 1")) == {
        ("n00000001", "n00000002"),
        ("n00000002", "n00000001"),
    }


def test_sister_terms_are_not_joined() -> None:
    """They all have each other: those in train would tell the others of a test row."""
    pairs = related_ids(line(1, "top", "all"), line(2, "a", "kind", "@ 1"), line(3, "b", "kind", "@i 1"))
    assert ("n00000002", "n00000003") not in pairs
    assert len(pairs) == 4


def test_faulty_relations_are_counted() -> None:
    content = line(1, "a", "x", "& 1", "& 99") + line(2, "b", "y", "& 1")
    _, counts = wordnet.related(sorted(wordnet.parse_synsets(content.encode(), "data.noun")))
    assert counts["relations_to_itself"] == 1
    assert counts["relations_to_no_synset"] == 1


def package(families: int = 40) -> bytes:
    """Families of a superordinate and three kinds each."""
    lines = []
    for family in range(families):
        top = 10 * family
        lines.append(line(top, f"family_{family}", f"number {family}"))
        lines += [line(top + kind, f"w{family}_{kind}", f"kind {kind}", f"@ {top}") for kind in (1, 2, 3)]
    return packed(
        {"usr/share/wordnet/data.noun": (LICENCE + "".join(lines)).encode(), "usr/share/wordnet/index.noun": b"other"}
    )


def fake(content: bytes, unreachable: str = "") -> FakeApt:
    dump = "\n".join([stanza("wordnet-base"), stanza("other")])
    return FakeApt(dump, packages={"wordnet-base": content}, unreachable=unreachable)


def test_dataset_of_a_fake_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """faults 45, 46 and 48; of a train and a test synset one alone has the other as a label."""
    monkeypatch.setattr(apt, "run", fake(package()))
    folder, manifest = prepare.prepare(card())
    figures = manifest["statistics"]
    empty = ("train_rows_without_labels", "test_rows_without_labels", "labels_without_train_rows")
    assert [figures[name] for name in empty] == [0, 0, 0]
    assert manifest["provenance"]["mutual_test_pairs"] == 0
    assert manifest["provenance"]["versions"] == {"wordnet-base": "1.0-1"}
    data = prepare.opened(card(), folder, manifest, use_filter=True)
    assert "w3 1: kind 1" in [*data.train_text, *data.test_text]
    assert data.test.multiply(data.test_filter).nnz == 0


def test_same_package_same_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """fault 53: under any name, in any place, downloaded again; another version of the package is other data."""
    digests = []
    for place, content in {"a": package(), "b": package(), "c": package(41)}.items():
        monkeypatch.setenv("HARNESS_HOME", str(tmp_path / place))
        monkeypatch.setattr(apt, "run", fake(content))
        digests.append(prepare.prepare(card(f"set-{place}"))[1]["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_a_package_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    """Nothing is kept of a failed download, and the message says what to do; a later attempt succeeds."""
    monkeypatch.setattr(apt, "run", fake(package(), unreachable="wordnet-base"))
    with pytest.raises(MissingDataError, match=r"try again when the package archive can be reached.*404"):
        prepare.prepare(card())
    assert not [path for path in (workspace / "data").rglob("*") if path.is_file() and path.suffix != ".lock"]
    monkeypatch.setattr(apt, "run", FakeApt(stanza("other")))
    with pytest.raises(MissingDataError, match="has none of the packages wordnet-base"):
        prepare.prepare(card())
    monkeypatch.setattr(apt, "run", fake(package()))
    assert prepare.prepare(card())[1]["statistics"]["train"] > 0


@pytest.mark.parametrize("content", [b"no archive at all" * 99, packed({"usr/bin/wn": b""}), package()[:2000]])
def test_a_package_without_the_database(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "run", fake(content))
    with pytest.raises(DataError):
        prepare.prepare(card())


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg")
def test_a_real_deb(tmp_path: Path) -> None:
    """Files, links and hard links of a package that dpkg-deb made."""
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: small\n"
    )
    (tree / "usr/share").mkdir(parents=True)
    (tree / "usr/share/a").write_bytes(b"content")
    (tree / "usr/share/b").hardlink_to(tree / "usr/share/a")
    (tree / "usr/share/c").symlink_to("../share/a")
    (tree / "usr/share/d").symlink_to("/etc/a")
    apt.run("dpkg-deb", {}, "--root-owner-group", "--build", str(tree), str(tmp_path / "small.deb"))
    found = apt.packed_files(tmp_path / "small.deb", re.compile("usr/share/[a-d]"))
    assert found == {
        "usr/share/a": apt.PackedFile(b"content"),
        "usr/share/b": apt.PackedFile(b"content"),
        "usr/share/c": apt.PackedFile(b"", "usr/share/a"),
        "usr/share/d": apt.PackedFile(b"", "etc/a"),
    }
