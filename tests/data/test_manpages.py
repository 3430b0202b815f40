"""Manual pages and their SEE ALSO sections: files, links, references, and the dataset built from packages."""

import gzip
from pathlib import Path

import pytest

from harness.data import prepare
from harness.data.card import DatasetCard
from harness.data.ragged import Texts
from harness.data.sources import apt, manpages
from harness.data.sources.apt import PackedFile
from harness.data.sources.manpages import Library, named_pages
from harness.errors import MissingDataError
from tests.support.fake_apt import FakeApt, packed, stanza

ROOT = "usr/share/man"


def page(name: str, also: str = "", purpose: str = "does a thing", body: str = "Text.") -> bytes:
    see = f".SH SEE ALSO\n{also}\n" if also else ""
    return f".TH {name} 1\n.SH NAME\n{name} \\- {purpose}\n.SH DESCRIPTION\n{body}\n{see}.SH BUGS\nNone.\n".encode()


def library_of(*packages: dict[str, bytes | PackedFile]) -> Library:
    """The pages of packages given as files by short path, such as man1/ls.1."""
    library = Library()
    for number, files in enumerate(packages):
        paths = {
            f"{ROOT}/{path}": file if isinstance(file, PackedFile) else PackedFile(file) for path, file in files.items()
        }
        library.add(f"package-{number}", paths)
    return library


def pairs_of(library: Library) -> set[tuple[str, str]]:
    links, _, _ = library.links()
    return {(links.names[a], links.names[b]) for a, b in zip(links.source, links.target, strict=True)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("printf(3), g++(1) and init.d (5).", [("printf", "3"), ("g++", "1"), ("init.d", "5")]),
        (
            "SSL_new(3ssl), lists(3erl), XtNew(3Xt), lsort(n)",
            [("SSL_new", "3ssl"), ("lists", "3erl"), ("XtNew", "3Xt"), ("lsort", "n")],
        ),
        ("File::Spec, File::Spec(3pm), perlfunc.", [("File::Spec", ""), ("File::Spec", "3pm"), ("perlfunc", "")]),
        ("[(1), test(1), twice(1), twice(1)", [("[", "1"), ("test", "1"), ("twice", "1")]),
        ("a function (see page 3) in 1999 (2nd), f(x), http://host/ls(1)", []),
        ("", []),
    ],
)
def test_references_in_a_text(text: str, expected: list[tuple[str, str]]) -> None:
    assert named_pages(text) == expected


def test_a_page_has_names_purpose_and_text() -> None:
    """The text is without NAME and SEE ALSO, and without ids of labels; only the title has what the page is called."""
    body = "Like\n.BR strcpy (3)\nbut \\fBsafe\\fP."
    (found,) = library_of({"man3/x.3": page("x, y(3)", ".BR z (1)", "copies", body)}).pages
    assert found.id == "x(3)"
    assert found.title == "x, y: copies"
    assert found.text == "Like but safe. None."
    assert found.references == [("z", "1")]


@pytest.mark.parametrize("name", ["x \\- copies", "x \\(em copies", "x -- copies", "x- copies", "x \u2013 copies"])
def test_dashes_of_a_title(name: str) -> None:
    (found,) = library_of({"man1/x.1": f".SH NAME\n{name}\n".encode()}).pages
    assert found.title == "x: copies"


def test_a_reference_means_the_nearest_page() -> None:
    """The own package first, the very section before a part of it; another section only within the package."""
    own = {
        "man1/start.1": page("start", "a(3), a(3ssl), b(3), c(n), d(3), d(1), e(7)"),
        "man3/a.3": page("a", purpose="exact"),
        "man3/a.3ssl": page("a", purpose="of a part"),
        "man3/b.3ssl": page("b", purpose="in the package"),
        "man3/c.3tcl": page("c", purpose="under another section"),
    }
    other = {
        "man3/b.3": page("b", purpose="elsewhere"),
        "man3/d.3x": page("d", purpose="only elsewhere"),
        "man1/e.1": page("e", purpose="another section elsewhere"),
    }
    last = {"man3/d.3": page("d", purpose="elsewhere, the very section")}
    library = library_of(own, other, last)
    assert {b for a, b in pairs_of(library)} == {"a(3)", "a(3ssl)", "b(3ssl)", "c(3tcl)", "d(3)"}
    assert library.counts["references"] == 7
    assert library.counts["references_dropped"] == 2  # d(1) and e(7)


