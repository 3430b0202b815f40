"""Turn a run's record into a row of a table: its settings, its metrics and its costs.

Everything that shows runs (tables, comparison, findings, figures, page) asks `value` for a figure of a run, and
`changed_settings` or `settings_of` for how it differs from other runs. `tidy` has all runs as one frame.

|Q_B|       rows seen in training / steps
|L_B|       mean size of the pools, over the epochs
positives   mean positives of a query in its pool, in the last epoch
memory GB   peak memory of the process, or of the training where that has one of its own, 10^9 bytes; not of a GPU
hours       training alone
d           not recorded
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.report.cells import Direction
from harness.report.results import is_number
from harness.runs.record import RunRecord, is_trial
from harness.settings.identity import before, decisive, flat, varying
from harness.settings.layers import Layer, flatten
from harness.settings.published import COLUMNS
from harness.settings.resolve import usual_config

TABLE_KEYS = ["dataset", "digest", "filter", "propensity", "metric_version", "harness"]
"""Columns of `tidy`; runs that differ in one of these never share a table."""
GROUP = ["method", "encoder", "settings", "scorer"]

Settings = dict[str, Any]
"""Values of settings by dotted key."""


def default_settings(method: str, dataset: str, over: dict[str, Any] | None = None) -> Settings | None:
    """Return the settings of a method on a dataset, with those of `over` on top; None if the method is unknown.

    Args:
        method: Name of a method or preset.
        dataset: Name of a dataset; settings of its card apply if it has one.
        over: Settings as in a published row: of a run, and the method's parameters by their bare names.
    """
    config = usual_config(method, dataset, [Layer("row", over or {})])
    return None if config is None else settings(config.model_dump(mode="json"))


def changed_settings(record: RunRecord) -> Settings | None:
    """Return a run's settings that differ from its method's defaults on this dataset and encoder; None if unknown."""
    config = record.config
    usual = _usual(config["method"], str(record.dataset.get("name")), config["encoder"])
    return None if usual is None else changes(settings(config), usual)


@cache
def _usual(method: str, dataset: str, encoder: str) -> Settings | None:
    return default_settings(method, dataset, {"encoder": encoder})


def settings(config: dict[str, Any]) -> Settings:
    """Return the settings that decide a run's result, encoder included, by dotted key."""
    return dict(_settings(json.dumps(config)))


@lru_cache(maxsize=4096)
def _settings(config: str) -> Settings:
    """Return the settings of a config given as JSON; cached, as every table and figure asks for them."""
    recorded = json.loads(config)
    own = decisive(recorded) | {"encoder": recorded["encoder"]}
    own.pop("evaluate")  # tables have only runs on test rows
    return own


def changes(found: Settings, expected: Settings) -> Settings:
    """Return the settings that differ from the expected ones."""
    return {key: value for key, value in found.items() if key not in expected or expected[key] != value}


def settings_of(config: dict[str, Any]) -> str:
    """Return the recorded settings that decide the result, besides method, data, encoder and seed, as JSON text.

    A setting that is newer than the record is not in it, unless the record counts as another value than today's.
    """
    return _settings_of(json.dumps(config))


@lru_cache(maxsize=4096)
def _settings_of(config: str) -> str:
    parsed, usual = json.loads(config), {"augment": "none", "evaluate": "test"}
    recorded, decided = flat(before(parsed)) | flat(parsed), decisive(parsed)
    own = {key: value for key, value in decided.items() if key in recorded and (key, value) not in usual.items()}
    own.pop("validation", None)  # a record that was made elsewhere may have any value there
    return json.dumps(flatten(own | {"validation.size": own.get("validation.size") or 0.0}), sort_keys=True)


FUSED = "params.fused"
"""The setting of a fused run that names the methods of its members; it is shown even where it does not vary."""


def differences(settings: list[str]) -> dict[str, str]:
    """Return, for each distinct configuration of a method, the settings that vary, as text."""
    parsed = {text: json.loads(text) for text in dict.fromkeys(settings)}
    keys = sorted({*varying(parsed.values()), FUSED})
    return {
        text: ", ".join(f"{key.removeprefix('params.')}={values[key]}" for key in keys if key in values)
        for text, values in parsed.items()
    }


_Cost = Callable[[RunRecord], float | None]

_BYTES = 2**30 / 1e9
_BETTER: dict[str, Direction] = {"memory GB": "down", "hours": "down"}
_DIGITS = {"hours": 1, "|Q_B|": 0, "|L_B|": 0, "d": 0}


def better(column: str) -> Direction | None:
    """Return whether larger (`up`) or smaller values of a column are better; None if neither."""
    return _BETTER.get(column) if column in COLUMNS else "up"


