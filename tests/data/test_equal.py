"""Equal texts: what BERT's own normaliser takes for one text, found by hashes, against comparing every pair."""

import sys
from collections import defaultdict
from time import process_time
from unicodedata import category, ucd_3_2_0

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer

from harness.data.equal import count_blank, equal_rows, first_equals, fold, repeated_rows, row_hashes
from harness.data.ragged import Texts

BERT = BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=True)

# single characters and pairs on whose meaning BERT and this package agree; one of two to four bytes each
LETTERS = "aAbB1.\0\x7f \t\n\u00a0\u3000éÉe\u0301\u00ad\u200b\ufeffñÑЖж漢\U0001d165\U0001f600"
texts_of_letters = st.lists(st.text(LETTERS, max_size=7), max_size=25)


def plain(text: str) -> str:
    """What BERT's tokeniser sees of a text before it looks for words."""
    return " ".join(BERT.normalize_str(text).split())


@settings(max_examples=150, deadline=None)
@given(texts=texts_of_letters, block=st.integers(1, 40), before=st.binary(max_size=3))
def test_hashes_are_equal_where_texts_are_whatever_the_block(texts: list[str], block: int, before: bytes) -> None:
    column = Texts.from_strings(texts)
    column = Texts(np.concatenate([np.frombuffer(before, np.uint8), column.values]), column.offsets + len(before))
    seen = [plain(text) for text in texts]
    found = row_hashes(column, block)
    assert [found[i] == found[j] for i in range(len(texts)) for j in range(i)] == [
        seen[i] == seen[j] for i in range(len(texts)) for j in range(i)
    ]
    assert np.array_equal(found, row_hashes(column))
    assert (found == 0).tolist() == [not text for text in seen]
    assert count_blank(texts) == seen.count("")


@settings(max_examples=80, deadline=None)
@given(left=texts_of_letters, right=texts_of_letters)
def test_pairs_of_equal_rows_are_found(left: list[str], right: list[str]) -> None:
    ours, theirs = Texts.from_strings(left), Texts.from_strings(right)
    left, right = [plain(text) for text in left], [plain(text) for text in right]
    i, j = equal_rows(ours, row_hashes(ours), theirs, row_hashes(theirs))
    assert j.tolist() == [row for row, text in enumerate(right) if text and text in left]
    assert i.tolist() == [left.index(right[row]) for row in j]
    first, later = repeated_rows(ours, row_hashes(ours))
    assert later.tolist() == [row for row, text in enumerate(left) if text and left.index(text) < row]
    assert first.tolist() == [left.index(left[row]) for row in later]
    assert first_equals(ours).tolist() == [left.index(text) for text in left]


def test_no_character_parts_texts_that_bert_takes_for_one() -> None:
    """All of Unicode but what is unassigned, private or lost, and controls that BERT drops and Python calls blank."""
    chars = [char for char in map(chr, range(sys.maxunicode + 1)) if category(char) not in ("Cn", "Co", "Cs")]
    # nor characters that were an accent once, U+1734 for one: the tables of the two are of different age
    chars = [char for char in chars if ucd_3_2_0.category(char) in (category(char), "Cn")]
    chars = [char for char in chars if char not in "|\ufffd\v\f\x1c\x1d\x1e\x1f\x85"]
    folded = defaultdict(set)
    for char, seen in zip(chars, BERT.normalize_str("|".join(f"a{char}b" for char in chars)).split("|"), strict=True):
        folded[seen].add(fold(f"a{char}b"))
    assert len(chars) > 100_000
    assert {seen: forms for seen, forms in folded.items() if len(forms) > 1} == {}


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("Straße", "STRASSE", True),
        ("café", "cafe\u0301", True),
        ("İstanbul", "ISTANBUL", True),
        ("soft\u00adhyphen", "softhyphen", True),
        ("a\v\f\x1c\x85b", "a b", True),
        (" \u200b ", "", True),
        ("ab", "a b", False),
        ("ab", "a\u200b b", False),
        ("a.b", "a b", False),
        ("x²", "x2", False),
        ("漢", "字", False),
        ("ø", "o", False),
    ],
)
def test_what_is_one_text(left: str, right: str, equal: bool) -> None:
    hashes = row_hashes(Texts.from_strings([left, right, f"{left} {right}", f"{right} {left}"]))
    assert (fold(left) == fold(right)) == (hashes[0] == hashes[1]) == (hashes[2] == hashes[3]) == equal


def test_rows_whose_hashes_collide_are_compared() -> None:
    texts = Texts.from_strings(["same", "else", "same", "longer"])
    first, later = repeated_rows(texts, np.ones(4, np.int64))
    assert (first.tolist(), later.tolist()) == ([0], [2])


def test_a_text_longer_than_a_block_is_one_text() -> None:
    long = "a bc " * 300_000
    column = Texts.from_strings([long, long.replace(" ", "  ").upper(), long + "x", "", long, f"{long}\u0301"])
    assert first_equals(column).tolist() == [0, 0, 2, 3, 0, 0]


def test_a_text_of_nothing_but_accents_takes_no_longer_than_another() -> None:
    """Putting accents in order takes quadratic time: twenty seconds for these, and days for a line of 64 MB."""
    began = process_time()
    assert fold("a" + "\u0301\u0323" * 100_000) == "a"
    assert process_time() - began < 2


@pytest.mark.parametrize("texts", [[], [""], ["a", "b"], [f"number {row}" for row in range(10_000)]])
def test_a_text_that_is_met_once_is_its_own_first_row(texts: list[str]) -> None:
    assert first_equals(Texts.from_strings(texts)).tolist() == list(range(len(texts)))


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 9), st.integers(1, 30), st.integers(0, 3))
def test_blocks_are_as_large_as_may_be(lengths: list[int], rows: int, values: int, before: int) -> None:
    column = Texts(
        np.zeros(before + sum(lengths), np.uint8), before + np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    )
    blocks = list(column.blocks(rows, values))
    assert [row for start, stop in blocks for row in range(start, stop)] == list(range(len(lengths)))
    for start, stop in blocks:
        fits = [size for size in range(1, rows + 1) if sum(lengths[start : start + size]) <= values]
        assert stop == min(start + max(fits, default=1), len(lengths))
