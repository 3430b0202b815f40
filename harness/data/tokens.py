"""Tokenising texts, once per (texts, tokenizer, length), into a store on disk.

    Texts [N] + tokenizer.json + max_len  ->  Ragged ids [T] with offsets [N + 1]

Rows carry the model's special tokens, are cut at `max_len` ids including them, and are never padded. A store is
keyed by content: the bytes of the texts, the sha256 of tokenizer.json and `max_len`. So every method and process that
asks for the same tokens shares one memory-mapped file, whatever the dataset or the model folder is called.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.data.ragged import Ragged, RaggedWriter, Texts
from harness.errors import DataError, UserError
from harness.io.files import build_once, home, read_json, sha256_file, sha256_json
from harness.io.progress import progress
from harness.machine.threads import Threads

if TYPE_CHECKING:
    import tokenizers

FORMAT = 1
"""Version of the token store; raised whenever the same input would give different bytes."""

MOST_IDS = 1 << 24
"""Limit on token ids: tables have a row for every id up to the largest. No vocabulary comes near it."""
_CHUNK_ROWS = 8192
_CHUNK_BYTES = 4_000_000
_PREFIX_CHARACTERS_PER_TOKEN = 10


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.json and its sha256; the library object is loaded when first needed."""

    path: Path
    sha256: str

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Return the tokenizer of a tokenizer.json."""
        if not path.is_file():
            raise UserError(
                f"{path} is missing; a model needs its tokenizer.json (pickled or slow tokenizers are not read)"
            )
        return cls(path.absolute(), sha256_file(path))

    @cached_property
    def vocab_size(self) -> int:
        """Vocabulary size V, one more than the largest id."""
        return 1 + max(_library(self, None).get_vocab(with_added_tokens=True).values())

    @cached_property
    def special_ids(self) -> NDArray[np.int64]:
        """Ids of the tokens that carry no text, such as [CLS], [PAD] and [UNK], sorted."""
        added = _library(self, None).get_added_tokens_decoder()
        return np.array(sorted(i for i, token in added.items() if token.special), dtype=np.int64)

    @cached_property
    def pad_id(self) -> int:
        """The padding id that the file declares, else that of a token with a usual padding name, else 0."""
        library = _library(self, None)  # reads and checks the file first
        declared = read_json(self.path).get("padding")
        if declared:
            return int(declared["pad_id"])
        ids = (library.token_to_id(name) for name in ("[PAD]", "<pad>", "<|pad|>", "[pad]"))
        return next((found for found in ids if found is not None), 0)

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The special ids that are put before and after a text, for example ([CLS], [SEP])."""
        mask = _library(self, None).encode("a").special_tokens_mask
        before = next((place for place, special in enumerate(mask) if not special), 0)
        specials = _library(self, None).encode("").ids
        return specials[:before], specials[before:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integer type that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.int32)


@cache
def _library(tokenizer: Tokenizer, max_len: int | None) -> "tokenizers.Tokenizer":
    """Return the library's tokenizer, cutting at `max_len` and not padding; one per length, because it has state."""
    from tokenizers import Tokenizer as Library

    with _faults_named(tokenizer):
        library = Library.from_file(str(tokenizer.path))
        largest = max(library.get_vocab(with_added_tokens=True).values(), default=-1)
        library.encode_batch(["a", ""])
    if not 0 <= largest < MOST_IDS:
        raise DataError(f"its largest id is {largest:,}; there must be one, and one below {MOST_IDS:,}", tokenizer.path)
    library.no_padding()
    library.no_truncation()
    if max_len is not None:
        specials = sum(map(len, tokenizer.frame))
        if max_len <= specials:
            raise UserError(f"max_len {max_len} leaves no room for text beside {specials} special tokens; raise it")
        library.enable_truncation(max_len)
    return library


