"""Files of the Extreme Classification Repository, in both layouts, good and bad, through `harness.data.load`."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import load
from harness.errors import DataError, MissingDataError, UserError
from tests.faults.accounts import Account
from tests.support.repository_files import (
    EXPECTED,
    LABELS,
    NAMES,
    TEST,
    TRAIN,
    dense,
    good,
    json_lines,
    write_card,
    write_json_layout,
    write_text_layout,
)


def test_json_layout_titles(tmp_path) -> None:
    """faults 44, 45 and 48: odd texts, rows without labels and an empty filter file are accepted and counted."""
    dataset = load(write_json_layout(tmp_path / "mine"))
    assert list(dataset.train_text) == ["one", "two", ""]
    assert list(dataset.test_text) == ["four ", "five"]
    assert list(dataset.label_text) == NAMES
    assert list(dataset.label_id) == ["L0", "L1", "L2", "L3"]
    assert dense(dataset) == EXPECTED
    assert dataset.train.indices.dtype == np.int32
    provenance = dataset.metadata["provenance"]
    assert provenance["layout"] == "json"
    assert provenance["filter_files"] == ["filter_labels_train.txt", "filter_labels_test.txt"]
    assert set(provenance["files"]) == {path.name for path in (tmp_path / "mine").iterdir()}
    odd = ["lbl.json.gz: 1 empty texts", "trn.json.gz: 1 empty texts", "trn.json.gz: 1 rows without labels"]
    assert provenance["warnings"] == odd


def test_the_text_layout_holds_the_same_data(tmp_path) -> None:
    dataset = load(write_text_layout(tmp_path / "mine"))
    texts = [list(getattr(dataset, name)) for name in ("train_text", "test_text", "label_text")]
    assert texts == [["one", "two", ""], ["four", "five"], NAMES]
    assert list(dataset.label_id) == ["0", "1", "2", "3"]
    assert [dense(dataset)[name] for name in ("train", "test")] == [EXPECTED[name] for name in ("train", "test")]
    assert dataset.metadata["provenance"]["filter_files"] == []


@pytest.mark.parametrize("inner", ["", "LF-Mine-4", "raw", "raw_data", "LF-Mine-4/RAW", "LF-Mine-4/raw_data"])
def test_files_are_found_where_archives_unpack_them(tmp_path, inner) -> None:
    folder = write_json_layout(tmp_path / "mine" / inner)
    (folder / "trn.json.gz").rename(folder / "TRN.JSON.GZ")
    assert dense(load(tmp_path / "mine")) == EXPECTED


def test_label_names_stand_in_for_a_label_file(tmp_path) -> None:
    """LF-Wikipedia-500K is published with `Yf.txt` instead of `lbl.json.gz`."""
    folder = write_json_layout(tmp_path)
    (folder / "lbl.json.gz").unlink()
    (folder / "Yf.txt").write_text("0->Living people\r\n1->A->B\n2->Caf\u00e9s\u2028x\n3->\n", encoding="utf-8")
    dataset = load(folder)
    assert list(dataset.label_text) == ["Living people", "A->B", "Caf\u00e9s\u2028x", ""]
    assert list(dataset.label_id) == ["0", "1", "2", "3"]
    assert dense(dataset) == EXPECTED
    (folder / "Yf.txt").write_text("0->x\n1 y\n2->z\n")
    with pytest.raises(DataError, match=r"Yf\.txt:2: expected number->name"):
        load(folder)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"uid": "x", "target_ind": [0]}, "no `title`"),
        ({"uid": ["x"], "title": "t", "target_ind": [0]}, "`uid` must be a string or a whole number, not a list"),
        ({"uid": True, "title": "t", "target_ind": [0]}, "`uid` must be a string or a whole number, not true or false"),
        ({"uid": 1.5, "title": "t", "target_ind": [0]}, "`uid` must be a string or a whole number, not 1.5"),
        ({"uid": "x", "titles": "t", "target_ind": [0]}, "there is `titles`: rename it"),
        ({"uid": "x", "title": "t", "target_ind": [0]}, "no `target_rel`"),
        ({"uid": "x", "title": "t", "target_ind": [2**63]}, "out of range"),
        ({"uid": "x", "title": "t", "target_ind": [0, 1], "target_rel": [1]}, "2 labels in `target_ind` but 1 values"),
        ({"uid": "x", "title": "t", "target_ind": [0], "target_rel": ["1"]}, '`target_rel` holds "1"'),
        ({"uid": "x", "title": "t", "target_ind": [0], "target_rel": [-1]}, "cannot be negative"),
        (b'{"uid": "x", "title": "caf\xe9", "target_ind": [0]}', "not UTF-8 text"),
        (b'{"uid": "x", "title": "\x00", "target_ind": [0]}', "not valid JSON"),
        (b'{"uid": "x"} {"uid": "y"}', "not valid JSON"),
        (b"", "an empty line"),
    ],
)
def test_a_faulty_row_is_named_with_its_line(tmp_path, second, message) -> None:
    """faults 43, 44 and 51; faults that JSON of any dataset can have are in test_jsonl.py."""
    line = second if isinstance(second, bytes) else json.dumps(second).encode()
    lines = [json.dumps(good(1)).encode(), line, json.dumps(good(3)).encode()]
    folder = write_json_layout(tmp_path / "mine", trn=b"\n".join(lines))
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load(folder)
    assert (caught.value.path, caught.value.line) == (folder / "trn.json.gz", 2)


def test_a_late_fault_keeps_its_line_number(tmp_path) -> None:
    """fault 51, beyond the first chunk; the empty line is noticed although it ends a chunk."""
    rows = [{**good(number), "title": "word " * 40} for number in range(5_500)]
    text = json_lines(rows)
    folder = write_json_layout(tmp_path / "mine", trn=text)
    assert len(text) > 1 << 20
    write_json_layout(folder, trn=text[: 1 << 20] + text[1 << 20 :].replace("\n", "\n" * (1 << 20), 1))
    with pytest.raises(DataError, match="an empty line between JSON objects"):
        load(folder)


def test_labels_have_the_fields_that_the_card_names(home) -> None:
    """The papers embed titles alone in some full-text sets; the digest follows the texts."""
    found = {}
    for recipe in ("title", "title+content", None):
        name = f"mine-{len(found)}"
        write_card(home, name, text="title+content", label_text=recipe)
        write_json_layout(home / "data" / name)
        dataset = load(name)
        found[recipe] = (list(dataset.label_text), list(dataset.train_text), dataset.metadata["digest"])
    labels, rows, digest = found["title"]
    assert labels == NAMES
    assert rows == found[None][1] == ["one first", "two", "third"]
    assert found["title+content"] == found[None]
    assert found[None][0][0] == "café about café"
    assert digest != found[None][2]


@pytest.mark.parametrize(
    ("title", "text"),
    [
        (rb"a \ud800 b", "a \ufffd b"),
        (rb"a \uDC00\ud83d b", "a \ufffd\ufffd b"),
        (rb"a \ud83d\ude00 b", "a \U0001f600 b"),
        (rb"a \\ud800 b", r"a \ud800 b"),
        (b"a \xed\xa0\x80 b", "a \ufffd b"),
    ],
)
def test_half_a_character_is_replaced_and_counted(tmp_path, title: bytes, text: str) -> None:
    """Files of crawled text have lone surrogates, as escapes or as bytes; one of them must not cost the dataset."""
    line = b'{"uid": "x", "title": "' + title + b'", "target_ind": [0], "target_rel": [1]}'
    folder = write_json_layout(
        tmp_path / "mine", trn=b"\n".join([line, line.replace(b"x", b"y", 1), json.dumps(good(1)).encode()])
    )
    dataset = load(folder)
    assert list(dataset.train_text)[:2] == [text, text]
    counted = [said for said in dataset.metadata["provenance"]["warnings"] if "half a character" in said]
    assert len(counted) == ("\ufffd" in text)
    assert all("2 rows with half a character" in said and "line 1)" in said for said in counted)


def test_ids_that_half_a_character_tells_apart_stay_two(tmp_path) -> None:
    lines = [b'{"uid": "x\\ud800", "title": "a"}', b'{"uid": "x\\udc00", "title": "b"}', b'{"uid": "x", "title": "c"}']
    dataset = load(write_json_layout(tmp_path / "mine", lbl=b"\n".join([*lines, b'{"uid": "y", "title": "d"}'])))
    assert list(dataset.label_id) == ["x\ufffd", "x\ufffd (line 2)", "x", "y"]


def test_rows_without_a_uid_or_with_that_of_another_are_counted(tmp_path) -> None:
    """Rows are known by their place; the ids of labels are made unique, because predictions name them."""
    rows = [{**good(0), "uid": "x"}, {**good(1), "uid": "x"}, {key: good(2)[key] for key in good(2) if key != "uid"}]
    labels = [{"title": "a"}, {"uid": "b", "title": "b"}, {"uid": "b", "title": "c"}, {"uid": "line 1", "title": "d"}]
    dataset = load(write_json_layout(tmp_path / "mine", trn=rows, lbl=labels))
    assert len(dataset.train_text) == 3
    assert list(dataset.label_id) == ["line 1'", "b", "b (line 3)", "line 1"]
    assert list(dataset.label_text) == ["a", "b", "c", "d"]
    said = "\n".join(dataset.metadata["provenance"]["warnings"])
    for part in (
        *("trn.json.gz: 1 rows without `uid` (first: line 3)", "lbl.json.gz: 1 rows without `uid` (first: line 1)"),
        *(f"{name}.json.gz: 1 rows with the `uid` of an earlier one" for name in ("trn", "lbl")),
    ):
        assert part in said


def test_text_and_label_counts_that_differ(tmp_path, account: Account) -> None:
    """fault 42: either may be the longer one, in train, in test and in the label texts."""
    cases = [
        ("trn_X", "one\ntwo\n", "trn_X_Y.txt:1: 3 rows here, but trn_X.txt has 2 lines"),
        ("trn_X", "one\ntwo\n\nfour", "trn_X_Y.txt:1: 3 rows here, but trn_X.txt has 4 lines"),
        ("tst_X_Y", "1 4\n3:1\n", "tst_X_Y.txt:1: 1 rows here, but tst_X.txt has 2 lines"),
        ("Y", "a\nb\nc\nd\ne\n", "trn_X_Y.txt:1: 4 labels here, but Y.txt has 5 lines"),
        ("tst_X_Y", "2 5\n3:1\n4:1\n", "tst_X_Y.txt:1: 5 labels here, but Y.txt has 4 lines"),
    ]
    for name, text, message in cases:
        folder = write_text_layout(tmp_path / "mine", **{name: text})
        with pytest.raises(DataError) as caught:
            load(folder)
        assert str(caught.value) == f"{folder}/{message}"
    account.did(f"a line too few or too many in texts, label rows and label texts, {len(cases)} ways")
    account.saw(f"{len(cases)} of {len(cases)} refused with both counts: {message}")


LINES = st.text("ab \t\x0b\x1c\x85\u00e9\u00a0\u2028\u05e9\u202e\ufeff\U0001f642", max_size=8)


@settings(max_examples=12, deadline=None)
@given(st.lists(LINES, min_size=3, max_size=9))
def test_any_text_comes_back(tmp_path_factory, texts) -> None:
    """fault 44: emoji, right-to-left, separators that are no newline."""
    home, count = tmp_path_factory.mktemp("home"), len(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        body = b"\xef\xbb\xbf" + "".join(f"{text}\n" for text in texts).encode()
        plain = load(write_text_layout(home / "plain", trn_X=body, trn_X_Y=f"{count} 4\n" + "\n" * count))
        rows = [{"uid": number, "title": text, "target_ind": []} for number, text in enumerate(texts)]
        parsed = load(write_json_layout(home / "json", trn=rows))
    assert list(plain.train_text) == texts
    assert list(parsed.train_text) == texts


def test_missing_data_says_what_to_place_where(home) -> None:
    """In one screen: sizes, files, folder, links, commands, and what works without."""
    links = [{"url": "https://example.org/mine.zip", "filename": "mine.zip", "contains": "raw text"}]
    write_card(home, "lf-mine", statistics={"train": 294805}, downloads=links, obtain="Download it\nfrom the page.")
    raw = home / "data" / "lf-mine"
    with pytest.raises(MissingDataError) as caught:
        load("lf-mine")
    assert not raw.exists()
    message = str(caught.value)
    parts = ["LF-MINE", "294,805", str(raw), "trn_X_Y.txt", "lbl.json.gz", "trn.json.gz", "filter_labels_train.txt"]
    parts += ["from the page.", "https://example.org/mine.zip", "data fetch lf-mine", "data check lf-mine"]
    assert [part for part in (*parts, "lf-pydocstitles", "lf-debiantitles") if part not in message] == []
    assert len(message.splitlines()) <= 24
    write_json_layout(raw / "Inner")
    (raw / "Inner" / "trn.json.gz").unlink()
    with pytest.raises(MissingDataError, match=r"far: filter_labels_test\.txt, filter_labels_train\.txt, lbl\.json"):
        load("lf-mine")


def test_digest_depends_on_the_data_and_not_on_the_name(home, tmp_path, account: Account) -> None:
    """fault 53."""
    first = load(write_json_layout(tmp_path / "first"))
    write_card(home, "lf-named", propensity={"a": 0.6, "b": 2.6})
    write_json_layout(home / "data" / "lf-named" / "Inner")
    assert load("lf-named").digest == first.digest
    assert load("lf-named").folder != first.folder
    changes = [
        {"trn": [{**TRAIN[0], "title": "onE"}, *TRAIN[1:]]},
        {"trn": [{**TRAIN[0], "target_ind": [2, 1]}, *TRAIN[1:]]},
        {"tst": [TEST[1], TEST[0]]},
        {"lbl": [{**LABELS[0], "uid": "other"}, *LABELS[1:]]},
    ]
    folders = [write_json_layout(tmp_path / f"changed{place}", **change) for place, change in enumerate(changes)]
    folders.append(write_json_layout(tmp_path / "filtered"))
    (folders[-1] / "filter_labels_test.txt").write_text("0 0\n")
    others = {load(folder).digest for folder in folders} - {first.digest}
    assert len(others) == len(folders)
    account.did(f"one dataset under two names and folders, and {len(folders)} copies with one byte or pair changed")
    account.saw(f"digest {first.digest[:8]} under both names; {len(others)} other digests for the {len(folders)}")


def test_an_unchanged_folder_is_not_parsed_again(tmp_path) -> None:
    folder = write_json_layout(tmp_path / "mine")
    prepared = load(folder).folder
    written = prepared.stat().st_mtime_ns
    assert load(folder).folder == prepared
    assert prepared.stat().st_mtime_ns == written
    write_json_layout(folder, trn=[{**TRAIN[0], "title": "other"}, *TRAIN[1:]])
    assert load(folder).train_text[0] == "other"


WORDS = b'{ } [ ] , : null 0 -1 1.5 "uid": "title": "target_ind": "target_rel": "x" \xff \0'.split()
WHOLE = [b"\n", json.dumps(good(1)).encode() + b"\n", json.dumps(good(2)).encode()]
SOUP = st.one_of(st.binary(max_size=40), st.lists(st.sampled_from(WORDS + WHOLE), max_size=14).map(b"".join))


@settings(max_examples=40, deadline=None)
@given(SOUP, st.sampled_from(["trn", "lbl"]))
def test_random_bytes_never_raise_anything_but_a_user_error(tmp_path_factory, soup, name) -> None:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        try:
            dataset = load(write_json_layout(home / "mine", **{name: soup}), use_filter=False)
        except UserError:
            return
        assert len(dataset.train_text) == dataset.train.shape[0]
        assert all(a <= b for a, b in itertools.pairwise(dataset.train.indptr))
