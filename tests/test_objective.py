"""The pick-some-labels objective against a dense, plain-autograd version of the same equations; gradient caching."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.batching import LabelPool
from harness.data.ragged import Ragged
from harness.model.encoder import Encoder, load_encoder, to_tensors
from harness.model.heads import Classifier, RetrievalHead, TwoHeads, start_projection
from harness.model.rows import RowTable
from harness.model.static import StaticEncoder, distinct
from harness.train import Batch
from harness.train.caching import BatchEncoding
from harness.train.psl import ClassifierLossSettings, LossSettings, PickSomeLabels
from harness.train.settings import OptimSettings
from harness.train.timing import Timer

LABELS, ROWS, WIDTH, DIM = 7, 5, 8, 6


def texts(count: int, seed: int, vocabulary: int = 256) -> Ragged:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, count)
    return Ragged(generator.integers(4, vocabulary, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)]))


@pytest.fixture
def encoder() -> Encoder:
    return load_encoder("tiny", seed=3)


@pytest.fixture
def static(encoder: Encoder) -> StaticEncoder:
    table = torch.randn(encoder.tokenizer.vocab_size, WIDTH, generator=torch.Generator().manual_seed(0))
    return StaticEncoder(
        table, "uniform", name="static", tokenizer=encoder.tokenizer, max_len=32, identity="made in a test"
    )


def two_heads(encoder: Encoder, logits: str, classifier: bool = True) -> TwoHeads:
    generator = torch.Generator().manual_seed(1)
    head = Classifier(encoder.dim, DIM, LABELS, logits, 0.0, 0.0) if classifier else None  # type: ignore[arg-type]
    model = TwoHeads(encoder, RetrievalHead(encoder.dim, DIM, 0.0), head)
    start_projection(model.retrieval.projection, "xavier", generator)
    if head is not None:
        start_projection(head.projection, "orthogonal", generator)
        head.table.weight.data.normal_(generator=generator)
    return model.train()


POOL = LabelPool(
    labels=np.array([0, 2, 3, 5, 1, 6]),
    positive=np.random.default_rng(5).random((ROWS, 6)) < 0.4,
    ignored=None,
    encoded=4,
)
POOL.positive[0] = False  # a query without a positive in the pool is skipped
IGNORED = LabelPool(POOL.labels, POOL.positive, ~POOL.positive & (np.random.default_rng(6).random((ROWS, 6)) < 0.3), 4)


def objective(model: TwoHeads, **changes: float) -> PickSomeLabels:
    settings = {"lambda_c": 0.3, "bce_weight": 0.7, "lambda": 0.4, "temperature_classifier": 0.5, **changes}
    return PickSomeLabels(
        model,
        texts(20, seed=0),
        texts(LABELS, seed=1),
        LossSettings(lambda_d=0.6, temperature=0.2),
        None if model.classifier is None else ClassifierLossSettings.model_validate(settings),
        OptimSettings(),
        "cpu",
        seed=0,
    )


def decoupled(scores: Tensor, positive: Tensor, ignored: Tensor) -> Tensor:
    """Decoupled softmax by its definition, one pair at a time."""
    rows = []
    for s, p, skip in zip(scores, positive, ignored, strict=True):
        if p.any():
            against = s[~p & ~skip]
            rows.append(-torch.stack([x - torch.logsumexp(torch.cat([x[None], against]), 0) for x in s[p]]).mean())
    return torch.stack(rows).mean()


def two_way(scores: Tensor, positive: Tensor, ignored: Tensor, weight: float) -> Tensor:
    return weight * decoupled(scores, positive, ignored) + (1 - weight) * decoupled(scores.T, positive.T, ignored.T)


def by_definition(model: TwoHeads, work: PickSomeLabels, rows: np.ndarray, pool: LabelPool, table: Tensor) -> Tensor:
    """L of Algorithm 1, with the classifier table as one dense tensor."""
    encode = model.encoder
    queries = encode(*to_tensors(work.queries.take(rows), "cpu"))
    labels = encode(*to_tensors(work.labels.take(pool.labels[: pool.shared]), "cpu"))

    def unit(x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True)

    positive = torch.from_numpy(pool.positive)
    ignored = torch.zeros_like(positive) if pool.ignored is None else torch.from_numpy(pool.ignored)
    first, second = model.retrieval.projection, model.classifier.projection  # type: ignore[union-attr]
    scores = unit(torch.tanh(first(queries))) @ unit(torch.tanh(first(labels))).T / 0.2
    shared = slice(0, pool.shared)
    dual = two_way(scores, positive[:, shared], ignored[:, shared], 0.6)
    left, right = second(queries), table[torch.from_numpy(pool.labels)]
    if model.classifier.logits == "cosine":  # type: ignore[union-attr]
        left, right = unit(left), unit(right)
    scores = left @ right.T / 0.5
    pairs = nn.functional.binary_cross_entropy_with_logits(scores, positive.float(), reduction="none")
    contrast = two_way(scores, positive, ignored, 0.3) + 0.7 * pairs[~ignored].mean()
    return 0.4 * dual + 0.6 * contrast


@pytest.mark.parametrize("logits", ["dot", "cosine"])
@pytest.mark.parametrize("pool", [POOL, IGNORED], ids=["plain", "filter"])
def test_loss_and_gradients_are_those_of_the_definition(logits: str, pool: LabelPool, static: StaticEncoder) -> None:
    model = two_heads(static, logits)
    work, rows = objective(model), np.array([4, 7, 1, 19, 8])
    parts = work.backward(Batch(rows, pool, 0), Timer())
    table, tokens = model.classifier.table.weight.detach().clone().requires_grad_(), static.table.weight  # type: ignore[union-attr]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    touched, token_rows = model.classifier.table.collect(), static.table.collect()  # type: ignore[union-attr]
    assert touched is not None
    assert token_rows is not None
    model.zero_grad()

    static.eval()  # evaluation reads the table as a whole, so that autograd can see it dense
    static.table.weight = nn.Parameter(tokens.detach().clone())
    static.table.weight.detach = lambda: static.table.weight  # type: ignore[method-assign]
    expected = by_definition(model, work, rows, pool, table)
    expected.backward()
    assert parts["loss"] == pytest.approx(expected.item(), rel=1e-5)
    dense = [p.grad for name, p in model.named_parameters() if p.requires_grad and "table" not in name]
    for found, wanted in zip(gradients, dense, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)  # type: ignore[arg-type]
    full = torch.zeros_like(table).index_copy(0, *touched)
    assert torch.allclose(full, table.grad, atol=1e-6)  # type: ignore[arg-type]
    full = torch.zeros_like(tokens).index_copy(0, *token_rows)
    assert torch.allclose(full, static.table.weight.grad, atol=1e-6)  # type: ignore[arg-type]


def test_without_a_classifier_the_loss_is_the_dual_encoders(static: StaticEncoder) -> None:
    batch = Batch(np.array([4, 7, 1, 19, 8]), LabelPool(POOL.labels[:4], POOL.positive[:, :4]), 0)
    both = objective(two_heads(static, "dot")).backward(batch, Timer())
    alone = objective(two_heads(static, "dot", classifier=False)).backward(batch, Timer())
    assert set(alone) == {"loss"}
    assert alone["loss"] == pytest.approx(both["loss_d"], rel=1e-6)


def test_lambda_weighs_the_two_heads(static: StaticEncoder) -> None:
    batch = Batch(np.array([4, 7, 1, 19, 8]), POOL, 0)
    for share in (0.0, 0.25, 1.0):
        parts = objective(two_heads(static, "cosine"), **{"lambda": share}).backward(batch, Timer())
        rest = parts["loss_c"] + 0.7 * parts["loss_bce"]
        assert parts["loss"] == pytest.approx(share * parts["loss_d"] + (1 - share) * rest, rel=1e-5)


def encoder_gradients(encoder: Encoder, tokens: Ragged, micro_batch: int, *, cache: bool, seed: int) -> list[Tensor]:
    """Gradients of a fixed function of all vectors."""
    encoder.zero_grad()
    encoding = BatchEncoding(encoder, tokens, "cpu", micro_batch, lambda chunk: 100 * seed + chunk, cache=cache)
    weights = torch.randn(encoding.vectors.shape, generator=torch.Generator().manual_seed(9))
    (encoding.vectors * weights).sum().square().backward()
    encoding.backward()
    return [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]


def test_cached_gradients_equal_kept_ones_with_dropout_replayed(encoder: Encoder) -> None:
    tokens = texts(23, seed=4)
    dropped = [part for part in encoder.modules() if isinstance(part, nn.Dropout)]
    assert dropped
    for part in dropped:
        part.p = 0.3
    encoder.train()
    cached = encoder_gradients(encoder, tokens, 32, cache=True, seed=1)
    kept = encoder_gradients(encoder, tokens, 32, cache=False, seed=1)
    other = encoder_gradients(encoder, tokens, 32, cache=True, seed=2)
    scale = max(float(gradient.abs().max()) for gradient in kept)
    assert all(torch.allclose(a, b, atol=1e-6 * scale) for a, b in zip(cached, kept, strict=True))
    assert not all(torch.allclose(a, b, atol=1e-3 * scale) for a, b in zip(cached, other, strict=True))


@pytest.mark.parametrize("micro_batch", [1, 16, 64, 10_000])
def test_the_size_of_micro_batches_changes_nothing(encoder: Encoder, micro_batch: int) -> None:
    tokens = texts(23, seed=4)
    encoder.train()
    for part in encoder.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    whole = encoder_gradients(encoder, tokens, 10**6, cache=False, seed=0)
    parts = encoder_gradients(encoder, tokens, micro_batch, cache=True, seed=0)
    scale = max(float(gradient.abs().max()) for gradient in whole)
    assert all(torch.allclose(a, b, atol=2e-6 * scale) for a, b in zip(whole, parts, strict=True))


def test_vectors_come_in_the_order_of_the_rows(encoder: Encoder) -> None:
    tokens = texts(23, seed=4)
    encoder.eval()
    encoding = BatchEncoding(encoder, tokens, "cpu", 20, lambda chunk: chunk)
    one_by_one = torch.cat([encoder(*to_tensors(tokens.take(np.array([row])), "cpu")) for row in range(23)])
    assert torch.allclose(encoding.vectors, one_by_one, atol=1e-5)


def test_dropout_of_a_step_is_a_function_of_its_position(static: StaticEncoder) -> None:
    model = two_heads(static, "cosine")
    model.retrieval.dropout.p = 0.4
    work = objective(model)
    rows = np.array([4, 7, 1, 19, 8])
    losses = [work.backward(Batch(rows, POOL, step), Timer())["loss"] for step in (3, 4, 3)]
    assert losses[0] == losses[2] != losses[1]


def test_distinct_ids_without_sorting() -> None:
    ids = torch.tensor([5, 2, 9, 2, 5, 0])
    values, place = distinct(ids, 10)
    assert values.tolist() == [0, 2, 5, 9]
    assert torch.equal(values[place], ids)


def test_a_row_table_has_no_dense_gradient(static: StaticEncoder) -> None:
    assert isinstance(static.table, RowTable)
    assert not static.table.weight.requires_grad
    static.train()
    ids, offsets = to_tensors(texts(4, seed=2), "cpu")
    static(ids, offsets).sum().backward()
    rows, gradient = static.table.collect() or (None, None)
    assert rows is not None
    assert gradient is not None
    assert rows.tolist() == sorted(set(ids.tolist()))
    assert gradient.shape == (len(rows), WIDTH)
    assert static.table.weight.grad is None


def test_a_text_without_tokens_sends_back_no_gradient_without_bounds(static: StaticEncoder) -> None:
    model = two_heads(static, "cosine")
    model.classifier.table.weight.data[2] = 0  # type: ignore[union-attr]
    work = objective(model)
    lengths = work.queries.lengths.copy()
    lengths[4] = 0
    work.queries = Ragged(work.queries.values[: lengths.sum()], np.concatenate([[0], np.cumsum(lengths)]))
    parts = work.backward(Batch(np.array([4, 7, 1, 19, 8]), POOL, 0), Timer())
    assert np.isfinite(parts["loss"])
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.abs().max() < 100, name
    _, gradient = model.classifier.table.collect() or (None, None)  # type: ignore[union-attr]
    assert gradient is not None
    assert gradient.abs().max() < 100