def test_all_ways_to_one_page() -> None:
    """Links, `.so` pages with and without a folder, chains, and files of equal content are names, not pages."""
    files: dict[str, bytes | PackedFile] = {
        "man3/real.3.gz": gzip.compress(page("real")),
        "man3/linked.3.gz": PackedFile(b"", f"{ROOT}/man3/real.3.gz"),
        "man3/chained.3.gz": PackedFile(b"", f"{ROOT}/man3/linked.3.gz"),
        "man3/included.3.gz": gzip.compress(b'.\\" generated\n.so man3/chained.3\n'),
        "man3/beside.3": b".so real.3",
        "man3/equal.3": page("real"),
        "man3/into_nothing.3": PackedFile(b"", "etc/alternatives/page.3.gz"),
        "man3/round.3": PackedFile(b"", f"{ROOT}/man3/about.3"),
        "man3/about.3": b".so man3/round.3",
        "man3/outside.3": b".so ../../../../etc/passwd",
        "man1/start.1": page(
            "start", "linked(3), chained(3), included(3), beside(3), equal(3), round(3), into_nothing(3)"
        ),
    }
    library = library_of(files)
    assert [found.id for found in library.pages] == ["start(1)", "equal(3)"]
    assert pairs_of(library) == {("start(1)", "equal(3)")}
    assert library.counts["links_to_no_page"] == 4
    assert library.counts["files_of_equal_content"] == 1
    assert library.counts["references_dropped"] == 2


def test_bad_pages_are_counted_and_left_out() -> None:
    """fault 44"""
    latin = "caf\u00e9".encode("latin-1")
    library = library_of(
        {
            "man1/no_name.1": b".SH DESCRIPTION\nA page without a name.\n",
            "man1/no_word.1": b".SH NAME\n\\-\n",
            "man1/empty.1": b"",
            "man1/no_gzip.1.gz": b"#! not compressed",
            "man1/cut.1.gz": gzip.compress(page("cut", body="long " * 1000))[:60],
            "man1/bomb.1.gz": gzip.compress(b"0" * (5 << 20)),
            "man1/latin.1": page("latin", "latin(1)", "makes ").replace(b"makes ", b"makes " + latin),
            "man1/odd.1": b"\xef\xbb\xbf.SH NAME\nodd \0 \x07page \\- \xf0\x9f\x99\x82\n",
        }
    )
    assert [found.title for found in library.pages] == ["latin: makes caf\u00e9", "odd page: \U0001f642"]
    library.links()
    names = ("pages_without_name", "pages_unreadable", "pages_in_latin_1", "references_to_itself")
    assert [library.counts[name] for name in names] == [2, 4, 1, 1]


def test_pages_of_one_name_in_two_packages_are_two() -> None:
    library = library_of({"man1/x.1": page("x", purpose="first")}, {"man1/x.1": page("x", purpose="second")})
    assert [found.id for found in library.pages] == ["x(1)", "x(1) of package-1"]
    alike = library_of({f"man{i}/x.1": page("x", purpose=f"number {i}") for i in range(1, 5)})
    assert len({found.id for found in alike.pages}) == len(alike.pages) == 4


def card(name: str = "small", text: str = "title") -> DatasetCard:
    return DatasetCard.model_validate({"name": name, "title": name, "summary": "", "source": "manpages", "text": text})


