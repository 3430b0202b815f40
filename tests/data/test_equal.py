"""Equal texts: hashes of rows, over blocks of any size, against comparing every pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.equal import RowScan, equal_rows, first_equals, fold, repeated_rows, row_hashes, scan_rows
from harness.data.ragged import Texts

few_words = st.lists(
    st.sampled_from(
        [
            "",
            " ",
            "\u3000",
            "a\x1cb",
            "a",
            "b",
            "AB",
            "ab",
            "ba ",
            "aab",
            "a  B",
            "é",
            "É",
            "a\u00a0b",
            "ß",
            "SS",
            "\0",
            "b" * 40,
        ]
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(left=few_words, right=few_words)
def test_equal_rows_differ_in_case_and_blanks_at_most(left: list[str], right: list[str]) -> None:
    ours, theirs = Texts.from_strings(left), Texts.from_strings(right)
    scan, other = scan_rows(ours), scan_rows(theirs)
    assert scan.solid.tolist() == [bool(text.strip()) for text in left]
    assert scan.nul.tolist() == ["\0" in text for text in left]
    left, right = [fold(text) for text in left], [fold(text) for text in right]
    i, j = equal_rows(ours, scan, theirs, other)
    assert j.tolist() == [row for row, text in enumerate(right) if text and text in left]
    assert i.tolist() == [left.index(right[row]) for row in j]
    first, later = repeated_rows(ours, scan)
    assert later.tolist() == [row for row, text in enumerate(left) if text and left.index(text) < row]
    assert first.tolist() == [left.index(left[row]) for row in later]


def test_rows_whose_hashes_collide_are_compared() -> None:
    texts = Texts.from_strings(["same", "else", "same", "longer"])
    always = np.ones(4, np.bool_)
    collided = RowScan(np.zeros(4, np.uint64), always, ~always)
    first, later = repeated_rows(texts, collided)
    assert (first.tolist(), later.tolist()) == ([0], [2])


words = st.lists(st.text("aAbB \t\n\x1d\0éÉß\u00a0", max_size=9), max_size=25)


@settings(max_examples=150, deadline=None)
@given(texts=words, block=st.integers(1, 40), before=st.binary(max_size=3))
def test_hashes_are_equal_where_texts_are_whatever_the_block(texts: list[str], block: int, before: bytes) -> None:
    column = Texts.from_strings(texts)
    column = Texts(np.concatenate([np.frombuffer(before, np.uint8), column.values]), column.offsets + len(before))
    plain = [fold(text) for text in texts]
    found = row_hashes(column, block)
    assert found.dtype == np.uint64
    assert [found[i] == found[j] for i in range(len(texts)) for j in range(i)] == [
        plain[i] == plain[j] for i in range(len(texts)) for j in range(i)
    ]
    assert np.array_equal(found, row_hashes(column))
    assert (found == 0).tolist() == [not text for text in plain]


def test_a_text_longer_than_a_block_is_one_text() -> None:
    long = "a bc " * 60_000
    column = Texts.from_strings([long, long.replace(" ", "  ").upper(), long + "x", "", long])
    assert first_equals(column).tolist() == [0, 0, 2, 3, 0]


@pytest.mark.parametrize("texts", [[], [""], ["a", "b"]])
def test_a_text_that_is_met_once_is_its_own_first_row(texts: list[str]) -> None:
    assert first_equals(Texts.from_strings(texts)).tolist() == list(range(len(texts)))
