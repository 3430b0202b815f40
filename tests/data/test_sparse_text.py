"""Sparse label files and filter files: against a reader written line by line, and every fault at its line."""

import gzip
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.sources import sparse_text
from harness.data.sources.lines import line_chunks
from harness.data.sources.sparse_text import read_filter, read_labels
from harness.errors import DataError, UserError
from tests.faults.accounts import Account

POSITIVE = ("1", "1.0", "0.5", "1e-3", "2.50", ".25", "3.", "+1", "1E+2", "0.000000000000000000000000000000000000001")
ZERO = ("0", "0.0", "0e5", ".0", "-0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """Writes bytes to a new file and returns its path."""
    folder, numbers = tmp_path_factory.mktemp("sparse"), itertools.count()

    def write(content: bytes | str) -> Path:
        path = folder / f"{next(numbers)}.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    """Files are read in pieces of so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_text, "line_chunks", partial(line_chunks, size=size))
        yield


def dense(rows: list[set[int]], labels: int) -> np.ndarray:
    matrix = np.zeros((len(rows), labels), bool)
    for number, row in enumerate(rows):
        matrix[number, sorted(row)] = True
    return matrix


@st.composite
def label_files(draw: st.DrawFn) -> tuple[bytes, list[set[int]], int]:
    """A file in the present style in some spelling, and what it means."""
    labels = draw(st.sampled_from([1, 3, 40, 1_305_265, 2**31 - 1]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    gap = draw(st.sampled_from([" ", "  ", "\t"]))
    tidy = draw(st.booleans())
    rows, lines = [], []
    for _ in range(draw(st.integers(0, 8))):
        chosen = draw(st.lists(st.integers(0, labels - 1), max_size=6, unique=True))
        values = [draw(st.sampled_from(POSITIVE[:2] if tidy else POSITIVE + ZERO)) for _ in chosen]
        rows.append({label for label, value in zip(chosen, values, strict=True) if float(value) > 0})
        words = [f"{label}:{value}" for label, value in zip(chosen, values, strict=True)]
        lines.append(draw(st.sampled_from(["", " "])) + gap.join(words) + draw(st.sampled_from(["", " ", "\t "])))
    text = end.join([f"{len(rows)} {labels}", *lines]) + end
    if draw(st.booleans()) and (not lines or lines[-1]):
        text = text.removesuffix(end)
    text += draw(st.sampled_from(["", "", end])) if text.endswith(end) else ""
    data = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode()
    return (gzip.compress(data) if draw(st.booleans()) else data), rows, labels


@settings(max_examples=60, deadline=None)
@given(label_files(), st.sampled_from([1, 5, 64, 1 << 20]))
def test_every_spelling_reads_as_the_matrix_it_means(place, case, chunk) -> None:
    """fault 43 (unsorted is sorted), fault 44 (BOM, CRLF, no last newline)."""
    data, rows, labels = case
    with chunks_of(chunk):
        matrix = read_labels(place(data))
    assert matrix.shape == (len(rows), labels)
    assert matrix.indices.dtype == np.int32
    assert [set(matrix.indices[a:b].tolist()) for a, b in itertools.pairwise(matrix.indptr)] == rows
    assert matrix.nnz == sum(map(len, rows))
    assert all((np.diff(matrix.indices[a:b]) > 0).all() for a, b in itertools.pairwise(matrix.indptr))
    assert (matrix.data == 1).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=5, unique=True), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", " 3:0.5", " 3:0.5 4:1e-2 "]),
    st.sampled_from([3, 1 << 20]),
)
def test_old_style_reads_the_labels_and_not_the_features(place, rows, end, features, chunk) -> None:
    lines = [",".join(map(str, row)) + (features or " ") for row in rows]
    text = end.join([f"{len(rows)} 5000 100", *lines]) + end
    with chunks_of(chunk):
        matrix = read_labels(place(text))
    np.testing.assert_array_equal(matrix.toarray() > 0, dense([set(row) for row in rows], 100))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("3 9\n1:1\n2:1\n", 1, "promises 3 rows, but the file has 2"),
        ("1 9\n1:1\n\n\n2:1\n", 5, "promises 1 rows"),
        ("0 9\n2:1\n", 2, "promises 0 rows"),
        ("2 9\n1:1\n3:1 9:1\n", 3, "label '9' is out of range: there are 9"),
        ("2 9\n1:1\n3:1 9:0\n", 3, "label '9' is out of range"),
        ("1 0\n0:1\n", 2, "out of range: there are 0"),
        ("2 99999\n1:1\n-3:1\n", 3, "label '-3' is not a whole number"),
        ("2 9\n1:1\n3\n", 3, "'3' is not of the form label:relevance"),
        ("2 9\n1:\n3:1\n", 2, "relevance '' in '1:' is not a number"),
        ("2 9\n1:1.0.0\n3:1\n", 2, "relevance '1.0.0'"),
        ("2 9\n1:nan\n3:1\n", 2, "relevance 'nan'"),
        ("2 9\n1:-1\n3:1\n", 2, "negative"),
        ("2 9\n1:1\n4:1 \x00:1\n", 3, "\\0"),
        ("2 9\n1:1\n4:1 2:1 4:1\n", 3, "label 4 appears twice"),
        ("2 9\n1:1\n٣:1\n", 3, "not a whole number"),
        ("", 1, "empty"),
        ("1:1 2:1\n", 1, "first line must be"),
        ("-1 5\n", 1, "first line must be"),
        ("1 2147483648\n0:1\n", 1, "at most 2,147,483,647"),
        ("1 " + "9" * 5000 + "\n0:1\n", 1, "first line must be"),
        ("2 7 9\n1 0:1\n1,,2 0:1\n", 3, "label ''"),
        ("2 7 9\n1 0:1\n2,2 0:1\n", 3, "label 2 appears twice"),
        ("2 7 9\n1 0:1\n0:1 2:1\n", 3, "a row without labels begins with a space"),
        ("2 7 9\n1 0:1\n2 6:1 7:1\n", 3, "feature '7' is out of range: there are 7"),
        ("2 7 9\n1 0:1\n2 3:\n", 3, "'3:' is not of the form feature:value"),
    ],
)
def test_a_fault_is_named_with_its_file_and_line(place, text, line, message) -> None:
    """faults 43, 44 and 50; in chunks of one line as well, where lines of later chunks are counted."""
    path = place(text)
    for chunk in (1, 1 << 20):
        with chunks_of(chunk), pytest.raises(DataError, match=re.escape(message)) as caught:
            read_labels(path)
        assert (caught.value.path, caught.value.line) == (path, line)


