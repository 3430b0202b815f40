"""The training loop: the only one.

    for epoch: refresh batches; for batch: pool -> backward -> step; then validate, log, save

What is trained, on what and how comes from the stages of a method. The loop can be left and entered at any step:
`harness.train.checkpoint.state` holds its state. The next batch is made, and the last checkpoint written, while a step
is computed. A model without steps is fitted in one go instead.
"""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from harness.batching import LabelPool, LabelSpace
from harness.errors import Terminated
from harness.machine.memory import device_memory, keep_freed_memory, peak_memory_gib
from harness.model.scoring import FUSED
from harness.runs.log import RunLog
from harness.settings.method import Parts
from harness.settings.schema import CheckpointSettings, RunConfig, ValidationSettings
from harness.train import OnValidation, Stage, Validate
from harness.train.checkpoint.state import Position, TrainingState, peak_rates
from harness.train.display import Display
from harness.train.epoch import averages, warnings
from harness.train.evaluation import Evaluator, Rows
from harness.train.fit import fit
from harness.train.fusion import choose, weight_is_open
from harness.train.interrupt import StepBoundary
from harness.train.out_of_memory import backward
from harness.train.prefetch import batches_ahead
from harness.train.timing import Timer


def train(
    parts: Parts,
    run_log: RunLog,
    config: RunConfig,
    evaluator: Evaluator,
    validation: Rows,
    on_validation: OnValidation | None = None,
) -> dict[str, Any]:
    """Train or fit the parts of a method, from the start or the last checkpoint; return metadata for the record."""

    def validation_scores(scorer: str | None) -> dict[str, float]:
        scorer = scorer or parts.scoring.scorers[0]
        if scorer == FUSED and weight_is_open(parts.scoring):  # judged by the weight that it would take
            return choose(parts.scoring, evaluator, validation)[1]
        return evaluator.score(parts.scoring, validation, (scorer,))[scorer].metrics

    validate = validation_scores if len(validation.tokens) else None
    if parts.fitted is not None:
        return fit(parts.fitted, run_log, config, validate, on_validation)
    if parts.model is None:
        if config.augment != "none":
            run_log.warn(f"augment={config.augment} has no effect: {config.method} learns nothing from train rows")
        return {}
    saving, choosing = config.checkpoint, config.validation
    training = Training(parts.model, parts.stages(), run_log, saving, choosing, validate, on_validation)
    if run_log.earlier is not None and not training.resume():
        run_log.warn("there is no checkpoint to go on from; the training begins again")
    training.run()
    return training.metadata()


