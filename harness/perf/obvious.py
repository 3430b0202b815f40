"""A UniDEC step against the same step written the obvious way.

The reference is what one would write first and correctly: padded texts through `nn.Embedding`, Psi an `nn.Parameter`,
pools from Python sets, one query after the other, losses as the formulas read, gradients by autograd, and torch's AdamW
with its defaults over everything. Both sides are seen to compute the same: the loss of a step without dropout, and what
the step makes of the parameters. The one difference is meant: dense AdamW decays and moves the rows of Psi and of the
token table that the batch did not touch, and here they stay as they are.
"""

import random
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from harness.batching import LabelPool
from harness.data.ragged import Ragged
from harness.model.heads import TwoHeads
from harness.model.static import StaticEncoder
from harness.perf import Row, Sample, compare
from harness.perf.child import in_child
from harness.perf.losses import dense_decoupled_softmax
from harness.perf.steps import (
    TITLES,
    Drawing,
    Steps,
    as_text,
    draw,
    random_static,
    seconds_of,
    settings,
    shares_of,
)
from harness.progress import progress
from harness.repro import peak_memory_gib
from harness.train.timing import Timer

BATCH, CHECKED_LABELS, STEPS_A_TURN = 275, 13_000, 10
CASES = ((131_073, 5.0, 7), (1_305_265, 30.0, 3))
"""Labels, how many times faster ours should be, repeats."""
KNOBS: dict[str, Any] = {"batch_size": BATCH, "init_classifier": "xavier"}
_LOSS_WITHIN, _UPDATE_WITHIN = 1e-4, 1e-2
"""Relative; the second to the step that a parameter makes. A first step of Adam is the sign of a gradient, and where
that is nothing but rounding the two sides may disagree."""


