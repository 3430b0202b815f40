"""Token store against the tokenizer library called directly on the same texts.

The texts and the word-piece vocabulary are synthetic: words drawn by Zipf's law, one in ten unknown to the vocabulary
and so cut into pieces. The library's time is for `encode_batch_fast` on a ready list, the ids left inside its own
objects; ours is from a cold cache to a finished store: read, tokenise, flatten, write, hash.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from harness.data.ragged import Texts
from harness.data.tokens import Tokenizer, token_store
from harness.perf import Row, Sample, compare, fresh_workspace, turns

SHORT_TEXTS = 200_000
LONG_TEXTS = 2_000
SHORT_AT_MOST, LONG_AT_MOST, CORES_AT_LEAST = 1.3, 0.6, 0.8
LIBRARY = "tokenizers encode_batch_fast"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def rows() -> Iterator[Row]:
    """Short texts, cores kept busy, and long texts of which only the beginning is kept."""
    with fresh_workspace() as folder:
        tokenizer = word_pieces(folder / "tokenizer.json")
        yield from _short(tokenizer)
        yield _long(tokenizer)


def _short(tokenizer: Tokenizer) -> Iterator[Row]:
    strings, size = synthetic_texts(SHORT_TEXTS, words=8), f"{SHORT_TEXTS:,} texts of 8 words"
    ours, library = (_Busy(call) for call in _contestants(tokenizer, strings, max_len=32))
    turns(*_contestants(tokenizer, strings[:1000], max_len=32), repeats=0)  # the library's threads are started
    yield compare("token store, short texts", size, LIBRARY, *turns(ours, library, warm=0), at_most=SHORT_AT_MOST)
    yield compare("cores kept busy meanwhile", size, LIBRARY, ours.cores, library.cores, at_least=CORES_AT_LEAST)


def _long(tokenizer: Tokenizer) -> Row:
    strings = synthetic_texts(LONG_TEXTS, words=800)
    ours, library = _contestants(tokenizer, strings, max_len=128)
    return compare(
        "token store, long texts cut at 128 tokens",
        f"{LONG_TEXTS:,} texts of 800 words",
        LIBRARY,
        *turns(ours, library),
        at_most=LONG_AT_MOST,
    )


def _contestants(tokenizer: Tokenizer, strings: list[str], max_len: int) -> tuple[Callable[[], object], ...]:
    """Ours from a cold cache, and the library on the list."""
    from tokenizers import Tokenizer as Library

    texts = Texts.from_strings(strings)
    library = Library.from_file(str(tokenizer.path))
    library.enable_truncation(max_len)

    def ours() -> object:
        shutil.rmtree(Path(os.environ["HARNESS_HOME"]) / "cache", ignore_errors=True)
        return token_store(texts, tokenizer, max_len, "tokenise")

    return ours, lambda: library.encode_batch_fast(strings)


class _Busy:
    """A call that notes how much processor time it takes per second."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._shares: list[float] = []

    def __call__(self) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        self._call()
        self._shares.append((time.process_time() - processor) / (time.perf_counter() - wall))

    @property
    def cores(self) -> Sample:
        return Sample(tuple(self._shares))


def synthetic_words(count: int = 20_000) -> list[str]:
    """Distinct random words of 3 to 9 letters."""
    draw = np.random.default_rng(0)
    letters = np.array(list(_LETTERS))[draw.integers(26, size=(2 * count, 9))]
    lengths = draw.integers(3, 10, size=2 * count)
    words = ("".join(row[:length]) for row, length in zip(letters, lengths, strict=True))
    return list(dict.fromkeys(words))[:count]


def synthetic_texts(count: int, words: int) -> list[str]:
    """Texts whose word frequencies follow Zipf's law."""
    known = np.array(synthetic_words())
    ranks = np.random.default_rng(1).zipf(1.2, size=(count, words)) % len(known)
    return [" ".join(row) for row in known[ranks]]


def word_pieces(path: Path) -> Tokenizer:
    """A BERT-like tokenizer that knows nine in ten of the synthetic words, and every letter."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, processors

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    known = [word for number, word in enumerate(synthetic_words()) if number % 10]
    pieces = [*specials, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *known]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    library = Library(models.WordPiece(vocab=ids, unk_token="[UNK]"))  # noqa: S106  a token of text
    library.add_special_tokens(specials)
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    library.save(str(path))
    return Tokenizer.from_file(path)
