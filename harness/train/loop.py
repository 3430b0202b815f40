"""The training loop: the only one.

    for epoch: refresh batches; for batch: pool -> backward -> step; then validate, log, save

What is trained, on what and how comes from the stages of a method. The loop can be left and entered at any step:
`harness.train.checkpoint.state` holds its state. The next batch is made, and the last checkpoint written, while a step
is computed. A model without steps is fitted in one go instead.
"""

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from harness.batching import LabelPool, LabelSpace
from harness.errors import Terminated, UserError, out_of_memory
from harness.machine.memory import device_memory, keep_freed_memory, peak_memory_gib
from harness.runs.log import RunLog
from harness.settings.method import Fitted, Parts
from harness.settings.schema import CheckpointSettings, RunConfig, ValidationSettings
from harness.train import Batch, OnValidation, Stage, Validate
from harness.train.checkpoint.state import Position, TrainingState, peak_rates
from harness.train.display import Display
from harness.train.evaluation import Evaluator, Rows
from harness.train.interrupt import StepBoundary
from harness.train.prefetch import batches_ahead
from harness.train.timing import Timer

_DIVERGED = 100.0
"""A training whose loss grows by this factor has diverged, even if it stays finite."""


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
        return evaluator.score(parts.scoring, validation, (scorer,))[scorer].metrics

    validate = validation_scores if len(validation.tokens) else None
    if parts.fitted is not None:
        return _fit(parts.fitted, run_log, config, validate, on_validation)
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


def _fit(
    fitted: Fitted,
    run_log: RunLog,
    config: RunConfig,
    validate: Validate | None,
    on_validation: OnValidation | None,
) -> dict[str, Any]:
    """Fit a model that has no steps: no checkpoint to go on from, and one validation, after the fit."""
    if run_log.earlier is not None:
        run_log.warn("there is no checkpoint to go on from; the training begins again")
    if config.validation.patience is not None:
        run_log.warn(f"validation.patience has no effect: {config.method} is fitted in one go")
    started = time.perf_counter()
    metadata = fitted.fit()
    seconds = round(time.perf_counter() - started, 3)
    validated = {} if validate is None else validate(None)
    scores = {f"validation/{name}": value for name, value in validated.items()}
    run_log.metrics({"train/seconds": seconds, **scores})
    if validated and on_validation is not None:
        on_validation(1, validated)
    chosen = f"validation/{config.validation.metric}"
    return {**metadata, "seconds": seconds, **({chosen: scores[chosen]} if scores else {})}


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
            model: What the stages train.
            stages: In order.
            run_log: Where figures go, and whose folder the checkpoints are in.
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
        """Where the training stands."""
        return self.state.position

    def resume(self) -> bool:
        """Load the latest checkpoint; False if there is none."""
        return self.state.resume()

    def run(self) -> None:
        """Train to the end, or to where validation says stop; leave the chosen weights in the model."""
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
        if position.best is not None:
            self.state.load_best()

    def _run_epoch(self, stage: Stage, display: Display, timer: Timer) -> None:
        position = self.position
        with closing(batches_ahead(stage, position.epoch, position.batch, timer)) as batches:
            for batch in batches:
                losses = self._backward(stage, batch, timer)
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
        figures = self._averages(stage, timer, rows_before)
        self._warn(stage, figures)
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

    def _averages(self, stage: Stage, timer: Timer, rows_before: float) -> dict[str, float]:
        """Averages over the batches of the epoch, speed and learning rates.

        `rows_before` are rows that were counted before this process took over.
        """
        position = self.position
        figures = {f"train/{name}": value / position.batch for name, value in position.sums.items() if name != "rows"}
        if rows := position.sums["rows"] - rows_before:  # none if a resumed run had only to validate
            figures["train/rows_per_second"] = rows / timer.total
        epoch = position.epoch + 1
        rates = stage.optimiser.learning_rates(epoch * stage.source.steps - 1)
        return figures | {"train/epoch": epoch, **{f"lr/{name}": rate for name, rate in rates.items()}}

    def _warn(self, stage: Stage, figures: dict[str, float]) -> None:
        """Warn of an epoch that taught the model nothing, and of a loss that grew without end."""
        if not figures["train/positives"]:
            self.run_log.warn(
                "no label in the pools is a positive of its query, so nothing is learned: check the labels"
            )
        elif not round(figures["train/negatives"], 6):
            self.run_log.warn(
                "no query has a negative in its pool, so nothing is learned: raise batch_size, pool_size or eta"
            )
        first, last = self.position.first_loss, figures["train/loss"]
        if self.position.epoch + 1 == stage.epochs and last > _DIVERGED * max(abs(first), 1e-3):
            self.run_log.warn(
                f"the loss of {stage.name} grew from {first:.4g} to {last:.4g}, so it "
                "diverged: lower its learning rates, or raise its temperatures"
            )

    def _validated(self, stage: Stage, epoch: int, timer: Timer) -> dict[str, float]:
        """Scores of the validation rows if they are due after this epoch, as they are after the last one."""
        if self.validate is None or (epoch % self.validation.every_epochs and epoch < stage.epochs):
            return {}
        if self.state.due(epoch_end=True):
            self.state.save(stage)
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
        """A stretch that changes no weights: a signal ends it at once, and what was trained before it is saved."""
        try:
            with self.boundary.immediate():
                yield
        except (KeyboardInterrupt, Terminated):
            self.state.save(stage, stay=True)
            raise

    def _backward(self, stage: Stage, batch: Batch, timer: Timer) -> dict[str, float]:
        """Gradients of a batch; where memory runs out, of the same batch in smaller pieces."""
        while True:
            try:
                return stage.objective.backward(batch, timer)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
            # behind the handler, because the error holds on to the tensors of the failed attempt
            self._shrink(stage)

    def _shrink(self, stage: Stage) -> None:
        """Halve the pieces in which texts are encoded, for the rest of the stage."""
        objective, position, before = stage.objective, self.position, stage.objective.pieces
        stage.optimiser.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if before is None or before == 1:
            kept = self.state.saver.steps()
            saved = f"; the last checkpoint is step {kept[-1]}" if kept else ""
            raise UserError(
                f"out of memory at step {position.step}, and a batch cannot be encoded in smaller pieces{saved}; lower "
                "batch_size, or what is scored at once (pool_size, label_block, grad_cache_size); "
                "`python -m harness plan` says what fits"
            )
        objective.work_in_pieces(before // 2)
        position.pieces = before // 2
        self.run_log.event("out_of_memory", step=position.step, pieces_before=before, pieces=position.pieces)
        self.run_log.warn(
            f"out of memory: texts are encoded {position.pieces:,} tokens at a time from step {position.step} on, not "
            f"{before:,}; batches stay as they are. To begin with that: --set micro_batch_tokens={position.pieces}"
        )

    def metadata(self) -> dict[str, Any]:
        """What the record says about the training; rates have the name of their stage where there are several."""
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
