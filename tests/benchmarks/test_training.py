"""Steps of training: against the obvious version, against few labels, how much is not matrix algebra, and memory."""

import statistics
from typing import Any

import pytest

from harness.machine.memory import peak_memory_gib
from harness.model.encoders.encoder import load_encoder
from tests.benchmarks.obvious import PARAMETERS, ObviousSteps, assert_same_step
from tests.benchmarks.race import Race, in_child, size
from tests.benchmarks.steps import TITLES, Shape, Steps, random_static

FEW, MANY = size(13_000, 2_600), size(1_305_265, 5_200)
LARGE: dict[str, Any] = {"batch_size": 1098, "pool_size": 3000, "beta": 2, "eta": 6, "init_classifier": "xavier"}
_LARGE = "batch 1,098, pool of 3,000, static"
_NOT_ALGEBRA = ("pool", "gather", "optimiser", "rest")


def test_obvious_step_is_the_same_step() -> None:
    assert_same_step(2_600)


@pytest.mark.parametrize(("labels", "at_least", "rounds"), [(131_073, 5.0, 7), (1_305_265, 30.0, 3)])
def test_step_against_the_obvious_version(race: Race, labels: int, at_least: float, rounds: int) -> None:
    ours = Steps("unidec", size(labels, 2_600), random_static(), TITLES, **PARAMETERS)
    theirs = ObviousSteps(ours.drawing, ours.params)
    steps = size(10, 1)

    def several() -> None:
        # one step alone would find every cache full of the other side's gigabytes, which no training does
        for _ in range(steps):
            ours.step()

    race(
        f"unidec, {steps} steps against the obvious version",
        f"{labels:,} labels, batch 275, static",
        "dense tables and AdamW, sets and loops, losses by autograd",
        several,
        theirs.step,
        times=steps,
        at_least=at_least,
        rounds=rounds,
    )


POOLED = {"unidec": {**LARGE}, "depsl": {"batch_size": 256}, "dexml-hnm": {"batch_size": 256}}


@pytest.mark.parametrize("method", POOLED)
def test_step_does_not_grow_with_labels(race: Race, method: str) -> None:
    many, few = (Steps(method, labels, random_static(), **POOLED[method]) for labels in (MANY, FEW))
    race(
        f"{method} step, many labels against few",
        f"{MANY:,} labels, {_LARGE if method == 'unidec' else 'batch 256, static'}",
        f"the same step with {FEW:,} labels",
        many.step,
        few.step,
        at_most=1.15,
        rounds=12,
        warmup=3,
    )


def test_step_does_not_grow_with_rows_of_n_grams(race: Race) -> None:
    few, many = 1 << 16, size(1 << 21, 1 << 17)
    large, small = (Steps("unidec", FEW, random_static(rows), **LARGE) for rows in (many, few))
    race(
        "unidec step with pairs of tokens, a large table against a small one",
        f"{FEW:,} labels, {_LARGE}, {many:,} rows",
        f"the same step with {few:,} rows",
        large.step,
        small.step,
        at_most=1.3,
        rounds=12,
        warmup=3,
    )


def test_step_with_pairs_of_tokens(race: Race) -> None:
    pairs, tokens = (Steps("unidec", FEW, random_static(rows), **LARGE) for rows in (1 << 16, 0))
    race(
        "unidec step with pairs of tokens against tokens alone",
        f"{FEW:,} labels, {_LARGE}, {1 << 16:,} rows",
        "the same step without them",
        pairs.step,
        tokens.step,
        rounds=12,
        warmup=3,
    )


@pytest.mark.parametrize(("encoder", "at_most"), [("static", 0.35), ("minilm", 0.08)])
def test_share_that_is_not_matrix_algebra(race: Race, encoder: str, at_most: float) -> None:
    if encoder == "static":
        steps, inputs = Steps("unidec", FEW, random_static(), **LARGE), f"{FEW:,} labels, {_LARGE}"
    else:
        labels, batch = size(35_521, 2_600), size(64, 4)
        parameters: dict[str, Any] = {"batch_size": batch, "init_classifier": "xavier"}
        shape = Shape(near=400, tokens=TITLES.tokens)
        steps = Steps("unidec", labels, load_encoder("minilm", seed=0), shape, **parameters)
        inputs = f"{labels:,} labels, batch {batch}, minilm"

    def share() -> tuple[float, None]:
        timers = [steps.step() for _ in range(size(12, 3))][2:]
        parts = [sum(timer.seconds[name] for name in _NOT_ALGEBRA) / sum(timer.seconds.values()) for timer in timers]
        return statistics.median(parts), None

    race.values("share of a unidec step that is not matrix algebra", inputs, "whole step", share, "%", at_most=at_most)


MEMORY: dict[str, tuple[dict[str, Any], float]] = {
    "unidec": (LARGE, 1.15),
    "renee": ({"batch_size": 128, "warm_epochs": 0}, 1.3),
}


@pytest.mark.parametrize("method", MEMORY)
def test_peak_memory(race: Race, method: str) -> None:
    race.values(
        f"peak memory of {method} training",
        f"{MANY:,} labels, whole process, every moment written",
        "parameters and moments, from their shapes",
        lambda: in_child(peak_memory, method, MANY),
        "B",
        at_most=MEMORY[method][1],
    )


def peak_memory(method: str, labels: int) -> tuple[float, float]:
    """Peak of this process after some steps, and what parameters and moments need, in bytes."""
    steps = Steps(method, labels, random_static(), **MEMORY[method][0])
    for _ in range(size(5, 1)):
        steps.step()
    return peak_memory_gib() * 2**30, float(steps.needed_bytes)
