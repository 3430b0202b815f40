"""Docstrings and their See Also sections: grammar, names, resolution, and the dataset built from them."""

import re
import sys
from pathlib import Path

import pytest

from harness.data import prepare
from harness.data.card import DatasetCard
from harness.data.ragged import Texts
from harness.data.sources import pydocs
from harness.data.sources.pydocs import Names, Node, plain_text, split_docstring, summary_line
from harness.errors import UserError


def doc_with(*entries: str, underline: str = "--------") -> str:
    return "\n".join(["Summary.", "", "See Also", underline, *entries, "", "Notes", "-----", "A note."])


@pytest.fixture(autouse=True)
def more_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydocs, "LIBRARIES", (*pydocs.LIBRARIES, "fakelib", "plainlib", "no_such_library"))


def card(library: str, name: str = "small", text: str = "title") -> DatasetCard:
    values = {"name": name, "title": name, "summary": "", "source": "pydocs", "text": text}
    return DatasetCard.model_validate({**values, "options": {"libraries": library}})


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["func_a : Function a.", "func_b"], ["func_a", "func_b"]),
        (
            ["func_a, func_b, pkg.func_c : Several.", "    with a, b : a description"],
            ["func_a", "func_b", "pkg.func_c"],
        ),
        ([":func:`func_a`", ":py:meth:`~pkg.Cls.run` : Role.", "`quoted`,"], ["func_a", "pkg.Cls.run", "quoted"]),
        ([":class:`a title <pkg.Cls>`", "call()"], ["pkg.Cls", "call"]),
        (["* bullet_a", "- bullet_b : text"], ["bullet_a", "bullet_b"]),
        (["The tutorial explains more.", "https://example.org : a link", "[1] a footnote"], []),
        (["name_a", "name_a : again", "ends_with_stop."], ["name_a", "ends_with_stop"]),
        (["", "after_a_blank_line :", "    description"], ["after_a_blank_line"]),
    ],
)
def test_see_also_grammar(entries: list[str], expected: list[str]) -> None:
    names, rest = split_docstring(doc_with(*entries))
    assert names == expected
    assert rest.split() == ["Summary.", "Notes", "A", "note."]


def test_plain_text_is_one_line_without_examples_markup_or_answers() -> None:
    doc = (
        "add(x1, x2, /, out=None)\n\nAdd `x1` to :class:`~pkg.Two`.\n\n"
        ".. note::\n    See `lib.other.add` or np.sum() [1]_.\n\n>>> add(1, 2)\n3\n>>> random()\n0.123\n\nEnd of lib.\n"
    )
    assert plain_text(doc, ["lib"]) == "Add x1 to pkg.Two. See or . End of lib."


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("Sort an array. Refer to `lib.sort` for more.\n\nBody.", "Sort an array"),
        ("svd(a, b)\n\nSingular Value\nDecomposition.\n\nBody", "Singular Value Decomposition"),
        ("Use e.g. Newton steps. More", "Use e.g. Newton steps"),
        ("See Also\n--------\nother", ""),
        ("  \n ", ""),
    ],
)
def test_summary_is_the_first_sentence(doc: str, expected: str) -> None:
    assert summary_line(doc, ["lib"]) == expected


def library() -> list[Node]:
    """lib, lib.sub and lib.sub.deep; classes Base (never public), Child(Base), Accessor at Child.acc."""
    return [
        Node("module", "lib", "lib", members={"f": 3, "Child": 5}),
        Node("module", "lib", "lib.sub", members={"f": 4, "g": 7, "Child": 5, "alias": 3}),
        Node("module", "lib", "lib.sub.deep", members={"h": 8, "g": 7}),
        Node("leaf", "lib", "lib", "top f"),
        Node("leaf", "lib", "lib.sub", "sub f"),
        Node("class", "lib", "lib.sub.deep", "Child", {"run": 10, "acc": 9}, [6]),
        Node("class", "lib", "lib._private", "Base", {"run": 11, "stop": 12}),
        Node("leaf", "lib", "lib.sub.deep", "g"),
        Node("leaf", "lib", "lib.sub.deep", "h"),
        Node("class", "lib", "lib._private", "Accessor", {"cat": 13}),
        Node("leaf", "lib", "lib.sub", "Child.run"),
        Node("leaf", "lib", "lib._private", "Base.run"),
        Node("leaf", "lib", "lib._private", "Base.stop"),
        Node("leaf", "lib", "lib._private", "cat"),
    ]


def test_canonical_names() -> None:
    names = Names(library())
    assert names.items == {
        3: "lib.f",
        4: "lib.sub.f",
        5: "lib.Child",
        7: "lib.sub.g",
        8: "lib.sub.deep.h",
        9: "lib.Child.acc",
        10: "lib.Child.run",
        # inherited from a class nobody can reach, so named after the one that inherits
        12: "lib.Child.stop",
        13: "lib.Child.acc.cat",
    }


@pytest.mark.parametrize(
    ("reference", "place", "expected"),
    [
        ("f", 7, "lib.sub.f"),
        ("f", 5, "lib.sub.f"),
        ("lib.f", 7, "lib.f"),
        ("alias", 7, "lib.f"),
        ("stop", 10, "lib.Child.stop"),
        ("Child.stop", 8, "lib.Child.stop"),
        ("run", 5, "lib.Child.run"),
        ("acc.cat", 12, "lib.Child.acc.cat"),
        ("cat", 3, "lib.Child.acc.cat"),
        ("deep.h", 3, "lib.sub.deep.h"),
        ("nowhere", 3, None),
        ("f", 4, "lib.f"),
        ("g", 7, "lib.sub.g"),
    ],
)
def test_references_are_read_from_the_nearest_place(reference: str, place: int, expected: str | None) -> None:
    assert Names(library()).resolve(reference, place) == expected


