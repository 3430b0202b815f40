"""What a run leaves on disk: data and tokens once per dataset, checkpoints while it trains, its folder after."""

from harness.plan.memory import standing
from harness.plan.steps import moment_parts
from harness.plan.work import Run, Stage

_METRICS = 5
_WEIGHTS = ("encoder weights", "heads", "classifier table")


def disk(run: Run) -> dict[str, float]:
    """Bytes by part."""
    data = run.data
    rows = data.train + data.held_out + data.test
    texts = rows * (data.row_bytes + 8) + data.labels * (data.label_bytes + 12 + 16)
    pairs = rows * (4 * (data.labels_per_row + data.filter_pairs) + 16)
    tokens = 2 * (rows * data.row_tokens + data.labels * data.label_tokens) + 8 * (rows + data.labels)
    weights = sum(part.device for part in standing(run) if part.name in _WEIGHTS) if run.stages else 0.0
    moments = max((_moments(stage) for stage in run.stages), default=0.0)
    mined = max((stage.rows * (8 + 4 * stage.depth) for stage in run.stages), default=0)
    keep = run.config.checkpoint.keep
    checkpoints = (keep + 1) * (weights + moments + mined) if run.stages else 0.0
    if data.held_out:
        checkpoints += (keep + 1) * weights  # the best weights so far, as each kept checkpoint knows them
    predictions = data.test * (8 * run.config.search.k + 4 * _METRICS * len(run.config.ks))
    return {
        "prepared data": texts + pairs,
        "token store": tokens,
        "checkpoints while it trains": checkpoints,
        "run folder": weights + predictions,
    }


def _moments(stage: Stage) -> float:
    """What a checkpoint holds of an optimiser."""
    return sum(part.device for part in moment_parts(stage) if "scratch" not in part.name)