def test_a_header_that_disagrees_in_any_of_its_numbers(place, account: Account) -> None:
    """fault 50: N D L against three rows, seven features and nine labels."""
    content, messages = "8 0:1\n1,2 6:0.5\n 3:1\n", {}
    assert read_labels(place(f"3 7 9\n{content}")).shape == (3, 9)
    for header in ("4 7 9", "2 7 9", "3 6 9", "3 7 8", "3 7"):
        path = place(f"{header}\n{content}")
        with pytest.raises(DataError) as caught:
            read_labels(path)
        messages[header] = str(caught.value).removeprefix(f"{path}:")
    lines = {header: message.partition(":")[0] for header, message in messages.items()}
    assert lines == {"4 7 9": "1", "2 7 9": "4", "3 6 9": "3", "3 7 8": "2", "3 7": "2"}
    account.did(f"headers {', '.join(messages)} over 3 rows of 7 features and 9 labels")
    account.saw(f"{len(messages)} of {len(messages)} refused; `3 6 9` at line {lines['3 6 9']}")


def test_a_gzip_bomb_is_refused_as_it_is_read(place, account: Account) -> None:
    """fault 41: a file that a person placed, so that nothing was unpacked on its way; every reader starts here."""
    bomb = gzip.compress(b"\n" * 4_000_000) * 26
    with pytest.raises(DataError, match=r"expands more than 1,000 times \([\d,]+ bytes to over 10\d,") as caught:
        list(map(type, line_chunks(place(bomb))))
    account.did(f"a file placed by hand: {len(bomb):,} bytes of gzip that hold {26 * 4_000_000:,} empty rows")
    account.saw("refused while it was read: " + str(caught.value).rpartition("refused: ")[2])


