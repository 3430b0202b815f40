"""The state of a training, to disk and back: position, weights, optimiser moments, mined batches, best weights.

Every random draw is a function of (seed, stream, position), so this is all that a resumed training needs to give the
same bits as one that was never interrupted.
"""

import shutil
from collections import deque
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from harness.errors import DataError, UserError, out_of_memory
from harness.io.models import describe_faults
from harness.runs.log import RunLog
from harness.settings.schema import CheckpointSettings
from harness.train import Stage
from harness.train.checkpoint import Checkpoints, load_model, save_model
from harness.train.checkpoint.saver import Saver, all_finite
from harness.train.timing import Timer

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
    """Processor time of training in seconds; None if a part of the training did not measure it."""
    best: float | None = None
    """Best validation score of the stage; None before the first validation."""
    best_epoch: Count = 0
    """Epoch of the best validation score, counted from 1; 0 if there is none."""
    first_loss: float = 0.0
    """Loss of the first step of the stage."""
    pieces: Annotated[int, Field(ge=1)] | None = None
    """Most tokens encoded at once in this stage since memory ran out; None if it did not."""
    rates: dict[str, float] = {}
    """Peak learning rate of each group of the stage; stored because the config may leave them to the encoder."""


class TrainingState:
    """Position of a training, and its checkpoints."""

    def __init__(
        self, model: nn.Module, stages: tuple[Stage, ...], run_log: RunLog, settings: CheckpointSettings
    ) -> None:
        self.position = Position(processor_seconds=0.0)
        self.begun = False
        """Whether the current stage was begun by a checkpoint, so that `Stage.begin` is not called."""
        self._model, self._stages, self._settings = model, stages, settings
        self._folder = run_log.folder / "checkpoints"
        self._checkpoints = Checkpoints(self._folder, settings.keep)
        self.saver = Saver(self._checkpoints, settings.background, run_log.event)
        self._referenced: deque[Path] = deque(maxlen=settings.keep)
        """Folders of best weights that the kept checkpoints refer to."""
        self._clock, self._since_save = Timer(), Timer()
        self._before: tuple[float, float | None] = (0.0, 0.0)
        """Seconds of training before this process resumed it: wall-clock and processor time."""

    def start_clocks(self) -> None:
        """Start to measure the time of training."""
        self._clock, self._since_save = Timer(), Timer()

    def read_clocks(self) -> None:
        """Write the time of training so far into the position."""
        before, processor_before = self._before
        self.position.seconds = before + self._clock.total
        self.position.processor_seconds = None if processor_before is None else processor_before + self._clock.processor

    def due(self, *, epoch_end: bool = False) -> bool:
        """Return whether the settings ask for a checkpoint now."""
        if epoch_end:
            return self._since_save.total >= self._settings.min_seconds
        every = self._settings.every_steps
        return bool(every) and self.position.step % (every or 1) == 0

    def save(self, stage: Stage, *, stay: bool = False) -> None:
        """Save a checkpoint of the current state; with `stay` it is on disk on return."""
        self.read_clocks()
        tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in self._model.state_dict().items()}
        if not all(all_finite(tensor) for tensor in tensors.values()):
            raise self.diverged("a weight is no longer a finite number")
        tensors |= {f"optimiser.{name}": tensor for name, tensor in stage.optimiser.state().items()}
        arrays = stage.source.state().items()
        tensors |= {f"source.{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays}
        then = partial(self._forget_best, self._best_folder())
        self.saver.save(self.position.step, self.position.model_dump(warnings=False), tensors, then, stay=stay)
        self._since_save = Timer()

    def save_best(self, metadata: dict[str, Any]) -> None:
        """Save the weights as the best of the stage; the position holds their epoch."""
        self.saver.wait()  # a checkpoint that reaches the disk removes best weights that no checkpoint refers to
        save_model(self._best_folder(), self._model.state_dict(), metadata)

    def load_best(self) -> None:
        """Put the best weights of the stage back into the model."""
        best, _ = load_model(self._best_folder())
        self._model.load_state_dict(best)

    def resume(self) -> bool:
        """Load the latest checkpoint; False if there is none."""
        found = self._checkpoints.latest()
        if found is None:
            return False
        values, tensors = found
        try:
            self.position = Position.model_validate(values)
            stage = self._stages[self.position.stage]
        except ValidationError as error:
            raise self._foreign(describe_faults(error, "its position")[0]) from error
        except IndexError as error:
            raise self._foreign("it is of a later stage than there are") from error
        if self.position.epoch > stage.epochs or self.position.batch > stage.source.steps:
            raise self._foreign("it stands behind the end of its stage")
        if self.position.rates and self.position.rates != peak_rates(stage):
            raise UserError(
                f"this run trains with learning rates {self.position.rates}, this harness would go on with "
                f"{peak_rates(stage)}; use the version it was started with, or start a new run"
            )
        self._before, self.begun = (self.position.seconds, self.position.processor_seconds), True
        self._referenced.append(self._best_folder())
        if self.position.best is not None:
            load_model(self._best_folder())  # found missing or damaged now, not after hours of training
        self._load(stage, tensors)
        return True

    def diverged(self, what: str) -> UserError:
        """Return the error for a training whose loss or weights are no longer finite."""
        kept = self.saver.steps()
        saved = f"the last good checkpoint is step {kept[-1]}" if kept else "no checkpoint was saved yet"
        return UserError(
            f"{what} at step {self.position.step} (epoch {self.position.epoch + 1}); {saved}; "
            "start a new run with lower learning rates, higher temperatures or clip=1"
        )

    def _best_folder(self) -> Path:
        """Return the folder of the stage's best weights; by epoch, because a resumed run may save them again."""
        return self._folder / f"best-{self.position.stage}-{self.position.best_epoch}"

    def _forget_best(self, but: Path) -> None:
        """Remove best weights that no kept checkpoint refers to; the newest one refers to `but`."""
        self._referenced.append(but)
        for folder in self._folder.glob("best-*"):
            if folder not in self._referenced:
                shutil.rmtree(folder)

    def _load(self, stage: Stage, tensors: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "source": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise self._foreign(f"it has {name[:60]!r}")
            parts[part][rest] = tensor
        try:
            self._model.load_state_dict(parts["model"])
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise self._foreign(str(error).splitlines()[-1].strip()) from error
        if parts["optimiser"]:
            if self.position.pieces is not None:  # dropout is drawn piece by piece, so a resumed run keeps them
                stage.objective.work_in_pieces(self.position.pieces)
            stage.optimiser.load_state(parts["optimiser"])
            stage.source.load_state({name: tensor.numpy() for name, tensor in parts["source"].items()})

    def _foreign(self, why: str) -> DataError:
        """Return the error for a newest checkpoint that is undamaged but not one of this training."""
        step = self._checkpoints.steps()[-1]
        return DataError(
            f"the checkpoint of step {step} is not one of this run ({why}); remove it to go on without it", self._folder
        )


def peak_rates(stage: Stage) -> dict[str, float]:
    """Return the peak learning rate of each group of a stage."""
    return {group.name: group.lr for group in stage.optimiser.groups}