class ObviousModel(nn.Module):
    """Both heads on a bag of token vectors."""

    def __init__(self, encoder: StaticEncoder, labels: int, params: Any) -> None:
        """Starts from the encoder's token vectors; Psi [labels, E] and heads are drawn."""
        super().__init__()
        self.tokens = nn.Embedding(*encoder.table.weight.shape)
        self.tokens.weight.data.copy_(encoder.table.weight)
        self.token_weights = encoder.weights
        self.dual = nn.Linear(encoder.dim, encoder.dim)
        self.classifier = nn.Linear(encoder.dim, encoder.dim)
        self.psi = nn.Parameter(nn.init.xavier_uniform_(torch.empty(labels, encoder.dim)))
        self.dropout, self.row_dropout = nn.Dropout(params.dropout), nn.Dropout(params.dropout_classifier)
        self.params = params

    def start_from(self, model: TwoHeads) -> None:
        """Takes the values that ours has."""
        for own, other in parameter_pairs(self, model):
            own.data.copy_(other)

    def forward(self, queries: list[Tensor], labels: list[Tensor], pool: Tensor, positive: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            queries: Token ids of every query, B of them.
            labels: Token ids of every label of the pool, P of them.
            pool: Label ids, [P].
            positive: [B, P].
        """
        query, label = self._encoded(queries), self._encoded(labels)
        share: float = self.params.balance
        dual = self._dual(query) @ self._dual(label).T / self.params.temperature
        vectors = functional.normalize(self.dropout(self.classifier(query)), dim=1)
        rows = functional.normalize(self.row_dropout(self.psi[pool]), dim=1)
        scores = vectors @ rows.T / self.params.temperature_classifier
        return share * dense_decoupled_softmax(dual, positive) + (1 - share) * dense_decoupled_softmax(scores, positive)

    def _dual(self, encoded: Tensor) -> Tensor:
        return functional.normalize(self.dropout(torch.tanh(self.dual(encoded))), dim=1)

    def _encoded(self, texts: list[Tensor]) -> Tensor:
        """Unit vectors [n, E]."""
        ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
        weights = nn.utils.rnn.pad_sequence([self.token_weights[text] for text in texts], batch_first=True)
        return functional.normalize((self.tokens(ids) * weights.unsqueeze(2)).sum(1), dim=1)


class ObviousSteps:
    """The training."""

    def __init__(self, drawing: Drawing, params: Any) -> None:
        inputs, self._drawing, self._params = drawing.inputs, drawing, params
        assert isinstance(inputs.encoder, StaticEncoder)
        self.model = ObviousModel(inputs.encoder, inputs.train.shape[1], params).train()
        rates, model = inputs.encoder.learning_rates, self.model
        groups = [
            {"params": model.tokens.parameters(), "lr": rates.encoder},
            {"params": [*model.dual.parameters(), *model.classifier.parameters()], "lr": rates.heads},
            {"params": [model.psi], "lr": rates.classifier},
        ]
        self._optimiser = torch.optim.AdamW(groups, weight_decay=params.weight_decay)
        self._random, self._taken = random.Random(0), 0  # noqa: S311  a draw of batches
        self.loss = 0.0

    def step(self) -> Timer:
        """Takes one step; returns where its time went."""
        rows = self._drawing.batches[self._taken % len(self._drawing.batches)]
        self._taken += 1
        timer = Timer()
        with timer.part("pool"):
            pool, positive = self.pool(rows)
        self.learn(rows, pool, positive, timer)
        return timer

    def pool(self, rows: NDArray[Any]) -> tuple[list[int], Tensor]:
        """Labels [P] that the queries [B] draw, and which of them are theirs [B, P]."""
        known = [set(self._labels_of(row)) for row in rows]
        pool: set[int] = set()
        for row, positives in zip(rows, known, strict=True):
            pool.update(self._random.sample(sorted(positives), min(self._params.beta, len(positives))))
            wrong = [label for label in self._drawing.hard[row].tolist() if label not in positives]
            pool.update(self._random.sample(wrong, min(self._params.eta, len(wrong))))
        labels = sorted(pool)
        place = {label: index for index, label in enumerate(labels)}
        positive = torch.zeros(len(rows), len(labels), dtype=torch.bool)
        for index, positives in enumerate(known):
            for label in positives:
                if label in place:
                    positive[index, place[label]] = True
        return labels, positive

    def learn(self, rows: NDArray[Any], pool: list[int], positive: Tensor, timer: Timer) -> None:
        """One update on queries [B], a pool [P] and its positives [B, P]."""
        inputs = self._drawing.inputs
        self._optimiser.zero_grad()
        with timer.part("forward"):
            texts = _texts(inputs.train_tokens, rows.tolist()), _texts(inputs.label_tokens, pool)
            loss = self.model(*texts, torch.tensor(pool), positive)
        with timer.part("backward"):
            loss.backward()
        with timer.part("optimiser"):
            self._optimiser.step()
        self.loss = float(loss.detach())

    def _labels_of(self, row: int) -> list[int]:
        train = self._drawing.inputs.train
        labels: list[int] = train.indices[train.indptr[row] : train.indptr[row + 1]].tolist()
        return labels


def rows() -> Iterator[Row]:
    """Time at two numbers of labels, then memory."""
    with progress("measure the obvious version", total=3 * len(CASES), unit="processes") as advance:
        for labels, at_least, repeats in CASES:
            size = f"{labels:,} labels, batch {BATCH}, beta 3, eta 6, no cap, static"
            where: dict[str, float | str] = {"method": "unidec", "labels": labels}
            figures = in_child(timed, labels, repeats)
            yield compare(
                "UniDEC step against the obvious version",
                size,
                "dense tables and AdamW, sets and loops, losses by autograd",
                Sample(tuple(figures["ours"]), "s"),
                Sample(tuple(figures["theirs"]), "s"),
                at_least=at_least,
                detail=f"ours: {figures['parts']}; obvious: {figures['obvious parts']}",
                at={**where, "quantity": "step"},
            )
            advance(1)
            peaks = []
            for side in (peak_of_ours, peak_of_obvious):
                peaks.append(Sample((in_child(side, labels),), "B"))
                advance(1)
            what = "peak memory of UniDEC training and of the obvious version"
            yield compare(
                what,
                f"{size}, whole process, every moment written",
                "the obvious version",
                *peaks,
                at={**where, "quantity": "memory"},
            )


def timed(labels: int, repeats: int) -> dict[str, Any]:
    """Seconds of steps of both sides, taking turns; they are seen to do the same on fewer labels first.

    A turn of ours is several steps, and its figure their mean: one alone would find every cache full of the other's
    gigabytes, which no training does.
    """
    require_same(min(labels, CHECKED_LABELS))
    ours = Steps("unidec", labels, random_static(), TITLES, **KNOBS)
    ours.write_moments()
    theirs = ObviousSteps(ours.drawing, ours.params)
    turn_by_turn = [([ours.step() for _ in range(STEPS_A_TURN)], theirs.step()) for _ in range(1 + repeats)][1:]
    mine = [timer for own, _ in turn_by_turn for timer in own]
    others = [timer for _, timer in turn_by_turn]
    return {
        "ours": [statistics.fmean(seconds_of(own).values) for own, _ in turn_by_turn],
        "theirs": seconds_of(others).values,
        "parts": as_text(shares_of(mine), 3),
        "obvious parts": as_text(shares_of(others), 3),
    }


def require_same(labels: int) -> None:
    """Both sides from the same values on the same pool, without dropout.

    Raises:
        AssertionError: The losses differ, or what the step made of a parameter that it touched.
    """
    ours = Steps("unidec", labels, random_static(), TITLES, **KNOBS, dropout=0.0, dropout_classifier=0.0)
    theirs = ObviousSteps(ours.drawing, ours.params)
    theirs.model.start_from(ours.model)
    start = [other.clone() for _, other in parameter_pairs(theirs.model, ours.model)]
    rows, pool = ours.rows, ours.stage.source.pool(ours.rows, 0)
    assert isinstance(pool, LabelPool)
    ours.step()
    theirs.learn(rows, pool.labels.tolist(), torch.from_numpy(pool.positive), Timer())
    off = abs(theirs.loss - ours.losses["loss"]) / abs(ours.losses["loss"])
    if not off <= _LOSS_WITHIN:
        raise AssertionError(f"the two sides compute different losses, so their times mean nothing: {off:.1e}")
    for before, (own, other) in zip(start, parameter_pairs(theirs.model, ours.model), strict=True):
        moved = other - before
        apart = float((own - other)[moved != 0].norm() / moved.norm())
        if not apart <= _UPDATE_WITHIN:
            raise AssertionError(f"the two sides make different steps, so their times mean nothing: {apart:.1e}")
    psi = ours.model.classifier.table.weight
    if (psi != start[1]).any(1).nonzero().squeeze(1).tolist() != sorted(pool.labels.tolist()):
        raise AssertionError("ours must move the rows of the pool and no others")


def parameter_pairs(obvious: ObviousModel, ours: TwoHeads) -> list[tuple[Tensor, Tensor]]:
    """What corresponds: token table, Psi, then weight and bias of both heads."""
    classifier, encoder, dual = ours.classifier, ours.encoder, ours.retrieval
    assert classifier is not None
    assert isinstance(encoder, StaticEncoder)
    tables = [(obvious.tokens.weight, encoder.table.weight), (obvious.psi, classifier.table.weight)]
    heads = zip(
        (*obvious.dual.parameters(), *obvious.classifier.parameters()),
        (*dual.parameters(), *classifier.projection.parameters()),
        strict=True,
    )
    return [(own.detach(), other.detach()) for own, other in (*tables, *heads)]


def peak_of_ours(labels: int) -> float:
    """Peak of this process in bytes after three steps with every moment written."""
    steps = Steps("unidec", labels, random_static(), TITLES, **KNOBS)
    steps.write_moments()
    for _ in range(3):
        steps.step()
    return peak_memory_gib() * 2**30


def peak_of_obvious(labels: int) -> float:
    """Peak of this process in bytes after two steps of the reference."""
    steps = ObviousSteps(draw(labels, random_static(), BATCH, TITLES), settings("unidec", **KNOBS))
    for _ in range(2):
        steps.step()
    return peak_memory_gib() * 2**30


def _texts(column: Ragged, rows: list[int]) -> list[Tensor]:
    """Token ids of the given rows."""
    return [torch.tensor(column[row].astype("int64")) for row in rows]
