"""The members of a fusion: which finished runs are meant, whether they belong together, and what they predicted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.sparse import csr_array

from harness import metrics
from harness.data.card import find_card
from harness.errors import DataError, UserError
from harness.index import TopK
from harness.io.arrays import load_array
from harness.io.files import require_listed
from harness.io.models import describe_faults
from harness.report.compare import Contender, Run, named_contenders
from harness.report.results import own_scorer
from harness.report.rows import settings_of
from harness.runs.record import RunRecord, refuse_places
from harness.settings.identity import key_of
from harness.settings.schema import RunConfig

IDS, SCORES = "ids.npy", "scores.npy"
_STORED = 1e-3
"""Largest difference, in percentage points, between a metric of the predictions and of the record."""
_BLOCK_VALUES = 1 << 21
"""Predicted labels that are checked at a time."""


def find_members(names: list[str], folders: list[Path], seed: int | None, dataset: str | None) -> list[Run]:
    """Return the finished run of every name, sorted, so that the order of the names decides nothing.

    Args:
        names: Runs or methods, as `report --compare` takes them; at least two.
        folders: Folders of run folders.
        seed: Which of the runs to take for the name of a method with several.
        dataset: Name or folder of the dataset, needed for names of methods that were run on several.
    """
    if len(names) < 2:
        raise UserError(f"fusing takes two or more runs, not {len(names)}: --runs A,B; `python -m harness ls runs`")
    on = None if dataset is None else find_card(dataset).name
    runs = [_one_run(one, seed) for one in named_contenders(names, folders, on)]
    for run in runs:
        recorded_config(run.record)  # raises
    _require_distinct([run.record for run in runs])
    _require_alike([run.record for run in runs])
    return sorted(runs, key=lambda run: (*map(str, identity_of(run.record)), run.record.config["seed"]))


def _one_run(contender: Contender, seed: int | None) -> Run:
    """Return the run of a contender; of a method with several seeds, the one of this seed."""
    scorer, own = contender.scorer, own_scorer(contender.runs[0].record)
    if scorer not in (None, own):
        raise UserError(f"{contender.name}: predictions are stored of the run's own scorer alone, {own}; leave it out")
    if contender.name == contender.runs[0].record.run_id:
        return contender.runs[0]
    found = {one: run for one, run in zip(contender.seeds, contender.runs, strict=True) if seed in (None, one)}
    if len(found) != 1:
        seeds = ", ".join(map(str, contender.seeds))
        raise UserError(f"{contender.name!r} was run with seed {seeds}; say which: --seed {contender.seeds[0]}")
    return next(iter(found.values()))


def recorded_config(record: RunRecord) -> RunConfig:
    """Return the checked settings of a recorded run, which somebody else may have written."""
    where = f"the record of run {record.run_id}"
    known = {key: value for key, value in record.config.items() if key in RunConfig.model_fields}
    try:
        config = RunConfig.model_validate(known)
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, where))) from error
    refuse_places(where, record.config)
    return config


def identity_of(record: RunRecord) -> list[Any]:
    """Return what a member is besides its data and seed: method, encoder, weights of a model folder, settings."""
    config = record.config
    weights = record.encoder.get("identity") if config["encoder"].startswith("./") else None
    return [config["method"], config["encoder"], weights, settings_of(config)]


def _require_distinct(records: list[RunRecord]) -> None:
    """Raise if two of the runs are the same one, also if it was run twice: that changes nothing but its weight."""
    seen: dict[str, str] = {}
    for record in records:
        key = key_of(record.config, record.dataset, record.metric_version, record.encoder.get("identity"))
        if (other := seen.get(key)) == record.run_id:
            raise UserError(f"run {record.run_id} is named twice; name every run once")
        seen[key] = record.run_id
        if other is not None:
            raise UserError(f"runs {other} and {record.run_id} have the same settings, data and seed; name one of them")


def _require_alike(records: list[RunRecord]) -> None:
    """Raise with all that differs between the runs though one ranking of labels cannot be made of both."""
    rows = []
    for record in records:
        data = record.dataset
        size = data.get("statistics") or {}
        rows.append(
            {
                "data": f"{data['name']} {str(data.get('digest'))[:12]}",
                "labels": size.get("labels"),
                "test rows": size.get("test"),
                "filter": bool(data.get("filter")),
                "propensity constants": data.get("propensity"),
                "metric version": record.metric_version,
            }
        )
    faults = [
        f"\n  {key}: " + ", ".join(f"{row[key]} ({one.run_id})" for row, one in zip(rows, records, strict=True))
        for key in rows[0]
        if any(row[key] != rows[0][key] for row in rows)
    ]
    if faults:
        raise UserError("these runs cannot be fused, they differ in" + "".join(faults))
    if (version := records[0].metric_version) != metrics.METRIC_VERSION:
        now = metrics.METRIC_VERSION
        raise UserError(f"these runs were measured with metrics v{version}, this harness has v{now}; run them again")


def read_predictions(run: Run, truth: csr_array, weights: NDArray[np.float64] | None, ks: Sequence[int]) -> TopK:
    """Return the stored predictions of a run, [M, K], memory-mapped; their metrics must be those of its record.

    Args:
        run: A finished run with its folder.
        truth: True labels of the rows that the run was scored on, [M, L].
        weights: Inverse propensities, [L]; None without propensity constants.
        ks: Cut-offs of the metrics to compare.
    """
    for name in ("record.json", IDS, SCORES):
        if not (run.folder / name).is_file():
            raise UserError(f"run {run.record.run_id} has no predictions here ({name} is missing); run it again")
        require_listed(run.folder, name)
    place = run.folder / IDS
    ids, scores = load_array(place, 2, "i", mapped=True), load_array(run.folder / SCORES, 2, "f", mapped=True)
    shape = (truth.shape[0], ids.shape[1])
    right = ids.dtype == np.int32 and scores.dtype == np.float32 and ids.size > 0
    if not right or ids.shape != shape or scores.shape != shape:
        found = f"{ids.dtype} {ids.shape} and {scores.dtype} {scores.shape}"
        raise DataError(f"predictions of {shape[0]:,} rows are int32 and float32 [{shape[0]}, K], not {found}", place)
    step = max(1, _BLOCK_VALUES // shape[1])
    for start in range(0, shape[0], step):
        block = slice(start, start + step)
        if fault := _fault(np.asarray(ids[block]), np.asarray(scores[block]), truth.shape[1]):
            raise DataError(f"not the predictions of a run: {fault}; run it again", place)
    for name, counted in metrics.evaluate(ids, truth, weights, ks).items():
        reported = run.record.metrics.get(name)
        if reported is not None and not abs(counted - reported) <= _STORED:
            raise DataError(
                f"{name} of these predictions is {counted:.2f}, but the record of run {run.record.run_id} says "
                f"{reported:.2f}; they are not of one run",
                place,
            )
    return TopK(ids, scores)


def _fault(ids: NDArray[np.int32], scores: NDArray[np.float32], labels: int) -> str:
    """Return what is wrong with predictions [n, K]; empty if each row has distinct labels in order of their scores."""
    if ids.min() < -1 or ids.max() >= labels:
        return f"there are {labels:,} labels, but it has ids from {ids.min()} to {ids.max()}"
    if not (scores[:, 1:] <= scores[:, :-1]).all() or not (scores < np.inf).all():
        return "scores that rise along a row, or are no numbers"
    if not np.array_equal(ids >= 0, scores > -np.inf):
        return "labels without scores, or scores without labels"
    ordered = np.sort(ids, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
        return "a row has a label twice"
    return ""
