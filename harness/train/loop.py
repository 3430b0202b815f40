"""The training loop: the only one.

    for epoch: refresh batches; for batch: pool -> backward -> step; then log, validate, save

What is trained, on what and how comes from the stages of a method. The loop owns time: when to log, to validate, to
save, to stop. It can be left and entered at any step; see `harness.train.checkpoint`.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.batching import LabelPool
from harness.config import CheckpointSettings, ValidationSettings
from harness.errors import UserError
from harness.repro import peak_memory_gib
from harness.tracking import Journal
from harness.train import Batch, Stage
from harness.train.checkpoint import Checkpoints, load_model, save_model
from harness.train.display import Display
from harness.train.interrupt import StepBoundary
from harness.train.timing import Timer

Validate = Callable[[], dict[str, float]]


@dataclass
class Position:
    """Where a training stands; with weights, moments and mined batches it is all that a resumed run needs."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of the epoch that are done."""
    step: int = 0
    """Steps since the start, over all stages."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the batches of the epoch, for its averages."""
    seconds: float = 0.0
    """Seconds of training, those before an interruption included."""
    best: float | None = None
    """Best value of the stage on the held-out rows."""
    best_epoch: int = 0
    """The epoch it was reached in, counted from 1."""


class Training:
    """One training of a model through its stages."""

    def __init__(
        self,
        model: nn.Module,
        stages: tuple[Stage, ...],
        journal: Journal,
        checkpoint: CheckpointSettings,
        validation: ValidationSettings,
        validate: Validate | None,
    ) -> None:
        """Prepares to train; `validate` scores the held-out rows, None if there are none."""
        self.model, self.stages, self.journal = model, stages, journal
        self.position = Position()
        self._saving, self._validation, self._validate = checkpoint, validation, validate
        self._checkpoints = Checkpoints(journal.folder / "checkpoints", checkpoint.keep)
        self._best = journal.folder / "checkpoints" / "best"
        self._clock, self._since_save = Timer(), Timer()
        self._before = 0.0
        """Seconds of training before this process took over."""
        self._begun = False
        """Whether the stage at hand has its first values."""

    def resume(self) -> bool:
        """Takes up the latest checkpoint; False if there is none."""
        found = self._checkpoints.latest()
        if found is None:
            return False
        state, tensors = found
        self.position = Position(**state)
        self._before, self._begun = self.position.seconds, True
        self._load(tensors)
        return True

    def run(self) -> None:
        """Trains to the end, or to where validation says stop; leaves the chosen weights in the model."""
        self._clock, self._since_save = Timer(), Timer()
        self.model.train()
        with StepBoundary() as boundary:
            while self.position.stage < len(self.stages):
                self._run_stage(self.stages[self.position.stage], boundary)
                self.position.stage, self.position.epoch, self._begun = self.position.stage + 1, 0, False
        self.position.seconds = self._before + self._clock.total
        self.model.eval()

    def facts(self) -> dict[str, Any]:
        """What the record says about the training."""
        position = self.position
        facts = {"steps": position.step, "seconds": round(position.seconds, 3), "stages": [s.name for s in self.stages]}
        if position.best is not None:
            facts |= {"best_epoch": position.best_epoch, f"validation/{self._validation.metric}": position.best}
        return facts

    def _run_stage(self, stage: Stage, boundary: StepBoundary) -> None:
        position = self.position
        if not self._begun:
            position.best, position.best_epoch = None, 0
            stage.begin()
        with Display(stage.name, stage.epochs, stage.source.steps) as display:
            while position.epoch < stage.epochs:
                timer, rows_before = Timer(), position.sums.get("rows", 0.0)
                if position.batch == 0:  # inside an epoch the checkpoint holds what was mined before it
                    with boundary.immediate(), timer.part("mining"):
                        self._log(stage.source.refresh(position.epoch))
                self._run_epoch(stage, boundary, display, timer)
                self._close_epoch(stage, boundary, display, timer, rows_before)
        if position.best is not None:
            self._load({f"model.{name}": tensor for name, tensor in load_model(self._best)[0].items()})

    def _run_epoch(self, stage: Stage, boundary: StepBoundary, display: Display, timer: Timer) -> None:
        position, source = self.position, stage.source
        for rows in source.batches(position.epoch)[position.batch :]:
            step = position.epoch * source.steps + position.batch
            with timer.part("pool"):
                pool = source.pool(rows, step)
            losses = stage.objective.backward(Batch(rows, pool, step), timer)
            self._check_finite(losses["loss"])
            with timer.part("optimiser"):
                stage.optimiser.step(step)
            self._count(losses, rows, pool)
            display.step(losses["loss"])
            if boundary.pending or self._due():
                self._save(stage)
            boundary.check()

    def _count(self, losses: dict[str, float], rows: NDArray[np.int64], pool: LabelPool) -> None:
        """Moves on by one step."""
        position = self.position
        figures = {
            **losses,
            "rows": len(rows),
            "pool": len(pool.labels),
            "positives": np.count_nonzero(pool.positive) / max(1, len(rows)),
        }
        for name, value in figures.items():
            position.sums[name] = position.sums.get(name, 0.0) + value
        position.batch += 1
        position.step += 1

    def _close_epoch(
        self, stage: Stage, boundary: StepBoundary, display: Display, timer: Timer, rows_before: float
    ) -> None:
        """Logs, validates and saves at the end of an epoch."""
        position = self.position
        figures = {f"train/{name}": value / position.batch for name, value in position.sums.items() if name != "rows"}
        figures["train/rows_per_second"] = (position.sums["rows"] - rows_before) / timer.total
        rates = stage.optimiser.learning_rates((position.epoch + 1) * stage.source.steps - 1)
        figures |= {"train/epoch": position.epoch + 1, **{f"lr/{name}": rate for name, rate in rates.items()}}
        position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
        scores: dict[str, float] = {}
        if self._validate is not None and position.epoch % self._validation.every_epochs == 0:
            with boundary.immediate(), timer.part("validation"):
                scores = self._judge(stage)
        figures |= {f"time/{name}": share for name, share in timer.shares().items()}
        figures |= {"train/seconds": timer.total, "peak_memory_gib": peak_memory_gib()}
        self._log(figures | scores)
        display.epoch(int(figures["train/epoch"]), figures, scores)
        if position.epoch >= stage.epochs or self._due(epoch_end=True):
            self._save(stage)

    def _judge(self, stage: Stage) -> dict[str, float]:
        """Scores the held-out rows; keeps the weights if they are the best so far, else may end the stage."""
        if self._validate is None:
            return {}
        position, wanted = self.position, self._validation
        scores = self._validate()
        value = scores[wanted.metric]
        if position.best is None or value > position.best:
            position.best, position.best_epoch = value, position.epoch
            save_model(self._best, self.model.state_dict(), {"epoch": position.epoch, wanted.metric: value})
        elif wanted.patience is not None and position.epoch - position.best_epoch >= wanted.patience:
            self.journal.event("early_stop", epoch=position.epoch, best_epoch=position.best_epoch, best=position.best)
            position.epoch = stage.epochs
        return {f"validation/{name}": score for name, score in scores.items()}

    def _check_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        kept = self._checkpoints.steps()
        saved = f"the last good checkpoint is step {kept[-1]}" if kept else "no checkpoint was saved yet"
        raise UserError(
            f"the loss became {loss} at step {self.position.step} (epoch {self.position.epoch + 1}); {saved}; "
            "lower the learning rates, raise the temperatures or set clip=1"
        )

    def _due(self, epoch_end: bool = False) -> bool:
        wanted = self._saving
        if not epoch_end:
            return bool(wanted.every_steps) and self.position.step % (wanted.every_steps or 1) == 0
        return self._since_save.total >= wanted.min_seconds

    def _log(self, figures: dict[str, float]) -> None:
        if figures:
            self.journal.metrics(figures, self.position.step)

    def _save(self, stage: Stage) -> None:
        self.position.seconds = self._before + self._clock.total
        tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"optimiser.{name}": tensor for name, tensor in stage.optimiser.state().items()}
        arrays = stage.source.state().items()
        tensors |= {f"source.{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays}
        self._checkpoints.save(self.position.step, asdict(self.position), tensors)
        self._since_save = Timer()

    def _load(self, tensors: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Any]] = {"model": {}, "optimiser": {}, "source": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.model.load_state_dict(parts["model"])
        if parts["optimiser"] and self.position.stage < len(self.stages):
            stage = self.stages[self.position.stage]
            stage.optimiser.load_state(parts["optimiser"])
            stage.source.load_state({name: tensor.numpy() for name, tensor in parts["source"].items()})
