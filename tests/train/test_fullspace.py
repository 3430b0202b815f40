"""The objective over all labels against dense autograd, in bounded memory; batches against the whole label space."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from harness.batching import LabelSpace
from harness.batching.whole import WholeSpaceBatches
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.model.encoders.encoder import Encoder, load_encoder, to_tensors
from harness.model.heads import PlainHead, RetrievalHead, TwoHeads
from harness.model.tables import RowTable
from harness.seeds import stream_seed
from harness.settings.method import Inputs
from harness.settings.parameters import OptimSettings
from harness.train import Batch
from harness.train.objectives.fullspace import FullSpace, LabelOrder
from harness.train.timing import Timer
from tests.support.oracles import random_space, softmax_by_definition, texts, topk_by_definition
from tests.support.tensor_sizes import largest
from tests.train.test_ova import static_like

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, LABELS, STEP, SEED = 20, 60, 4, 11
BATCH = np.array([4, 7, 1, 19, 8, 12])


@pytest.fixture(scope="module")
def tiny(models_home: None) -> Encoder:
    return load_encoder("tiny", seed=3)


def dropping(model: nn.Module, share: float) -> nn.Module:
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = share
    return model


def make_model(kind: str, tiny: Encoder) -> TwoHeads:
    torch.manual_seed(5)
    encoder = tiny if "tiny" in kind else static_like(tiny.tokenizer)
    head = RetrievalHead(encoder.dim, 6, 0.0) if "head" in kind else PlainHead("unit" in kind)
    model = TwoHeads(encoder, head, None).train()
    dropping(model, 0.3 if "dropout" in kind else 0.0)
    model.zero_grad()
    return model


def objective(model: TwoHeads, loss: str = "decoupled-softmax", **changes: object) -> FullSpace:
    given_settings = {"micro_batch_tokens": 40, **changes.pop("settings", {})}  # type: ignore[dict-item]
    fields = {
        "model": model,
        "queries": texts(ROWS, seed=0),
        "labels": texts(LABELS, seed=1),
        "loss": loss,
        "temperature": 0.2,
        "chunk": 7,
        "settings": OptimSettings.model_validate(given_settings),
        "device": "cpu",
        "seed": SEED,
        "k": 2,
        **changes,
    }
    return FullSpace(**fields)  # type: ignore[arg-type]


def taken_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients of all parameters and tables, as dense tensors; none is left behind."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for name, part in model.named_modules():
        if isinstance(part, RowTable) and (collected := part.collect()) is not None:
            found[name] = torch.zeros_like(part.weight).index_copy_(0, *collected)
    model.zero_grad()
    return found


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    assert found
    scale = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert scale > 0
    for name, gradient in wanted.items():
        worst = float((found[name] - gradient).abs().max())
        assert worst <= tolerance * scale, name


def by_definition(work: FullSpace, rows: np.ndarray, space: LabelSpace) -> Tensor:
    """The same loss with all labels in one graph; random numbers are those of the blocks."""
    encoder, head, order = work.model.encoder, work.model.retrieval, work._order
    chunks = LabelOrder.of(work.queries.take(rows), 10**6, 40 if encoder.micro_batched else None)
    places = torch.arange(len(rows)) if chunks.place is None else torch.from_numpy(chunks.place)
    parts = []
    for index in range(len(chunks.edges) - 1):
        torch.manual_seed(stream_seed(SEED, "dropout", STEP, index + 1))
        parts.append(encoder(*to_tensors(chunks.texts(index), "cpu")))
    torch.manual_seed(stream_seed(SEED, "dropout", STEP, 0))
    queries = head(torch.cat(parts)[places])
    parts = []
    for index in range(len(order.edges) - 1):
        torch.manual_seed(stream_seed(SEED, "dropout", STEP, 0, index))
        parts.append(head(encoder(*to_tensors(order.texts(index), "cpu"))))
    places = torch.arange(LABELS) if order.place is None else torch.from_numpy(order.place)
    scores = queries @ torch.cat(parts)[places].T / work.temperature
    if work.loss == "soft-topk":
        return topk_by_definition(work.alpha * scores, space, work.k)
    return softmax_by_definition(scores, space)


@pytest.mark.parametrize("loss", ["decoupled-softmax", "soft-topk"])
@pytest.mark.parametrize(
    ("kind", "soft"),
    [
        ("tiny dropout", False),
        ("tiny dropout unit", True),
        ("static", True),
        ("static unit", False),
        ("static dropout head", True),
    ],
)
def test_gradients_are_those_of_the_dense_computation(kind: str, loss: str, soft: bool, tiny: Encoder) -> None:
    model = make_model(kind, tiny)
    space = random_space(len(BATCH), LABELS, seed=2, soft=soft)
    work = objective(model, loss, temperature=0.2 if "unit" in kind or "head" in kind else 1.0)
    parts = work.backward(Batch(BATCH, space, STEP), Timer())
    found = taken_gradients(model)
    expected = by_definition(work, BATCH, space)
    expected.backward()
    assert set(parts) == {"loss"}
    assert parts["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert_same(found, taken_gradients(model))


@pytest.mark.parametrize("kind", ["tiny unit", "static unit"])
@pytest.mark.parametrize("loss", ["decoupled-softmax", "soft-topk"])
def test_the_size_of_chunks_changes_nothing(kind: str, loss: str, tiny: Encoder) -> None:
    """parity 3: encoder included"""
    model, space = make_model(kind, tiny), random_space(len(BATCH), LABELS, seed=3)
    results = []
    for chunk, tokens, cache in ((1000, 10**6, False), (4, 10**6, True), (30, 32, True), (13, 100, False)):
        work = objective(model, loss, chunk=chunk, settings={"micro_batch_tokens": tokens, "gradient_cache": cache})
        results.append((work.backward(Batch(BATCH, space, STEP), Timer())["loss"], taken_gradients(model)))
    for value, gradients in results[1:]:
        assert value == pytest.approx(results[0][0], rel=1e-5)
        assert_same(gradients, results[0][1])


def test_dropout_is_a_function_of_the_step(tiny: Encoder) -> None:
    work, space = objective(make_model("tiny dropout", tiny)), random_space(len(BATCH), LABELS, seed=3)
    losses = [work.backward(Batch(BATCH, space, step), Timer())["loss"] for step in (3, 4, 3)]
    assert losses[0] == losses[2] != losses[1]


def test_half_precision_loses_no_gradient(tiny: Encoder) -> None:
    """Autocast remembers weights that the first pass converted without a graph."""
    model, space = make_model("tiny unit", tiny), random_space(len(BATCH), LABELS, seed=3)
    found = []
    for precision in ("float32", "bfloat16"):
        objective(model, settings={"precision": precision}).backward(Batch(BATCH, space, STEP), Timer())
        found.append(taken_gradients(model))
    assert found[0].keys() == found[1].keys()
    flat = [torch.cat([gradient.flatten() for gradient in gradients.values()]) for gradients in found]
    assert torch.cosine_similarity(*flat, dim=0) > 0.99


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("tiny unit", "decoupled-softmax"), ("static unit", "decoupled-softmax"), ("static unit", "soft-topk")],
)
def test_nothing_is_as_large_as_the_label_space(kind: str, loss: str, tiny: Encoder) -> None:
    """Neither [B, L] nor [L, D]: the largest tensors are those of a block of labels, and the token table's gradient."""
    labels, rows = 900, np.arange(16)
    model = make_model(kind, tiny)
    work = objective(model, loss, labels=texts(labels, seed=1), chunk=60, settings={"micro_batch_tokens": 128})
    batch = Batch(rows, random_space(len(rows), labels, seed=0, share=0.01), STEP)
    elements = largest(lambda: work.backward(batch, Timer()))
    taken_gradients(model)
    table = model.encoder.tokenizer.vocab_size * model.encoder.dim
    assert elements <= max(table, len(rows) * 60, 128 * 2 * model.encoder.dim)
    assert elements < labels * min(len(rows), model.encoder.dim)


