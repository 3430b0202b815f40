"""Sparse features of texts for linear and neighbour models, from the token store.

    x(text, term) = tf * idf, scaled to length 1        idf = log((1 + N) / (1 + df)) + 1, df over the N train rows

A term is a word, or also a pair of neighbouring words. The store holds word pieces: those that the tokenizer marks as
continuations are put together again, punctuation is left out. Where it marks none, every token is a term. A term is
known by a 64-bit hash of its pieces, so the vocabulary is a sorted array of numbers, and one of a million terms holds
two of the same hash with probability 3e-8.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from harness.data.ragged import Ragged
from harness.data.tokens import Tokenizer
from harness.errors import DataError, UserError
from harness.io.arrays import load_array, save_array
from harness.settings.parameters import TextSettings

_CHUNK_TOKENS = 1 << 21
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Tfidf:
    """TF-IDF features of texts that come as token ids."""

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings) -> None:
        self._settings = settings
        self._begins, self._silent = kinds_of_tokens(tokenizer)
        self.terms: NDArray[np.uint64] = np.zeros(0, np.uint64)
        """Hashes of the known terms, ascending, [F]."""
        self.idf: NDArray[np.float32] = np.zeros(0, np.float32)
        """Inverse document frequency of each term, [F]."""

    def fit(self, tokens: Ragged, *more: Ragged) -> None:
        """Count the terms and their document frequencies in the train rows [N].

        Terms that occur in `more` alone are known too, as terms that no train row has; `min_rows` is about the others.
        """
        terms, rows_with = self._document_frequencies(tokens)
        kept = rows_with >= self._settings.min_rows
        terms, rows_with = terms[kept], rows_with[kept]
        for column in more:
            new = np.setdiff1d(self._document_frequencies(column)[0], terms, assume_unique=True)
            terms, rows_with = np.concatenate([terms, new]), np.concatenate([rows_with, np.zeros(len(new), np.int64)])
        if not len(terms):
            raise UserError("the train rows have no words to learn from; is their text empty, or min_rows too high?")
        order = np.argsort(terms)
        self.terms = terms[order]
        self.idf = (np.log((1 + len(tokens)) / (1 + rows_with[order])) + 1).astype(np.float32)

    def transform(self, tokens: Ragged) -> csr_array:
        """Return features [n, F] of any rows [n], of length 1; unknown terms are left out, so a row may be empty."""
        blocks: list[Any] = [csr_array((0, len(self.terms)), dtype=np.float32)]
        for row, term, rows in self._chunks(tokens):
            place = np.searchsorted(self.terms, term)
            known = self.terms[np.minimum(place, len(self.terms) - 1)] == term
            counts = csr_array(
                (np.ones(np.count_nonzero(known), np.float32), (row[known], place[known])),
                shape=(rows, len(self.terms)),
            )
            counts.sum_duplicates()
            blocks.append(self._weighed(counts))
        return csr_array(vstack(blocks, format="csr"))

    def save(self, folder: Path) -> None:
        """Write terms and inverse document frequencies."""
        save_array(folder / "terms.npy", self.terms)
        save_array(folder / "idf.npy", self.idf)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote."""
        terms, idf = (load_array(folder / f"{name}.npy", 1) for name in ("terms", "idf"))
        rising = terms.dtype == np.uint64 and bool((terms[1:] > terms[:-1]).all())
        if not rising or idf.dtype != np.float32 or len(terms) != len(idf):
            raise DataError("terms.npy and idf.npy do not belong together; run anew", folder)
        self.terms, self.idf = terms, idf

    def _document_frequencies(self, tokens: Ragged) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the terms [F], ascending, and the number of rows that have each [F]."""
        terms, rows_with = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        for row, term, _ in self._chunks(tokens):
            here, place = np.unique(term, return_inverse=True)
            pairs = np.unique(row * len(here) + place)
            counts = np.bincount(pairs % max(1, len(here)), minlength=len(here))
            terms, place = np.unique(np.concatenate([terms, here]), return_inverse=True)
            rows_with = np.bincount(place, np.concatenate([rows_with, counts]), len(terms)).astype(np.int64)
        return terms, rows_with

    def _weighed(self, counts: csr_array) -> csr_array:
        """Turn counts [n, F] into features: tf times idf, rows of length 1."""
        weights = 1 + np.log(counts.data) if self._settings.sublinear else counts.data
        counts.data = weights * self.idf[counts.indices]
        row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        lengths = np.sqrt(np.bincount(row, counts.data.astype(np.float64) ** 2, counts.shape[0]))
        counts.data = (counts.data / lengths[row]).astype(np.float32)
        return counts

    def _chunks(self, tokens: Ragged) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], int]]:
        """Yield row and term of every word, and the number of rows, of consecutive chunks of bounded size."""
        start = 0
        while start < len(tokens):
            within = int(np.searchsorted(tokens.offsets, tokens.offsets[start] + _CHUNK_TOKENS, side="right")) - 1
            stop = max(start + 1, within)
            offsets = tokens.offsets[start : stop + 1]
            ids = np.asarray(tokens.values[offsets[0] : offsets[-1]]).astype(np.int64)
            row = np.repeat(np.arange(stop - start), np.diff(offsets))
            row, term = hashed_words(ids, row, self._begins, self._silent)
            if self._settings.ngrams == 2:
                row, term = with_pairs(row, term)
            yield row, term, stop - start
            start = stop


def kinds_of_tokens(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which tokens begin a word, and which belong to no word, [V] each.

    A word-piece vocabulary says which of its tokens continue a word. No part of a word are special tokens, those that
    every text is framed by, and in a word-piece vocabulary those without a letter or digit.
    """
    begins, silent = np.ones(tokenizer.vocab_size, bool), np.zeros(tokenizer.vocab_size, bool)
    silent[tokenizer.special_ids] = True
    silent[[place for side in tokenizer.frame for place in side]] = True
    model = json.loads(tokenizer.path.read_text(encoding="utf-8"))["model"]
    mark = model.get("continuing_subword_prefix") if model.get("type") == "WordPiece" else None
    if mark:
        begins[[place for piece, place in model["vocab"].items() if piece.startswith(mark)]] = False
        silent[[place for piece, place in model["vocab"].items() if not any(map(str.isalnum, piece))]] = True
    return begins, silent


def hashed_words(
    ids: NDArray[np.int64], row: NDArray[np.int64], begins: NDArray[np.bool_], silent: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return row and hash of every word, in the order of the text.

    Args:
        ids: Tokens of consecutive rows, [T].
        row: Row of each token, [T].
        begins: Which tokens begin a word, [V].
        silent: Which tokens belong to no word, [V]; they end a word.
    """
    heard = ~silent[ids]
    first = begins[ids]
    first[:1] = True
    first[1:] |= (row[1:] != row[:-1]) | ~heard[:-1]
    ids, row, first = ids[heard], row[heard], first[heard]
    starts = np.flatnonzero(first)
    if not len(starts):
        return row, np.zeros(0, np.uint64)
    position = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    pieces = mixed(ids.astype(np.uint64) + (position.astype(np.uint64) << np.uint64(32)))
    return row[starts], mixed(np.add.reduceat(pieces, starts))


def with_pairs(row: NDArray[np.int64], term: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return row and hash of every word and of every pair of neighbouring words."""
    together = row[1:] == row[:-1]
    pairs = mixed(mixed(term[:-1]) + term[1:])  # not symmetric: a pair has an order
    return np.concatenate([row, row[1:][together]]), np.concatenate([term, pairs[together]])


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers by a bijection (the finaliser of splitmix64)."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
