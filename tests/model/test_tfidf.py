"""Sparse features against a count of plain strings, and the best entries of sparse rows against sorting them all."""

import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from harness.data.ragged import Ragged
from harness.data.tokens import Tokenizer, tokenize
from harness.errors import DataError, UserError
from harness.index.sparse import top_entries
from harness.model import tfidf as module
from harness.model.encoders.transformer import byte_tokenizer
from harness.model.tfidf import TextSettings, Tfidf

ALPHABET = "abc"
TRAIN = ["abc a b-c", "abc abc, ba (c)", "", "?! -", "cab a a a", "ab abc"]


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Word pieces of one letter each, so that every longer word has to be put together again."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *ALPHABET, *(f"##{letter}" for letter in ALPHABET), *"-,!?()"]
    library = Library(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    library.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer.from_file(path)


def terms_of(text: str, ngrams: int) -> list[str]:
    words = re.findall(r"\w+", text)
    return words + ([" ".join(pair) for pair in pairwise(words)] if ngrams == 2 else [])


def expected(train: list[str], texts: list[str], chosen: TextSettings, more: tuple[str, ...] = ()) -> np.ndarray:
    """Features [n, F] by definition, from strings; columns in the order of their terms."""
    rows_with = Counter(term for text in train for term in set(terms_of(text, chosen.ngrams)))
    known = {term for term, rows in rows_with.items() if rows >= chosen.min_rows}
    known |= {term for text in more for term in terms_of(text, chosen.ngrams)}
    columns = sorted(known)
    features = np.zeros((len(texts), len(columns)))
    for row, text in enumerate(texts):
        for term, count in Counter(terms_of(text, chosen.ngrams)).items():
            if term in known:
                tf = 1 + math.log(count) if chosen.sublinear else count
                rows = rows_with[term] if rows_with[term] >= chosen.min_rows else 0
                features[row, columns.index(term)] = tf * (math.log((1 + len(train)) / (1 + rows)) + 1)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths, lengths, 1)


def same_up_to_columns(found: csr_array, wanted: np.ndarray) -> None:
    """Hashes order the columns by chance, so columns are compared as a set, and rows by all their products."""
    assert found.shape == wanted.shape
    dense = found.toarray()
    np.testing.assert_allclose(dense @ dense.T, wanted @ wanted.T, atol=1e-5)
    np.testing.assert_allclose(*(np.array(sorted(map(tuple, side.T.round(4)))) for side in (dense, wanted)), atol=2e-4)


texts = st.lists(st.text(ALPHABET + " -,", max_size=12), min_size=1, max_size=6)


