"""What an epoch showed: averages over its batches, and warnings where it taught the model nothing or harmed it."""

from collections.abc import Iterator

from harness.train import Stage
from harness.train.checkpoint.state import Position
from harness.train.timing import Timer

_DIVERGED = 100.0
"""A training whose loss grows by this factor has diverged, even if it stays finite."""


def averages(stage: Stage, position: Position, timer: Timer, rows_before: float) -> dict[str, float]:
    """Return averages over the batches of the epoch, rows per second and learning rates, by name.

    `rows_before` counts the rows of the epoch that were trained before this process resumed it.
    """
    figures = {f"train/{name}": value / position.batch for name, value in position.sums.items() if name != "rows"}
    if rows := position.sums["rows"] - rows_before:  # none if a resumed run had only to validate
        figures["train/rows_per_second"] = rows / timer.total
    epoch = position.epoch + 1
    rates = stage.optimiser.learning_rates(epoch * stage.source.steps - 1)
    return figures | {"train/epoch": epoch, **{f"lr/{name}": rate for name, rate in rates.items()}}


def warnings(stage: Stage, position: Position, figures: dict[str, float]) -> Iterator[str]:
    """Yield warnings: no positives or no negatives in the pools, or a loss that has diverged."""
    if not figures["train/positives"]:
        yield "no label in the pools is a positive of its query, so nothing is learned: check the labels"
    elif not round(figures["train/negatives"], 6):
        yield "no query has a negative in its pool, so nothing is learned: raise batch_size, pool_size or eta"
    first, last = position.first_loss, figures["train/loss"]
    if position.epoch + 1 == stage.epochs and last > _DIVERGED * max(abs(first), 1e-3):
        yield (
            f"the loss of {stage.name} grew from {first:.4g} to {last:.4g}, so it diverged: lower its learning rates, "
            "or raise its temperatures"
        )
