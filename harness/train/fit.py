"""Training without steps: a model that other software fits in one go."""

import time
from typing import Any

from harness.runs.log import RunLog
from harness.settings.method import Fitted
from harness.settings.schema import RunConfig
from harness.train import OnValidation, Validate


def fit(
    fitted: Fitted, run_log: RunLog, config: RunConfig, validate: Validate | None, on_validation: OnValidation | None
) -> dict[str, Any]:
    """Fit a model and return metadata for the record; there is no checkpoint, and one validation, after the fit."""
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
