"""The frugal encoders `astec` and `inceptionxml`: equality with their definitions, gradients, what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import gelu

from harness.data.ragged import Ragged
from harness.data.tokens import tokenize
from harness.errors import UserError
from harness.model.encoders.astec import SpectralMatrix
from harness.model.encoders.encoder import encode, load_encoder, to_tensors
from harness.model.encoders.inception import WORDS, InceptionEncoder
from harness.model.encoders.static import TokenEncoder
from harness.run import run
from harness.train.caching import BatchEncoding
from tests.support.small_models import TEXTS, small_workspace, write_model
from tests.support.training_runs import config

pytestmark = pytest.mark.usefixtures("models_home")

NAMES = ("astec", "inceptionxml")
LONG = "many words, more than are read: " * 3


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, models_home: None) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "wide-bert", hidden_size=72))


def make(name: str, teacher: str, **options: Any) -> TokenEncoder:
    """An encoder whose dense weights have left their special first values."""
    encoder = load_encoder(name, **{"seed": 1, "teacher": teacher, "dim": 68, **options})
    assert isinstance(encoder, TokenEncoder)
    encoder.adapt(np.arange(260)[::-1].copy())
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return encoder


def tokens_of(encoder: TokenEncoder) -> Ragged:
    return tokenize([*TEXTS, LONG], encoder.tokenizer, 90)


# ---------------------------------------------------------------- spectral norm


def test_spectral_matrix_has_norm_one_and_the_gradient_of_its_definition() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = SpectralMatrix(torch.randn(5, 4, dtype=torch.float64, generator=draw))
    assert np.linalg.svd(matrix().detach().numpy(), compute_uv=False)[0] == pytest.approx(1, abs=1e-12)
    left, values, right = np.linalg.svd(matrix.weight.detach().numpy())
    target = torch.randn(5, 4, dtype=torch.float64, generator=draw)
    (matrix() * target).sum().backward()
    # d(A / s) = dA / s - A <u v^T, dA> / s^2
    slope = target.numpy() / values[0]
    slope -= (matrix.weight.detach().numpy() * target.numpy()).sum() / values[0] ** 2 * np.outer(left[:, 0], right[0])
    np.testing.assert_allclose(matrix.weight.grad, slope, atol=1e-12)


def test_spectral_matrix_starts_at_the_identity_with_a_finite_gradient() -> None:
    """All singular values are equal there."""
    matrix = SpectralMatrix(torch.eye(6))
    assert torch.equal(matrix(), torch.eye(6))
    matrix()[0, 1].backward()
    assert matrix.weight.grad is not None
    assert torch.isfinite(matrix.weight.grad).all()


# ---------------------------------------------------------------- definitions, row by row


def astec_by_hand(encoder: Any, words: NDArray[np.int64]) -> NDArray[np.float64]:
    weights = encoder.weights.double().numpy()[words]
    bag = weights @ encoder.table.weight.double().numpy()[words]
    features = np.maximum(bag / max(np.sqrt((weights**2).sum()), 1e-30), 0)
    matrix = encoder.residual.weight.detach().double().numpy()
    return features + np.maximum(matrix @ features / np.linalg.norm(matrix, 2), 0)


def inception_by_hand(encoder: InceptionEncoder, words: NDArray[np.int64]) -> Tensor:
    """All 32 rows, three separate convolutions, the attention as published."""
    weights = encoder.weights[words]
    words = words[weights.numpy() > 0][:WORDS]
    if not len(words):
        return torch.zeros(encoder.dim)
    x = torch.zeros(WORDS, encoder.table.weight.shape[1])
    x[: len(words)] = encoder.weights[words][:, None] * encoder.table.weight[words]
    one, two = (
        part.weight / torch.linalg.svdvals(part.weight)[0]
        for part in (encoder.words_attention, encoder.components_attention)
    )
    first, second = encoder.attention_weights
    h = x + first * ((x @ x.T) @ (one @ x))
    y = (h.T + second * ((h.T @ x) @ (two @ h.T))).T
    mixed = gelu(encoder.mix.weight[:, :, 0] @ (y * x.shape[1] ** 0.5) + encoder.mix.bias[:, None])
    parts = []
    for width, kernel, bias in zip((4, 8, 16), encoder.kernels, encoder.kernels_bias.view(3, -1), strict=True):
        margin = 2 * (width // 4 - 1)
        around = nn.functional.pad(mixed[None], (margin, margin), mode="circular") if margin else mixed[None]
        parts.append(nn.functional.conv1d(around, kernel, bias, stride=4)[0])
    joined = encoder.join(gelu(torch.cat(parts))[None])[0]
    hidden = gelu(joined).flatten()
    last = gelu(encoder.residual.weight @ hidden + encoder.residual.bias)
    return hidden + last


def test_astec_is_its_definition(teacher: str) -> None:
    encoder = make("astec", teacher)
    tokens = tokens_of(encoder)
    for row, vector in enumerate(encode(encoder, tokens)):
        expected = astec_by_hand(encoder, tokens[row].astype(np.int64))
        np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-5)  # sums of float32, in another order


def test_astec_starts_as_twice_the_bag(teacher: str) -> None:
    """The residual layer is the identity at first, and what goes into it has no negative component."""
    encoder = load_encoder("astec", seed=0, teacher=teacher, dim=68)
    assert isinstance(encoder, TokenEncoder)
    static = load_encoder("static", seed=0, teacher=teacher, dim=68)
    ours, bags = encode(encoder, tokens_of(encoder), normalise=True), encode(static, tokens_of(encoder))
    positive = np.maximum(bags, 0)
    length = np.linalg.norm(positive, axis=1, keepdims=True)
    np.testing.assert_allclose(ours, positive / np.where(length > 0, length, 1), atol=1e-6)


def test_inceptionxml_is_its_definition(teacher: str) -> None:
    encoder = make("inceptionxml", teacher)
    assert isinstance(encoder, InceptionEncoder)
    tokens = tokens_of(encoder)
    with torch.no_grad():
        for row, vector in enumerate(encode(encoder, tokens)):
            expected = inception_by_hand(encoder, tokens[row].astype(np.int64))
            np.testing.assert_allclose(vector, expected, atol=2e-5)


def test_inceptionxml_reads_the_order_of_words_and_the_first_32(teacher: str) -> None:
    encoder = make("inceptionxml", teacher)
    draw = np.random.default_rng(0).integers(4, 260, size=40)
    swapped, tail, head = draw.copy(), draw.copy(), draw.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    tail[32:] = 7
    head[31] = 7
    # special tokens are no words, wherever they stand
    framed = np.concatenate([[2], draw[:10], [0, 3], draw[10:], [3]])
    rows = [draw, swapped, tail, head, framed]
    vectors = encode(encoder, Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)])))
    np.testing.assert_allclose(vectors[0], vectors[2], atol=2e-6)
    np.testing.assert_allclose(vectors[0], vectors[4], atol=2e-6)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)
    assert not np.allclose(vectors[0], vectors[3], atol=1e-3)


# ---------------------------------------------------------------- training


def gradients(encoder: TokenEncoder) -> dict[str, Tensor]:
    """Of everything trainable, the token table's as one tensor [V, E]; then none is left."""
    found = {name: part.grad.clone() for name, part in encoder.named_parameters() if part.grad is not None}
    rows, gradient = encoder.table.collect() or (None, None)
    assert rows is not None
    assert gradient is not None
    found["table"] = torch.zeros_like(encoder.table.weight).index_copy(0, rows, gradient)
    encoder.zero_grad()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_cached_gradients_are_those_of_one_pass(name: str, teacher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass must see the weights and the dropout of the first."""
    encoder = make(name, teacher).train()
    monkeypatch.setattr(encoder, "micro_batched", True)  # astec is not cut on its own account
    tokens = tokens_of(encoder)
    target = torch.randn(len(tokens), encoder.dim, generator=torch.Generator().manual_seed(2))
    results = []
    for cache in (True, False):
        with torch.random.fork_rng(devices=[]):
            encoding = BatchEncoding(encoder, tokens, "cpu", 60, lambda chunk: 100 + chunk, cache=cache)
            (encoding.vectors * target).sum().backward()
            encoding.backward()
        results.append((encoding.vectors.detach(), gradients(encoder)))
    (cached, cached_gradients), (direct, direct_gradients) = results
    assert torch.equal(cached, direct)
    trainable = {part for part, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert cached_gradients.keys() == direct_gradients.keys() == trainable | {"table"}
    for part, gradient in direct_gradients.items():
        torch.testing.assert_close(cached_gradients[part], gradient, atol=1e-6, rtol=1e-4)
        assert gradient.any(), part


@pytest.mark.parametrize("name", NAMES)
def test_row_gradients_equal_dense_ones(name: str, teacher: str) -> None:
    encoder = make(name, teacher, dropout=0.0).train()
    ids, offsets = to_tensors(tokens_of(encoder), "cpu")
    target = torch.randn(len(offsets) - 1, encoder.dim, generator=torch.Generator().manual_seed(2))
    (encoder(ids, offsets) * target).sum().backward()
    sparse = gradients(encoder)["table"]
    dense = encoder.table.weight.detach().clone().requires_grad_()
    encoder.rows = lambda wanted: (dense, wanted)  # type: ignore[method-assign]
    (encoder(ids, offsets) * target).sum().backward()
    assert dense.grad is not None
    torch.testing.assert_close(sparse, dense.grad)
    used = ids.unique()
    unused = torch.ones(260, dtype=torch.bool).index_fill(0, used, False)
    assert not sparse[unused].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_any_word_trains(name: str, teacher: str) -> None:
    encoder = make(name, teacher).train()
    for rows in ([[2, 3], [], [0]], [[]]):
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
        offsets = torch.tensor(np.cumsum([0, *map(len, rows)]))
        vectors = encoder(ids, offsets)
        assert vectors.shape == (len(rows), encoder.dim)
        assert not vectors.any()
        vectors.sum().backward()
        assert all(torch.isfinite(gradient).all() for gradient in gradients(encoder).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_run_from_card_to_metrics(name: str, teacher: str, tmp_path: Path) -> None:
    settings = {"encoder": name, "encoder_options": {"teacher": teacher, "dim": 64}, "epochs": 1, "max_len": 40}
    with small_workspace(tmp_path):
        record = run(config("depsl", **settings), track="none")
    assert record.status == "finished"
    assert record.metrics["P@1"] >= 0


# ---------------------------------------------------------------- options


@pytest.mark.parametrize("name", NAMES)
def test_identity_follows_every_option(name: str, teacher: str) -> None:
    plain = {"teacher": teacher, "dim": 68}
    same = load_encoder(name, seed=0, **plain).identity
    assert load_encoder(name, seed=0, **plain).identity == same
    changes: list[dict[str, Any]] = [{"dim": 64}, {"weighting": "zipf"}, {"dropout": 0.1}]
    others = [load_encoder(name, seed=0, **{**plain, **change}).identity for change in changes]
    others.append(load_encoder("static", seed=0, **plain).identity)
    assert len({same, *others}) == 5
    # only inceptionxml draws its first weights
    assert (load_encoder(name, seed=1, **plain).identity == same) is (name == "astec")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("option", "value"), [("dropout", 1.0), ("dropout", -0.1), ("weighting", "tf-idf"), ("dim", 0), ("dims", 64)]
)
def test_wrong_options_are_refused(name: str, option: str, value: object, teacher: str) -> None:
    with pytest.raises(UserError, match=option):
        load_encoder(name, seed=0, **{"teacher": teacher, option: value})


@pytest.mark.parametrize(("dim", "reason"), [(60, "64"), (66, "multiple of 4"), (76, "teacher's 72")])
def test_inceptionxml_needs_components_that_its_windows_fit(dim: int, reason: str, teacher: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_encoder("inceptionxml", seed=0, teacher=teacher, dim=dim)