def test_gzip_whole_truncated_and_damaged(place) -> None:
    """fault 40: every reader of text starts with these lines. Members and padding read as one file."""
    parts = [gzip.compress(part) for part in (b"3 9\n1:1 2", b":1\n", b"", b"4:1\n\n")]
    for data in (b"".join(parts), (b"\0" * 600_000).join(parts) + b"\0" * 512):
        assert read_labels(place(data)).toarray().nonzero()[1].tolist() == [1, 2, 4]
    whole = gzip.compress(("2000 9\n" + "1:1 2:1 7:0.25\n" * 2000).encode())
    for cut in (5, 12, len(whole) // 2, len(whole) - 1):
        with pytest.raises(DataError, match="the gzip file ends too early"):
            read_labels(place(whole[:cut]))
    flipped = bytearray(whole)
    flipped[-6] ^= 0x10
    for damaged in (bytes(flipped), parts[0] + b"tail"):
        with pytest.raises(DataError, match="damaged gzip file"):
            read_labels(place(damaged))


ALPHABET = st.sampled_from([b"0", b"1", b"9", b":", b",", b".", b"-", b"e", b" ", b"\n", b"\r", b"\t", b"\0", b"\xff"])
SOUP = st.one_of(st.binary(max_size=60), st.lists(ALPHABET, max_size=60).map(b"".join))
HEADERS = st.sampled_from([b"", b"2 9\n", b"3 9 9\n", b"\xef\xbb\xbf1 9\n", b"\x1f\x8b"])


@settings(max_examples=100, deadline=None)
@given(HEADERS, SOUP)
def test_random_bytes_never_raise_anything_but_a_user_error(place, header, soup) -> None:
    path = place(header + soup)
    for read in (read_labels, partial(read_filter, rows=3, labels=9)):
        try:
            matrix = read(path)
        except UserError:
            continue
        assert matrix.shape[1] == 9 or read is read_labels


WORDS = st.sampled_from([b"998:1", b"999:1", b"999:0", b"3:0", b"3", b"3,998", b"3,999", b"6:1", b"7:1", b" ", b"\n"])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([b"3 999\n", b"3 7 999\n"]), st.one_of(SOUP, st.lists(WORDS, max_size=12).map(b" ".join)))
def test_the_fast_and_the_slow_reader_agree(place, header, soup) -> None:
    """Whatever the bytes are, both accept with equal matrices or both refuse with one message."""
    path, outcomes = place(header + soup), []
    for slow in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if slow:
                patch.setattr(sparse_text, "_fast_pairs", lambda *_: None)
                patch.setattr(sparse_text, "_fast_label_lists", lambda *_: None)
            try:
                outcomes.append(read_labels(path).toarray().tolist())
            except DataError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11)), max_size=20),
    st.sampled_from([" ", "\t", "   "]),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.sampled_from([2, 1 << 20]),
)
def test_filter_pairs_in_any_order_with_repeats(place, pairs, gap, end, chunk) -> None:
    """fault 48: an empty file is allowed."""
    with chunks_of(chunk):
        matrix = read_filter(place(end.join(f"{row}{gap}{label}" for row, label in pairs)), 7, 12)
    expected = np.zeros((7, 12), bool)
    for row, label in pairs:
        expected[row, label] = True
    np.testing.assert_array_equal(matrix.toarray() > 0, expected)
    assert matrix.nnz == len(set(pairs))