def digits(column: str, largest: float | None = None) -> int:
    """Return the decimals to show in a column; `largest` is its largest figure."""
    if column == "hours" and largest is not None and largest < 1:
        return 4
    return _DIGITS.get(column, 2)


def is_metric(column: str) -> bool:
    """Return whether a column is a metric, in percent; the others are costs."""
    return column not in COLUMNS


def value(record: RunRecord, column: str, scorer: str | None = None) -> float | None:
    """Return the figure of a run in a column; None if it has none."""
    if column not in COLUMNS:
        scores = record.scorers.get(scorer, {}) if record.scorers and scorer else record.metrics
        return scores.get(column)
    found = _COSTS[column](record) if column in _COSTS else None
    return None if found is None else float(found)


def _batch(record: RunRecord) -> float | None:
    steps, epochs = record.training.get("steps"), record.training.get("epochs")
    rows = record.augmentation.get("rows") or _trained_rows(record)
    if not steps or not epochs or not rows or len(record.training.get("stages", [])) > 1:
        return None
    return float(rows * epochs / steps)


def _trained_rows(record: RunRecord) -> float:
    """Return the number of train rows without validation rows."""
    rows = record.dataset.get("statistics", {}).get("train") or 0
    size = record.config.get("validation", {}).get("size") or 0
    drawn = record.dataset.get("validation_rows")  # absent from records of earlier versions
    return float(rows - (round(size if size >= 1 else size * rows) if drawn is None else drawn))


def _course(name: str, last: bool = False) -> _Cost:
    def cost(record: RunRecord) -> float | None:
        found = [one for one in record.curves.get(name, []) if one is not None]
        chosen: Sequence[float] = found[-1:] if last else found
        return sum(chosen) / len(chosen) if chosen else None

    return cost


def peak_memory(record: RunRecord) -> float | None:
    """Return the peak memory of a run, GiB; with a training process of its own, the larger of the two peaks."""
    known = [record.peak_memory_gib, record.training.get("peak_memory_gib")]
    return max((float(size) for size in known if size is not None), default=None)


def _memory(record: RunRecord) -> float | None:
    peak = peak_memory(record)
    return None if peak is None else peak * _BYTES


def trained(record: RunRecord, key: str) -> float | None:
    """Return a positive number of the training, such as its epochs or seconds; None if the record has none."""
    value = record.training.get(key)
    return float(value) if is_number(value) and value > 0 else None


def total_seconds(record: RunRecord) -> float:
    """Return the seconds of a run, of a fused run with those of its members."""
    members = record.fusion.get("runs")
    known = [one.get("seconds") for one in members if isinstance(one, dict)] if isinstance(members, list) else []
    return record.seconds + sum(one for one in known if is_number(one))


def _hours(record: RunRecord) -> float | None:
    seconds = trained(record, "seconds")
    return None if seconds is None else seconds / 3600


_COSTS: dict[str, _Cost] = {
    "|Q_B|": _batch,
    "|L_B|": _course("train/pool"),
    "positives": _course("train/positives", last=True),
    "memory GB": _memory,
    "hours": _hours,
}


def tidy(records: list[RunRecord], dataset: str | None = None) -> pd.DataFrame:
    """Return a row per finished run and scorer (on one dataset); of runs with equal settings and seed, the newest.

    Trials of sweeps are left out: they are measured on validation rows.
    """
    finished = [
        record for record in records if record.status == "finished" and dataset in (None, record.dataset["name"])
    ]
    rows = [
        {
            "dataset": record.dataset["name"],
            "digest": str(record.dataset.get("digest") or "")[:12],
            "filter": bool(record.dataset.get("filter")),
            "propensity": _propensity(record.dataset.get("propensity")),
            "metric_version": record.metric_version,
            "harness": str(record.environment.get("harness", "")),
            "method": record.config["method"],
            "encoder": record.config["encoder"],
            "settings": settings_of(record.config),
            "scorer": scorer,
            "seed": record.config["seed"],
            "started": record.started,
            "seconds": total_seconds(record),
            "run_id": record.run_id,
            **{name: score for name, score in scores.items() if "@" in name},
        }
        for record in finished
        if not is_trial(record.config)
        for scorer, scores in (record.scorers or {"": record.metrics}).items()
    ]
    if not rows:
        where = "" if dataset is None else f" on {dataset!r}"
        command = "python -m harness run" + ("" if dataset is None else f" --dataset {dataset}")
        trials = f", only {len(finished)} trials measured on validation rows" if finished else ""
        raise UserError(f"no finished run{where} to report{trials}; make one with `{command}`")
    frame = pd.DataFrame(rows).sort_values(["started", "run_id"])
    return frame.drop_duplicates([*TABLE_KEYS, *GROUP, "seed"], keep="last")


def _propensity(constants: dict[str, Any] | None) -> str:
    return f"A {constants.get('a')}, B {constants.get('b')}" if constants else ""