@contextmanager
def _faults_named(tokenizer: Tokenizer) -> Iterator[None]:
    """Raise `DataError` in place of what the library raises for a malformed file or a text without a token.

    That is a bare `Exception`, or a panic of its Rust code, whose class cannot be imported and is no `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"not a tokenizer.json that can be used ({error})", tokenizer.path) from error


def tokenize(texts: list[str], tokenizer: Tokenizer, max_len: int) -> Ragged:
    """Return the token ids of a few texts, in memory; at most `max_len` ids a row, special tokens included."""
    values, lengths = _flatten(_encode(texts, tokenizer, max_len), tokenizer.dtype)
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def token_store(
    texts: Texts,
    tokenizer: Tokenizer,
    max_len: int,
    description: str,
    *,
    digest: str | None = None,
    verify: bool = True,
) -> Ragged:
    """Return the token ids of a text column, memory-mapped; they are stored on first use.

    Args:
        texts: The text column, [N].
        tokenizer: The tokenizer.
        max_len: Most ids in a row, special tokens included.
        description: Text of the progress bar.
        digest: A hash of the content of `texts`; computed if None.
        verify: Also compare the hash of every stored file, and tokenise again if one differs.
    """
    content = {"format": FORMAT, "texts": digest or content_digest(texts)}
    identity = {**content, "tokenizer": tokenizer.sha256, "max_len": max_len}
    folder = home() / "cache" / "tokens" / sha256_json(identity)

    def build(temporary: Path) -> dict[str, Any]:
        with RaggedWriter(temporary, "tokens", tokenizer.dtype) as writer:
            _write(texts, tokenizer, max_len, writer, description)
        return {"identity": identity, "rows": len(texts)}

    try:
        build_once(folder, build, verify=verify)
    except OSError as error:
        raise UserError(
            f"{folder} could not be written: {error.strerror or error}; free some space and repeat"
        ) from error
    return Ragged.load(folder, "tokens")


def content_digest(texts: Texts) -> str:
    """Return the sha256 over the bytes and row boundaries of a column."""
    digest = hashlib.sha256(np.ascontiguousarray(texts.offsets - texts.offsets[0], dtype="<i8").data)
    digest.update(np.ascontiguousarray(texts.values[texts.offsets[0] : texts.offsets[-1]]).data)
    return digest.hexdigest()


def token_counts(vocab_size: int, *columns: Ragged) -> NDArray[np.int64]:
    """Return how often every token id occurs in the given columns, [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for column in columns:
        for start in range(0, len(column.values), 1 << 24):  # bincount widens its input to int64
            counts += np.bincount(column.values[start : start + (1 << 24)], minlength=vocab_size)
    return counts


def _write(texts: Texts, tokenizer: Tokenizer, max_len: int, writer: RaggedWriter, description: str) -> None:
    """Tokenise and write all rows; one chunk is written while the library's threads work on the next."""
    bounds = list(texts.blocks(_CHUNK_ROWS, _CHUNK_BYTES))
    with (
        _library_threads(),
        Threads(max_workers=1) as tokenising,
        progress(description, total=len(texts), unit="texts") as advance,
    ):
        waiting = None
        for start, stop in [*bounds, (0, 0)]:
            following = tokenising.submit(_encode, texts[start:stop], tokenizer, max_len) if stop else None
            if waiting is not None:
                values, lengths = _flatten(waiting.result(), tokenizer.dtype)
                writer.extend(values, lengths)
                advance(len(lengths))
            waiting = following


def _encode(texts: list[str], tokenizer: Tokenizer, max_len: int) -> list[list[int]]:
    """Return the token ids of each text, computed in all threads of the library.

    Only the first `max_len` ids of a long text are kept, so only a prefix of it is tokenised; if that gives fewer than
    `max_len` ids, the whole text is tokenised.
    """
    library = _library(tokenizer, max_len)
    limit = max_len * _PREFIX_CHARACTERS_PER_TOKEN
    long = [row for row, text in enumerate(texts) if len(text) > limit] if _splits_at_spaces(tokenizer) else []
    shortened = list(texts) if long else texts
    for row in long:  # the words that end before the limit; the whole text if there is no space
        space = texts[row].rfind(" ", 0, limit)
        shortened[row] = texts[row][:space] if space > 0 else texts[row]
    with _faults_named(tokenizer):
        ids = [encoding.ids for encoding in library.encode_batch_fast(shortened)]
        again = [row for row in long if len(ids[row]) < max_len and len(shortened[row]) < len(texts[row])]
        for row, encoding in zip(again, library.encode_batch_fast([texts[row] for row in again]), strict=True):
            ids[row] = encoding.ids
    return ids


@cache
def _splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """Return whether tokens left of a space do not depend on the text right of it (true of BERT word pieces)."""
    from tokenizers import models, normalizers, pre_tokenizers

    library = _library(tokenizer, None)
    return (
        isinstance(library.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(library.model, models.WordPiece)
        and (library.normalizer is None or isinstance(library.normalizer, normalizers.BertNormalizer))
        and not any(" " in token.content for token in library.get_added_tokens_decoder().values())
    )


def _flatten(ids: list[list[int]], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return concatenated ids [T] and row lengths [n]."""
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    try:
        return np.fromiter(chain.from_iterable(ids), dtype=dtype, count=int(lengths.sum())), lengths
    except OverflowError as error:
        raise UserError(f"the tokenizer gives ids that are not in its vocabulary ({error}); take another") from error


@contextmanager
def _library_threads() -> Iterator[None]:
    """Let the library use every core unless the user has set `TOKENIZERS_PARALLELISM`.

    The variable is reset afterwards: if it stayed "true", a process forked later could wait for threads it lacks.
    """
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ.setdefault(name, "true")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
