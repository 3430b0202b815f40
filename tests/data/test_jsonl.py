"""A user's folder of JSON lines: read, refused at the right line, and imported whole or not at all."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import load
from harness.data.card import load_card
from harness.data.sources.jsonl import import_folder
from harness.errors import DataError, UserError
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.repository_files import json_lines, write_jsonl

LABELS = [{"id": "red", "text": "the colour red"}, {"id": 7, "text": "seven"}, {"id": "café", "text": ""}]
TRAIN = [
    {"id": "t0", "text": "apples", "labels": ["red", "7"]},
    {"text": "nothing", "labels": []},
    {"id": 2, "text": "", "labels": ["café", 7, 7]},
]
TEST = [{"id": "t0", "text": "cherries", "labels": ["red"]}]
FILTER = [
    {"split": "train", "id": "2", "label": "red"},
    {"split": "test", "id": "t0", "label": 7},
    {"split": "test", "id": "t0", "label": "7"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "mine", labels=LABELS, train=TRAIN, test=TEST)


def test_a_folder_is_read(folder) -> None:
    """faults 43, 44 and 45: a repeated label is kept once; odd rows are counted."""
    dataset = load(write_jsonl(folder, filter=FILTER))
    assert list(dataset.train_text) == ["apples", "nothing", ""]
    assert list(dataset.test_text) == ["cherries"]
    assert list(dataset.label_text) == ["the colour red", "seven", ""]
    assert list(dataset.label_id) == ["red", "7", "café"]
    assert dataset.train.toarray().tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 1]]
    assert dataset.test.toarray().tolist() == [[1, 0, 0]]
    assert dataset.train_filter.toarray().tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert dataset.test_filter.toarray().tolist() == [[0, 1, 0]]
    assert dataset.card.propensity is None
    provenance = dataset.metadata["provenance"]
    assert provenance["filter_files"] == ["filter.jsonl"]
    assert provenance["warnings"] == [
        "labels.jsonl: 1 empty texts",
        "train.jsonl: 1 empty train texts",
        "train.jsonl: 1 labels repeated within a train row, kept once",
        "train.jsonl: 1 train rows without labels",
    ]


def test_the_digest_follows_the_data(folder, tmp_path) -> None:
    """faults 44 and 53: not the name, nor gzip, a byte order mark and the ends of lines."""
    digest = load(folder).digest
    import_folder(folder, "renamed", propensity=(0.6, 2.6))
    assert load("renamed").digest == digest
    changed = write_jsonl(tmp_path / "changed", labels=LABELS, train=TRAIN, test=[{**TEST[0], "text": "cherrieS"}])
    assert load(changed).digest != digest
    (tmp_path / "packed").mkdir()
    for path in folder.iterdir():
        data = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        (tmp_path / "packed" / f"{path.name}.gz").write_bytes(gzip.compress(data))
    assert load(tmp_path / "packed").digest == digest


ROW = {"text": "x", "labels": ["red"]}


@pytest.mark.parametrize(
    ("name", "rows", "line", "message"),
    [
        ("train", [ROW, {"labels": ["red"]}], 2, "no `text`"),
        ("train", [ROW, {"text": "x", "label": ["red"]}], 2, "there is `label`: rename it"),
        ("train", [{"text": None, "labels": []}], 1, "`text` must be a string, not null"),
        ("train", [ROW, {"text": "x", "labels": "red"}], 2, "`labels` must be a list, not a string"),
        ("train", [ROW, {"text": "x", "labels": [True]}], 2, "`labels` holds true"),
        ("test", [ROW, {"text": "x", "labels": ["rod"]}], 2, "did you mean 'red'?"),
        ("test", [{**ROW, "id": 1}, ROW, {**ROW, "id": "1"}], 3, "row id '1' appears in this file already"),
        ("test", [{**ROW, "id": []}], 1, "`id` must be a string or a whole number, not a list"),
        (
            "test",
            b'{"id": 36893488147419103232, "text": "x", "labels": []}',
            1,
            "or a whole number, not 3.68934881474191",
        ),
        ("train", b'{"text": "\\ud800", "labels": ' + b"[" * 300 + b"]" * 300 + b"}", 1, "`labels` holds a list"),
        ("train", b'{"text": "\\ud800", "id": [["\\ud800"]], "labels": []}', 1, "whole number, not a list"),
        ("labels", [*LABELS, {"id": "7", "text": "again"}], 4, "label id '7' appears in this file already"),
        ("labels", [{"text": "x"}], 1, "no `id`"),
        ("labels", ["red"], 1, "expected one JSON object per line, found a string"),
        ("filter", [FILTER[0], {**FILTER[0], "split": "dev"}], 2, "`split` is 'dev'"),
        ("filter", [{**FILTER[0], "id": "tt0"}], 1, "the id 'tt0'; did you mean 't0'?"),
        ("filter", [{**FILTER[0], "label": "nope"}], 1, "label id 'nope' is not in labels.jsonl"),
        ("train", b'{"text": "x", "labels": []}\n{"text": \n', 2, "not valid JSON"),
        ("train", b'{"text": "x", "labels": []}\n{"text": "\xe9", "labels": []}\n', 2, "not UTF-8"),
        ("train", b"<!DOCTYPE html><html><title>Quota exceeded</title></html>", 1, "a web page instead of data"),
    ],
)
def test_a_fault_is_named_with_its_file_and_line(folder, name, rows, line, message) -> None:
    """faults 40, 43, 44, 48 and 51."""
    write_jsonl(folder, **{name: rows})
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load(folder)
    assert (caught.value.path, caught.value.line) == (folder / f"{name}.jsonl", line)


def test_half_a_character_in_a_text_is_replaced_and_counted(folder) -> None:
    rows = b'{"id": "i", "text": "a \\ud83d", "labels": ["red"]}\n{"text": "b", "labels": [7]}\n'
    write_jsonl(folder, train=rows)
    dataset = load(folder)
    assert list(dataset.train_text) == ["a \ufffd", "b"]
    said = "train.jsonl: 1 rows with half a character (a lone surrogate), now U+FFFD (first: line 1)"
    assert said in dataset.metadata["provenance"]["warnings"]


@pytest.mark.parametrize(
    ("name", "line", "key"),
    [
        ("labels", rb'{"id": "red\udc01", "text": "x"}', "id"),
        ("labels", b'{"id": "red\xed\xb0\x81", "text": "x"}', "id"),
        ("train", rb'{"id": "t\udc01", "text": "x", "labels": []}', "id"),
        ("train", rb'{"text": "x", "labels": ["red", "cut\udc01"]}', "labels"),
        ("test", rb'{"text": "x", "labels": ["cut\udc01"]}', "labels"),
        ("filter", rb'{"split": "train", "id": "t\udc01", "label": "red"}', "id"),
        ("filter", rb'{"split": "train", "id": "t0", "label": "cut\udc01"}', "label"),
    ],
)
def test_half_a_character_in_an_id_is_refused_at_its_line(folder, name: str, line: bytes, key: str) -> None:
    """fault 51: replaced like that of a text, it would make one id of two; an id may have U+FFFD itself."""
    files = {"labels": [*LABELS, {"id": "cut\ufffd", "text": "cut"}], "train": TRAIN, "test": TEST, "filter": FILTER}
    good = {kind: json_lines(rows).encode() for kind, rows in files.items()}
    assert list(load(write_jsonl(folder, **good)).label_id)[-1] == "cut\ufffd"
    # in a second chunk, behind lines whose texts were mended
    mended = b'{"id": "%d", "labels": [], "text": "\\ud800 ' + b"x" * 700_000 + b'"}\n'
    lines = b"" if name == "filter" else mended % 100 + mended % 101
    lines += good[name] + line
    with pytest.raises(DataError, match=f"`{key}` has half a character") as caught:
        load(write_jsonl(folder, **{name: lines}))
    assert (caught.value.path, caught.value.line) == (folder / f"{name}.jsonl", len(lines.split(b"\n")))


def test_a_fault_behind_many_good_lines(folder, account: Account) -> None:
    """fault 51: the lines of later chunks are counted as well as those of the first."""
    rows = [{"id": number, "text": "word " * 40, "labels": [7]} for number in range(5_500)]
    faults = {
        "no `labels` in this row": {"text": "x"},
        "`text` must be a string, not a whole number": {"text": 5, "labels": []},
        "row id '17' appears in this file already": {"id": "17", "text": "x", "labels": []},
    }
    for message, fault in faults.items():
        with pytest.raises(DataError, match=re.escape(message)) as caught:
            load(write_jsonl(folder, train=[*rows, fault, *rows[:1]]))
        assert (caught.value.path, caught.value.line) == (folder / "train.jsonl", 5_501)
    account.did(f"one bad row behind 5,500 good ones: {'; '.join(faults)}")
    account.saw(f"{len(faults)} of {len(faults)} refused at train.jsonl:5501")


def test_import_makes_a_dataset_with_measured_figures(folder, home) -> None:
    """fault 52: no propensity unless given."""
    card = import_folder(folder, "mine", title="My: data # no. 1")
    assert (card.statistics.train, card.statistics.test, card.statistics.labels) == (3, 1, 3)
    assert card.statistics.labels_per_row == pytest.approx(4 / 3, abs=1e-4)
    assert card.statistics.words_per_row == pytest.approx(2 / 3, abs=1e-4)
    assert card.statistics.words_per_label == pytest.approx(4 / 3, abs=1e-4)
    assert card.propensity is None
    assert card.filter == "optional"
    assert load_card("mine") == card
    assert {path.name for path in (home / "data" / "mine").iterdir()} == {"labels.jsonl", "train.jsonl", "test.jsonl"}
    assert card.pin is not None
    assert str(folder) not in (home / "cards" / "mine.yaml").read_text()
    before = set((home / "cache" / "datasets").glob("mine-*"))
    assert load("mine").digest == card.pin.digest
    assert set((home / "cache" / "datasets").glob("mine-*")) == before, "what the import prepared is used again"


def test_averages_near_nothing_are_in_the_card(folder) -> None:
    """Three words and one pair over thirty thousand labels; none at all is no figure of a card."""
    labels = [*LABELS[:1], *({"id": number, "text": ""} for number in range(30_000))]
    write_jsonl(folder, labels=labels, train=TRAIN[1:2] * 3 + [{"text": " ", "labels": ["red"]}])
    figures = import_folder(folder, "sparse").statistics
    assert figures.words_per_label == pytest.approx(3 / 30_001, rel=1e-4)
    assert figures.rows_per_label == pytest.approx(1 / 30_001, rel=1e-4)
    assert call("data", "check", "sparse") == 0
    write_jsonl(folder, labels=labels[1:], train=[{"text": "", "labels": []}], test=TRAIN[1:2])
    figures = import_folder(folder, "bare").statistics
    assert (figures.words_per_row, figures.words_per_label, figures.labels_per_row) == (None, None, None)


def leftovers(home: Path) -> list[str]:
    """Everything in the workspace but locks and the cache."""
    paths = [path for part in ("data", "cards") for path in (home / part).rglob("*") if path.suffix != ".lock"]
    return sorted(str(path.relative_to(home)) for path in paths)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_at_any_step_leaves_all_as_it_was(folder, home, monkeypatch, overwrite) -> None:
    if overwrite:
        import_folder(folder, "mine")
        write_jsonl(folder, test=[{"text": "changed", "labels": []}])
    before = leftovers(home)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_jsonl(folder, train=[{"text": "x", "labels": ["unknown"]}])
    with pytest.raises(DataError, match=r"mine/train\.jsonl:1: "):
        import_folder(folder, "mine", overwrite=overwrite)
    assert leftovers(home) == before
    write_jsonl(folder, train=TRAIN)
    for step in ("harness.data.sources.jsonl.write_text", "shutil.copy2"):
        with monkeypatch.context() as patch:
            patch.setattr(step, full)
            with pytest.raises(UserError, match="No space left"):
                import_folder(folder, "mine", overwrite=overwrite)
        assert leftovers(home) == before
    if overwrite:
        assert load("mine").test_text[0] == "cherries"


def test_a_taken_name_is_refused_unless_overwritten(folder, home) -> None:
    import_folder(folder, "mine")
    write_jsonl(folder, train=[{"text": "other", "labels": ["red"]}])
    with pytest.raises(UserError, match="there is a dataset mine already"):
        import_folder(folder, "mine")
    assert load("mine").train.shape[0] == 3
    assert import_folder(folder, "mine", overwrite=True) == load_card("mine")
    assert list(load("mine").train_text) == ["other"]
    before = leftovers(home)
    with pytest.raises(UserError, match="cannot be used"):  # fault 70; other names in test_cards.py
        import_folder(folder, "../x")
    assert leftovers(home) == before


def test_drawn_test_rows_depend_on_their_text_alone(tmp_path) -> None:
    """fault 47: rows of equal text are never parted."""
    rows = [{"id": n, "text": f"text {n % 150}", "labels": [("red", 7)[n % 2]]} for n in range(300)]
    pairs = [{"split": "train", "id": n, "label": "café"} for n in range(0, 300, 7)]
    folder = write_jsonl(tmp_path / "mine", labels=LABELS, train=rows, filter=pairs)
    import_folder(folder, "forward", test_fraction=0.3)
    import_folder(write_jsonl(tmp_path / "back", labels=LABELS, train=rows[::-1]), "backward", test_fraction=0.3)
    forward, backward = load("forward"), load("backward")
    assert set(forward.test_text) == set(backward.test_text)
    assert not set(forward.test_text) & set(forward.train_text)
    assert 40 < len(forward.test_text) < 140
    assert len(forward.train_text) + len(forward.test_text) == 300
    seen = 0
    for texts, labels, masked in (
        (forward.train_text, forward.train, forward.train_filter),
        (forward.test_text, forward.test, forward.test_filter),
    ):
        own = [row for row in rows if row["text"] in set(texts)]
        assert [row["text"] for row in own] == list(texts)
        assert labels.toarray().tolist() == [[row["labels"] == ["red"], row["labels"] == [7], False] for row in own]
        assert masked.toarray()[:, 2].tolist() == [row["id"] % 7 == 0 for row in own]
        seen += int(masked.nnz)
    assert seen == len(pairs)


def test_no_drawn_test_row_has_a_train_text_but_for_case_accents_and_blanks(tmp_path) -> None:
    """fault 47: the tokenisers make one text of them."""
    forms = ["cafe {}", "Café {}", " cafe\u0301\t{}", "CA\u00adFE  {} "]
    rows = [{"text": form.format(n), "labels": ["red"]} for form in forms for n in range(50)]
    card = import_folder(write_jsonl(tmp_path / "mine", labels=LABELS, train=rows), "mine", test_fraction=0.4)
    assert card.notes == []
    train, test = ({text.split()[-1] for text in texts} for texts in (load("mine").train_text, load("mine").test_text))
    assert not train & test
    assert len(train | test) == 50
    assert len(test) > 5


def test_test_texts_that_stand_in_train_are_in_the_card(folder, home, capsys, account: Account) -> None:
    """fault 47: and said at once, whatever the case; blank texts are no copies of one another."""
    test = [{"text": text, "labels": ["red"]} for text in ("new", "nothing", "", "apples", "Apples", "apples")]
    assert call("data", "import", str(write_jsonl(folder, test=test)), "--name", "mine") == 0
    note = "4 of 6 test texts also stand in train (first: test row 1 equals train row 1, counted from 0)"
    assert f"warning: {note}\n" in capsys.readouterr().err
    assert load_card("mine").notes == [note]
    assert note in " ".join((home / "cards" / "mine.yaml").read_text().split())
    assert import_folder(write_jsonl(folder, test=TEST), "clean").notes == []
    account.did("imported a folder of which 4 of 6 test texts are train texts, and one that has none")
    account.saw(f"the one card's note: {note}")


def test_a_senseless_test_fraction_is_refused(folder, tmp_path) -> None:
    with pytest.raises(UserError, match=r"test\.jsonl holds the test rows already"):
        import_folder(folder, "mine", test_fraction=0.2)
    (folder / "test.jsonl").unlink()
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="between 0 and 1"):
            import_folder(folder, "mine", test_fraction=fraction)
    with pytest.raises(DataError, match="there are no test rows"):
        import_folder(folder, "mine", test_fraction=1e-9)
    with pytest.raises(UserError, match="is not a folder"):
        import_folder(tmp_path / "absent", "mine")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**65), st.floats(), st.sampled_from(["red", "7", "t0", ""]), st.just([7])
)
OBJECTS = st.dictionaries(st.sampled_from(["id", "text", "labels", "split", "label"]), VALUES, max_size=5)
SOUP = st.one_of(
    st.binary(max_size=40), st.lists(OBJECTS, max_size=4).map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
)


@settings(max_examples=30, deadline=None)
@given(SOUP, st.sampled_from(["train", "test", "labels", "filter"]))
def test_random_files_never_raise_anything_but_a_user_error(tmp_path_factory, soup, name) -> None:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        folder = write_jsonl(home / "mine", **{"labels": LABELS, "train": TRAIN, "test": TEST, name: soup})
        try:
            dataset = load(folder)
        except UserError:
            return
        assert dataset.train.shape == (len(dataset.train_text), len(dataset.label_text))
