"""Steps over all labels in blocks: one-vs-all (renee) and full softmax (dexml)."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from harness.batching import LabelSpace
from harness.batching.whole import LabelSpacePicker
from harness.machine.memory import peak_memory_gib
from harness.model.encoders.encoder import to_tensors
from harness.model.heads import Classifier, PlainHead, TwoHeads
from harness.settings.parameters import OptimSettings
from harness.train import Batch
from harness.train.assembly import encoder_groups
from harness.train.objectives.ova import OneVsAll, label_block
from harness.train.optim import Optimiser, Schedule
from harness.train.optim.blocked import BlockedSgd
from harness.train.timing import Timer
from tests.benchmarks.race import Race, in_child, size
from tests.benchmarks.steps import DIMENSION, Steps, no_pairs, random_labels, random_static, random_texts

BATCH, LABELS, MANY = size(512, 16), size(131_073, 3_000), size(1_305_265, 6_000)
LR, DECAY, MOMENTUM = 1e-3, 1e-4, 0.9
_ROWS = 4 * BATCH
_INPUTS = f"batch {BATCH} x {LABELS:,} labels x {DIMENSION}"


class OneVsAllSteps:
    """Steps of `renee` on random rows; table [labels, DIMENSION], momentum written as after a first step."""

    def __init__(self, labels: int) -> None:
        generator = np.random.default_rng(0)
        encoder = random_static()
        head = Classifier(DIMENSION, DIMENSION, labels, "dot", 0.0, 0.0, projected=False, searched="dot")
        head.table.weight.data.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
        self.model = TwoHeads(encoder, PlainHead(normalise=True), head).train()
        self.table = BlockedSgd(head.table, name="classifier", lr=LR, weight_decay=DECAY, momentum=MOMENTUM)
        assert self.table.momentum is not None
        self.table.momentum.zero_()
        groups = encoder_groups(encoder, OptimSettings(weight_decay=0.0))
        self._optimiser = Optimiser(groups, Schedule("constant"), 10**6, blocked=[self.table])
        self._objective = OneVsAll(
            *(self.model, random_texts(generator, _ROWS), self.table, self._optimiser, OptimSettings(), "cpu", 0),
            label_block=label_block("cpu"),
            loss_rows=64,
        )
        self._picker = LabelSpacePicker(random_labels(generator, _ROWS, labels), no_pairs(_ROWS, labels))
        self.rows = np.arange(BATCH)

    def space(self) -> LabelSpace:
        """All labels as the pool of the batch."""
        return self._picker.pick(self.rows, np.random.default_rng(0))

    def vectors(self) -> Tensor:
        """What the classifier is given, [BATCH, DIMENSION]."""
        with torch.no_grad():
            vectors: Tensor = self.model.encoder(*to_tensors(self._objective.queries.take(self.rows), "cpu"))
        return vectors

    def step(self) -> None:
        """What is timed."""
        self._objective.backward(Batch(self.rows, self.space(), 0), Timer())
        self._optimiser.step(0)


class DenseSteps:
    """The same step by autograd with all logits at once; it is given the vectors of its queries."""

    def __init__(self, vectors: Tensor, table: Tensor, space: LabelSpace) -> None:
        self._vectors, self.table, self._space = vectors.requires_grad_(), nn.Parameter(table), space
        self._sgd = torch.optim.SGD([self.table], lr=LR, momentum=MOMENTUM, weight_decay=DECAY)

    def step(self) -> None:
        """What is timed."""
        self._sgd.zero_grad()
        self._vectors.grad = None
        target = torch.zeros(BATCH, len(self.table))
        target[torch.from_numpy(self._space.query), torch.from_numpy(self._space.label)] = 1
        loss = binary_cross_entropy_with_logits(self._vectors @ self.table.T, target, reduction="sum")
        torch.autograd.backward(loss)
        self._sgd.step()


def test_one_vs_all_against_autograd(race: Race) -> None:
    ours = OneVsAllSteps(LABELS)
    dense = DenseSteps(ours.vectors(), ours.table.table.weight.detach().clone(), ours.space())
    ours.step()
    dense.step()
    assert (ours.table.table.weight - dense.table.detach()).abs().max() < 1e-5
    what, reference = "one-vs-all step, encoder included", "autograd over all logits and torch's SGD"
    race(what, _INPUTS, reference, ours.step, dense.step, at_most=1.0)


def test_memory_of_one_vs_all(race: Race) -> None:
    what = "memory of a one-vs-all step beyond table and momentum"
    measure = lambda: tuple(in_child(extra_memory, LABELS, dense) for dense in (False, True))  # noqa: E731
    race.values(what, _INPUTS, "autograd over all logits", measure, "B", at_least=2.5)


def extra_memory(labels: int, dense: bool) -> float:
    """What the peak of this process rises by in two steps, in bytes, momentum left out."""
    ours = OneVsAllSteps(labels)
    # the reference takes over the table; the momentum that is there stands for the one that torch will make
    other = DenseSteps(ours.vectors(), ours.table.table.weight.data, ours.space()) if dense else None
    before = peak_memory_gib()
    for _ in range(2):
        (ours if other is None else other).step()
    return (peak_memory_gib() - before) * 2**30 - (labels * DIMENSION * 4 if dense else 0)


def test_one_vs_all_against_its_products(race: Race) -> None:
    ours, block = OneVsAllSteps(MANY), label_block("cpu")
    vectors, table = ours.vectors(), ours.table.table.weight.detach()
    scores, rows = torch.empty(block, len(vectors)), torch.empty(block, vectors.shape[1])

    def products() -> None:
        gradient = torch.zeros_like(vectors)
        for start in range(0, len(table), block):
            weight = table[start : start + block]
            found = torch.mm(weight, vectors.T, out=scores[: len(weight)])
            gradient.addmm_(found.T, weight)
            torch.mm(found, vectors, out=rows[: len(weight)])

    race(
        "one-vs-all step against its matrix products",
        f"batch {BATCH} x {MANY:,} labels x {DIMENSION}",
        "the three products alone, in the same blocks",
        ours.step,
        products,
        at_most=1.3,
        rounds=4,
    )


# ---------------------------------------------------------------- softmax over all labels

SOFTMAX_LABELS, CHUNK = size(35_702, 2_000), size(4096, 512)


def softmax_steps(batch: int, **parameters: Any) -> Steps:
    """Steps of `dexml`, which encodes and scores all labels in every step."""
    return Steps("dexml", SOFTMAX_LABELS, random_static(), batch_size=batch, grad_cache_size=CHUNK, **parameters)


def _inputs(batch: int) -> str:
    return f"{SOFTMAX_LABELS:,} labels x {DIMENSION} in blocks of {CHUNK:,}, batch {batch:,}, static"


@pytest.mark.parametrize("batch", [256, 1024])
def test_softmax_against_what_is_necessary(race: Race, batch: int) -> None:
    steps = softmax_steps(batch)
    model, texts = steps.model, steps.drawing.inputs.label_tokens
    generator = torch.Generator().manual_seed(0)
    queries, gradient = (torch.randn(rows, DIMENSION, generator=generator) for rows in (batch, CHUNK))
    products = torch.empty(batch, CHUNK)

    def necessary() -> None:
        total = torch.zeros_like(queries)
        for start in range(0, SOFTMAX_LABELS, CHUNK):
            rows = np.arange(start, min(start + CHUNK, SOFTMAX_LABELS))
            vectors = model.retrieval(model.encoder(*to_tensors(texts.take(rows), "cpu")))
            torch.autograd.backward(vectors, gradient[: len(rows)])
            labels, scores = gradient[: len(rows)], products[:, : len(rows)]
            for _ in range(2):
                torch.mm(queries, labels.T, out=scores)
            total.addmm_(scores, labels)
            torch.mm(scores.T, queries)
        model.encoder.table.collect()

    reference = "all labels encoded forward and backward once + four matrix products"
    race("dexml step over all labels", _inputs(batch), reference, steps.step, necessary, at_most=1.5)


def test_soft_topk_against_softmax(race: Race) -> None:
    ours, theirs = softmax_steps(256, loss="soft-topk"), softmax_steps(256)
    what, reference = "dexml step with soft-topk", "the same step with its usual loss"
    race(what, _inputs(256), reference, ours.step, theirs.step, at_most=1.5)