def test_leaves_of_a_table_do_not_pile_up(tiny: Encoder) -> None:
    model = make_model("static unit", tiny)
    work = objective(model, labels=texts(1500, seed=1), chunk=20)
    work.backward(Batch(BATCH, random_space(len(BATCH), 1500, seed=0, share=0.01), STEP), Timer())
    table = model.encoder.table
    assert sum(len(rows) for rows, _ in table._touched) <= len(table.weight)
    taken_gradients(model)


def test_labels_of_no_query_are_pushed(tiny: Encoder) -> None:
    """A label that is nobody's positive has a gradient all the same: it is everybody's negative."""
    model = make_model("static", tiny)
    lonely = np.arange(LABELS) + 100  # every label has a token of its own
    work = objective(model, temperature=1.0, labels=Ragged(lonely, np.arange(LABELS + 1)))
    work.queries = Ragged(np.arange(ROWS) + 10, np.arange(ROWS + 1))
    space = random_space(len(BATCH), LABELS, seed=6, share=0.02)
    work.backward(Batch(BATCH, space, STEP), Timer())
    gradient = taken_gradients(model)["encoder.table"]
    nobody = np.setdiff1d(np.arange(LABELS), space.label)
    assert len(nobody)
    assert (gradient[torch.from_numpy(lonely[nobody])].abs().amax(1) > 0).all()


