"""Step time and peak memory of every kind of method from 13 thousand to 1.3 million labels.

Each cell is a process of its own that builds the method as a run does, writes its moments and takes steps on drawn
rows. Rows of a batch have their labels among 1,900, so pools are as large at every number of labels. Methods that pick
labels should not feel how many there are; those that go through all of them are held against the matrix products that
they cannot do without.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from harness.perf import Row, Sample, compare, turns
from harness.perf.child import in_child
from harness.perf.fullspace import Products as FourProducts
from harness.perf.onevsall import Products as ThreeProducts
from harness.perf.steps import TITLES, Shape, Steps, as_text, random_static, seconds_of, shares_of
from harness.progress import progress
from harness.repro import peak_memory_gib
from harness.train.ova import label_block
from harness.train.timing import Timer

LABELS = (13_000, 131_073, 501_070, 1_305_265)
STEPS, SECONDS = 50, 1200.0
"""Of a cell: as many steps, unless they take longer; never fewer than `_FEWEST`."""
MEMORY_AT_MOST, PRODUCTS_AT_MOST = 1.15, 1.3
_FEWEST, _WARM, _TURNS = 5, 2, 3
_SHAPE = Shape(near=TITLES.near)


@dataclass(frozen=True)
class Case:
    """How a method is measured."""

    knobs: dict[str, Any]
    linear: bool = False
    """A step goes through all labels."""
    memory_at_most: float | None = None
    """Peak against parameters and moments, at the largest number of labels."""
    products: str = ""
    """The matrix products of a step, in words; nothing where none are of L labels."""
    products_at_most: float | None = None


CASES = {
    "unidec": Case({"batch_size": 256}, memory_at_most=MEMORY_AT_MOST),
    "depsl": Case({"batch_size": 256}),
    "dexml-hnm": Case({"batch_size": 256}),
    "renee": Case(
        {"batch_size": 128, "warm_epochs": 0},
        linear=True,
        products="the three products [B, D] x [D, L] of a step, in the same blocks",
        products_at_most=PRODUCTS_AT_MOST,
    ),
    "dexml": Case(
        {"batch_size": 128}, linear=True, products="the four products [B, D] x [D, L] of a step, in the same blocks"
    ),
}
"""Batches are the methods' own but for dexml, where it is 1,024: a step over 1.3 million labels would take a minute."""


def rows() -> Iterator[Row]:
    """Every method at every number of labels."""
    with progress("measure label scaling", total=len(CASES) * len(LABELS), unit="cells") as advance:
        for method, case in CASES.items():
            smallest: dict[str, Any] = {}
            for labels in LABELS:
                figures = in_child(cell, method, labels, STEPS, SECONDS)
                smallest = smallest or figures
                yield from judged(method, case, labels, figures, smallest)
                advance(1)


def judged(method: str, case: Case, labels: int, figures: dict[str, Any], smallest: dict[str, Any]) -> Iterator[Row]:
    """The rows of one cell, from its figures and those at the fewest labels."""
    last = labels == LABELS[-1]
    where: dict[str, float | str] = {"method": method, "labels": labels}
    steps, times = Sample(tuple(figures["seconds"]), "s"), labels / LABELS[0] if case.linear else 1.0
    size = f"{labels:,} labels, batch {case.knobs['batch_size']}, static"
    yield compare(
        f"{method} step",
        f"{size}, {len(steps.values)} steps",
        f"{f'{times:.4g} x ' if case.linear else ''}the step with {LABELS[0]:,} labels",
        steps,
        # one figure, because the two are processes of their own; `training` has them taking turns, and judges
        Sample((times * statistics.median(smallest["seconds"]),), "s"),
        detail=figures["parts"],
        at={**where, "quantity": "step"},
    )
    yield compare(
        f"{method} peak memory",
        f"{size}, whole process, every moment written",
        "parameters and moments, from their shapes",
        Sample((figures["peak"],), "B"),
        Sample((figures["needed"],), "B"),
        at_most=case.memory_at_most if last else None,
        at={**where, "quantity": "memory"},
    )
    if case.products:
        yield compare(
            f"{method} step against its matrix products",
            size,
            case.products,
            *(Sample(tuple(figures[side]), "s") for side in ("turns", "products")),
            at_most=case.products_at_most if last else None,
            at={**where, "quantity": "products"},
        )


def cell(method: str, labels: int, count: int, seconds: float) -> dict[str, Any]:
    """Takes up to `count` steps, for about so many seconds; seconds of each, and bytes of this process."""
    steps = Steps(method, labels, random_static(), _SHAPE, **CASES[method].knobs)
    steps.write_moments()
    for _ in range(_WARM):
        steps.step()
    timers: list[Timer] = []
    end = time.perf_counter() + seconds
    while len(timers) < count and (len(timers) < _FEWEST or time.perf_counter() < end):
        timers.append(steps.step())
    figures = {
        "seconds": seconds_of(timers).values,
        "parts": as_text(shares_of(timers)),
        "peak": peak_memory_gib() * 2**30,
        "needed": float(steps.needed_bytes),
    }
    products = products_of(method, steps, labels)
    if products is None:
        return figures
    own, alone = turns(steps.step, products, repeats=_TURNS)
    return {**figures, "turns": own.values, "products": alone.values}


def products_of(method: str, steps: Steps, labels: int) -> Callable[[], object] | None:
    """The matrix products of a step over all labels; None for a method that picks labels."""
    batch = steps.params.batch_size
    if method == "renee":
        table = steps.model.classifier.table.weight.detach()
        vectors = torch.randn(batch, table.shape[1], generator=torch.Generator().manual_seed(0))
        return ThreeProducts(vectors, table, label_block("cpu")).step
    return FourProducts(batch, labels).run if method == "dexml" else None
