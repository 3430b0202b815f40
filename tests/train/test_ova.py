"""One-vs-all training in label blocks against the same sum left to autograd and torch's SGD."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array
from torch import Tensor, nn

from harness.batching import LabelSpace
from harness.batching.whole import LabelSpacePicker
from harness.data.tokens import Tokenizer
from harness.errors import DataError
from harness.model.encoders.encoder import to_tensors
from harness.model.encoders.static import StaticEncoder
from harness.model.encoders.transformer import byte_tokenizer
from harness.model.heads import Classifier, PlainHead, TwoHeads, start_bottleneck
from harness.model.scoring import TwoHeadScoring
from harness.settings.method import Inputs
from harness.settings.parameters import OptimSettings
from harness.train import Batch
from harness.train.objectives.ova import OneVsAll
from harness.train.optim import Group, Optimiser, Schedule
from harness.train.optim.blocked import BlockedSgd
from harness.train.timing import Timer
from methods.renee import METHOD
from tests.support.oracles import texts
from tests.support.tensor_sizes import largest

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, LABELS, WIDTH, STEPS = 40, 53, 8, 12
LR, DECAY, MOMENTUM = 0.05, 0.01, 0.9


def pairs(kind: str) -> tuple[csr_array, csr_array]:
    """Train labels and filter pairs [ROWS, LABELS]; some pairs are in both, some rows are empty."""
    generator = np.random.default_rng(7)
    train = csr_array(
        random_array((ROWS, LABELS), density=0.06, format="csr", random_state=generator, dtype=np.float32)
    )
    train.data[:] = generator.uniform(0.05, 1, train.nnz) if kind == "soft" else 1
    masked = csr_array(random_array((ROWS, LABELS), density=0.1, format="csr", random_state=generator))
    return train, masked if kind == "filter" else csr_array((ROWS, LABELS))


def static_like(tokenizer: Tokenizer) -> StaticEncoder:
    """A static encoder of random vectors."""
    table = torch.randn(tokenizer.vocab_size, WIDTH, generator=torch.Generator().manual_seed(0))
    return StaticEncoder(table, "uniform", name="static", tokenizer=tokenizer, max_len=32, identity="made in a test")


class Everything:
    """A training of a static encoder and a table with blocks of some size."""

    def __init__(
        self,
        kind: str = "plain",
        dropout: float = 0.0,
        momentum: float = MOMENTUM,
        labels: int = LABELS,
        precision: str = "float32",
        label_block: int = 16,
        bottleneck: int | None = None,
        **changes: int,
    ) -> None:
        encoder, generator = static_like(byte_tokenizer()), torch.Generator().manual_seed(3)
        sizes = WIDTH, bottleneck or WIDTH, labels
        head = Classifier(*sizes, "dot", dropout, 0.0, projected=bottleneck is not None, bias=False, searched="dot")
        if isinstance(head.projection, nn.Linear):
            start_bottleneck(head.projection, generator)
        head.table.weight.data.normal_(generator=generator)
        self.model = TwoHeads(encoder, PlainHead(normalise=True), head).train()
        self.head, self.encoder = head, encoder
        self.train, self.filter = pairs(kind)
        self.picker = LabelSpacePicker(self.train, self.filter, soft=kind == "soft")
        self.tokens = texts(ROWS, 0, shortest=1)
        self.sgd = BlockedSgd(head.table, name="classifier", lr=LR, weight_decay=DECAY, momentum=momentum)
        groups = [Group("encoder", 1e-2, 0.0, [], [encoder.table])]
        self.optimiser = Optimiser(groups, Schedule("linear", 3), STEPS, blocked=[self.sgd])
        settings = OptimSettings.model_validate({"precision": precision})
        self.objective = OneVsAll(
            self.model, self.tokens, self.sgd, self.optimiser, settings, "cpu", 0, label_block, **changes
        )

    def batch(self, step: int) -> Batch:
        rows = np.random.default_rng(step).permutation(ROWS)[:11]
        return Batch(rows, self.picker.pick(rows, np.random.default_rng(0)), step)

    def backward(self, step: int, batch: Batch | None = None) -> float:
        return self.objective.backward(batch or self.batch(step), Timer())["loss"]

    def step(self, step: int, batch: Batch | None = None) -> float:
        loss = self.backward(step, batch)
        self.optimiser.step(step)
        return loss


def dense_loss(
    vectors: Tensor, table: Tensor, target: csr_array, ignored: csr_array, rows: NDArray[np.int64]
) -> Tensor:
    """The sum over all pairs, by its definition."""
    target, ignored = target.toarray()[rows], ignored.toarray()[rows] != 0
    known = torch.from_numpy(np.float32(~(ignored & (target == 0))))
    scores = vectors @ table.T
    return nn.functional.binary_cross_entropy_with_logits(
        scores, torch.from_numpy(target), weight=known, reduction="sum"
    )


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
@pytest.mark.parametrize("kind", ["plain", "soft", "filter"])
def test_a_step_is_that_of_autograd_and_sgd(kind: str, momentum: float) -> None:
    """Loss, weights, momentum and the gradient of the encoder, over several steps with moving learning rates."""
    ours = Everything(kind, momentum=momentum, label_block=7)
    dense = Everything(kind)
    table = nn.Parameter(dense.head.table.weight.clone())
    sgd = torch.optim.SGD([table], lr=1.0, momentum=momentum, weight_decay=DECAY)
    for step in range(5):
        batch = dense.batch(step)
        vectors = dense.encoder(*to_tensors(dense.tokens.take(batch.rows), "cpu"))
        loss = dense_loss(vectors, table, dense.train, dense.filter, batch.rows)
        sgd.zero_grad()
        loss.backward()
        assert ours.backward(step) == pytest.approx(float(loss.detach()) / len(batch.rows), rel=1e-5)
        (_, leaf), (_, expected) = ours.encoder.table._touched[-1], dense.encoder.table._touched[-1]
        torch.testing.assert_close(leaf.grad, expected.grad, rtol=1e-5, atol=1e-5)
        sgd.param_groups[0]["lr"] = LR * Schedule("linear", 3).factor(step, STEPS)
        sgd.step()
        for each in (ours, dense):
            each.optimiser.step(step)
        torch.testing.assert_close(ours.head.table.weight, table, rtol=1e-5, atol=1e-5)
        if momentum:
            torch.testing.assert_close(ours.sgd.momentum, sgd.state[table]["momentum_buffer"], rtol=1e-5, atol=1e-5)
    assert (ours.sgd.momentum is None) == (momentum == 0)


def test_a_bottleneck_has_the_gradient_of_autograd() -> None:
    """Renee's linear map before the classifier, with the table as narrow as it."""
    ours = Everything("filter", label_block=7, bottleneck=3)
    projection, table = ours.head.projection, nn.Parameter(ours.head.table.weight.clone())
    assert isinstance(projection, nn.Linear)
    assert (projection.bias, table.shape) == (None, (LABELS, 3))
    assert 0 < float(projection.weight.detach().abs().max()) <= WIDTH**-0.5
    batch = ours.batch(0)
    vectors = ours.encoder(*to_tensors(ours.tokens.take(batch.rows), "cpu"))
    dense_loss(projection(vectors), table, ours.train, ours.filter, batch.rows).backward()
    (_, leaf) = ours.encoder.table._touched[-1]
    expected, expected_map = leaf.grad.clone(), projection.weight.grad
    assert table.grad is not None
    ours.encoder.table.collect()
    projection.weight.grad = None
    ours.backward(0, batch)
    torch.testing.assert_close(projection.weight.grad, expected_map, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.encoder.table._touched[-1][1].grad, expected, rtol=1e-5, atol=1e-5)
    rate = LR * Schedule("linear", 3).factor(0, STEPS)
    moved = table.detach() * (1 - rate * DECAY) - rate * table.grad
    torch.testing.assert_close(ours.head.table.weight, moved, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [1, 7, LABELS - 1, LABELS, 1000])
