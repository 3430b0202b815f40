"""Trainings on random rows, of any number of labels, whose steps can be taken one by one.

A step does what the training loop does, with the parts that the method itself builds: pool, gather, encode, loss,
backward, optimiser. The loop picks the next pool during a step, so that a training is a little faster.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.ragged import Ragged
from harness.model.encoders.encoder import Encoder
from harness.model.encoders.ngrams import NGrams
from harness.model.encoders.static import StaticEncoder
from harness.model.encoders.transformer import byte_tokenizer
from harness.settings.method import Inputs, load_method, method_layer
from harness.train import Batch
from harness.train.timing import Timer

VOCABULARY, DIMENSION = 30_522, 256
ROWS, LABELS_PER_ROW, TOKENS = 20_000, 4, 10
_LISTED = 30
"""Hard negatives of a row: eta x refresh_epochs of the defaults."""
_FIXED: dict[str, Any] = {"schedule": "constant", "warmup_epochs": 0.0}
_POOLED: dict[str, Any] = {"batching": "random", "random_epochs": 0}


@dataclass(frozen=True)
class Shape:
    """What random rows look like."""

    near: int | None = None
    """Rows of a batch have their labels and hard negatives among so many labels, as similar queries do; None: all."""
    tokens: int = TOKENS
    """Of a text."""


PLAIN = Shape()
TITLES = Shape(near=1900, tokens=21)
"""As lf-debiantitles: 275 similar queries with beta 3 and eta 6 have pools of 1,380 labels there."""


@dataclass(frozen=True)
class Drawing:
    """A train side with its hard negatives and batches."""

    inputs: Inputs
    hard: NDArray[np.int32]
    """Hard negatives, [N, H], distinct in a row."""
    batches: list[NDArray[np.int64]]
    """Rows [B] of every batch."""


def draw(labels: int, encoder: Encoder, batch_size: int, shape: Shape = PLAIN) -> Drawing:
    """Draw a train side; about `ROWS` rows, in whole batches."""
    generator = np.random.default_rng(0)
    batches = np.split(np.arange(max(1, ROWS // batch_size) * batch_size), max(1, ROWS // batch_size))
    rows = len(batches) * batch_size
    near = min(labels, shape.near or labels)
    nearby = np.stack([generator.choice(labels, near, replace=False) for _ in batches]) if near < labels else None
    places = partial(_distinct, generator, rows, near)

    def ids(count: int) -> NDArray[np.int64]:
        return places(count) if nearby is None else nearby[np.arange(rows)[:, None] // batch_size, places(count)]

    inputs = Inputs(
        train=_as_matrix(ids(LABELS_PER_ROW), labels),
        train_filter=no_pairs(rows, labels),
        train_tokens=random_texts(generator, rows, shape.tokens),
        label_tokens=random_texts(generator, labels, shape.tokens),
        encoder=encoder,
        device="cpu",
        batch_tokens=16_384,
        seed=0,
        warn=lambda message: None,
    )
    return Drawing(inputs, ids(min(_LISTED, near)).astype(np.int32), batches)


def settings(method: str, **parameters: Any) -> Any:
    """The method's defaults but for the given parameters; learning rates stay, and every pool has negatives."""
    defaults = method_layer(method).values["params"]
    fixed = {**_FIXED, **(_POOLED if "batching" in defaults else {})}
    return load_method(method).params.model_validate({**defaults, **fixed, **parameters})


class Steps:
    """A training by the last stage of a method on random rows."""

    def __init__(self, method: str, labels: int, encoder: Encoder, shape: Shape = PLAIN, **parameters: Any) -> None:
        self.params = settings(method, **parameters)
        self.drawing = draw(labels, encoder, self.params.batch_size, shape)
        parts = load_method(method).build(self.drawing.inputs, self.params)
        assert parts.model is not None
        self.model: Any = parts.model.train()
        self.stage = parts.stages()[-1]
        self.stage.begin()
        source = self.stage.source
        source.load_state({**source.state(), "hard": self.drawing.hard})
        # written as in a long training: memory that was never written is not there yet
        for tensor in self.stage.optimiser.state().values():
            tensor.zero_()
        self.losses: dict[str, float] = {}
        """Of the last step."""
        self.taken = 0

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows [B] of the next step."""
        return self.drawing.batches[self.taken % len(self.drawing.batches)]

    def step(self) -> Timer:
        """Take one step; returns where its time went, what no part claimed as `rest`."""
        timer, rows, optimiser = Timer(), self.rows, self.stage.optimiser
        step = self.taken % optimiser.total_steps
        with timer.part("pool"):
            pool = self.stage.source.pool(rows, step)
        self.losses = self.stage.objective.backward(Batch(rows, pool, step), timer)
        with timer.part("optimiser"):
            optimiser.step(step)
        self.taken += 1
        timer.seconds["rest"] = timer.total - sum(timer.seconds.values())
        return timer

    @property
    def needed_bytes(self) -> int:
        """Parameters and moments, from their shapes."""
        state = self.stage.optimiser.state().values()
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.model.parameters(), *state))


def random_labels(generator: np.random.Generator, rows: int, labels: int) -> csr_array:
    """`LABELS_PER_ROW` distinct labels a row, [rows, labels]."""
    return _as_matrix(_distinct(generator, rows, labels, LABELS_PER_ROW), labels)


def no_pairs(rows: int, labels: int) -> csr_array:
    """A matrix [rows, labels] without an entry."""
    nothing = np.zeros(0, np.int64)
    return csr_array((np.zeros(0, np.float32), nothing, np.zeros(rows + 1, np.int64)), shape=(rows, labels))


def random_texts(generator: np.random.Generator, rows: int, tokens: int = TOKENS) -> Ragged:
    """Texts of so many tokens, rarer ones rarer, [rows]."""
    ids = np.minimum(generator.pareto(0.6, rows * tokens) * 40 + 1000, VOCABULARY - 1).astype(np.uint16)
    return Ragged(ids, np.arange(rows + 1, dtype=np.int64) * tokens)


def random_static(ngram_rows: int = 0) -> StaticEncoder:
    """A static encoder with random vectors, and with pairs of tokens if their table has rows."""
    table = torch.randn(VOCABULARY, DIMENSION, generator=torch.Generator().manual_seed(0))
    ngrams = NGrams(2, ngram_rows, DIMENSION, 1.0) if ngram_rows else None
    metadata: dict[str, Any] = {"name": "static", "tokenizer": byte_tokenizer(), "max_len": 32, "identity": "random"}
    return StaticEncoder(table, "uniform", ngrams, **metadata)


def _distinct(generator: np.random.Generator, rows: int, among: int, count: int) -> NDArray[np.int64]:
    """`count` distinct numbers below `among` in every row, [rows, count]: one of every residue class."""
    return generator.integers(0, among // count, (rows, count)) * count + np.arange(count)


def _as_matrix(columns: NDArray[np.int64], labels: int) -> csr_array:
    """Ones at the given columns [rows, count] of a matrix [rows, labels]."""
    rows, count = columns.shape
    bounds = np.arange(rows + 1) * count
    return csr_array((np.ones(columns.size, np.float32), np.sort(columns).ravel(), bounds), shape=(rows, labels))