class Training:
    """One training of a model through its stages."""

    def __init__(
        self,
        model: nn.Module,
        stages: tuple[Stage, ...],
        run_log: RunLog,
        checkpoint: CheckpointSettings,
        validation: ValidationSettings,
        validate: Validate | None,
        on_validation: OnValidation | None = None,
    ) -> None:
        """Prepare to train.

        Args:
            model: The model that the stages train.
            stages: The stages, in order.
            run_log: Log for figures and events; checkpoints go into its folder.
            checkpoint: When to save.
            validation: When to validate, by which metric to choose weights, and when to stop.
            validate: Scores the validation rows; None if there are none.
            on_validation: Called after every validation; may raise `harness.errors.Pruned`.
        """
        self.model, self.stages, self.run_log = model, stages, run_log
        self.validation, self.validate, self.on_validation = validation, validate, on_validation
        self.state = TrainingState(model, stages, run_log, checkpoint)
        self.boundary = StepBoundary()

    @property
    def position(self) -> Position:
        """Stage, epoch and step that the training has reached, with the sums of the epoch."""
        return self.state.position

    def resume(self) -> bool:
        """Load the latest checkpoint; False if there is none."""
        return self.state.resume()

    def run(self) -> None:
        """Train to the end or to an early stop; leave the chosen weights in the model."""
        keep_freed_memory()
        self.state.start_clocks()
        self.model.train()
        with self.boundary, self.state.saver:
            while self.position.stage < len(self.stages):
                self._run_stage(self.stages[self.position.stage])
                self.position.stage, self.position.epoch, self.state.begun = self.position.stage + 1, 0, False
        self.state.read_clocks()
        self.model.eval()

    def _run_stage(self, stage: Stage) -> None:
        position = self.position
        position.rates = peak_rates(stage)
        stage.optimiser.attach()
        if not self.state.begun:
            position.best, position.best_epoch, position.pieces = None, 0, None
            with self.boundary.immediate():
                stage.begin()
        done = position.epoch * stage.source.steps + position.batch
        several = len(self.stages) > 1
        with Display(stage.name, stage.epochs, stage.source.steps, done, name_lines=several) as display:
            while position.epoch < stage.epochs:
                timer, rows_before = Timer(), position.sums.get("rows", 0.0)
                if position.batch == 0:  # inside an epoch the checkpoint holds what was mined before it
                    with self._interruptible(stage), timer.part("mining"):
                        mined = stage.source.refresh(position.epoch)
                    if mined:
                        self.run_log.metrics(mined, position.step)
                self._run_epoch(stage, display, timer)
                self._end_epoch(stage, display, timer, rows_before)
        stage.optimiser.detach()
        if position.best is not None:
            self.state.load_best()

    def _run_epoch(self, stage: Stage, display: Display, timer: Timer) -> None:
        position = self.position
        with closing(batches_ahead(stage, position.epoch, position.batch, timer)) as batches:
            for batch in batches:
                losses = backward(stage, batch, timer, self.state, self.run_log)
                if not math.isfinite(losses["loss"]):
                    raise self.state.diverged(f"the loss became {losses['loss']}")
                with timer.part("optimiser"):
                    stage.optimiser.step(batch.step)
                self._count(losses, batch.rows, batch.pool)
                display.step(losses["loss"])
                stopping = self.boundary.pending is not None  # asked once: a later signal waits for the next step
                if stopping or self.state.due():
                    self.state.save(stage, stay=stopping)
                self.state.saver.check()
                if stopping:
                    self.boundary.check()

    def _count(self, losses: dict[str, float], rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> None:
        """Add the figures of a step on these rows [B] to the sums of its epoch, and move on by one step."""
        position = self.position
        if position.epoch == position.batch == 0:
            position.first_loss = losses["loss"]
        figures = {**losses, "rows": len(rows), "pool": pool.size, "positives": pool.positives}
        figures["negatives"] = pool.negatives
        for name, value in figures.items():
            position.sums[name] = position.sums.get(name, 0.0) + value
        position.batch += 1
        position.step += 1

    def _end_epoch(self, stage: Stage, display: Display, timer: Timer, rows_before: float) -> None:
        """Validate, log, move on to the next epoch and save; interrupted before its end, it is done again on resume."""
        position, epoch = self.position, self.position.epoch + 1
        figures = averages(stage, position, timer, rows_before)
        for warning in warnings(stage, position, figures):
            self.run_log.warn(warning)
        scores = self._validated(stage, epoch, timer)
        stopped = bool(scores) and self._should_stop(scores[self.validation.metric], epoch)
        figures |= {f"time/{name}": share for name, share in timer.shares().items()}
        figures |= {"train/seconds": timer.total, "peak_memory_gib": peak_memory_gib(), **device_memory()}
        validation = {f"validation/{name}": score for name, score in scores.items()}
        self.run_log.metrics(figures | validation, position.step)
        display.epoch(epoch, figures, validation)
        if scores and self.on_validation is not None:
            self.on_validation(position.epochs + 1, scores)
        if stopped:
            display.say(f"stopped: {self.validation.metric} was best in epoch {position.best_epoch}")
        ended, stopping = stopped or epoch >= stage.epochs, self.boundary.pending is not None
        position.epoch, position.batch, position.sums = stage.epochs if ended else epoch, 0, {}
        position.epochs += 1
        if ended or stopping or self.state.due(epoch_end=True):
            self.state.save(stage, stay=ended or stopping)

    def _validated(self, stage: Stage, epoch: int, timer: Timer) -> dict[str, float]:
        """Return the scores of the validation rows; empty if none are due after this epoch (always after the last)."""
        if self.validate is None or (epoch % self.validation.every_epochs and epoch < stage.epochs):
            return {}
        if self.state.due(epoch_end=True):
            self.state.save(stage)
        stage.optimiser.settle()
        with self._interruptible(stage), timer.part("validation"):
            return self.validate(stage.scorer)

    def _should_stop(self, score: float, epoch: int) -> bool:
        """Keep the weights if the validation score improved; return whether patience ends the stage."""
        position, patience = self.position, self.validation.patience
        if position.best is None or score > position.best:
            position.best, position.best_epoch = score, epoch
            self.state.save_best({"epoch": epoch, self.validation.metric: score})
            return False
        if patience is None or epoch - position.best_epoch < patience:
            return False
        self.run_log.event("early_stop", epoch=epoch, best_epoch=position.best_epoch, best=position.best)
        return True

    @contextmanager
    def _interruptible(self, stage: Stage) -> Iterator[None]:
        """Mark work that changes no weights: a signal ends it at once, after a checkpoint is saved."""
        try:
            with self.boundary.immediate():
                yield
        except (KeyboardInterrupt, Terminated):
            self.state.save(stage, stay=True)
            raise

    def metadata(self) -> dict[str, Any]:
        """Return what the record says about the training; with several stages, rates are prefixed with their names."""
        position, prefix = self.position, "{}/" if len(self.stages) > 1 else ""
        metadata: dict[str, Any] = {
            "steps": position.step,
            "epochs": position.epochs,
            "seconds": round(position.seconds, 3),
            "stages": [stage.name for stage in self.stages],
            "learning_rates": {
                prefix.format(stage.name) + name: rate
                for stage in self.stages
                for name, rate in peak_rates(stage).items()
            },
        }
        if position.processor_seconds is not None:
            metadata["processor_seconds"] = round(position.processor_seconds, 3)
        if position.best is not None:
            metadata |= {"best_epoch": position.best_epoch, f"validation/{self.validation.metric}": position.best}
        return metadata
