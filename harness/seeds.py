"""Random numbers without state: every draw is a function of (seed, name of the stream, position).

A resumed run therefore draws what the uninterrupted one would have drawn, and no generator's state is ever saved.
"""

import numpy as np

STREAMS = (
    *("init", "order", "positives", "negatives", "dropout", "split", "clusters", "search", "augment", "stage"),
    "rounding",
)
"""Names of the random streams; a stream keeps its place in this list for good, because the place is part of its key."""


def stream_seed(seed: int, name: str, *position: int) -> int:
    """Return a 63-bit seed for one position of a named stream, for example ("dropout", step, chunk)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *position))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def stream(seed: int, name: str, *position: int) -> np.random.Generator:
    """Return a numpy generator for one position of a named stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *position)))


def stage_seed(seed: int, stage: int) -> int:
    """Return the seed of a stage of training; later stages do not repeat the draws of the first."""
    return seed if stage == 0 else stream_seed(seed, "stage", stage)
