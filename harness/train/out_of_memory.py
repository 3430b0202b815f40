"""A step that runs out of memory is done again: the same batch, its texts encoded in smaller pieces."""

import torch

from harness.errors import UserError, out_of_memory
from harness.runs.log import RunLog
from harness.train import Batch, Stage
from harness.train.checkpoint.state import TrainingState
from harness.train.timing import Timer


def backward(stage: Stage, batch: Batch, timer: Timer, state: TrainingState, run_log: RunLog) -> dict[str, float]:
    """Leave the gradients of a batch in the parameters and return the parts of its loss."""
    while True:
        try:
            return stage.objective.backward(batch, timer)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        # behind the handler, because the error holds on to the tensors of the failed attempt
        _halve_pieces(stage, state, run_log)


def _halve_pieces(stage: Stage, state: TrainingState, run_log: RunLog) -> None:
    """Halve the pieces in which texts are encoded, for the rest of the stage."""
    objective, position, before = stage.objective, state.position, stage.objective.pieces
    stage.optimiser.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if before is None or before == 1:
        kept = state.saver.steps()
        saved = f"; the last checkpoint is step {kept[-1]}" if kept else ""
        raise UserError(
            f"out of memory at step {position.step}, and a batch cannot be encoded in smaller pieces{saved}; lower "
            "batch_size, or what is scored at once (pool_size, label_block, grad_cache_size); "
            "`python -m harness plan` says what fits"
        )
    objective.work_in_pieces(before // 2)
    position.pieces = before // 2
    run_log.event("out_of_memory", step=position.step, pieces_before=before, pieces=position.pieces)
    run_log.warn(
        f"out of memory: texts are encoded {position.pieces:,} tokens at a time from step {position.step} on, not "
        f"{before:,}; batches stay as they are. To begin with that: --set micro_batch_tokens={position.pieces}"
    )
