"""From run records to comparison tables: records -> tidy frame -> `Table` -> terminal, Markdown, LaTeX, HTML, CSV.

A table is a pure function of records: it runs nothing, asks MLflow nothing, and the same records give the same bytes.
No torch is imported here.
"""

import json
from dataclasses import replace
from typing import Any

import pandas as pd

from harness.config import flatten
from harness.errors import UserError
from harness.record import RunRecord
from harness.report.cells import Cell, Figure, Table
from harness.report.marking import marked

__all__ = [
    "TABLE_KEYS",
    "Cell",
    "Figure",
    "Table",
    "comparison",
    "differences",
    "is_trial",
    "settings_of",
    "tidy",
    "varying_keys",
]

_SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@5", "C@5")
TABLE_KEYS = ["dataset", "digest", "filter", "propensity", "metric_version", "harness"]
"""Runs that differ in one of these never share a table."""
_GROUP = ["method", "encoder", "settings", "scorer"]


def settings_of(config: dict[str, Any]) -> str:
    """A configuration as text, without what has a column of its own or does not define the method."""
    own = {"method", "encoder", "dataset", "seed", "device", "batch_tokens", "checkpoint", "tracking"}
    if config.get("augment", "none") == "none":
        own |= {"augment", "augment_options"}
    if not is_trial(config):
        own.add("evaluate")
    kept = {key: value for key, value in config.items() if key not in own}
    held_out = config.get("validation")
    if not (isinstance(held_out, dict) and held_out.get("size")):  # then nothing else about held-out rows matters
        kept["validation"] = {"size": 0.0}
    return json.dumps(flatten(kept), sort_keys=True)


def is_trial(config: dict[str, Any]) -> bool:
    """Whether a run was measured on held-out train rows, as the trials of a sweep are; no table shows such a run."""
    return bool(config.get("evaluate", "test") == "validation")


def differences(settings: list[str]) -> dict[str, str]:
    """For each distinct configuration of a method, only the settings that are not the same in all that have them.

    A setting that an older record does not have, because it did not exist, is no difference.
    """
    parsed = {text: json.loads(text) for text in dict.fromkeys(settings)}
    varying = varying_keys(list(parsed.values()))
    return {
        text: ", ".join(f"{key.removeprefix('params.')}={values[key]}" for key in varying if key in values)
        for text, values in parsed.items()
    }


def varying_keys(settings: list[dict[str, str]]) -> list[str]:
    """The keys that have several values among the flat settings that have them at all."""
    keys = sorted({key for values in settings for key in values})
    return [key for key in keys if len({values[key] for values in settings if key in values}) > 1]


def tidy(records: list[RunRecord], dataset: str | None = None) -> pd.DataFrame:
    """One row per finished run and scorer (on one dataset); of equal settings and seed the newest run counts.

    Trials of sweeps are left out: their numbers are those of other rows.
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
            "seconds": record.seconds,
            "run_id": record.run_id,
            **{name: score for name, score in scores.items() if "@" in name},
        }
        for record in finished
        if not is_trial(record.config)
        for scorer, scores in (record.views or {"": record.metrics}).items()
    ]
    if not rows:
        where = "" if dataset is None else f" on {dataset!r}"
        command = "python -m harness run" + ("" if dataset is None else f" --dataset {dataset}")
        trials = f", only {len(finished)} trials measured on held-out train rows" if finished else ""
        raise UserError(f"no finished run{where} to report{trials}; make one with `{command}`")
    frame = pd.DataFrame(rows).sort_values(["started", "run_id"])
    return frame.drop_duplicates([*TABLE_KEYS, *_GROUP, "seed"], keep="last")


def _propensity(constants: dict[str, Any] | None) -> str:
    return f"A {constants.get('a')}, B {constants.get('b')}" if constants else ""


def comparison(records: list[RunRecord], dataset: str | None = None) -> list[Table]:
    """One table per dataset: methods down, metrics across, mean over seeds, best and second best marked.

    Runs whose data, filter setting, propensity constants, metric or harness version differ never share a table.
    """
    frame = tidy(records, dataset)
    groups = frame.groupby(TABLE_KEYS, sort=True, dropna=False)
    tables = [_table(dict(zip(TABLE_KEYS, key, strict=True)), part) for key, part in groups]
    earlier = [[one.title for one in tables[:place]].count(table.title) for place, table in enumerate(tables)]
    return [
        replace(table, id=f"{table.id}-{count + 1}" if count else table.id)
        for table, count in zip(tables, earlier, strict=True)
    ]


def _table(about: dict[str, Any], part: pd.DataFrame) -> Table:
    measured = [str(name) for name in part if "@" in str(name) and part[str(name)].notna().any()]
    shown = [name for name in _SHOWN if name in measured] or measured
    groups = [(dict(zip(_GROUP, map(str, key), strict=True)), runs) for key, runs in part.groupby(_GROUP, sort=True)]
    told = {
        str(method): differences(list(of_method["settings"])) for method, of_method in part.groupby("method", sort=True)
    }
    words = [
        [names["method"], names["encoder"], names["scorer"], told[names["method"]][names["settings"]], str(len(runs))]
        for names, runs in groups
    ]
    metrics = [_column([runs[name] for _, runs in groups]) for name in shown]
    seconds = [Cell.of(Figure.of(list(runs["seconds"]), digits=1)) for _, runs in groups]
    return Table(
        title=about["dataset"],
        columns=("method", "encoder", "scorer", "settings", "seeds", *shown, "seconds"),
        rows=tuple(
            (*(Cell(text) for text in texts), *figures)
            for texts, *figures in zip(words, *metrics, seconds, strict=True)
        ),
        caption=_caption(about),
        words=len(_GROUP),
        id=f"comparison-{about['dataset']}",
    )


def _column(runs: list["pd.Series[Any]"]) -> list[Cell]:
    """The cells of a metric: one group of runs a row."""
    figures = [Figure.of(list(values.dropna()), wanted=len(values)) for values in runs]
    return [
        Cell.of(figure, best=best, second=second)
        for figure, best, second in zip(figures, *marked(figures), strict=True)
    ]


def _caption(about: dict[str, Any]) -> str:
    masked = "filter pairs masked" if about["filter"] else "no filter"
    weighted = f", propensity {about['propensity']}" if about["propensity"] else ""
    return (
        f"Percent on test rows, mean ± standard deviation over seeds, {masked}{weighted}; data {about['digest']}, "
        f"metrics v{about['metric_version']}{f', harness {version}' if (version := about['harness']) else ''}."
    )
