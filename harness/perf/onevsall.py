"""A one-vs-all step over all labels in blocks: memory and time against the same step left to autograd.

The reference is the step as the formula reads: all logits at once, `binary_cross_entropy_with_logits` summed, backward,
torch's SGD with momentum. Ours also encodes its queries and steps their encoder, the reference is given the vectors.
Memory is measured in processes of their own, as what the peak rises by in two steps, once table and momentum are there.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from harness.batching import LabelSpace
from harness.batching.space import LabelSpacePicker
from harness.model.encoder import to_tensors
from harness.model.heads import Classifier, PlainHead, TwoHeads
from harness.perf import Row, Sample, bound, compare, turns
from harness.perf.child import in_child
from harness.perf.steps import DIMENSION, no_pairs, random_labels, random_static, random_texts
from harness.progress import progress
from harness.repro import peak_memory_gib
from harness.train import Batch
from harness.train.assembly import encoder_groups
from harness.train.blocked import BlockedSgd
from harness.train.optim import Optimiser, Schedule
from harness.train.ova import OneVsAll, label_block
from harness.train.settings import OptimSettings
from harness.train.timing import Timer

LABELS, MANY_LABELS, BATCH = 131_073, 1_305_265, 512
OURS_AT_MOST, LESS_AT_LEAST, TIME_AT_MOST = 400e6, 2.5, 1.0
SPARE, PRODUCTS_AT_MOST = 500e6, 1.3
LR, DECAY, MOMENTUM = 1e-3, 1e-4, 0.9
_ROWS, _LOSS_ROWS, _REPEATS, _TURNS = 4 * BATCH, 64, 5, 4


class BlockedSteps:
    """Steps of `renee` on drawn rows."""

    def __init__(self, labels: int) -> None:
        """Makes a table [labels, DIMENSION] and a momentum that is written, as after a first step."""
        generator = np.random.default_rng(0)
        encoder = random_static()
        head = Classifier(DIMENSION, DIMENSION, labels, "dot", 0.0, 0.0, projected=False, searched="dot")
        head.table.weight.data.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
        self.model = TwoHeads(encoder, PlainHead(normalise=True), head).train()
        self.table = BlockedSgd(head.table, name="classifier", lr=LR, weight_decay=DECAY, momentum=MOMENTUM)
        assert self.table.momentum is not None
        self.table.momentum.zero_()
        self._optimiser = Optimiser(
            encoder_groups(encoder, None, 0.0), Schedule("constant"), 10**6, blocked=[self.table]
        )
        settings = OptimSettings()
        self._objective = OneVsAll(
            *(self.model, random_texts(generator, _ROWS), self.table, self._optimiser, settings, "cpu", 0),
            label_block=label_block("cpu"),
            loss_rows=_LOSS_ROWS,
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
    """The same step by autograd, with all logits at once."""

    def __init__(self, vectors: Tensor, table: Tensor, space: LabelSpace) -> None:
        """Takes query vectors [BATCH, DIMENSION] and a table [L, DIMENSION], which it trains in place."""
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


class Products:
    """The three matrix products of a step and nothing else, in blocks of labels."""

    def __init__(self, vectors: Tensor, table: Tensor, block: int) -> None:
        """Takes query vectors [B, D] and a table [L, D], which stays as it is."""
        self._vectors, self._table, self._block = vectors, table, block
        self._scores, self._rows = torch.empty(block, len(vectors)), torch.empty(block, vectors.shape[1])

    def step(self) -> None:
        """What is timed."""
        gradient = torch.zeros_like(self._vectors)
        with torch.no_grad():
            for start in range(0, len(self._table), self._block):
                weight = self._table[start : start + self._block]
                scores = torch.mm(weight, self._vectors.T, out=self._scores[: len(weight)])
                gradient.addmm_(scores.T, weight)
                torch.mm(scores, self._vectors, out=self._rows[: len(weight)])


def rows() -> Iterator[Row]:
    """Memory of both, time of both, then many labels."""
    size = f"batch {BATCH} x {LABELS:,} labels x {DIMENSION}"
    with progress("measure one-vs-all steps", total=4, unit="parts") as advance:
        ours, dense = (Sample((in_child(extra_memory, LABELS, dense),), "B") for dense in (False, True))
        what = "memory of a one-vs-all step beyond table and momentum"
        yield bound(what, size, ours, at_most=OURS_AT_MOST)
        yield compare(what, size, "autograd over all logits", ours, dense, at_least=LESS_AT_LEAST)
        advance(2)
        reference = f"autograd over all logits and torch's SGD, {torch.get_num_threads()} threads"
        what = "one-vs-all step, encoder included, against autograd"
        yield compare(what, size, reference, *against_dense(LABELS), at_most=TIME_AT_MOST)
        advance(1)
        yield from many_labels()
        advance(1)


def many_labels() -> Iterator[Row]:
    """Memory and time where all logits at once would take 2.7 GB alone."""
    figures = in_child(against_products, MANY_LABELS)
    size = f"batch {BATCH} x {MANY_LABELS:,} labels x {DIMENSION}"
    yield compare(
        "peak memory of one-vs-all training",
        f"{size}, whole process",
        "table and momentum in float32, and 500 MB",
        Sample((figures["peak"],), "B"),
        Sample((2 * MANY_LABELS * DIMENSION * 4 + SPARE,), "B"),
        at_most=1.0,
    )
    yield compare(
        "one-vs-all step against its matrix products",
        size,
        "the three products alone, in the same blocks",
        Sample(tuple(figures["step"]), "s"),
        Sample(tuple(figures["products"]), "s"),
        at_most=PRODUCTS_AT_MOST,
    )


def extra_memory(labels: int, dense: bool) -> float:
    """What the peak of this process rises by in two steps, in bytes, momentum left out."""
    steps = BlockedSteps(labels)
    if not dense:
        before = peak_memory_gib()
        for _ in range(2):
            steps.step()
        return (peak_memory_gib() - before) * 2**30
    # the reference takes over the table; the momentum that is there stands for the one that torch will make
    reference = DenseSteps(steps.vectors(), steps.table.table.weight.data, steps.space())
    before = peak_memory_gib()
    for _ in range(2):
        reference.step()
    return (peak_memory_gib() - before) * 2**30 - labels * DIMENSION * 4


def against_dense(labels: int) -> tuple[Sample, Sample]:
    """Seconds of a step, ours and autograd's, taking turns; they are seen to do the same first."""
    ours = BlockedSteps(labels)
    dense = DenseSteps(ours.vectors(), ours.table.table.weight.detach().clone(), ours.space())
    ours.step()
    dense.step()
    worst = float((ours.table.table.weight - dense.table.detach()).abs().max())
    if worst > 1e-5:
        raise AssertionError(f"the two sides compute different things, so their times mean nothing: {worst}")
    seconds, reference = turns(ours.step, dense.step, repeats=_REPEATS)
    return seconds, reference


def against_products(labels: int) -> dict[str, Any]:
    """Seconds of steps and of their three products, taking turns, and the peak of this process in bytes before them."""
    ours = BlockedSteps(labels)
    for _ in range(2):
        ours.step()
    peak = peak_memory_gib() * 2**30
    products = Products(ours.vectors(), ours.table.table.weight.detach(), label_block("cpu"))
    step, alone = turns(ours.step, products.step, repeats=_TURNS)
    return {"step": step.values, "products": alone.values, "peak": peak}
