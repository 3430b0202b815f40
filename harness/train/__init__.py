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
"""Scores the validation rows by a scorer, or by the one that the run reports."""
OnValidation = Callable[[int, dict[str, float]], None]
"""Called with the epoch, counted from 1 over all stages, and the scores of the validation rows."""


@dataclass(frozen=True)
class Batch:
    """What one step works on."""

    rows: NDArray[np.int64]
    """Train rows, [B]."""
    pool: LabelPool | LabelSpace
    step: int
    """Position of the step in its stage; the position of every random draw it makes."""
    texts: Ragged | None = None
    """What `Objective.texts` gave, if it was asked beforehand."""


class BatchSource(Protocol):
    """Where batches come from."""

    steps: int
    """Batches per epoch, the same in every epoch."""

    def refresh(self, epoch: int) -> dict[str, float]:
        """Do what is due before this epoch, for example mining; return figures to log, none if nothing was due."""
        ...

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """The rows of every batch of the epoch; a function of the epoch and of what was mined last."""
        ...

    def pool(self, rows: NDArray[np.int64], step: int) -> LabelPool | LabelSpace:
        """The labels that these rows [B] are scored against at this step."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """What was mined last, for a checkpoint."""
        ...

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take `state` back."""
        ...


class Objective(Protocol):
    """What is optimised."""

    @property
    def pieces(self) -> int | None:
        """Tokens that go through the encoder at once; None if that cannot be made smaller."""
        ...

    def work_in_pieces(self, tokens: int) -> None:
        """Change `pieces`: less memory, the same batch, the same gradients."""
        ...

    def texts(self, rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> Ragged | None:
        """Tokens that a step on these rows [B] encodes, None if it encodes none; called from another thread.

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
    """Sets first values that depend on what was trained before; not called when a checkpoint is loaded."""
    scorer: str | None = None
    """The scorer of validation rows while this stage trains; None for the one that the run reports."""
