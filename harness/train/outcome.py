"""Step 10 of a run: what it leaves behind. Predictions, a sample of them, the model, its package, the record."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import metrics
from harness.data import Dataset
from harness.data.tokens import token_counts
from harness.io.files import write_json
from harness.machine.memory import peak_memory_gib
from harness.model.encoders.pretrained import files_of
from harness.model.folders import folders_in
from harness.runs.log import RunLog
from harness.runs.package import PACKAGE, NeedsTrainRows, Package, left_out, without_rows, write_package
from harness.runs.record import RunRecord, Stopwatch
from harness.runs.series import curves
from harness.seeds import stream
from harness.settings.method import Inputs, Parts, load_method
from harness.settings.schema import RunConfig
from harness.train.checkpoint import save_files, save_model
from harness.train.evaluation import Scored, save_predictions

SHOWN = 5
"""Predictions per row in the sample."""
LONGEST = 500
"""Most characters of a text in the sample; with whole documents it would be a copy of the test set."""


def finish(
    run_log: RunLog,
    parts: Parts,
    scored: dict[str, Scored],
    training: dict[str, Any],
    dataset: Dataset,
    config: RunConfig,
    inputs: Inputs,
    watch: Stopwatch,
) -> RunRecord:
    """Write predictions, model and package, and build the record; its numbers are those of the first scorer."""
    best = scored[parts.scoring.scorers[0]]
    warn_of_surprises(run_log, best, dataset, config)
    if (run_log.metadata.get("parent") or {}).get("kind") != "sweep":  # a trial of a sweep leaves its score alone
        save_predictions(run_log.folder, scored)
    if config.evaluate == "test":  # one scored on validation rows keeps no model; its predictions choose weights
        write_json(run_log.folder / "sample.json", prediction_sample(dataset, best, seed=config.seed))
        save_trained(parts, run_log.folder / "model", config)
        pack(parts, run_log, inputs, dataset, config)
    watch.lap("save")
    scorers = {scorer: one.metrics for scorer, one in scored.items()} if len(scored) > 1 else {}
    named = {f"{scorer}/{name}": value for scorer, values in scorers.items() for name, value in values.items()}
    run_log.metrics({**best.metrics, **named, **{f"seconds/{step}": spent for step, spent in watch.seconds.items()}})
    return RunRecord(
        **run_log.metadata,
        status="finished",
        seconds=round(watch.total + run_log.seconds_before, 3),
        metrics=best.metrics,
        scorers=scorers,
        contributions=best.contributions,
        per_row=list(best.per_row),
        search={"backend": best.topk.backend, "recall": best.topk.recall, "flagged": best.topk.flagged},
        training=training,
        curves=curves(run_log.events()),
        timings=watch.seconds,
        peak_memory_gib=round(peak_memory_gib(), 3),
        warnings=run_log.warnings,
    )


def save_trained(parts: Parts, folder: Path, config: RunConfig) -> None:
    """Write the trained or fitted model; nothing for a method without training."""
    if parts.model is not None:
        save_model(folder, parts.model.state_dict(), {"method": config.method})
    if parts.fitted is not None:
        save_files(folder, parts.fitted.save, {"method": config.method})


def pack(parts: Parts, run_log: RunLog, inputs: Inputs, dataset: Dataset, config: RunConfig) -> None:
    """Write what serving needs besides record and weights; a failure becomes a warning, not an error."""
    wanted, weights = config.tracking.model, run_log.folder / "model"
    if wanted != "always" and not weights.is_dir():
        return
    try:
        used = folders_in(config.encoder, dict(config.encoder_options))
        places = {key: Path(place).expanduser() for key, place in used.items()}
        folders = {key: (place, files_of(place)) for key, place in places.items()}
        files = [*weights.rglob("*"), *(file for _, of_folder in folders.values() for file in of_folder)]
        if why := left_out(wanted, sum(file.stat().st_size for file in files if file.is_file()), run_log.folder):
            run_log.event("package", left_out=why)
            return
        method, own = load_method(config.method), inputs.own or inputs
        built = without_rows(own)
        try:
            again = method.build(built, method.params.model_validate(config.params))
            if again.fitted is not None:
                again.fitted.load(weights)
        except NeedsTrainRows:
            built = inputs
        counts = token_counts(own.encoder.tokenizer.vocab_size, own.train_tokens, own.label_tokens)
        package = Package(built, dataset.label_id, dataset.label_text, counts, parts.scoring.scorers, folders)
        write_package(run_log.folder / PACKAGE, package)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        run_log.warn(f"the model could not be packed for serving ({type(error).__name__}: {reason})")


def warn_of_surprises(run_log: RunLog, scored: Scored, dataset: Dataset, config: RunConfig) -> None:
    """Warn of the dataset's provenance, non-finite vectors, short rankings and test pairs that are filter pairs."""
    for warning in dataset.metadata["provenance"].get("warnings", []):
        run_log.warn(f"{dataset.name}: {warning}")
    if scored.topk.flagged:
        run_log.warn(f"{scored.topk.flagged} vectors were not finite; their rows count as misses")
    if short := metrics.short_rows(scored.topk.ids, max(config.ks)):
        run_log.warn(f"{short} rows have fewer than {max(config.ks)} predictions; the rest count as misses")
    if config.evaluate == "test" and (hidden := dataset.test.multiply(dataset.test_filter).nnz):
        run_log.warn(f"{hidden} true test pairs are filter pairs too, so nothing can find them; see `data check`")


def prediction_sample(dataset: Dataset, scored: Scored, count: int = 100, seed: int = 0) -> list[dict[str, Any]]:
    """Return a random sample of test rows in the order of the dataset, as plain values for JSON.

    Each has `row`, `text`, `truth` (label texts) and `predictions`: `label` (its text), `score`, `hit` (whether it is
    true) and `train_rows` (how many train rows have it; 0 for a label that no row teaches).

    Args:
        dataset: The dataset whose test rows were scored.
        scored: Predictions of all test rows, [M, K].
        count: Most rows in the sample.
        seed: Seed of the sample.
    """
    rows = np.sort(stream(seed, "split", 1).permutation(dataset.test.shape[0])[:count])
    frequency = np.bincount(dataset.train.indices, minlength=dataset.train.shape[1])
    return [_described(dataset, scored, int(row), frequency) for row in rows]


def _described(dataset: Dataset, scored: Scored, row: int, frequency: NDArray[np.int64]) -> dict[str, Any]:
    true = dataset.test.indices[dataset.test.indptr[row] : dataset.test.indptr[row + 1]].tolist()
    labels, scores = scored.topk.ids[row, :SHOWN].tolist(), scored.topk.scores[row, :SHOWN].tolist()
    found = [(label, score) for label, score in zip(labels, scores, strict=True) if label >= 0]
    return {
        "row": row,
        "text": _shortened(dataset.test_text[row]),
        "truth": [_shortened(dataset.label_text[label]) for label in true],
        "predictions": [
            {
                "label": _shortened(dataset.label_text[label]),
                # JSON knows no infinity; seven digits are all that a float32 has
                "score": float(f"{score:.7g}") if np.isfinite(score) else None,
                "hit": label in true,
                "train_rows": int(frequency[label]),
            }
            for label, score in found
        ],
    }


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
