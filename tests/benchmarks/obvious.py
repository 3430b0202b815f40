"""A UniDEC step as one would first and correctly write it.

Padded texts through `nn.Embedding`, Psi an `nn.Parameter`, pools from Python sets, one query after the other, losses as
the formulas read, gradients by autograd, and torch's AdamW over everything. One difference to ours is meant: dense
AdamW decays and moves the rows of Psi and of the token table that the batch did not touch; ours leaves them.
"""

import random
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from harness.batching import LabelPool
from harness.data.ragged import Ragged
from harness.model.encoders.static import StaticEncoder
from harness.model.heads import TwoHeads
from tests.benchmarks.steps import TITLES, Drawing, Steps, random_static

PARAMETERS: dict[str, Any] = {"batch_size": 275, "init_classifier": "xavier"}


def dense_decoupled_softmax(scores: Tensor, positive: Tensor) -> Tensor:
    """Decoupled softmax of [B, P]; every entry is compared with the negatives, then the positives are picked."""
    negatives = scores.masked_fill(positive, -torch.inf).logsumexp(1, keepdim=True)
    return mean_over_positives(torch.logaddexp(scores, negatives) - scores, positive)


def mean_over_positives(losses: Tensor, positive: Tensor) -> Tensor:
    """Mean over rows with positives of the mean over positives; losses and positive [B, P]."""
    chosen = positive.to(losses.dtype)
    count = chosen.sum(1)
    return ((losses * chosen).sum(1) / count.clamp(min=1)).sum() / count.count_nonzero()


class ObviousModel(nn.Module):
    """Both heads on a bag of token vectors."""

    def __init__(self, encoder: StaticEncoder, labels: int, params: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(*encoder.table.weight.shape)
        self.tokens.weight.data.copy_(encoder.table.weight)
        self.token_weights = encoder.weights
        self.dual = nn.Linear(encoder.dim, encoder.dim)
        self.classifier = nn.Linear(encoder.dim, encoder.dim)
        self.psi = nn.Parameter(nn.init.xavier_uniform_(torch.empty(labels, encoder.dim)))
        self.dropout, self.row_dropout = nn.Dropout(params.dropout), nn.Dropout(params.dropout_classifier)
        self.params = params

    def forward(self, queries: list[Tensor], labels: list[Tensor], pool: Tensor, positive: Tensor) -> Tensor:
        """The loss of B queries and P labels given as token ids; pool [P], positive [B, P]."""
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
        self._random, self._taken = random.Random(0), 0
        self.loss = 0.0

    def step(self) -> None:
        """Take one step."""
        rows = self._drawing.batches[self._taken % len(self._drawing.batches)]
        self._taken += 1
        self.learn(rows, *self._pool(rows))

    def learn(self, rows: NDArray[Any], pool: list[int], positive: Tensor) -> None:
        """One update on queries [B], a pool [P] and its positives [B, P]."""
        inputs = self._drawing.inputs
        self._optimiser.zero_grad()
        texts = _texts(inputs.train_tokens, rows.tolist()), _texts(inputs.label_tokens, pool)
        loss = self.model(*texts, torch.tensor(pool), positive)
        loss.backward()
        self._optimiser.step()
        self.loss = float(loss.detach())

    def _pool(self, rows: NDArray[Any]) -> tuple[list[int], Tensor]:
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

    def _labels_of(self, row: int) -> list[int]:
        train = self._drawing.inputs.train
        labels: list[int] = train.indices[train.indptr[row] : train.indptr[row + 1]].tolist()
        return labels


def assert_same_step(labels: int) -> None:
    """Both sides from the same values on the same pool, without dropout: same loss, same step."""
    ours = Steps("unidec", labels, random_static(), TITLES, **PARAMETERS, dropout=0.0, dropout_classifier=0.0)
    theirs = ObviousSteps(ours.drawing, ours.params)
    for own, other in _parameter_pairs(theirs.model, ours.model):
        own.copy_(other)
    start = [other.clone() for _, other in _parameter_pairs(theirs.model, ours.model)]
    rows, pool = ours.rows, ours.stage.source.pool(ours.rows, 0)
    assert isinstance(pool, LabelPool)
    ours.step()
    theirs.learn(rows, pool.labels.tolist(), torch.from_numpy(pool.positive))
    assert abs(theirs.loss - ours.losses["loss"]) <= 1e-4 * abs(ours.losses["loss"])
    for before, (own, other) in zip(start, _parameter_pairs(theirs.model, ours.model), strict=True):
        moved = other - before
        # a first step of Adam is the sign of a gradient: where that is rounding alone the two sides may disagree
        assert (own - other)[moved != 0].norm() <= 1e-2 * moved.norm()
    psi = ours.model.classifier.table.weight
    assert (psi != start[1]).any(1).nonzero().squeeze(1).tolist() == sorted(pool.labels.tolist())


def _parameter_pairs(obvious: ObviousModel, ours: TwoHeads) -> list[tuple[Tensor, Tensor]]:
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


def _texts(column: Ragged, rows: list[int]) -> list[Tensor]:
    """Token ids of the given rows."""
    return [torch.tensor(column[row].astype("int64")) for row in rows]
