"""Ragged columns round-trip, in memory and on disk."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.data.ragged import Ragged, RaggedWriter, Texts

strings = st.lists(st.text("ab \n\0\r\u00e9\u05e9\U0001f642\ud800", max_size=12), max_size=12)


@given(strings)
def test_texts_give_back_their_strings(values: list[str]) -> None:
    texts = Texts.from_strings(values)
    expected = [value.encode("utf-8", "replace").decode() for value in values]  # lone surrogates become "?"
    assert list(texts) == texts[:] == [texts[i] for i in range(len(texts))] == expected
    assert texts[1:4] == expected[1:4]
    assert texts[::2] == expected[::2]


@given(st.lists(st.lists(st.integers(0, 60000), max_size=6), min_size=1, max_size=10), st.data())
def test_take_agrees_with_lists(rows: list[list[int]], data: st.DataObject) -> None:
    offsets = np.cumsum([0, *map(len, rows)])
    ragged = Ragged(np.array([value for row in rows for value in row], dtype=np.uint16), offsets)
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    taken = ragged.take(np.array(wanted, dtype=np.int64))
    assert [taken[i].tolist() for i in range(len(taken))] == [rows[i] for i in wanted]


def test_streaming_writer_equals_saving_at_once(tmp_path: Path) -> None:
    chunks = [["one", "", "zwölf"], [], ["🙂" * 3], [""]]
    with RaggedWriter(tmp_path, "column", np.uint8) as writer:
        for chunk in chunks:
            writer.extend_strings(chunk)
    flat = [text for chunk in chunks for text in chunk]
    assert list(Texts.load(tmp_path, "column")) == flat
    Texts.from_strings(flat).save(tmp_path, "whole")
    # numpy itself wrote the second pair of files: equal arrays mean that our header is right
    for part in ("values", "offsets"):
        ours, theirs = (np.load(tmp_path / f"{name}.{part}.npy") for name in ("column", "whole"))
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
