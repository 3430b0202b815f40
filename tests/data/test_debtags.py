"""Tags of Debian packages: their grammar, the vocabulary, and the dataset built from a package index."""

from pathlib import Path

import pytest

from harness.data import prepare
from harness.data.card import DatasetCard
from harness.data.ragged import Texts
from harness.data.sources import apt, debtags
from harness.data.sources.debian import named_tags, parse_packages
from harness.errors import DataError
from tests.support.fake_apt import FakeApt, packed, stanza

VOCABULARY = """Facet: role
Status: draft
Description: Role
 Role performed by the package

Tag: role::program
Description: Program
 Executable computer program.

Tag: works-with::image:raster
Description: Raster  Image

Tag: role::empty
Description:

Nonsense
"""


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("use::editing, works-with::image:raster", ["use::editing", "works-with::image:raster"]),
        ("devel::lang:c++,\n made-of::html", ["devel::lang:c++", "made-of::html"]),
        ("works-with::{text, image}, use::viewing", ["works-with::text", "works-with::image", "use::viewing"]),
        ("use::editing, use::editing", ["use::editing"]),
        ("no tag, ::, use::, use::{}", []),
    ],
)
def test_tags_of_a_field(field: str, expected: list[str]) -> None:
    assert named_tags(field) == expected


def test_a_tag_is_called_as_its_facet_and_itself() -> None:
    assert debtags.parse_vocabulary(VOCABULARY.encode() + b"\nTag: odd::\xff\nDescription: caf\xe9\n") == {
        "role::program": "Role: Program",
        "works-with::image:raster": "works-with: Raster Image",
        "odd::\ufffd": "odd: caf\ufffd",
    }


def test_marks_of_unfinished_work_are_no_tags() -> None:
    tags = "role::program, role::TODO, devel::lang:TODO, special::not-yet-tagged"
    (package,) = parse_packages(stanza("one", Tag=tags).encode())
    assert debtags.real_tags(package) == ["role::program"]
    assert package.source == "one"


def spelt(number: int) -> str:
    """A number in letters: digits of a source's name do not count."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def index(size: int = 60) -> str:
    """Every source has two packages; tag number 3 is new in every third source, and half of the rest have none."""
    lines = []
    for i in range(size):
        tags = f"role::program, works-with::kind-{i % 3}" if i % 2 else ""
        for part in ("tool", "doc"):
            fields = {"Source": f"source-{spelt(i)}{i % 3} (1.0)"} | ({"Tag": tags} if tags else {})
            lines.append(stanza(f"{part}-{i}", summary=f"number {i}", **fields))
    return "\n".join(lines)


def fake(dump: str, vocabulary: str = VOCABULARY, **more: bool) -> FakeApt:
    packages = {"debtags": packed({"usr/share/debtags/vocabulary": vocabulary.encode()})} if vocabulary else {}
    return FakeApt("\n".join([dump, *(stanza(name) for name in packages)]), packages=packages, **more)


def card(name: str = "small", text: str = "title") -> DatasetCard:
    return DatasetCard.model_validate({"name": name, "title": name, "summary": "", "source": "debtags", "text": text})


def test_dataset_of_a_fake_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also faults 45, 46 and 48; packages of one source are on one side."""
    monkeypatch.setattr(apt, "run", fake(index()))
    folder, manifest = prepare.prepare(card())
    figures, provenance = manifest["statistics"], manifest["provenance"]
    empty = ("train_rows_without_labels", "test_rows_without_labels", "labels_without_train_rows")
    assert [figures[name] for name in empty] == [0, 0, 0]
    assert figures["test_filter_pairs"] == figures["train_filter_pairs"] == 0
    assert figures["train"] + figures["test"] == provenance["packages_with_tags"] == 60
    assert Texts.load(folder, "labels.id")[:] == ["role::program", *(f"works-with::kind-{i}" for i in range(3))]
    assert Texts.load(folder, "labels.text")[:] == ["Role: Program", *(f"works with: kind {i}" for i in range(3))]
    assert provenance["warnings"] == ["tags that the vocabulary does not describe: 3"]
    assert provenance["versions"]["debtags"] == "1.0-1"
    sides = {}
    for split in ("train", "test"):
        for text in Texts.load(folder, f"{split}.text"):
            assert sides.setdefault(text.partition(": ")[2], split) == split


def test_a_release_without_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "run", fake(index(), vocabulary=""))
    folder, manifest = prepare.prepare(card())
    assert Texts.load(folder, "labels.text")[0] == "role: program"
    assert manifest["provenance"]["tags_not_described"][0] == "role::program"


def test_a_release_without_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "run", fake(stanza("one")))
    with pytest.raises(DataError, match="0 packages with tags leave no train rows"):
        prepare.prepare(card())


def test_same_index_same_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """fault 53: the order of stanzas does not matter; other tags and another vocabulary do."""
    backwards = "\n\n".join(index().split("\n\n")[::-1])
    other_words = VOCABULARY.replace("Program", "Application")
    digests = []
    for place, source in {
        "a": fake(index()),
        "b": fake(backwards),
        "c": fake(index().replace("role::program", "role::plugin")),
        "d": fake(index(), other_words),
    }.items():
        monkeypatch.setenv("HARNESS_HOME", str(tmp_path / place))
        monkeypatch.setattr(apt, "run", source)
        digests.append(prepare.prepare(card(f"set-{place}"))[1]["digest"])
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
