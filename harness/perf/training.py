"""A UniDEC step: where its time goes, how much of it is not matrix algebra, and what many labels cost.

Rows are drawn, see `harness.perf.steps`. What is timed is what training runs: pool, gather, encode, losses, gradients,
optimiser.
"""

from collections.abc import Iterator
from typing import Any

from harness.model.encoder import load_encoder
from harness.perf import Row, Sample, bound, compare, turns
from harness.perf.child import in_child
from harness.perf.steps import TITLES, Shape, Steps, as_text, random_static, seconds_of, shares_of
from harness.progress import progress
from harness.repro import peak_memory_gib
from harness.train.timing import Timer

TITLE_LABELS, TITLE_BATCH, MINILM_BATCH = 35_521, 275, 64
FEW_LABELS, MANY_LABELS = 13_000, 1_305_265
LARGE: dict[str, Any] = {"batch_size": 1098, "pool_size": 3000, "beta": 2, "eta": 6, "init_classifier": "xavier"}
STATIC_AT_MOST, MINILM_AT_MOST, GROWTH_AT_MOST, MEMORY_AT_MOST = 0.35, 0.08, 1.15, 1.15
BOOKKEEPING = ("pool", "gather", "optimiser", "rest")
_LARGE_SIZE = "batch 1,098, pool of 3,000, beta 2, eta 6, texts of 10 tokens, static"
_PEAKS = 3


def rows() -> Iterator[Row]:
    """A step by part, large against small label sets, memory."""
    with progress("measure UniDEC steps", total=5, unit="parts") as advance:
        yield titles()
        advance(1)
        yield from large_batch()
        advance(1)
        yield from minilm()
        advance(1)
        yield growth()
        advance(1)
        yield memory()
        advance(1)


def titles() -> Row:
    """The defaults on rows like those of lf-debiantitles."""
    steps = Steps("unidec", TITLE_LABELS, random_static(), TITLES, batch_size=TITLE_BATCH)
    size = f"{TITLE_LABELS:,} labels, batch {TITLE_BATCH}, beta 3, eta 6, no cap, texts of 21 tokens, static"
    return by_part("static, defaults", size, taken(steps, 40))


def large_batch() -> Iterator[Row]:
    """A batch as large as the papers'."""
    timers = taken(Steps("unidec", FEW_LABELS, random_static(), **LARGE), 15)
    yield by_part("static, large batch", f"{FEW_LABELS:,} labels, {_LARGE_SIZE}", timers)
    yield bookkeeping("static, large batch", f"{FEW_LABELS:,} labels, {_LARGE_SIZE}", timers, STATIC_AT_MOST)


def minilm() -> Iterator[Row]:
    """A transformer; few queries, because two cores take seconds for more."""
    shape = Shape(near=400, tokens=TITLES.tokens)
    # encoding all labels for the first values of Psi would take minutes
    knobs: dict[str, Any] = {"batch_size": MINILM_BATCH, "init_classifier": "xavier"}
    steps = Steps("unidec", TITLE_LABELS, load_encoder("minilm", seed=0), shape, **knobs)
    timers = taken(steps, 5)
    size = f"{TITLE_LABELS:,} labels, batch {MINILM_BATCH}, beta 3, eta 6, no cap, texts of 21 tokens, minilm"
    yield by_part("minilm", size, timers)
    yield bookkeeping("minilm", size, timers, MINILM_AT_MOST)


def taken(steps: Steps, count: int) -> list[Timer]:
    """So many steps after two that do not count."""
    return [steps.step() for _ in range(2 + count)][2:]


def by_part(name: str, size: str, timers: list[Timer]) -> Row:
    """Step time, with the share of every part."""
    seconds = seconds_of(timers)
    return bound(
        f"UniDEC step, {name}",
        f"{size}, {len(timers)} steps",
        seconds,
        reference="none",
        detail=as_text(shares_of(timers)),
        at={"step": name},
    )


def bookkeeping(name: str, size: str, timers: list[Timer], at_most: float) -> Row:
    """Share of a step that is not matrix algebra."""
    shares = [sum(timer.seconds[part] for part in BOOKKEEPING) / sum(timer.seconds.values()) for timer in timers]
    return bound(
        f"share of a UniDEC step that is not matrix algebra, {name}",
        size,
        Sample(tuple(shares), "%"),
        at_most=at_most,
        detail=f"{', '.join(BOOKKEEPING)}, of the whole step",
    )


def growth() -> Row:
    """Step time at many labels against few, the two taking turns."""
    few, many = (Steps("unidec", labels, random_static(), **LARGE) for labels in (FEW_LABELS, MANY_LABELS))
    for steps in (few, many):
        steps.write_moments()
    large, small = turns(many.step, few.step, repeats=12, warm=3)
    return compare(
        "UniDEC step, many labels against few",
        f"{MANY_LABELS:,} labels, {_LARGE_SIZE}",
        f"the same step with {FEW_LABELS:,} labels",
        large,
        small,
        at_most=GROWTH_AT_MOST,
    )


def memory() -> Row:
    """Peak of a whole process that trains with many labels."""
    peaks = [in_child(peak, MANY_LABELS) for _ in range(_PEAKS)]
    return compare(
        "peak memory of UniDEC training",
        f"{MANY_LABELS:,} labels, {_LARGE_SIZE}, whole process, 10 steps, every moment written",
        "parameters and moments, from their shapes",
        Sample(tuple(figures["peak"] for figures in peaks), "B"),
        Sample(tuple(figures["needed"] for figures in peaks), "B"),
        at_most=MEMORY_AT_MOST,
    )


def peak(labels: int) -> dict[str, float]:
    """Ten steps with moments written: the peak of this process, and what parameters and moments need, in bytes."""
    steps = Steps("unidec", labels, random_static(), **LARGE)
    steps.write_moments()
    for _ in range(10):
        steps.step()
    return {"peak": peak_memory_gib() * 2**30, "needed": float(steps.needed_bytes)}
