"""Fitting in one go: what stands in the place of the training loop for models that have no steps.

There is nothing to choose, so held-out rows are scored once, after the fit, and there is no checkpoint to go on from.
"""

import time
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.method import Fitted
from harness.tracking import Journal
from harness.train import OnValidation, Validate
from harness.train.checkpoint import save_files, verify_files


def fit(
    fitted: Fitted,
    journal: Journal,
    config: RunConfig,
    validate: Validate | None,
    on_validation: OnValidation | None = None,
) -> dict[str, Any]:
    """Fits the model and returns facts for the record; `validate` scores the held-out rows, None if there are none."""
    if journal.earlier is not None:
        journal.warn("there is no checkpoint to go on from; the training begins again")
    if config.validation.patience is not None:
        journal.warn(f"validation.patience has no effect: {config.method} is fitted in one go")
    started = time.perf_counter()
    facts = fitted.fit()
    seconds = round(time.perf_counter() - started, 3)
    validated = {} if validate is None else validate(None)
    scores = {f"validation/{name}": value for name, value in validated.items()}
    journal.metrics({"train/seconds": seconds, **scores})
    if validated and on_validation is not None:
        on_validation(1, validated)
    chosen = f"validation/{config.validation.metric}"
    return {**facts, "seconds": seconds, **({chosen: scores[chosen]} if scores else {})}


def save_fitted(fitted: Fitted, folder: Path, facts: dict[str, Any]) -> None:
    """Writes a fitted model with a manifest, whole or not at all."""
    save_files(folder, fitted.save, facts)


def load_fitted(fitted: Fitted, folder: Path) -> str:
    """Takes back a fitted model after every byte of it was found to be as written; returns its sha256."""
    digest = verify_files(folder)
    fitted.load(folder)
    return digest
