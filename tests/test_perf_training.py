"""The machinery behind the suites about training: drawn rows, steps, the obvious version, cells of the curve."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UserError
from harness.perf import Sample, obvious, scaling
from harness.perf.child import in_child
from harness.perf.fullspace import summed
from harness.perf.steps import DIMENSION, VOCABULARY, Drawing, Shape, Steps, draw, random_static, seconds_of, shares_of


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))


def test_rows_of_a_batch_share_their_labels() -> None:
    drawing = draw(5000, random_static(), 100, Shape(near=60, tokens=7))
    train, first = drawing.inputs.train, drawing.batches[0]
    seen = {*train[first].indices.tolist(), *drawing.hard[first].ravel().tolist()}
    assert len(seen) <= 60 < len({*train.indices.tolist()})
    assert train.has_canonical_format
    assert (np.diff(train.indptr) == 4).all()
    assert all(len({*row}) == len(row) for row in drawing.hard[:200].tolist())
    assert (drawing.inputs.label_tokens.lengths == 7).all()
    assert np.concatenate(drawing.batches).tolist() == list(range(train.shape[0]))


def test_a_step_says_where_its_time_went() -> None:
    steps = Steps("unidec", 500, random_static(), batch_size=32)
    timers = [steps.step() for _ in range(2)]
    shares = shares_of(timers)
    assert {"pool", "gather", "encode", "loss", "backward", "optimiser"} <= shares.keys()
    assert sum(shares.values()) == pytest.approx(1)
    assert len(seconds_of(timers).values) == 2
    assert np.isfinite(steps.losses["loss"])


def test_pools_have_the_hard_negatives_that_were_drawn() -> None:
    steps = Steps("depsl", 500, random_static(), batch_size=32, beta=1, eta=3)
    rows = steps.rows
    allowed = {*steps.drawing.hard[rows].ravel().tolist(), *steps.drawing.inputs.train[rows].indices.tolist()}
    pool = steps.stage.source.pool(rows, 0)
    assert pool.size > 2 * len(rows)  # beta 1 alone gives no more than one a query
    assert {*pool.labels.tolist()} <= allowed


def test_needed_bytes_are_parameters_and_two_moments() -> None:
    steps = Steps("unidec", 500, random_static(), batch_size=32)
    heads = 2 * (DIMENSION + 1) * DIMENSION
    numbers = 3 * ((500 + VOCABULARY) * DIMENSION + heads)
    counts = 500 + VOCABULARY + 4  # updates of every row and of every dense parameter
    assert steps.needed_bytes == 4 * (numbers + counts)


def test_obvious_version_computes_the_same() -> None:
    obvious.require_same(500)


def test_a_different_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = obvious.dense_decoupled_softmax
    monkeypatch.setattr(obvious, "dense_decoupled_softmax", lambda scores, positive: 1.01 * right(scores, positive))
    with pytest.raises(AssertionError, match="different losses"):
        obvious.require_same(500)


def test_a_different_step_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    start = obvious.ObviousSteps.__init__

    def faster(self: obvious.ObviousSteps, drawing: Drawing, params: Any) -> None:
        start(self, drawing, params)
        for group in self._optimiser.param_groups:
            group["lr"] *= 1.05

    monkeypatch.setattr(obvious.ObviousSteps, "__init__", faster)
    with pytest.raises(AssertionError, match="different steps"):
        obvious.require_same(500)


def test_obvious_pool_marks_every_positive() -> None:
    steps = Steps("unidec", 500, random_static(), batch_size=32)
    labels, positive = obvious.ObviousSteps(steps.drawing, steps.params).pool(steps.rows)
    assert labels == sorted({*labels})
    expected = steps.drawing.inputs.train[steps.rows][:, labels].toarray() > 0
    assert np.array_equal(positive.numpy(), expected)


@pytest.mark.parametrize("method", scaling.CASES)
def test_scaling_cell(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "LABELS", (500, 1000))
    figures = json.loads(json.dumps(scaling.cell(method, 500, 2, 60.0)))
    assert len(figures["seconds"]) == 2
    assert figures["peak"] > figures["needed"] > 0
    case = scaling.CASES[method]
    rows = list(scaling.judged(method, case, 1000, figures, figures))
    assert [row.at["quantity"] for row in rows] == ["step", "memory", "products"][: 3 if case.linear else 2]
    assert rows[0].ratio is not None
    assert rows[0].ratio.median == pytest.approx(0.5 if case.linear else 1.0)
    assert rows[0].met is None


def test_a_child_returns_what_its_function_does() -> None:
    assert in_child(json.loads, "[1, 2]") == [1, 2]


def test_a_failing_child_shows_its_error() -> None:
    with pytest.raises(UserError, match=r"(?s)ended with code 1.*JSONDecodeError"):
        in_child(json.loads, "{")


def test_samples_are_summed_turn_by_turn() -> None:
    assert summed(Sample((1.0, 2.0), "s"), Sample((10.0, 20.0), "s"), times=3) == Sample((33.0, 66.0), "s")