def archive(prefix: str, size: int = 40) -> bytes:
    """Every page refers to the next two and the one before, to itself, and to a page that is not there."""
    files: dict[str, bytes | str] = {
        f"{ROOT}/man1/{prefix}{i}.1.gz": gzip.compress(
            page(
                f"{prefix}{i}",
                ", ".join(f"{prefix}{(i + step) % size}(1)" for step in (1, 2, -1, 0)) + ", absent(8)",
                f"number {i}",
                f"All about {prefix}{i}.",
            ),
            mtime=0,
        )
        for i in range(size)
    }
    files[f"{ROOT}/man1/nameless.1"] = b".SH DESCRIPTION\nNothing.\n"
    files[f"{ROOT}/man1/link-{prefix}.1"] = f"{prefix}1.1.gz"
    files[f"{ROOT}/de/man1/{prefix}1.1.gz"] = b"a translation"
    files["usr/share/doc/readme"] = b"no page"
    return packed(files, {f"{ROOT}/man1/hard-{prefix}.1.gz": f"{ROOT}/man1/{prefix}2.1.gz"})


@pytest.fixture
def few_packages(monkeypatch: pytest.MonkeyPatch) -> FakeApt:
    """Two packages of pages, and one that the release does not have."""
    monkeypatch.setattr(manpages, "PACKAGES", ("left", "right", "gone"))
    fake = FakeApt("\n".join([stanza("left"), stanza("right")]), packages={"left": archive("l"), "right": archive("r")})
    monkeypatch.setattr(apt, "run", fake)
    return fake


def test_dataset_of_fake_packages(few_packages: FakeApt) -> None:
    """Also faults 45, 46 and 48; what was left out is counted and said."""
    folder, manifest = prepare.prepare(card(text="title+content"))
    figures, provenance = manifest["statistics"], manifest["provenance"]
    empty = ("train_rows_without_labels", "test_rows_without_labels", "labels_without_train_rows")
    assert [figures[name] for name in empty] == [0, 0, 0]
    assert figures["train"] + figures["test"] <= 80
    assert figures["test_filter_pairs"] > 0
    assert provenance["mutual_test_pairs"] == 0
    assert provenance["items"] == 80
    assert provenance["packages"] == {"left": "1.0-1", "right": "1.0-1"}
    said = "\n".join(provenance["warnings"])
    # the page without NAME is one file in both packages, and read twice
    for line in (
        "without a NAME section, left out: 2",
        "name no page of these packages: 80",
        "lead back to their own page: 80",
        "does not have: gone",
    ):
        assert line in said
    texts = [text for split in ("train", "test") for text in Texts.load(folder, f"{split}.text")]
    assert "l3: number 3 All about l3. None." in texts
    assert not any("SEE ALSO" in text or "(1)" in text for text in texts)
    assert all("All about" not in text for text in Texts.load(folder, "labels.text"))


def test_same_packages_same_digest(few_packages: FakeApt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """fault 53: under any name and in any place; another page is other data."""
    digests = []
    for place, content in {"a": archive("l"), "b": archive("l"), "c": archive("l", 41)}.items():
        monkeypatch.setenv("HARNESS_HOME", str(tmp_path / place))
        few_packages.packages["left"] = content
        digests.append(prepare.prepare(card(f"set-{place}"))[1]["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_one_package_that_cannot_be_had_keeps_nothing(few_packages: FakeApt, workspace: Path) -> None:
    """A later attempt begins anew and succeeds; both cards share what was downloaded."""
    few_packages.unreachable = "right"
    with pytest.raises(MissingDataError, match=r"left=1.0-1 and 1 others failed, and nothing was kept.*404"):
        prepare.prepare(card())
    assert not [path for path in (workspace / "data").rglob("*") if path.is_file() and path.suffix != ".lock"]
    few_packages.unreachable = ""
    prepare.prepare(card())
    prepare.prepare(card("long", "title+content"))
    assert few_packages.calls.count("download") == 2