@pytest.mark.parametrize("kind", ["tiny unit", "static unit"])
def test_a_block_of_labels_without_text(kind: str, tiny: Encoder) -> None:
    """fault 44: their vectors are zero, and so are their gradients."""
    model = make_model(kind, tiny)
    ids, offsets = texts(LABELS, seed=1).values, texts(LABELS, seed=1).offsets
    labels = Ragged(ids, np.concatenate([np.zeros(7, np.int64), offsets, np.full(7, offsets[-1])]))
    space = random_space(len(BATCH), len(labels), seed=2)
    work = objective(model, labels=labels, settings={"micro_batch_tokens": 7})
    assert any(not len(work._order.texts(index).values) for index in range(len(work._order.edges) - 1))
    assert math.isfinite(work.backward(Batch(BATCH, space, STEP), Timer())["loss"])
    assert all(gradient.isfinite().all() for gradient in taken_gradients(model).values())


def test_bad_settings_are_refused(tiny: Encoder) -> None:
    model = make_model("static", tiny)
    for k in (0, LABELS):
        with pytest.raises(UserError, match=f"topk is {k}, "):
            objective(model, "soft-topk", k=k)


def whole_space(batch_size: int = 5, beta: int | None = 1, seed: int = 3) -> tuple[WholeSpaceBatches, list[str]]:
    warnings: list[str] = []
    train = csr_array(np.random.default_rng(0).random((23, 15)) < 0.4).astype(np.float32)
    nothing, encoder = csr_array((23, 15), dtype=np.float32), load_encoder("tiny", seed=0)
    inputs = Inputs(train, nothing, texts(23, seed=0), texts(15, seed=1), encoder, "cpu", 1000, seed, warnings.append)
    return WholeSpaceBatches(inputs, batch_size, beta=beta), warnings


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    source, _ = whole_space()
    again, other = whole_space()[0], whole_space(seed=4)[0]
    assert source.steps == 5
    for epoch in (0, 1):
        batches = source.batches(epoch)
        assert sorted(map(len, batches)) == [4, 4, 5, 5, 5]
        assert sorted(np.concatenate(batches).tolist()) == list(range(23))
        assert all(np.array_equal(a, b) for a, b in zip(batches, again.batches(epoch), strict=True))
    assert not np.array_equal(np.concatenate(source.batches(0)), np.concatenate(source.batches(1)))
    assert not np.array_equal(np.concatenate(source.batches(0)), np.concatenate(other.batches(0)))


def test_drawn_positives_are_a_function_of_the_step() -> None:
    source, rows = whole_space()[0], np.arange(20)
    pools = [source.pool(rows, step) for step in (0, 1, 0)]
    assert np.array_equal(pools[0].drawn, pools[2].drawn)
    assert not np.array_equal(pools[0].drawn, pools[1].drawn)
    assert (np.bincount(pools[0].query[pools[0].drawn], minlength=20) <= 1).all()
    assert whole_space(beta=None)[0].pool(rows, 0).drawn.all()
    assert (pools[0].rows, pools[0].size) == (20, 15)


def test_a_batch_of_more_rows_than_there_are_is_said() -> None:
    source, warnings = whole_space(batch_size=100)
    assert source.steps == 1
    assert len(source.batches(0)[0]) == 23
    assert "a batch of 100" in warnings[0]
    assert not whole_space()[1]
