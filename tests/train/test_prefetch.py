"""Batches that are made ahead: the same, in the same order, and never one too many."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.batching import LabelPool
from harness.batching.mined import MinedBatches
from harness.batching.pool import LabelPicker
from harness.data import load
from harness.data.ragged import Ragged
from harness.model.encoders.encoder import load_encoder
from harness.run import run
from harness.settings.method import load_method
from harness.train import Stage
from harness.train.inputs import tokenise, train_side
from harness.train.prefetch import batches_ahead, made_ahead
from harness.train.timing import Timer
from tests.support.training_runs import DATASET, config, only_run

pytestmark = pytest.mark.usefixtures("one_thread")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("batches", "checkpoint"))]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    assert not threads()
    yield
    assert not threads()


def test_one_is_made_ahead_and_no_more() -> None:
    begun: list[int] = []
    with closing(made_ahead(begun.append, range(10))) as made:
        for done in range(1, 4):
            next(made)
            assert len(begun) in (done, done + 1)  # the thread may not have come to it yet
    assert len(begun) <= 4


def test_an_error_comes_where_its_result_is_wanted() -> None:
    seen = []

    def work() -> None:
        for made in made_ahead(lambda item: 1 // (3 - item), range(9)):
            seen.append(made)

    with pytest.raises(ZeroDivisionError):
        work()
    assert seen == [0, 0, 1]


def test_leaving_early_leaves_no_thread() -> None:
    def work() -> None:
        with closing(made_ahead(str, range(9))) as made:
            for _ in made:
                assert threads()
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


def stage_of(method: str) -> Stage:
    settings = config(method, epochs=1, random_epochs=0) if method == "unidec" else config(method, epochs=1)
    encoder, dataset = load_encoder("tiny", seed=0), load(DATASET)
    tokens, chosen = tokenise(dataset, encoder, 32), load_method(method)
    inputs = train_side(dataset, np.arange(dataset.train.shape[0]), tokens, encoder, "cpu", settings, print)
    return chosen.build(inputs, chosen.params.model_validate(settings.params)).stages()[0]


def test_batches_are_those_that_the_source_gives() -> None:
    stage = stage_of("unidec")
    stage.source.refresh(0)
    timer = Timer()
    found = list(batches_ahead(stage, 2, 1, timer))
    wanted = stage.source.batches(2)[1:]
    assert [batch.step for batch in found] == [9, 10, 11]
    for batch, rows in zip(found, wanted, strict=True):
        pool = stage.source.pool(rows, batch.step)
        assert isinstance(pool, LabelPool)
        assert isinstance(batch.pool, LabelPool)
        np.testing.assert_array_equal(batch.rows, rows)
        np.testing.assert_array_equal(batch.pool.labels, pool.labels)
        np.testing.assert_array_equal(batch.pool.positive, pool.positive)
        texts = stage.objective.texts(rows, pool)
        assert isinstance(texts, Ragged)
        assert isinstance(batch.texts, Ragged)
        np.testing.assert_array_equal(batch.texts.values, texts.values)
        np.testing.assert_array_equal(batch.texts.offsets, texts.offsets)
        assert len(texts) == len(rows) + pool.shared
    assert timer.seconds["pool"] > 0


def test_nothing_is_made_ahead_while_mining(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool drawn from hard negatives of yesterday is not used: no batch of an epoch is there before its refresh."""
    refresh, pool, epochs = MinedBatches.refresh, MinedBatches.pool, [-1]

    def refreshed(self: MinedBatches, epoch: int) -> dict[str, float]:
        assert not any(name.startswith("batches") for name in threads())
        figures = refresh(self, epoch)
        epochs.append(epoch)
        return figures

    def drawn(self: MinedBatches, rows: Any, step: int) -> LabelPool:
        assert step // self.steps == epochs[-1]
        return pool(self, rows, step)

    monkeypatch.setattr(MinedBatches, "refresh", refreshed)
    monkeypatch.setattr(MinedBatches, "pool", drawn)
    run(config(epochs=2, refresh_epochs=1), track="none")
    assert epochs == [-1, 0, 1]


def test_a_pool_that_cannot_be_made_ends_the_run_at_its_step(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pick, calls = LabelPicker.pick, []

    def failing(self: LabelPicker, *arguments: Any) -> LabelPool:
        calls.append(1)
        if len(calls) == 7:
            raise MemoryError("no room for the pool")
        return pick(self, *arguments)

    monkeypatch.setattr(LabelPicker, "pick", failing)
    with pytest.raises(MemoryError, match="no room for the pool"):
        run(config(epochs=2, checkpoint={"every_steps": 1}), track="none")
    assert max(only_run(workspace).glob("checkpoints/step-*")).name == "step-00000006"
