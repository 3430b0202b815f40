"""A UniDEC step: how much of it is not matrix algebra, and whether it depends on the number of labels.

Rows are drawn, not read: random texts and labels, a random token table. What is timed is what training runs: pool,
gather, encode, losses, gradients, optimiser.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from harness.data.ragged import Ragged
from harness.method import Inputs, load_method
from harness.model.encoder import Encoder, load_encoder
from harness.model.static import StaticEncoder
from harness.perf import Row
from harness.repro import peak_memory_gib
from harness.train import Batch
from harness.train.timing import Timer

ROWS, FEW_LABELS, MANY_LABELS, VOCABULARY, DIMENSION = 20_000, 13_000, 1_305_265, 30_522, 256
BATCH, POOL, BETA, ETA, LABELS_PER_ROW, TOKENS = 1098, 3000, 2, 6, 4, 10
STATIC_AT_MOST, MINILM_AT_MOST, GROWTH_AT_MOST, MEMORY_AT_MOST = 0.35, 0.08, 1.2, 1.1
_BOOKKEEPING = ("pool", "gather", "optimiser", "rest")


class Steps:
    """A training whose steps can be taken one by one."""

    def __init__(self, labels: int, encoder: Encoder, batch_size: int = BATCH) -> None:
        generator = np.random.default_rng(0)
        knobs = {"batch_size": batch_size, "pool_size": POOL, "beta": BETA, "eta": ETA, "batching": "random"}
        method = load_method("unidec")
        inputs = Inputs(
            random_labels(generator, ROWS, labels),
            no_pairs(ROWS, labels),
            random_texts(generator, ROWS),
            random_texts(generator, labels),
            encoder,
            "cpu",
            16_384,
            0,
            lambda message: None,
        )
        parts = method.build(
            inputs, method.params.model_validate({**knobs, "random_epochs": 0, "init_classifier": "xavier"})
        )
        self._stage = parts.stages()[0]
        self._stage.begin()
        source: Any = self._stage.source
        source._picker.hard = generator.integers(0, labels, (ROWS, ETA * 5)).astype(np.int32)
        self._batches = source.batches(0)
        self._taken = 0
        if parts.model is not None:
            parts.model.train()

    def step(self) -> Timer:
        """Takes one step; returns where its time went."""
        timer, source = Timer(), self._stage.source
        rows = self._batches[self._taken % len(self._batches)]
        with timer.part("pool"):
            pool = source.pool(rows, self._taken)
        self._stage.objective.backward(Batch(rows, pool, self._taken), timer)
        with timer.part("optimiser"):
            self._stage.optimiser.step(self._taken)
        self._taken += 1
        timer.seconds["rest"] = timer.total - sum(timer.seconds.values())
        return timer


def random_labels(generator: np.random.Generator, rows: int, labels: int) -> csr_array:
    """`LABELS_PER_ROW` distinct labels a row, [rows, labels]."""
    columns = generator.integers(0, labels // LABELS_PER_ROW, (rows, LABELS_PER_ROW))
    columns = columns * LABELS_PER_ROW + np.arange(LABELS_PER_ROW)
    bounds = np.arange(rows + 1) * LABELS_PER_ROW
    return csr_array((np.ones(columns.size, np.float32), columns.ravel(), bounds), shape=(rows, labels))


def no_pairs(rows: int, labels: int) -> csr_array:
    """A matrix [rows, labels] without an entry."""
    nothing = np.zeros(0, np.int64)
    return csr_array((np.zeros(0, np.float32), nothing, np.zeros(rows + 1, np.int64)), shape=(rows, labels))


def random_texts(generator: np.random.Generator, rows: int) -> Ragged:
    """Texts of `TOKENS` tokens, rarer ones rarer, [rows]."""
    ids = np.minimum(generator.pareto(0.6, rows * TOKENS) * 40 + 1000, VOCABULARY - 1).astype(np.uint16)
    return Ragged(ids, np.arange(rows + 1, dtype=np.int64) * TOKENS)


def random_static() -> StaticEncoder:
    """A static encoder with random vectors."""
    facts = {"name": "static", "tokenizer": load_encoder("tiny", seed=0).tokenizer, "max_len": 32, "identity": "random"}
    table = torch.randn(VOCABULARY, DIMENSION, generator=torch.Generator().manual_seed(0))
    return StaticEncoder(table, "uniform", **facts)


def rows() -> Iterator[Row]:
    """Shares of a step, then large against small label sets."""
    yield shares("static", Steps(FEW_LABELS, random_static()), BATCH, 12, STATIC_AT_MOST)
    yield shares("minilm", Steps(FEW_LABELS, load_encoder("minilm", seed=0), 64), 64, 2, MINILM_AT_MOST)
    yield from growth()


def shares(name: str, steps: Steps, batch: int, count: int, at_most: float) -> Row:
    """Share of pool, gather, optimiser and bookkeeping in a step."""
    steps.step()
    timers = [steps.step() for _ in range(count)]
    total = sum(sum(timer.seconds.values()) for timer in timers)
    parts = {part: sum(timer.seconds[part] for timer in timers) / total for part in timers[0].seconds}
    share = sum(parts[part] for part in _BOOKKEEPING)
    detail = ", ".join(f"{part} {value:.0%}" for part, value in sorted(parts.items(), key=lambda item: -item[1]))
    return Row(
        what=f"share of a UniDEC step that is not matrix algebra, {name}",
        size=f"batch {batch:,}, pool of at most {POOL:,}, beta {BETA}, eta {ETA}: {detail}",
        reference=f"the whole step, {1000 * total / count:.0f} ms",
        ours=f"{share:.1%}",
        theirs=f"{at_most:.0%}",
        ratio=share / at_most,
        target=f"at most {at_most:.0%}",
        met=share <= at_most,
    )


def growth() -> Iterator[Row]:
    """Step time and memory at many labels against few, the two taking turns; memory in processes of their own."""
    few, many = Steps(FEW_LABELS, random_static()), Steps(MANY_LABELS, random_static())
    times: dict[str, list[float]] = {"few": [], "many": []}
    for turn in range(15):
        for name, steps in (("few", few), ("many", many)):
            spent = steps.step().total
            if turn > 2:
                times[name].append(spent)
    small, large = (float(np.median(times[name])) for name in ("few", "many"))
    yield Row(
        what="UniDEC step, many labels against few",
        size=f"{MANY_LABELS:,} labels, batch {BATCH:,}, pool of {POOL:,}, beta {BETA}, eta {ETA}, static",
        reference=f"the same step with {FEW_LABELS:,} labels",
        ours=f"{1000 * large:.0f} ms",
        theirs=f"{1000 * small:.0f} ms",
        ratio=large / small,
        target=f"at most {GROWTH_AT_MOST}x",
        met=large <= GROWTH_AT_MOST * small,
    )
    del few, many
    grown = peak_of(MANY_LABELS) - peak_of(FEW_LABELS)
    table = (MANY_LABELS - FEW_LABELS) * DIMENSION * 4 * 3 / 2**30
    yield Row(
        what="memory that more labels cost",
        size=f"peak at {MANY_LABELS:,} labels minus peak at {FEW_LABELS:,}, 10 steps, every moment written",
        reference="table and two moments in float32, and the labels' texts",
        ours=f"{grown:.2f} GiB",
        theirs=f"{table:.2f} GiB",
        ratio=grown / table,
        target=f"at most {MEMORY_AT_MOST}x",
        met=grown <= MEMORY_AT_MOST * table,
    )


def peak_of(labels: int) -> float:
    """Peak memory in GiB of a process that takes ten steps."""
    script = f"from harness.perf.training import peak; print(peak({labels}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    return float(done.stdout)


def peak(labels: int) -> float:
    """Takes ten steps, with moments written as a long training would have; returns the peak in GiB."""
    steps = Steps(labels, random_static())
    for tensor in steps._stage.optimiser.state().values():
        tensor.zero_()
    for _ in range(10):
        steps.step()
    return peak_memory_gib()
