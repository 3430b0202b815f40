"""Where a training stands: the part of a checkpoint that is not weights."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class Position(BaseModel):
    """Where a training stands; with weights, moments and mined batches it is all that a resumed run needs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stage: Count = 0
    epoch: Count = 0
    epochs: Count = 0
    """Epochs since the start, over all stages."""
    batch: Count = 0
    """Batches of the epoch that are done."""
    step: Count = 0
    """Steps since the start, over all stages."""
    sums: dict[str, float] = {}
    """Sums over the batches of the epoch, for its averages."""
    seconds: float = 0.0
    """Seconds of training, those before an interruption included."""
    processor_seconds: float | None = None
    """The same in seconds of processor time; None where a part of the training did not count them."""
    best: float | None = None
    """Best value of the stage on the held-out rows."""
    best_epoch: Count = 0
    """The epoch it was reached in, counted from 1."""
    first_loss: float = 0.0
    """Loss of the first step of the stage."""
    pieces: Annotated[int, Field(ge=1)] | None = None
    """Tokens encoded at once in this stage, if memory ran out with more of them."""
    rates: dict[str, float] = {}
    """Peak learning rates of the stage; the config may leave them to the encoder."""
