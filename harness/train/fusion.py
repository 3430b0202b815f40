"""The weight of scorer `fused`: score(x, l) = w de(x, l) + (1 - w) clf(x, l), with w chosen on validation rows.

The odds w / (1 - w) tried are 0, infinity and the powers of sqrt(2) from 1/8 to 32. Of the weights whose
`validation.metric` is at most one standard error below the best one's, the nearest to 1/2 is taken, the papers' sum
of both heads: a few hundred rows tell little more apart. The error is that of the mean difference to the best over the
rows. The scores of a block of rows are computed once for both heads and added up with every weight. Where the
validation rows come from:

    validation.size > 0     the run has validation rows anyway: it trains once and chooses on them
    validation.size = 0     a run of its own goes before, with the same settings on validation rows (`run_before`); then
                            the training on all rows takes its weight

No test row is read to choose. The record says what was chosen in `training.fused`.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.sparse import csr_array
from torch import Tensor

from harness import metrics
from harness.data import load
from harness.errors import UserError
from harness.index.exact import top_positions
from harness.index.fusion import plainest
from harness.index.ranking import pack, to_float32, unpack
from harness.io.models import Strict
from harness.io.progress import progress
from harness.model.folders import encoder_weights
from harness.model.scoring import FUSED, TwoHeadScoring, Vectors
from harness.runs.events import first_event
from harness.runs.lock import held_by_another
from harness.runs.metadata import describe, recorded
from harness.runs.record import RunRecord, read_record, runs_folder
from harness.runs.resume import Earlier, find_earlier
from harness.settings.identity import fixed, key_of
from harness.settings.method import Parts
from harness.settings.parameters import Share
from harness.settings.schema import ONCE, RunConfig
from harness.train.evaluation import Evaluator, Rows

EXPONENTS = (-math.inf, *(power / 2 for power in range(-6, 11)), math.inf)
"""Logarithms to the base 2 of the odds that are tried."""
WEIGHTS = tuple(1 / (1 + 2.0**-exponent) for exponent in EXPONENTS)
SHARE = 0.1
"""Share of the train rows that a run which goes before is judged on."""
_ROWS, _LABELS = 256, 8192
"""Size of a block of scores."""
_SPARE = 32
"""Labels of a block, beyond those asked for, that are ordered exactly."""


class Choice(Strict):
    """A weight and how it was chosen."""

    weight: Share
    metric: str
    value: float
    """The metric with this weight, in percent."""
    rows: int
    """Number of validation rows."""
    grid: list[list[float]]
    """Every weight that was tried, with its value."""
    run: str | None = None
    """The run before that chose it; None if the run itself did."""
    seconds: float | None = None
    """Seconds that the run before took; None if there was none."""


# ---------------------------------------------------------------- choosing


def choose(scoring: TwoHeadScoring, evaluator: Evaluator, rows: Rows) -> tuple[Choice, dict[str, float]]:
    """Return the weight to take for these rows by `validation.metric`, and all metrics with it."""
    labels = scoring.label_vectors(evaluator.label_tokens, ("de", "clf"))
    queries = scoring.query_vectors(rows.tokens, ("de", "clf"))
    config, metric = evaluator.config, evaluator.config.validation.metric
    device = evaluator.device if evaluator.device.startswith("cuda") else "cpu"  # mps has no float64
    found = best_labels(queries, labels, WEIGHTS, max(config.ks), rows.filter, device)
    scores = [metrics.evaluate(ids, rows.truth, evaluator.weights, config.ks) for ids in found]
    by_row = [metrics.per_row(ids, rows.truth, evaluator.weights, config.ks).get(metric) for ids in found]
    best = plainest([one[metric] for one in scores], by_row, list(map(abs, EXPONENTS)))
    grid = [[weight, one[metric]] for weight, one in zip(WEIGHTS, scores, strict=True)]
    chosen = Choice(
        weight=WEIGHTS[best], metric=metric, value=scores[best][metric], rows=rows.truth.shape[0], grid=grid
    )
    return chosen, scores[best]


def best_labels(
    queries: Vectors, labels: Vectors, weights: tuple[float, ...], k: int, exclude: csr_array, device: str
) -> list[NDArray[np.int32]]:
    """Return the best k labels with each weight, best first, equal scores by smaller label, -1 for none: [n, k] each.

    Args:
        queries: Query vectors [n, D] of `de` and of `clf`.
        labels: Label vectors [L, D] of `de` and of `clf`.
        weights: Weights of `de`; `clf` has the rest.
        k: How many labels.
        exclude: Pairs that are masked, [n, L].
        device: cpu, or a CUDA device.
    """
    rows, count = exclude.shape
    found = [np.full((rows, k), -1, np.int32) for _ in weights]
    names = ("de", "clf")
    with torch.no_grad(), progress("weigh scores", rows, "queries") as advance:
        for start in range(0, rows, _ROWS):
            block = slice(start, min(start + _ROWS, rows))
            parts = [torch.from_numpy(queries[name][block]).to(device).double() for name in names]
            hidden = exclude[block].tocsc()
            best = [torch.empty((len(parts[0]), 0), dtype=torch.int64, device=device) for _ in weights]
            for first in range(0, count, _LABELS):
                last = min(first + _LABELS, count)
                tables = [torch.from_numpy(labels[name][first:last]).to(device).double() for name in names]
                mask = torch.from_numpy(hidden[:, first:last].toarray() != 0).to(device)
                mask |= _broken(parts)[:, None] | _broken(tables)[None, :]
                de, clf = (part @ table.T for part, table in zip(parts, tables, strict=True))
                for place, weight in enumerate(weights):
                    keys = torch.cat([best[place], _keys(de, clf, weight, mask, first, k)], 1)
                    best[place] = keys.topk(min(k, keys.shape[1]), 1).values
            for ids, keys in zip(found, best, strict=True):
                ids[block, : keys.shape[1]] = unpack(keys)[1].cpu().numpy()
            advance(block.stop - block.start)
    return found


def _broken(vectors: list[Tensor]) -> Tensor:
    """Return which of these rows, [n, D] each, have a number that is not finite in either; bool [n]."""
    return ~(torch.isfinite(vectors[0]).all(1) & torch.isfinite(vectors[1]).all(1))


def _keys(de: Tensor, clf: Tensor, weight: float, mask: Tensor, first: int, k: int) -> Tensor:
    """Return the largest keys [n, <= k + spare] of a block of scores [n, B]; `first` is the label of its first column.

    Found among scores rounded to float32, which is faster, and ordered as search orders them.
    """
    scores = to_float32(torch.add(clf * (1 - weight), de, alpha=weight)).masked_fill_(mask, -math.inf)
    places = top_positions(scores, k + _SPARE)
    return pack(scores.gather(1, places), places + first)


def with_weight(
    parts: Parts, evaluator: Evaluator, validation: Rows, before: Choice | None
) -> tuple[Parts, dict[str, Any]]:
    """Return the parts with the weight of scorer `fused`, and what the record's `training` says of it.

    Nothing changes if there is no such scorer or its weight was set. `before` is the choice of a run that went before.
    """
    scoring = parts.scoring
    if not weight_is_open(scoring):
        return parts, {}
    chosen = before or choose(scoring, evaluator, validation)[0]
    weighted = replace(scoring, fused_weight=chosen.weight)
    return replace(parts, scoring=weighted), {"fused": chosen.model_dump()}


def weight_is_open(scoring: Any) -> TypeGuard[TwoHeadScoring]:
    """Return whether a model has the scorer `fused`, but no weight for it yet."""
    return isinstance(scoring, TwoHeadScoring) and FUSED in scoring.scorers and scoring.fused_weight is None


# ---------------------------------------------------------------- the run that goes before


def run_before(config: RunConfig) -> RunConfig | None:
    """Return the settings of the run that has to choose the weight first; None if there is none to choose, or rows."""
    params = config.params
    chooses = params.get("scorer") == FUSED and params.get("fused_weight", 0.0) is None
    if not chooses or config.evaluate == "validation" or config.validation.size:
        return None
    if config.validation.patience is not None:
        raise UserError("validation.patience needs rows to judge by; set validation.size, for example 0.1")
    # judged by its last model, as the run after it is
    validation = config.validation.model_copy(update={"size": SHARE, "every_epochs": ONCE})
    return config.model_copy(update={"evaluate": "validation", "validation": validation})


def goes_before(config: dict[str, Any]) -> bool:
    """Return whether recorded settings are those of a run that chooses the weight for the run after it."""
    return bool(config["evaluate"] == "validation" and config["validation"]["every_epochs"] == ONCE)


def origins_before(origins: dict[str, str]) -> dict[str, str]:
    """Return the origins of the settings of `run_before`, given those of the run after it."""
    own = ("evaluate", "validation.size", "validation.every_epochs")
    return {**origins, **dict.fromkeys(own, "chooses the weight of scorer fused")}


def earlier_choice(config: RunConfig, out: Path | None) -> Choice | Earlier | None:
    """Return what the folder of runs has of a run with these settings: its choice, an interrupted run, or nothing.

    Raises:
        UserError: Another process is at work on it.
    """
    wanted, data = recorded(config), describe(load(config.dataset, use_filter=config.filter), config)
    key = key_of(wanted, data, metrics.METRIC_VERSION, encoder_weights(config))
    interrupted: list[Path] = []
    for folder, start in _runs_like(wanted, runs_folder(out)):
        try:
            if key_of(start["config"], start["dataset"], start["metric_version"], start["encoder"]["identity"]) != key:
                continue
            record = read_record(folder) if (folder / "record.json").exists() else None
            of_sweep = (start.get("parent") or {}).get("kind") == "sweep"
        except (UserError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        if record is not None and (choice := recorded_choice(record)):
            return choice
        if (record is None or record.status == "killed") and not of_sweep:
            interrupted.append(folder)
    for folder in interrupted:
        if holder := held_by_another(folder):
            raise UserError(f"the weight of scorer fused is being chosen by another process: {holder}")
        try:
            earlier = find_earlier(str(folder))
        except UserError:
            continue
        if fixed(earlier.config) == fixed(wanted):
            return earlier
    return None


def _runs_like(wanted: dict[str, Any], folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return folder and first event of the runs with this method, seed and rows to be scored, the newest first."""
    names = ("method", "seed", "evaluate")
    found = []
    for log in folder.glob("*/events.jsonl"):
        start = first_event(log) or {}
        config = start.get("config")
        if isinstance(config, dict) and all(config.get(name) == wanted[name] for name in names):
            found.append((log.parent, start))
    return sorted(found, key=lambda run: (str(run[1].get("started")), run[0].name), reverse=True)


def recorded_choice(record: RunRecord) -> Choice | None:
    """Return the choice in the record of a finished run on validation rows; None if there is none or it is damaged."""
    choice = _checked(record.training.get("fused")) if record.status == "finished" else None
    return choice and choice.model_copy(update={"run": record.run_id, "seconds": record.seconds})


def logged_choice(earlier: Earlier) -> Choice | None:
    """Return the choice that an interrupted run began with; None if it was interrupted before it wrote that down."""
    found = [event.get("choice") for event in earlier.events if event["event"] == FUSED]
    return _checked(found[-1]) if found else None


def _checked(values: Any) -> Choice | None:
    try:
        return Choice.model_validate(values)
    except ValidationError:
        return None
