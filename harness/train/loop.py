"""The training loop: the only one.

    for epoch: refresh batches; for batch: pool -> backward -> step; then log, validate, save

What is trained, on what and how comes from the stages of a method. The loop owns time: when to log, to validate, to
save, to stop. It can be left and entered at any step; see `harness.train.checkpoint`. The next batch is made, and the
last checkpoint written, while a step is computed: `harness.train.prefetch` and `harness.train.saving`.
"""

import math
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from harness.allocator import keep_freed_memory
from harness.batching import LabelPool, LabelSpace
from harness.config import CheckpointSettings, ValidationSettings
from harness.data.card import describe_faults
from harness.errors import DataError, Terminated, UserError, out_of_memory
from harness.repro import device_memory, peak_memory_gib
from harness.tracking import Journal
from harness.train import Batch, OnValidation, Stage, Validate
from harness.train.checkpoint import Checkpoints, load_model, save_model
from harness.train.display import Display
from harness.train.interrupt import StepBoundary
from harness.train.position import Position
from harness.train.prefetch import batches_ahead
from harness.train.saving import Saver, all_finite
from harness.train.timing import Timer

_DIVERGED = 100.0
"""A training whose loss grows by this factor has diverged, even if it stays finite."""


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
        on_validation: OnValidation | None = None,
    ) -> None:
        """Prepares to train.

        Args:
            model: What the stages train.
            stages: In order.
            journal: Where figures go, and whose folder the checkpoints are in.
            checkpoint: When to save.
            validation: When to validate, and when to stop.
            validate: Scores the held-out rows; None if there are none.
            on_validation: Told of every validation; may raise `harness.errors.Pruned`.
        """
        self.model, self.stages, self.journal = model, stages, journal
        self.position = Position(processor_seconds=0.0)
        self._saving, self._validation, self._validate = checkpoint, validation, validate
        self._on_validation = on_validation
        self._folder = journal.folder / "checkpoints"
        self._checkpoints = Checkpoints(self._folder, checkpoint.keep)
        self._saver = Saver(self._checkpoints, checkpoint.background, journal.event)
        self._referenced: deque[Path] = deque(maxlen=checkpoint.keep)
        """The best weights that the kept checkpoints know of."""
        self._clock, self._since_save = Timer(), Timer()
        self._before: tuple[float, float | None] = (0.0, 0.0)
        """Seconds of training before this process took over, by the clock and of processor time."""
        self._begun = False
        """Whether the stage at hand has its first values."""

    def resume(self) -> bool:
        """Takes up the latest checkpoint; False if there is none."""
        found = self._checkpoints.latest()
        if found is None:
            return False
        state, tensors = found
        try:
            self.position = Position.model_validate(state)
            stage = self.stages[self.position.stage]
        except ValidationError as error:
            raise self._foreign(describe_faults(error, "its position")[0]) from error
        except IndexError as error:
            raise self._foreign("it is of a later stage than there are") from error
        if self.position.epoch > stage.epochs or self.position.batch > stage.source.steps:
            raise self._foreign("it stands behind the end of its stage")
        self._require_rates()
        self._before, self._begun = (self.position.seconds, self.position.processor_seconds), True
        self._referenced.append(self._best_folder())
        if self.position.best is not None:
            load_model(self._best_folder())  # found missing or damaged now, not after hours of training
        self._load(tensors)
        return True

    def run(self) -> None:
        """Trains to the end, or to where validation says stop; leaves the chosen weights in the model."""
        keep_freed_memory()
        self._clock, self._since_save = Timer(), Timer()
        self.model.train()
        with StepBoundary() as boundary, self._saver:
            while self.position.stage < len(self.stages):
                self._run_stage(self.stages[self.position.stage], boundary)
                self.position.stage, self.position.epoch, self._begun = self.position.stage + 1, 0, False
        self._read_clocks()
        self.model.eval()

    def facts(self) -> dict[str, Any]:
        """What the record says about the training."""
        position = self.position
        facts: dict[str, Any] = {
            "steps": position.step,
            "epochs": position.epochs,
            "seconds": round(position.seconds, 3),
            "stages": [stage.name for stage in self.stages],
            "learning_rates": self._learning_rates(),
        }
        if position.processor_seconds is not None:
            facts["processor_seconds"] = round(position.processor_seconds, 3)
        if position.best is not None:
            facts |= {"best_epoch": position.best_epoch, f"validation/{self._validation.metric}": position.best}
        return facts

    def _learning_rates(self) -> dict[str, float]:
        """Peak rates by group, with the name of the stage where there are several."""
        prefix = "{}/" if len(self.stages) > 1 else ""
        return {
            prefix.format(stage.name) + name: rate for stage in self.stages for name, rate in peak_rates(stage).items()
        }

    def _run_stage(self, stage: Stage, boundary: StepBoundary) -> None:
        position = self.position
        position.rates = peak_rates(stage)
        if not self._begun:
            position.best, position.best_epoch, position.pieces = None, 0, None
            with boundary.immediate():
                stage.begin()
        done = position.epoch * stage.source.steps + position.batch
        several = len(self.stages) > 1
        with Display(stage.name, stage.epochs, stage.source.steps, done, name_lines=several) as display:
            while position.epoch < stage.epochs:
                timer, rows_before = Timer(), position.sums.get("rows", 0.0)
                if position.batch == 0:  # inside an epoch the checkpoint holds what was mined before it
                    with self._interruptible(stage, boundary), timer.part("mining"):
                        self._log(stage.source.refresh(position.epoch))
                self._run_epoch(stage, boundary, display, timer)
                self._close_epoch(stage, boundary, display, timer, rows_before)
        if position.best is not None:
            best, _ = load_model(self._best_folder())
            self.model.load_state_dict(best)

    @contextmanager
    def _interruptible(self, stage: Stage, boundary: StepBoundary) -> Iterator[None]:
        """A stretch that changes no weights: a signal ends it at once, and what was trained before it is saved."""
        try:
            with boundary.immediate():
                yield
        except (KeyboardInterrupt, Terminated):
            self._save(stage, stay=True)
            raise

    def _run_epoch(self, stage: Stage, boundary: StepBoundary, display: Display, timer: Timer) -> None:
        position = self.position
        with closing(batches_ahead(stage, position.epoch, position.batch, timer)) as batches:
            for batch in batches:
                losses = self._backward(stage, batch, timer)
                self._check_finite(losses["loss"])
                with timer.part("optimiser"):
                    stage.optimiser.step(batch.step)
                self._count(losses, batch.rows, batch.pool)
                display.step(losses["loss"])
                stopping = boundary.pending is not None  # asked once: a signal behind the save waits for the next step
                if stopping or self._due():
                    self._save(stage, stay=stopping)
                self._saver.check()
                if stopping:
                    boundary.check()

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
        """Halves the pieces in which texts are encoded, for the rest of the stage."""
        objective, position, before = stage.objective, self.position, stage.objective.pieces
        stage.optimiser.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if before is None or before == 1:
            kept = self._saver.steps()
            saved = f"; the last checkpoint is step {kept[-1]}" if kept else ""
            raise UserError(
                f"out of memory at step {position.step}, and a batch cannot be encoded in smaller pieces{saved}; lower "
                "batch_size, or what is scored at once (pool_size, label_block, grad_cache_size); "
                "`python -m harness plan` says what fits"
            )
        objective.work_in_pieces(before // 2)
        position.pieces = before // 2
        self.journal.event("out_of_memory", step=position.step, pieces_before=before, pieces=position.pieces)
        self.journal.warn(
            f"out of memory: texts are encoded {position.pieces:,} tokens at a time from step {position.step} on, not "
            f"{before:,}; batches stay as they are. To begin with that: --set micro_batch_tokens={position.pieces}"
        )

    def _count(self, losses: dict[str, float], rows: NDArray[np.int64], pool: LabelPool | LabelSpace) -> None:
        """Moves on by one step."""
        position = self.position
        if position.epoch == position.batch == 0:
            position.first_loss = losses["loss"]
        figures = {**losses, "rows": len(rows), "pool": pool.size, "positives": pool.positives}
        figures["negatives"] = pool.negatives
        for name, value in figures.items():
            position.sums[name] = position.sums.get(name, 0.0) + value
        position.batch += 1
        position.step += 1

    def _close_epoch(
        self, stage: Stage, boundary: StepBoundary, display: Display, timer: Timer, rows_before: float
    ) -> None:
        """Validates, logs and saves at the end of an epoch; interrupted before the end, it is done again on resume."""
        position, epoch = self.position, self.position.epoch + 1
        figures = {f"train/{name}": value / position.batch for name, value in position.sums.items() if name != "rows"}
        if rows := position.sums["rows"] - rows_before:  # none if a resumed run had only to validate
            figures["train/rows_per_second"] = rows / timer.total
        if not figures["train/positives"]:
            self.journal.warn(
                "no label in the pools is a positive of its query, so nothing is learned: check the labels"
            )
        elif not round(figures["train/negatives"], 6):
            self.journal.warn(
                "no query has a negative in its pool, so nothing is learned: raise batch_size, pool_size or eta"
            )
        if epoch == stage.epochs and figures["train/loss"] > _DIVERGED * max(abs(position.first_loss), 1e-3):
            self.journal.warn(
                f"the loss of {stage.name} grew from {position.first_loss:.4g} to {figures['train/loss']:.4g}, so it "
                "diverged: lower its learning rates, or raise its temperatures"
            )
        rates = stage.optimiser.learning_rates(epoch * stage.source.steps - 1)
        figures |= {"train/epoch": epoch, **{f"lr/{name}": rate for name, rate in rates.items()}}
        scores: dict[str, float] = {}
        ended, stopped = epoch >= stage.epochs, False
        if self._validate is not None and (epoch % self._validation.every_epochs == 0 or ended):
            if self._due(epoch_end=True):
                self._save(stage)
            with self._interruptible(stage, boundary), timer.part("validation"):
                scores = self._validate(stage.view)
            stopped = self._judge(scores[self._validation.metric], epoch)
            ended = ended or stopped
        figures |= {f"time/{name}": share for name, share in timer.shares().items()}
        figures |= {"train/seconds": timer.total, "peak_memory_gib": peak_memory_gib(), **device_memory()}
        validated, scores = scores, {f"validation/{name}": score for name, score in scores.items()}
        self._log(figures | scores)
        display.epoch(epoch, figures, scores)
        if scores and self._on_validation is not None:
            self._on_validation(position.epochs + 1, validated)
        if stopped:
            display.say(f"stopped: {self._validation.metric} was best in epoch {position.best_epoch}")
        position.epoch, position.batch, position.sums = stage.epochs if ended else epoch, 0, {}
        position.epochs += 1
        stopping = boundary.pending is not None
        if ended or stopping or self._due(epoch_end=True):
            self._save(stage, stay=ended or stopping)

    def _judge(self, value: float, epoch: int) -> bool:
        """Keeps the weights if the held-out rows like them best so far; says whether the stage should end."""
        position, wanted = self.position, self._validation
        if position.best is None or value > position.best:
            position.best, position.best_epoch = value, epoch
            self._saver.wait()  # a checkpoint that reaches the disk removes best weights which no checkpoint knows
            save_model(self._best_folder(), self.model.state_dict(), {"epoch": epoch, wanted.metric: value})
            return False
        if wanted.patience is None or epoch - position.best_epoch < wanted.patience:
            return False
        self.journal.event("early_stop", epoch=epoch, best_epoch=position.best_epoch, best=position.best)
        return True

    def _best_folder(self) -> Path:
        """Where the best weights of the stage are: by epoch, because a resumed run may come by here again."""
        return self._folder / f"best-{self.position.stage}-{self.position.best_epoch}"

    def _check_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        self._stop(f"the loss became {loss}")

    def _stop(self, what: str) -> NoReturn:
        """Ends a training that diverged."""
        kept = self._saver.steps()
        saved = f"the last good checkpoint is step {kept[-1]}" if kept else "no checkpoint was saved yet"
        raise UserError(
            f"{what} at step {self.position.step} (epoch {self.position.epoch + 1}); {saved}; "
            "start a new run with lower learning rates, higher temperatures or clip=1"
        )

    def _require_rates(self) -> None:
        """Refuses to go on with other learning rates than those a run began with."""
        before, stage = self.position.rates, self.stages[min(self.position.stage, len(self.stages) - 1)]
        if before and before != peak_rates(stage):
            raise UserError(
                f"this run trains with learning rates {before}, this harness would go on with {peak_rates(stage)}; "
                "use the version it was started with, or start a new run"
            )

    def _due(self, epoch_end: bool = False) -> bool:
        wanted = self._saving
        if not epoch_end:
            return bool(wanted.every_steps) and self.position.step % (wanted.every_steps or 1) == 0
        return self._since_save.total >= wanted.min_seconds

    def _log(self, figures: dict[str, float]) -> None:
        if figures:
            self.journal.metrics(figures, self.position.step)

    def _read_clocks(self) -> None:
        before, processor_before = self._before
        self.position.seconds = before + self._clock.total
        self.position.processor_seconds = None if processor_before is None else processor_before + self._clock.processor

    def _save(self, stage: Stage, *, stay: bool = False) -> None:
        """Saves everything as it is now; with `stay` it is on disk on return."""
        self._read_clocks()
        tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if not all(all_finite(tensor) for tensor in tensors.values()):
            self._stop("a weight is no longer a finite number")
        tensors |= {f"optimiser.{name}": tensor for name, tensor in stage.optimiser.state().items()}
        arrays = stage.source.state().items()
        tensors |= {f"source.{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays}
        then = partial(self._forget_best, self._best_folder())
        self._saver.save(self.position.step, self.position.model_dump(warnings=False), tensors, then, stay=stay)
        self._since_save = Timer()

    def _forget_best(self, but: Path) -> None:
        """Removes best weights that no kept checkpoint knows of, the newest of which knows `but`."""
        self._referenced.append(but)
        for folder in self._folder.glob("best-*"):
            if folder not in self._referenced:
                shutil.rmtree(folder)

    def _foreign(self, why: str) -> DataError:
        """The newest checkpoint is whole, but not one of this training."""
        step = self._checkpoints.steps()[-1]
        return DataError(
            f"the checkpoint of step {step} is not one of this run ({why}); remove it to go on without it", self._folder
        )

    def _load(self, tensors: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Any]] = {"model": {}, "optimiser": {}, "source": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise self._foreign(f"it has {name[:60]!r}")
            parts[part][rest] = tensor
        try:
            self.model.load_state_dict(parts["model"])
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise self._foreign(str(error).splitlines()[-1].strip()) from error
        if parts["optimiser"] and self.position.stage < len(self.stages):
            stage = self.stages[self.position.stage]
            if self.position.pieces is not None:  # dropout is drawn piece by piece, so a resumed run keeps them
                stage.objective.work_in_pieces(self.position.pieces)
            stage.optimiser.load_state(parts["optimiser"])
            stage.source.load_state({name: tensor.numpy() for name, tensor in parts["source"].items()})


def peak_rates(stage: Stage) -> dict[str, float]:
    """Learning rates of a stage before the schedule."""
    return {group.name: group.lr for group in stage.optimiser.groups}
