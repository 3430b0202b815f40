"""The pick-some-labels objective against a dense, plain-autograd version of the same equations; gradient caching."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.batching import LabelPool
from harness.data.ragged import Ragged
from harness.model.encoders.encoder import Encoder, load_encoder, to_tensors
from harness.model.encoders.static import StaticEncoder
from harness.model.heads import Classifier, RetrievalHead, TwoHeads, start_projection
from harness.settings.parameters import OptimSettings
from harness.train import Batch
from harness.train.objectives.psl import ClassifierLossSettings, LossSettings, PickSomeLabels
from harness.train.timing import Timer
from tests.support.oracles import texts
from tests.train.test_ova import static_like

LABELS, ROWS, WIDTH, DIM = 7, 5, 8, 6


@pytest.fixture
def encoder() -> Encoder:
    return load_encoder("tiny", seed=3)


@pytest.fixture
def static(encoder: Encoder) -> StaticEncoder:
    return static_like(encoder.tokenizer)


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
        texts(20, seed=0, shortest=1),
        texts(LABELS, seed=1, shortest=1),
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


def test_dropout_of_a_step_is_a_function_of_its_position(static: StaticEncoder) -> None:
    model = two_heads(static, "cosine")
    model.retrieval.dropout.p = 0.4
    work = objective(model)
    rows = np.array([4, 7, 1, 19, 8])
    losses = [work.backward(Batch(rows, POOL, step), Timer())["loss"] for step in (3, 4, 3)]
    assert losses[0] == losses[2] != losses[1]


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