def test_same_last_name_and_docstring_is_one_item() -> None:
    nodes = [
        Node("module", "lib", "lib", members={"rand": 2, "State": 1}),
        Node("class", "lib", "lib", "State", {"rand": 3, "seed": 4}),
        Node("leaf", "lib", None, "Random values."),
        Node("leaf", "lib", None, "Random values."),
        Node("leaf", "lib", None, "Random values."),
    ]
    assert Names(nodes).items == {1: "lib.State", 2: "lib.rand", 3: "lib.rand", 4: "lib.State.seed"}


ROOT = '''
"""A library for tests."""
import functools
from fakelib.inner import Shape, f0, f1, f2, f3
from fakelib.inner import f3 as alias_of_f3
print("noise on standard output")
DATA = {"a": 1}
lazy_asked = []
def __getattr__(name):
    if name == "lazy":
        lazy_asked.append(name)
        raise RuntimeError("imported lazily")
    raise AttributeError(name)
def wrapped(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper
f4 = wrapped(f3)
'''

INNER = '''
class _Hidden:
    def area(self):
        """Area of a shape.

        See Also
        --------
        Shape.width, fakelib.f0 : Two.
        """
class Shape(_Hidden):
    """A shape.

    See Also
    --------
    area
    """
    @property
    def width(self):
        """Width of a shape.

        See Also
        --------
        area
        missing_thing
        """
    @classmethod
    def build(cls):
        """Build a shape.

        See Also
        --------
        Shape.build, Shape
        """
'''


@pytest.fixture
def fakelib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose functions f0 to f39 point at the next two, and what else a walk meets."""
    folder = tmp_path / "site" / "fakelib"
    (folder / "tests").mkdir(parents=True)
    functions = "\n".join(
        f'def f{i}():\n    """Function number {i}.\n\n    See Also\n    --------\n'
        f'    f{(i + 1) % 40} : next\n    fakelib.inner.f{(i + 2) % 40}\n    """'
        for i in range(40)
    )
    (folder / "__init__.py").write_text(ROOT)
    (folder / "inner.py").write_text(functions + INNER)
    (folder / "broken.py").write_text("raise SystemExit(3)")
    (folder / "_private.py").write_text("raise AssertionError('a private module was imported')")
    (folder / "conftest.py").write_text("raise AssertionError('a test module was imported')")
    (folder / "tests" / "__init__.py").write_text("raise AssertionError('a test package was imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_dataset_of_a_fake_library(fakelib: Path) -> None:
    """Also faults 45, 46 and 48: every row has a label, every label a train row, filter pairs are built."""
    nodes, failed = pydocs.walk(["fakelib"])
    assert failed == ["fakelib.broken"]
    links, _, counts = pydocs.documents(nodes)
    pairs = {(links.names[a], links.names[b]) for a, b in zip(links.source, links.target, strict=True)}
    assert ("fakelib.f0", "fakelib.f1") in pairs
    assert ("fakelib.f2", "fakelib.f3") in pairs
    assert ("fakelib.f3", "fakelib.inner.f4") in pairs
    assert {pair for pair in pairs if "Shape" in pair[0]} == {
        ("fakelib.Shape", "fakelib.Shape.area"),
        ("fakelib.Shape.area", "fakelib.Shape.width"),
        ("fakelib.Shape.area", "fakelib.f0"),
        ("fakelib.Shape.width", "fakelib.Shape.area"),
        ("fakelib.Shape.build", "fakelib.Shape"),
    }
    assert counts == {"objects": 44, "references": 40 * 2 + 7, "references_dropped": 1, "references_to_itself": 1}

    folder, manifest = prepare.prepare(card("fakelib"))
    figures = manifest["statistics"]
    assert figures["train_rows_without_labels"] == figures["test_rows_without_labels"] == 0
    assert figures["labels_without_train_rows"] == 0
    assert figures["test_filter_pairs"] > 0
    assert manifest["provenance"]["versions"]["fakelib"] == "unknown"
    texts = [*Texts.load(folder, "train.text"), *Texts.load(folder, "test.text")]
    assert "fakelib inner f4: Function number 4" in texts
    assert not any("next" in text or "See Also" in text for text in texts)


def test_the_environment_of_the_caller_does_not_matter(
    fakelib: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 53: same digest under another name, in another folder, with another hash seed."""
    (fakelib / "inner.py").write_text(
        (fakelib / "inner.py").read_text() + '\nf5.__doc__ = f"{set(map(str, range(9)))}\\n" + f5.__doc__\n'
    )
    first = prepare.prepare(card("fakelib"))[1]["digest"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "numpy.py").write_text("raise AssertionError('the working folder was imported from')")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    second = prepare.prepare(card("fakelib", name="other", text="title"))[1]["digest"]
    assert first == second
    assert prepare.prepare(card("fakelib", text="title+content"))[1]["digest"] != first


def test_a_real_library() -> None:
    """networkx: figures that hold together, no label's id in a text, no path of this machine."""
    folder, manifest = prepare.prepare(card("networkx", text="title+content"))
    assert manifest["statistics"]["train"] > 200
    assert manifest["statistics"]["labels_per_row"] > 1.5
    assert manifest["provenance"]["references_dropped"] < 0.05 * manifest["provenance"]["references"]
    texts = Texts.load(folder, "train.text")[:]
    assert not any(re.search(r"(?<![\w./])networkx\.[a-z]", text) for text in texts)
    assert str(Path(sys.prefix)) not in "".join(texts)


def test_a_card_cannot_have_other_modules_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 66: a card is data"""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="unknown documented library 'evil'"):
        prepare.prepare(card("evil"))
    assert not (tmp_path / "marker").exists()
