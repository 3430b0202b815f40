"""Synthetic words and texts, and a word-piece tokenizer that knows most of them."""

from pathlib import Path

import numpy as np

from harness.data.tokens import Tokenizer

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def synthetic_words(count: int = 20_000) -> list[str]:
    """Return distinct random words of 3 to 9 letters."""
    draw = np.random.default_rng(0)
    letters = np.array(list(_LETTERS))[draw.integers(26, size=(2 * count, 9))]
    lengths = draw.integers(3, 10, size=2 * count)
    words = ("".join(row[:length]) for row, length in zip(letters, lengths, strict=True))
    return list(dict.fromkeys(words))[:count]


def synthetic_texts(count: int, words: int) -> list[str]:
    """Return texts whose word frequencies follow Zipf's law."""
    known = np.array(synthetic_words())
    ranks = np.random.default_rng(1).zipf(1.2, size=(count, words)) % len(known)
    return [" ".join(row) for row in known[ranks]]


def word_pieces(path: Path) -> Tokenizer:
    """Make a BERT-like tokenizer that knows nine in ten of the synthetic words, and every letter."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, processors

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    known = [word for number, word in enumerate(synthetic_words()) if number % 10]
    pieces = [*specials, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *known]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    library = Library(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    library.add_special_tokens(specials)
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    library.save(str(path))
    return Tokenizer.from_file(path)