def test_the_size_of_a_block_changes_nothing(block: int) -> None:
    one, other = Everything("filter", 0.3, label_block=16), Everything("filter", 0.3, label_block=block)
    for step in range(3):
        assert one.step(step) == pytest.approx(other.step(step), rel=1e-5)
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(tensor, other.model.state_dict()[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.sgd.momentum, other.sgd.momentum, rtol=1e-4, atol=1e-5)


def test_an_ignored_pair_moves_nothing() -> None:
    """Pairs that are both positive and filtered stay positives; the others have no gradient at all."""
    work = Everything("filter", momentum=0.0, label_block=10)
    work.sgd.group = Group("classifier", LR, 0.0)
    batch = work.batch(0)
    space = batch.pool
    assert isinstance(space, LabelSpace)
    assert len(space.ignored_label)
    nothing = np.zeros(0, np.int64)
    everywhere = LabelSpace(
        *(space.rows, LABELS, nothing, nothing, np.zeros(0, np.float32), np.zeros(0, np.bool_)),
        ignored_query=np.tile(np.arange(space.rows), LABELS),
        ignored_label=np.repeat(np.arange(LABELS), space.rows),
    )
    before = work.head.table.weight.clone()
    assert work.backward(0, Batch(batch.rows, everywhere, 0)) == 0
    assert torch.equal(before, work.head.table.weight)
    (_, leaf) = work.encoder.table._touched[-1]
    assert not leaf.grad.any()


@pytest.mark.parametrize("measured", [1, 4, 11, 500])
def test_the_loss_of_some_queries_is_theirs_and_no_gradient_depends_on_it(measured: int) -> None:
    some, whole = Everything("soft", label_block=9, loss_rows=measured), Everything("soft", label_block=9)
    batch = whole.batch(0)
    first = batch.rows[:measured]
    vectors = whole.encoder(*to_tensors(whole.tokens.take(first), "cpu"))
    expected = dense_loss(vectors, whole.head.table.weight, whole.train, whole.filter, first)
    assert some.step(0) == pytest.approx(float(expected.detach()) / len(first), rel=1e-5)
    whole.encoder.table.collect()
    whole.step(0)
    for name, tensor in some.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


def test_huge_scores_have_a_finite_loss_and_gradient() -> None:
    work = Everything("plain", label_block=10)
    work.head.table.weight.data.mul_(1e4)
    assert np.isfinite(work.step(0))
    assert all(torch.isfinite(tensor).all() for tensor in work.model.state_dict().values())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_is_a_function_of_the_step(dropout: float) -> None:
    one, other = Everything(dropout=dropout), Everything(dropout=dropout)
    torch.manual_seed(99)
    first = one.step(0)
    torch.manual_seed(5)
    assert other.step(0) == first
    again = Everything(dropout=dropout)
    changed = again.backward(1, Batch(one.batch(0).rows, one.batch(0).pool, 1))
    assert (changed == first) == (dropout == 0)


@pytest.mark.parametrize("stop", [0, 1, 5])
def test_resumed_equals_never_stopped(stop: int) -> None:
    """fault 1, this optimiser's part: weights and momentum agree in every bit after a trip through a file."""
    straight = Everything("soft", 0.4, label_block=16)
    for step in range(8):
        if step == stop:
            saved = safetensors.torch.save(straight.optimiser.state())
            weights = {name: tensor.clone() for name, tensor in straight.model.state_dict().items()}
        straight.step(step)
    resumed = Everything("soft", 0.4, label_block=16)
    resumed.model.load_state_dict(weights)
    resumed.optimiser.load_state(safetensors.torch.load(saved))
    for step in range(stop, 8):
        resumed.step(step)
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    for name, tensor in straight.optimiser.state().items():
        assert torch.equal(tensor, resumed.optimiser.state()[name]), name


def test_the_optimiser_schedules_and_saves_a_blocked_table() -> None:
    work = Everything()
    assert [group.name for group in work.optimiser.groups] == ["encoder", "classifier"]
    assert work.optimiser.learning_rates(0)["classifier"] == pytest.approx(LR / 3)
    assert work.optimiser.state()["tables.classifier.momentum"].shape == (LABELS, WIDTH)
    state = work.optimiser.state()
    del state["tables.classifier.momentum"]
    with pytest.raises(DataError, match="momentum"):
        work.optimiser.load_state(state)
    assert "tables.classifier.momentum" not in Everything(momentum=0.0).optimiser.state()
    with pytest.raises(AssertionError, match="appears twice"):
        Optimiser([Group("rows", 1e-3, 0, [], [work.head.table])], Schedule(), 1, blocked=[work.sgd])


def test_bfloat16_products_follow_float32() -> None:
    """Products of three digits, sums and weights of seven; what CUDA computes by default."""
    exact, rough = Everything("soft", label_block=16), Everything("soft", label_block=16, precision="bfloat16")
    start = exact.head.table.weight.clone()
    for step in range(3):
        assert rough.step(step) == pytest.approx(exact.step(step), rel=2e-2)
    assert rough.head.table.weight.dtype == rough.sgd.momentum.dtype == torch.float32
    moved, followed = exact.head.table.weight - start, rough.head.table.weight - start
    assert float((moved - followed).norm()) < 0.02 * float(moved.norm())


def test_nothing_of_batch_times_labels_is_ever_made() -> None:
    """Nor anything of the size of the table; the same step in one piece is seen to make both."""
    labels, rows = 2000, np.arange(11)
    train, masked = csr_array(np.eye(ROWS, labels, dtype=np.float32)), csr_array(np.eye(ROWS, labels, 1))
    space = LabelSpacePicker(train, masked).pick(rows, np.random.default_rng(0))
    work = Everything("plain", 0.3, label_block=20, labels=labels)
    assert largest(lambda: work.step(0, Batch(rows, space, 0))) < 500
    table, vectors = nn.Parameter(work.head.table.weight.clone()), torch.zeros(len(rows), WIDTH)
    assert largest(lambda: dense_loss(vectors, table, train, masked, rows).backward()) >= len(rows) * labels


def small_inputs(said: list[str], **changes: Any) -> Inputs:
    train, masked = pairs("plain")
    encoder = Everything().encoder
    given = Inputs(
        train, masked, texts(ROWS, 0, shortest=1), texts(LABELS, 0, shortest=1), encoder, "cpu", 16_384, 5, said.append
    )
    return replace(given, **changes)


def test_renee_learns_and_reports_its_learning_rates() -> None:
    said: list[str] = []
    settings = {
        "warm_epochs": 0,
        "batch_size": 8,
        "epochs": 40,
        "dropout": 0.0,
        "lr_classifier": 1.0,
        "lr_encoder": 0.1,
    }
    parts = METHOD.build(small_inputs(said), METHOD.params.model_validate({**settings, "loss_rows": None}))
    (stage,) = parts.stages()
    assert isinstance(parts.model, TwoHeads)
    parts.model.train()
    stage.begin()
    losses = []
    for epoch in range(stage.epochs):
        for place, rows in enumerate(stage.source.batches(epoch)):
            step = epoch * stage.source.steps + place
            batch = Batch(rows, stage.source.pool(rows, step), step)
            losses.append(stage.objective.backward(batch, Timer())["loss"])
            stage.optimiser.step(step)
    assert losses[-1] < 0.1 * losses[0]
    assert losses[0] == pytest.approx(LABELS * np.log(2), rel=0.05)  # N(0, 0.02) is next to nothing: s = 0
    assert stage.optimiser.learning_rates(30)["classifier"] > 0
    assert isinstance(parts.scoring, TwoHeadScoring)
    scorers = parts.scoring.scorers
    queries = parts.scoring.query_vectors(texts(ROWS, 0, shortest=1), scorers)["clf"]
    scores = queries @ parts.scoring.label_vectors(texts(LABELS, 0, shortest=1), scorers)["clf"].T
    truth = pairs("plain")[0].toarray() > 0
    labelled = truth.any(1)
    assert truth[np.arange(ROWS), scores.argmax(1)][labelled].mean() > 0.9
    assert scorers == ("clf", "de")
    assert not said


def test_renee_may_start_with_an_encoder_trained_alone() -> None:
    params = METHOD.params.model_validate({"warm_epochs": 2, "warm_batch_size": 16, "batch_size": 16, "epochs": 2})
    parts = METHOD.build(small_inputs([]), params)
    warm, main = parts.stages()
    assert (warm.epochs, main.epochs, main.name) == (2, 2, "renee")
    assert warm.scorer == "de"
    first, second = (np.concatenate(stage.source.batches(0)) for stage in (warm, main))
    assert not np.array_equal(first, second)  # the second stage draws numbers of its own
