"""Vectors of n-grams: which n-grams a text has, what they add, which rows a step touches, what is refused."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from harness.data.ragged import Ragged
from harness.data.tokens import tokenize
from harness.errors import UserError
from harness.infer.export import export_sentence_transformers
from harness.model import check_encoder
from harness.model.encoders.encoder import encode, load_encoder, to_tensors
from harness.model.encoders.static import StaticEncoder
from tests.support.small_models import TEXTS

pytestmark = pytest.mark.usefixtures("models_home")
ROWS = 97


def hashed(run: list[int]) -> int:
    """The row of a run of tokens, in Python's own numbers."""

    def mixed(value: int) -> int:
        signed = lambda number: (number & (1 << 64) - 1) - ((number >> 63 & 1) << 64)  # noqa: E731
        value = signed(value)
        value = signed((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD)
        return value ^ (value >> 33)

    found = mixed(run[0])
    for token in run[1:]:
        found = mixed(found + token)
    return (found & (1 << 63) - 1) % ROWS


def load(folder, **options) -> StaticEncoder:
    return load_encoder("static", seed=0, teacher=str(folder), dim=8, **options)


@pytest.fixture
def phrases(bert_folder) -> StaticEncoder:
    """An encoder with n-grams of two and three tokens, whose vectors are not zero any more."""
    encoder = load(bert_folder, ngrams=3, ngram_rows=ROWS, ngram_weight=0.7)
    encoder.adapt(np.arange(len(encoder.weights)))
    encoder.ngrams.table.weight.copy_(torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1)))
    return encoder


def expected(encoder: StaticEncoder, row: list[int], table: torch.Tensor, longest: int, factor: float) -> torch.Tensor:
    weights = encoder.weights
    total = sum((weights[token] * encoder.table.weight[token] for token in row), torch.zeros(8))
    for length in range(2, longest + 1):
        for start in range(len(row) - length + 1):
            run = row[start : start + length]
            product = np.prod([float(weights[token]) for token in run])
            total = total + factor * product ** (1 / length) * table[hashed(run)]
    return normalize(total, dim=0)


def test_an_n_gram_adds_its_hashed_vector(phrases):
    """No run goes from one text into the next, and special tokens are in none."""
    tokens = tokenize(["", *TEXTS, "a"], phrases.tokenizer, 24)
    for row, vector in enumerate(encode(phrases, tokens)):
        text = tokens[row].tolist()
        np.testing.assert_allclose(vector, expected(phrases, text, phrases.ngrams.table.weight, 3, 0.7), atol=1e-5)


def test_gradients_reach_the_rows_of_the_batch_alone(phrases):
    tokens = tokenize(TEXTS, phrases.tokenizer, 24)
    goal = torch.randn(len(TEXTS), 8, generator=torch.Generator().manual_seed(2))
    phrases.train()
    (phrases(*to_tensors(tokens, "cpu")) * goal).sum().backward()
    rows, gradient = phrases.ngrams.table.collect()
    table = phrases.ngrams.table.weight.detach().clone().requires_grad_()
    texts = [tokens[row].tolist() for row in range(len(TEXTS))]
    torch.stack([expected(phrases, text, table, 3, 0.7) for text in texts]).mul(goal).sum().backward()
    dense = torch.zeros_like(table).index_copy(0, rows, gradient)
    torch.testing.assert_close(dense, table.grad, atol=1e-5, rtol=1e-4)
    assert len(rows) == len(rows.unique()) < ROWS


def test_they_start_at_nothing(bert_folder):
    """Before training, texts have the vectors that they have without n-grams; the identity tells both apart."""
    tokens = tokenize(TEXTS, load(bert_folder).tokenizer, 24)
    with_phrases, without = load(bert_folder, ngrams=2), load(bert_folder)
    np.testing.assert_array_equal(encode(with_phrases, tokens), encode(without, tokens))
    identities = {
        load(bert_folder, ngrams=2, **more).identity for more in ({}, {"ngram_rows": 9}, {"ngram_weight": 2.0})
    }
    assert len({without.identity, with_phrases.identity, *identities}) == 4
    assert load(bert_folder, ngrams=1, ngram_rows=9).identity == without.identity, "without n-grams they are idle"


def test_the_order_of_words_counts(phrases):
    tokens = phrases.tokenizer
    one, other = (encode(phrases, tokenize([text], tokens, 24)) for text in ("red green blue", "blue green red"))
    assert np.abs(one - other).max() > 0.01


def test_texts_without_an_n_gram(phrases):
    word = next(token for token in range(len(phrases.weights)) if phrases.weights[token] > 0)
    tokens = Ragged(np.array([word, word, word]), np.array([0, 0, 1, 1, 3]))
    phrases.train()
    places, bounds, factors = phrases.ngrams.found(*to_tensors(tokens, "cpu"), phrases.weights[[word] * 3])
    assert (places.tolist(), bounds.tolist(), len(factors)) == ([hashed([word, word])], [0, 0, 0, 0, 1], 1)
    alone = Ragged(np.array([word]), np.array([0, 1]))
    phrases(*to_tensors(alone, "cpu")).sum().backward()
    assert np.isfinite(encode(phrases, Ragged(np.zeros(0, np.int64), np.array([0, 0])))).all()


@pytest.mark.parametrize(
    "options", [{"ngrams": 0}, {"ngrams": 6}, {"ngram_rows": 0}, {"ngram_weight": 0.0}, {"ngrams": "2"}]
)
def test_options_out_of_range(options):
    with pytest.raises(UserError, match=f"encoder_options.{next(iter(options))}"):
        check_encoder("static", options)


def test_they_cannot_be_exported_to_a_library_of_tokens(phrases, tmp_path):
    with pytest.raises(UserError, match=r"not of n-grams; export the plain safetensors, .* encoder_options\.ngrams=1"):
        export_sentence_transformers(phrases, None, tmp_path / "out", max_len=24, metadata={})
    assert not (tmp_path / "out").exists()
