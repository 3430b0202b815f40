"""Training: one loop, fed by parts.

    BatchSource -> Batch (rows [B], LabelPool) -> Objective.backward -> Optimiser.step -> Checkpoints

A method gives the loop a list of `Stage`s. A stage says what is optimised (`objective`), on which batches (`source`)
and with which learning rates (`optimiser`). Every random draw is a function of (seed, stream, position), so the state
of a training is its weights, its optimiser's moments, what was mined last, and a position.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.batching import LabelPool, LabelSpace
from harness.data.ragged import Ragged

if TYPE_CHECKING:
    from harness.train.optim import Optimiser
    from harness.train.timing import Timer


Validate = Callable[[str | None], dict[str, float]]
"""Scores the validation rows with the named scorer, or with the one that the run reports if the name is None."""
OnValidation = Callable[[int, dict[str, float]], None]
"""Called with the epoch, counted from 1 over all stages, and the scores of the validation rows."""


@dataclass(frozen=True)
class Batch:
    """Rows of one step, with the labels that they are scored against."""

    rows: NDArray[np.int64]
    """Train rows, [B]."""
    pool: LabelPool | LabelSpace
    step: int
    """Position of the step in its stage; the position of every random draw it makes."""
    texts: Ragged | None = None
    """Tokens from `Objective.texts`, gathered ahead of the step; None if the objective encodes none or is yet to."""


class BatchSource(Protocol):
    """Where batches come from."""

    steps: int
    """Batches per epoch, the same in every epoch."""

    def refresh(self, epoch: int) -> dict[str, float]:
        """Do what is due before this epoch, for example mining; return figures to log, none if nothing was due."""
        ...

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the rows of every batch of the epoch; they depend on the epoch and on what was mined last alone."""
        ...

    def pool(self, rows: NDArray[np.int64], step: int) -> LabelPool | LabelSpace:
        """Return the labels that these rows [B] are scored against at this step."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was mined last, as arrays by name, for a checkpoint."""
        ...

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        ...


class Objective(Protocol):
    """The loss that a stage minimises, with its gradient."""

    @property
    def pieces(self) -> int | None:
        """Most tokens that go through the encoder at once; None if texts cannot be split into smaller pieces."""
        ...

    def work_in_pieces(self, tokens: int) -> None:
        """Set `pieces` to `tokens`: the same batch, in less memory."""
        ...

    def texts(self, rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> Ragged | None:
        """Return the tokens that a step on these rows [B] encodes, None if none; called from another thread.

        They depend on no weight, so they are gathered while the step before is computed.
        """
        ...

    def backward(self, batch: Batch, timer: "Timer") -> dict[str, float]:
        """Leave gradients in the parameters and return the parts of the loss; `loss` is the one that is minimised.

        Called again for the same batch, with gradients cleared, if memory ran out.
        """
        ...


@dataclass(frozen=True)
class Stage:
    """One phase of training."""

    name: str
    epochs: int
    source: BatchSource
    objective: Objective
    optimiser: "Optimiser"
    begin: Callable[[], None] = field(default=lambda: None)
    """Initialises what depends on an earlier stage; not called if a checkpoint of this stage was loaded."""
    scorer: str | None = None
    """Name of the scorer for validation rows while this stage trains; None for the one that the run reports."""
