"""The token store: right ids, one build, and no damaged cache believed."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import tokens as module
from harness.data.ragged import Texts
from harness.data.tokens import Tokenizer, token_store, tokenize
from harness.errors import DataError, UserError
from tests.support.word_pieces import synthetic_texts, word_pieces

ROOT = Path(__file__).parents[2]

BUILD_IN_A_PROCESS = """
import hashlib, sys
from pathlib import Path
import harness.data.tokens as tokens
from harness.data.ragged import RaggedWriter, Texts

opened = RaggedWriter.__enter__
def counted(writer):
    Path("builds.txt").open("a").write("built\\n")
    return opened(writer)
RaggedWriter.__enter__ = counted

texts = Texts.load(Path("."), "texts")
print("ready", flush=True)
sys.stdin.readline()
store = tokens.token_store(texts, tokens.Tokenizer.from_file(Path("tokenizer.json")), 16, "tokenise")
print(hashlib.sha256(store.values.tobytes() + store.offsets.tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Tokenizer:
    """A BERT-like word-piece tokenizer."""
    return word_pieces(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def by_the_library(texts: list[str], tokenizer: Tokenizer, max_len: int) -> list[list[int]]:
    """One text at a time, whole texts, through the ordinary call."""
    library = tokenizers.Tokenizer.from_file(str(tokenizer.path))
    library.no_padding()
    library.enable_truncation(max_len)
    return [library.encode(text).ids for text in texts]


def stores(workspace: Path) -> list[Path]:
    return [path for path in (workspace / "cache" / "tokens").glob("*") if path.is_dir()]


def test_store_equals_the_library_row_by_row(pieces, monkeypatch):
    """In many chunks of a few rows."""
    monkeypatch.setattr(module, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 120)
    texts = [*synthetic_texts(100, words=6), "", "unknownword [SEP] Ünïcödé, x.y"]
    store = token_store(Texts.from_strings(texts), pieces, 12, "tokenise")
    assert store.values.dtype == np.uint16
    assert isinstance(store.values, np.memmap)
    assert [row.tolist() for row in (store[i] for i in range(len(store)))] == by_the_library(texts, pieces, 12)
    assert store.lengths.max() == 12


def test_awkward_texts_give_valid_rows(pieces):
    """fault 44: empty, whitespace, NUL, emoji, right-to-left, invalid UTF-8, a line of 1 MB."""
    blob = [b"", b" \t\r\n ", b"\0\0", "😀👩‍👩‍👧".encode(), "שלום עולם مرحبا".encode(), b"\xff\xfe bad \x80"]
    blob += [b"x" * 1_000_000, b"abc " * 250_000, "\ufeffbom".encode()]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in blob])]).astype(np.int64)
    store = token_store(Texts(np.frombuffer(b"".join(blob), np.uint8), offsets), pieces, 16, "tokenise")
    (first,), (last,) = pieces.frame
    rows = [store[row].tolist() for row in range(len(blob))]
    assert all(row[0] == first and row[-1] == last and len(row) <= 16 for row in rows)
    assert [len(rows[row]) for row in (0, 1, 2, 7)] == [2, 2, 2, 16]


@settings(max_examples=25, deadline=None)
@given(
    words=st.lists(st.text(st.sampled_from("abcé \u0301\u00a0\u3000中.-[]İß\n"), min_size=0, max_size=12), max_size=40),
    max_len=st.integers(3, 9),
)
def test_tokenising_only_a_prefix_changes_nothing(pieces, words, max_len):
    """Long rows are tokenised from a prefix; every row must be what the whole text gives."""
    texts = [" ".join(words), " ".join(words) * 3, "a" * 200 + " b", " " * 150 + " ".join(words)]
    ours = tokenize(texts, pieces, max_len)
    assert [ours[i].tolist() for i in range(len(texts))] == by_the_library(texts, pieces, max_len)


def test_key_follows_content_not_place(pieces, tmp_path, workspace):
    texts = Texts.from_strings(["one two", "three"])
    token_store(texts, pieces, 12, "a")
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes(pieces.path.read_bytes())
    token_store(texts, Tokenizer.from_file(copy), 12, "b")
    assert len(stores(workspace)) == 1
    # same bytes, other row boundaries; other length; other tokenizer; other digest
    token_store(Texts.from_strings(["one", " twothree"]), pieces, 12, "c")
    token_store(texts, pieces, 13, "d")
    copy.write_text(copy.read_text() + "\n")
    token_store(texts, Tokenizer.from_file(copy), 12, "e")
    token_store(texts, pieces, 12, "f", digest="known already")
    assert len(stores(workspace)) == 5


def test_two_processes_build_once(pieces, tmp_path, account):
    """fault 34: one builds, the other waits, both read equal bytes."""
    texts = synthetic_texts(4_000, words=6)
    Texts.from_strings(texts).save(tmp_path, "texts")
    (tmp_path / "tokenizer.json").write_bytes(pieces.path.read_bytes())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BUILD_IN_A_PROCESS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    digests = [process.communicate(timeout=60)[0].strip() for process in processes]
    expected = tokenize(texts, pieces, 16)
    right = hashlib.sha256(expected.values.tobytes() + expected.offsets.tobytes()).hexdigest()
    assert digests == [right, right]
    built = (tmp_path / "builds.txt").read_text().count("built")
    assert built == 1
    account.did(f"two processes told to go at once, both asking for the tokens of {len(texts):,} texts")
    account.saw(f"built {built} time; both read sha256 {right[:12]}..., which is that of the right tokens")


def test_damaged_store_is_rebuilt(pieces, workspace):
    """fault 68: a flipped byte is found by its hash."""
    texts = Texts.from_strings(synthetic_texts(50, words=4))
    good = token_store(texts, pieces, 12, "tokenise").values.tobytes()
    (path,) = workspace.rglob("tokens.values.npy")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    assert token_store(texts, pieces, 12, "tokenise").values.tobytes() == good
    assert path.read_bytes() != content


def test_padding_and_truncation_of_the_file_are_ignored(pieces, tmp_path):
    """Published files often carry `padding: 128`, which would fill every row."""
    library = tokenizers.Tokenizer.from_file(str(pieces.path))
    library.enable_padding(length=128, pad_id=1, pad_token="[UNK]")
    library.enable_truncation(3)
    library.save(str(tmp_path / "tokenizer.json"))
    padded = Tokenizer.from_file(tmp_path / "tokenizer.json")
    texts = synthetic_texts(5, words=6)
    assert padded.pad_id == 1
    assert padded.frame == ([2], [3])
    np.testing.assert_array_equal(tokenize(texts, padded, 20).values, tokenize(texts, pieces, 20).values)


def test_clear_errors(pieces, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(DataError, match="not a tokenizer"):
        tokenize(["a"], Tokenizer.from_file(tmp_path / "tokenizer.json"), 8)
    with pytest.raises(UserError, match="no room for text beside 2 special tokens"):
        tokenize(["a"], pieces, 2)


@pytest.mark.parametrize("chosen", [None, "false"])
def test_the_users_choice_of_threads_is_kept(pieces, monkeypatch, chosen):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if chosen:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", chosen)
    token_store(Texts.from_strings(["a b"]), pieces, 12, "tokenise")
    assert os.environ.get("TOKENIZERS_PARALLELISM") == chosen