@given(
    texts,
    texts,
    st.builds(TextSettings, ngrams=st.sampled_from([1, 2]), sublinear=st.booleans(), min_rows=st.integers(1, 2)),
    st.sampled_from([5, 1 << 21]),
)
@settings(max_examples=60)
def test_features_are_those_of_the_definition(
    pieces: Tokenizer, train: list[str], queries: list[str], chosen: TextSettings, chunk: int
) -> None:
    model = Tfidf(pieces, chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_TOKENS", chunk)
        if not expected(train, train, chosen).shape[1]:
            with pytest.raises(UserError, match="no words to learn from"):
                model.fit(tokenize(train, pieces, 64))
            return
        model.fit(tokenize(train, pieces, 64))
        found = model.transform(tokenize(train + queries, pieces, 64))
    assert found.dtype == np.float32
    same_up_to_columns(found, expected(train, train + queries, chosen))


def test_words_that_only_labels_have_are_words_that_no_train_row_has(pieces: Tokenizer) -> None:
    labels, chosen = ["abc bb", "bb aaa"], TextSettings(min_rows=2)
    model = Tfidf(pieces, chosen)
    model.fit(tokenize(TRAIN, pieces, 64), tokenize(labels, pieces, 64))
    same_up_to_columns(
        model.transform(tokenize([*TRAIN, *labels], pieces, 64)), expected(TRAIN, [*TRAIN, *labels], chosen, (*labels,))
    )


def test_a_word_ends_with_its_row_and_at_a_special_token(pieces: Tokenizer) -> None:
    """fault 44: a row that begins with a continuation, as one that was cut can"""
    ids = {
        piece: place for place, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##a", "##b"])
    }
    rows = [["a"], ["##b", "a", "[UNK]", "##b"], ["[CLS]", "[SEP]"], []]
    values = np.array([ids[piece] for row in rows for piece in row], np.uint16)
    tokens = Ragged(values, np.concatenate([[0], np.cumsum([len(row) for row in rows])]))
    model = Tfidf(pieces, TextSettings())
    model.fit(tokens)
    assert len(model.terms) == 2  # "a", and the continuation standing alone
    assert np.diff(model.transform(tokens).indptr).tolist() == [1, 2, 0, 0]


def test_tokens_are_terms_where_nothing_marks_continuations() -> None:
    tokens = tokenize(["ab a", "b"], byte_tokenizer(), 16)
    model = Tfidf(byte_tokenizer(), TextSettings())
    model.fit(tokens)
    assert len(model.terms) == len(set("ab a"))
    assert np.diff(model.transform(tokens).indptr).tolist() == [3, 1]


def test_the_vocabulary_survives_the_disk(pieces: Tokenizer, tmp_path: Path) -> None:
    tokens = tokenize(TRAIN, pieces, 64)
    model, again = Tfidf(pieces, TextSettings()), Tfidf(pieces, TextSettings())
    model.fit(tokens)
    model.save(tmp_path)
    again.load(tmp_path)
    assert (model.transform(tokens) != again.transform(tokens)).nnz == 0
    np.save(tmp_path / "idf.npy", model.idf[1:], allow_pickle=False)
    with pytest.raises(DataError, match="do not belong together"):
        again.load(tmp_path)


# ---------------------------------------------------------------- the best entries of sparse rows


def by_sorting(scores: csr_array, k: int, exclude: csr_array | None) -> tuple[list[list[int]], list[list[float]]]:
    ids, best = [], []
    for row in range(scores.shape[0]):
        part = slice(scores.indptr[row], scores.indptr[row + 1])
        banned = set() if exclude is None else set(exclude.indices[exclude.indptr[row] : exclude.indptr[row + 1]])
        entries = zip(scores.indices[part].tolist(), scores.data[part].tolist(), strict=True)
        order = sorted((-score, column) for column, score in entries if column not in banned)[:k]
        ids.append([column for _, column in order] + [-1] * (k - len(order)))
        best.append([-score for score, _ in order] + [-math.inf] * (k - len(order)))
    return ids, best


@given(
    st.integers(0, 6),
    st.integers(1, 60),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150)
def test_best_entries_are_those_of_sorting(
    rows: int, columns: int, k: int, density: float, masked: bool, seed: int
) -> None:
    """faults 54 and 55: ties by the smaller column, -1 where there are too few"""
    draw = np.random.default_rng(seed)
    scores = csr_array(random_array((rows, columns), density=density, format="csr", rng=draw, dtype=np.float32))
    scores.data = draw.integers(-3, 4, scores.nnz).astype(np.float32) / 4  # many equal scores
    exclude = csr_array(random_array((rows, columns), density=0.2, format="csr", rng=draw)) if masked else None
    ids, best = top_entries(scores, k, exclude)
    wanted = by_sorting(scores, k, exclude)
    assert ids.tolist() == wanted[0]
    assert best.tolist() == wanted[1]
    assert (ids.dtype, best.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("width", [4, 12])
def test_scores_that_are_no_numbers_are_never_returned(width: int) -> None:
    """fault 55: nor do they hide others, in rows of any length"""
    scores = np.arange(1, width + 1, dtype=np.float32)[None, :] / 4
    scores[0, [0, 3]] = np.nan, np.inf
    ids, best = top_entries(csr_array(scores), width)
    numbers = [label for label in reversed(range(width)) if label not in (0, 3)]
    assert ids.tolist() == [[*numbers, -1, -1]]
    assert best[0, :-2].tolist() == scores[0, numbers].tolist()
    assert top_entries(csr_array(scores), 2)[0].tolist() == [numbers[:2]]
