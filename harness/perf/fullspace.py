"""A step of DEXML over all labels, against what no such step can do without.

Rows are drawn, not read. Any training against all labels does the work of a step with in-batch labels and sends all
labels through the encoder, forward and backward: the first reference is three times that. In memory that does not grow
with L it also multiplies four times, [B, D] x [D, L]: the second reference is the sum of all three, once.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from harness.batching.pool import LabelPicker
from harness.model.encoder import to_tensors
from harness.model.heads import PlainHead, TwoHeads
from harness.perf import Row, Sample, compare, turns
from harness.perf.steps import DIMENSION, ROWS, no_pairs, random_labels, random_static, random_texts
from harness.repro import stream
from harness.train import Batch
from harness.train.fullspace import FullSpace, LabelOrder, LossName
from harness.train.optim import Group, Optimiser, Schedule
from harness.train.psl import LossSettings, PickSomeLabels
from harness.train.settings import OptimSettings
from harness.train.timing import Timer
from harness.train.wholespace import WholeSpaceBatches

LABELS, CHUNK, TEMPERATURE = 35_702, 4096, 0.05
BATCHES, REPEATS = (256, 1024), 5
STEP_AT_MOST, NECESSARY_AT_MOST, TOPK_AT_MOST = 1.0, 1.5, 1.5


class Steps:
    """A static encoder with its optimiser, and what a batch of rows can be trained with."""

    def __init__(self, batch: int) -> None:
        generator = np.random.default_rng(0)
        self.train, filtered = random_labels(generator, ROWS, LABELS), no_pairs(ROWS, LABELS)
        self.queries, self.labels = random_texts(generator, ROWS), random_texts(generator, LABELS)
        encoder = random_static()
        self.model, self._table = TwoHeads(encoder, PlainHead(normalise=True), None).train(), encoder.table
        self.source = WholeSpaceBatches(
            self.train, filtered, batch, beta=1, soft=False, seed=0, warn=lambda message: None
        )
        self._picker = LabelPicker(self.train, filtered, beta=1, eta=0, fill=False, mark_drawn=True)
        self._in_batch = PickSomeLabels(
            model=self.model,
            queries=self.queries,
            labels=self.labels,
            losses=LossSettings(loss="decoupled-softmax", temperature=TEMPERATURE),
            classifier_losses=None,
            settings=OptimSettings(),
            device="cpu",
            seed=0,
            drawn_only=True,
        )
        self._full = {loss: self._objective(loss) for loss in ("decoupled-softmax", "soft-topk")}
        self._optimiser = Optimiser([Group("encoder", 1e-3, 0.01, tables=[self._table])], Schedule("constant"), 10**6)
        self._order = LabelOrder.of(self.labels, CHUNK, None)
        self._gradient = torch.randn(CHUNK, DIMENSION, generator=torch.Generator().manual_seed(0))
        self._rows = self.source.batches(0)[0]
        self._taken = 0

    def _objective(self, loss: LossName) -> FullSpace:
        return FullSpace(
            model=self.model,
            queries=self.queries,
            labels=self.labels,
            loss=loss,
            temperature=TEMPERATURE,
            chunk=CHUNK,
            settings=OptimSettings(),
            device="cpu",
            seed=0,
        )

    def full(self, loss: str = "decoupled-softmax") -> Timer:
        """One step against all labels; returns where its time went."""
        timer = Timer()
        with timer.part("pool"):
            pool = self.source.pool(self._rows, self._taken)
        self._full[loss].backward(Batch(self._rows, pool, self._taken), timer)
        with timer.part("optimiser"):
            self._optimiser.step(self._taken)
        self._taken += 1
        return timer

    def in_batch(self) -> None:
        """One step against the positives that the batch drew."""
        pool = self._picker.pick(self._rows, stream(0, "positives", self._taken), stream(0, "negatives", self._taken))
        self._in_batch.backward(Batch(self._rows, pool, self._taken), Timer())
        self._optimiser.step(self._taken)
        self._taken += 1

    def encode_all(self) -> None:
        """All labels once forward and once backward."""
        for index in range(len(self._order.edges) - 1):
            texts = self._order.texts(index)
            vectors = self.model.retrieval(self.model.encoder(*to_tensors(texts, "cpu")))
            torch.autograd.backward(vectors, self._gradient[: len(vectors)])
        self._table.collect()


class Products:
    """The matrix products of a step over all labels, and nothing else."""

    def __init__(self, batch: int, labels: int = LABELS) -> None:
        generator = torch.Generator().manual_seed(0)
        self._queries = torch.randn(batch, DIMENSION, generator=generator)
        self._labels = torch.randn(CHUNK, DIMENSION, generator=generator)
        self._scores, self._count = torch.empty(batch * CHUNK), labels

    def run(self) -> Tensor:
        """Scores twice, and the gradients of both factors."""
        total, batch = torch.zeros_like(self._queries), len(self._queries)
        for start in range(0, self._count, CHUNK):
            labels = self._labels[: min(CHUNK, self._count - start)]
            scores = self._scores[: batch * len(labels)].view(batch, len(labels))
            for _ in range(2):
                torch.mm(self._queries, labels.T, out=scores)
            total.addmm_(scores, labels)
            torch.mm(scores.T, self._queries)
        return total


def rows() -> Iterator[Row]:
    """Both batch sizes."""
    for batch in BATCHES:
        yield from measured(batch)


def measured(batch: int) -> Iterator[Row]:
    """All comparisons of one batch size, taken in turns."""
    steps, products = Steps(batch), Products(batch)
    calls = (steps.full, steps.in_batch, steps.encode_all, products.run, lambda: steps.full("soft-topk"))
    full, in_batch, encoding, multiplying, topk = turns(*calls, repeats=REPEATS)
    size = f"{LABELS:,} labels of {DIMENSION} dimensions in blocks of {CHUNK:,}, batch {batch:,}, static"
    threads = f"{torch.get_num_threads()} threads"
    for what, ours, reference, theirs, at_most in (
        (
            "DEXML step over all labels",
            full,
            "3 x (in-batch step + all labels encoded forward and backward once)",
            summed(in_batch, encoding, times=3),
            STEP_AT_MOST,
        ),
        (
            "DEXML step over all labels",
            full,
            "in-batch step + all labels encoded forward and backward once + four matrix products",
            summed(in_batch, encoding, multiplying),
            NECESSARY_AT_MOST,
        ),
        ("DEXML step with soft-topk", topk, "the same step with decoupled-softmax", full, TOPK_AT_MOST),
    ):
        yield compare(what, size, f"{reference}, {threads}", ours, theirs, at_most=at_most)


def summed(*samples: Sample, times: int = 1) -> Sample:
    """The sum of samples, turn by turn, times a number."""
    together = zip(*(sample.values for sample in samples), strict=True)
    return Sample(tuple(times * sum(values) for values in together), samples[0].unit)
