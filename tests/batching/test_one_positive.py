"""What methods of one positive a query add to pools, batches and objectives, against definitions written out here."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from harness.batching import LabelPool
from harness.batching.mined import MinedBatches
from harness.batching.pairs import draw, draw_again
from harness.batching.pool import LabelPicker
from harness.batching.whole import LabelSpacePicker
from harness.model.encoders.encoder import load_encoder, to_tensors
from harness.model.heads import Classifier, PlainHead, TwoHeads
from harness.seeds import STREAMS, stage_seed, stream
from harness.settings.method import Inputs
from harness.settings.parameters import MiningSettings, OptimSettings
from harness.train import Batch
from harness.train.objectives.frozen import ClassifierOnly, FrozenQueries
from harness.train.objectives.psl import LossSettings, PickSomeLabels, masks_of
from harness.train.timing import Timer
from tests.support.oracles import texts

ROWS, LABELS = 6, 9


def random_pairs(seed: int, rows: int = ROWS, labels: int = LABELS, share: float = 0.4) -> csr_array:
    values = np.random.default_rng(seed).random((rows, labels))
    return csr_array(np.where(values < share, 1.0, 0.0).astype(np.float32))


def picked(train: csr_array, masked: csr_array | None = None, beta: int | None = 1, soft: bool = False) -> LabelPool:
    picker = LabelPicker(train, masked, beta=beta, eta=0, soft=soft, mark_drawn=True)
    return picker.pick(np.arange(train.shape[0]), stream(0, "positives", 0), stream(0, "negatives", 0))


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("again", [False, True], ids=["without", "with"])
def test_one_draw_is_in_proportion_to_the_weights(again: bool) -> None:
    weight = np.array([1.0, 0.2, 0.5, 0.3, 0.1], np.float32)
    query = np.array([0, 0, 0, 1, 1])
    generator, counts, rounds = np.random.default_rng(0), np.zeros(5), 6000
    for _ in range(rounds):
        found = draw_again(query, 2, 1, generator, weight) if again else draw(query, 1, generator, weight=weight)
        counts[found] += 1
    wanted = np.concatenate([weight[:3] / weight[:3].sum(), weight[3:] / weight[3:].sum()])
    # standard deviation of a share: at most 0.5 / sqrt(rounds)
    assert counts / rounds == pytest.approx(wanted, abs=5 * 0.5 / rounds**0.5)


def test_all_positives_are_drawn_without_a_number_for_every_label() -> None:
    """With replacement, drawing as many as there are labels would need an array [B, L]."""
    train = random_pairs(1)
    picker = LabelPicker(train, None, beta=None, eta=0, replacement=True, mark_drawn=True)
    pool = picker.pick(np.arange(ROWS), stream(0, "positives", 0), stream(0, "negatives", 0))
    assert pool.drawn is not None
    assert np.array_equal(pool.drawn, pool.positive)
    assert np.array_equal(pool.labels, np.flatnonzero(train.toarray().any(0)))


def test_what_a_query_drew_is_marked_and_one_of_its_positives() -> None:
    train = random_pairs(2)
    pool = picked(train)
    assert pool.drawn is not None
    has = train.toarray().any(1)
    assert np.array_equal(pool.drawn.sum(1), has.astype(int))
    assert not (pool.drawn & ~pool.positive).any()
    assert np.array_equal(pool.positive, train.toarray()[:, pool.labels] > 0)
    assert (pool.positive & ~pool.drawn).any()  # the others are there, to be masked


def test_soft_targets_are_in_the_pool_where_the_positives_are() -> None:
    train = random_pairs(3)
    train.data = np.linspace(0.1, 1, train.nnz, dtype=np.float32)
    pool = picked(train, beta=None, soft=True)
    assert pool.target is not None
    assert np.array_equal(pool.target, train.toarray()[:, pool.labels])


def test_drawn_by_its_target_a_positive_counts_in_full() -> None:
    train = random_pairs(3)
    train.data = np.linspace(0.1, 1, train.nnz, dtype=np.float32)
    assert masks_of(picked(train, soft=True), "cpu", drawn_only=True).target is None
    space = LabelSpacePicker(train, csr_array(train.shape), beta=1, soft=True).pick(np.arange(ROWS), stream(0, "order"))
    assert (space.target == 1).all()
    whole = LabelSpacePicker(train, csr_array(train.shape), soft=True).pick(np.arange(ROWS), stream(0, "order"))
    assert sorted(whole.target.tolist()) == sorted(train.data.tolist())


# ---------------------------------------------------------------- objectives


def one_of_many(scores: Tensor, drawn: Tensor, out: Tensor) -> Tensor:
    """-log e^s+ / (e^s+ + sum over negatives e^s-), row by row; `out` takes no part."""
    rows = []
    for s, d, skip in zip(scores, drawn, out, strict=True):
        if d.any():
            against = s[~d & ~skip]
            rows.append(-torch.stack([x - torch.logsumexp(torch.cat([x[None], against]), 0) for x in s[d]]).mean())
    return torch.stack(rows).mean()


@pytest.mark.parametrize("normalise", [True, False])
def test_undrawn_positives_and_filter_pairs_take_no_part(normalise: bool) -> None:
    train, masked = random_pairs(4), random_pairs(5, share=0.2)
    masked = csr_array((masked - masked.multiply(train)).astype(np.float32))
    masked.eliminate_zeros()
    pool, rows = picked(train, masked), np.arange(ROWS)
    assert pool.drawn is not None
    assert pool.ignored is not None
    model = TwoHeads(load_encoder("tiny", seed=3), PlainHead(normalise), None).eval()
    queries, labels = texts(ROWS, 0, shortest=1), texts(LABELS, 1, shortest=1)
    work = PickSomeLabels(
        model,
        queries,
        labels,
        LossSettings(loss="pick-one-label", temperature=0.2),
        None,
        OptimSettings(),
        "cpu",
        0,
        drawn_only=True,
    )
    found = work.backward(Batch(rows, pool, 0), Timer())["loss"]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()

    left, right = (model.encoder(*to_tensors(t, "cpu")) for t in (queries, labels.take(pool.labels)))
    if normalise:
        left, right = (x / x.norm(dim=1, keepdim=True) for x in (left, right))
    drawn = torch.from_numpy(pool.drawn)
    out = torch.from_numpy(pool.ignored | (pool.positive & ~pool.drawn))
    expected = one_of_many(left @ right.T / 0.2, drawn, out)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    dense = [p.grad for p in model.parameters() if p.grad is not None]
    scale = max(float(gradient.abs().max()) for gradient in dense)
    for mine, theirs in zip(gradients, dense, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * scale)


def triplets(scores: Tensor, positive: Tensor, ignored: Tensor, margin: float, most: int, against: int) -> Tensor:
    """Hardest positives x hardest negatives, weighted by a softmax over the violators, one slot at a time."""
    slots = []
    for s, p, skip in zip(scores, positive, ignored, strict=True):
        hard_positives = s[p & ~skip].sort().values[:most]
        negatives = s[~p & ~skip].sort(descending=True).values[:against]
        for one in hard_positives if len(negatives) else []:
            hinge = (negatives - one + margin).clamp(min=0)
            weights = torch.zeros_like(hinge)
            if (hinge > 0).any():
                weights[hinge > 0] = torch.softmax(negatives[hinge > 0], 0)
            slots += list(weights * hinge)
    return torch.stack(slots).mean()


def test_a_classifier_on_frozen_vectors_learns_from_all_but_filter_pairs() -> None:
    train, masked = random_pairs(6), random_pairs(7, share=0.3)
    masked = csr_array((masked - masked.multiply(train)).astype(np.float32))
    masked.eliminate_zeros()
    pool, rows = picked(train, masked, beta=None), np.arange(ROWS)
    assert pool.ignored is not None
    vectors = np.random.default_rng(8).normal(size=(ROWS, 5)).astype(np.float32)
    classifier = Classifier(5, 5, LABELS, "cosine", 0.0, 0.0, projected=False)
    classifier.table.weight.data.normal_(generator=torch.Generator().manual_seed(2))
    calls: list[int] = []

    def encode() -> np.ndarray:
        calls.append(1)
        return vectors

    options = {"margin": 0.2, "hardest_positives": 2, "hardest_negatives": 3, "sharpness": 1.0}
    work = ClassifierOnly(classifier, FrozenQueries(encode), "triplet", "cpu", 0, options=options)
    found = [work.backward(Batch(rows, pool, step), Timer())["loss"] for step in range(2)]
    assert found[0] == found[1]
    assert len(calls) == 1  # encoded once, whatever the number of steps
    touched = classifier.table.collect()
    assert touched is not None

    table = classifier.table.weight.detach().clone().requires_grad_()
    left, right = torch.from_numpy(vectors), table[torch.from_numpy(pool.labels)]
    scores = (left / left.norm(dim=1, keepdim=True)) @ (right / right.norm(dim=1, keepdim=True)).T
    expected = triplets(scores, torch.from_numpy(pool.positive), torch.from_numpy(pool.ignored), 0.2, 2, 3)
    expected.backward()
    assert found[0] == pytest.approx(expected.item(), rel=1e-5)
    assert table.grad is not None
    assert torch.allclose(touched[1] / 2, table.grad[touched[0]], atol=1e-6)  # both steps' gradients, summed


# ---------------------------------------------------------------- batches


def batches_of(settings: MiningSettings, rows: int = 64) -> MinedBatches:
    train, nothing = random_pairs(9, rows), csr_array((rows, LABELS))
    vectors = np.random.default_rng(3).normal(size=(rows, 4)).astype(np.float32)
    encoder = load_encoder("tiny", seed=0)
    inputs = Inputs(
        train,
        nothing,
        texts(rows, 0, shortest=1),
        texts(LABELS, 1, shortest=1),
        encoder,
        "cpu",
        1000,
        0,
        lambda _: None,
    )
    return MinedBatches(inputs, settings, lambda: vectors, lambda: vectors[:LABELS])


def test_glued_clusters_double_when_they_should() -> None:
    """Single queries, then pairs from epoch 1 and fours from epoch 3, though a refresh is due every 5 epochs only."""
    source = batches_of(
        MiningSettings(
            batch_size=16, batching="glued", cluster_size=1, double_at=(3, 1), random_epochs=0, refresh_epochs=5, eta=0
        )
    )
    sizes = []
    for epoch in range(6):
        source.refresh(epoch)
        edges = source.state()["plan.edges"]
        sizes.append(int(np.diff(edges).max()))
        assert len(source.batches(epoch)) == source.steps == 4
    assert sizes == [64, 2, 2, 4, 4, 4]  # one cluster of all rows: random order


def test_a_later_stage_draws_numbers_of_its_own() -> None:
    assert stage_seed(7, 0) == 7
    assert len({stage_seed(7, stage) for stage in range(4)}) == 4
    assert STREAMS[-3:] == ("augment", "stage", "rounding")  # a stream keeps its place for good
