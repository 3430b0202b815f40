"""What a run leaves on disk: data and tokens once per dataset, checkpoints while it trains, its folder after."""

from harness.plan.memory import saved_bytes, weight_bytes
from harness.plan.work import Run

_METRICS = 5


def disk(run: Run) -> dict[str, float]:
    """Bytes by part."""
    data = run.data
    rows = data.train + data.held_out + data.test
    texts = rows * (data.row_bytes + 8) + data.labels * (data.label_bytes + 12 + 16)
    pairs = rows * (4 * (data.labels_per_row + data.filter_pairs) + 16)
    tokens = 2 * (rows * data.row_tokens + data.labels * data.label_tokens) + 8 * (rows + data.labels)
    weights = weight_bytes(run) if run.stages else 0.0
    keep = run.config.checkpoint.keep
    checkpoints = (keep + 1) * saved_bytes(run)
    if data.held_out:
        checkpoints += (keep + 1) * weights  # the best weights so far, as each kept checkpoint knows them
    predictions = data.test * (8 * run.config.search.k + 4 * _METRICS * len(run.config.ks))
    return {
        "prepared data": texts + pairs,
        "token store": tokens,
        "checkpoints while it trains": checkpoints,
        "run folder": weights + predictions,
    }
