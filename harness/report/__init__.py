"""From run records to comparison tables: records -> tidy frame -> `Table` -> terminal, Markdown, LaTeX, HTML, CSV.

A table is a pure function of records: it runs nothing, asks MLflow nothing, and the same records give the same bytes.
No torch is imported here.
"""

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.config import flatten
from harness.errors import UserError
from harness.record import RunRecord

_SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@5", "C@5")
_GROUP = ["method", "encoder", "settings", "scorer"]


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A titled grid of text; renderers decide how it looks."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    words: int = 3
    """How many of the first columns hold words; the others are numbers, set flush right."""


def settings_of(config: dict[str, Any]) -> str:
    """A configuration as text, without what has a column of its own or does not define the method."""
    own = {"method", "encoder", "dataset", "seed", "device", "batch_tokens", "checkpoint", "tracking"}
    if config.get("augment", "none") == "none":
        own |= {"augment", "augment_options"}
    if not is_trial(config):
        own.add("evaluate")
    return json.dumps(flatten({key: value for key, value in config.items() if key not in own}), sort_keys=True)


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
            "digest": record.dataset.get("digest", "")[:12],
            "filter": record.dataset.get("filter"),
            "metric_version": record.metric_version,
            "method": record.config["method"],
            "encoder": record.config["encoder"],
            "settings": settings_of(record.config),
            "scorer": scorer,
            "seed": record.config["seed"],
            "started": record.started,
            "seconds": record.seconds,
            "run_id": record.run_id,
            **scores,
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
    return frame.drop_duplicates(["dataset", "digest", "filter", "metric_version", *_GROUP, "seed"], keep="last")


def comparison(records: list[RunRecord], dataset: str | None = None) -> list[Table]:
    """One table per dataset: methods down, metrics across, mean over seeds, best in bold.

    Runs whose data, filter setting or metric version differ never share a table.
    """
    frame = tidy(records, dataset)
    keys = ["dataset", "digest", "filter", "metric_version"]
    return [_table(dict(zip(keys, key, strict=True)), part) for key, part in frame.groupby(keys, sort=True)]


def _table(about: dict[str, Any], part: pd.DataFrame) -> Table:
    measured = [str(name) for name in part if "@" in str(name) and part[str(name)].notna().any()]
    shown = [name for name in _SHOWN if name in measured] or measured
    groups = part.groupby(_GROUP, sort=True)
    means, spreads, counts = groups[shown].mean(), groups[shown].std(), groups.size()
    # a figure counts as best when it prints like the largest one: no bold for a difference nobody can see
    best = means.round(2) == means.round(2).max()
    shown_settings: dict[tuple[str, str], str] = {}
    for method, of_method in part.groupby("method"):
        told = differences(list(of_method["settings"]))
        shown_settings |= {(str(method), settings): text for settings, text in told.items()}
    rows = []
    for key in means.index:
        names = dict(zip(_GROUP, key, strict=True))
        cells = [
            Cell(names["method"]),
            Cell(names["encoder"]),
            Cell(names["scorer"]),
            Cell(shown_settings[names["method"], names["settings"]]),
            Cell(str(counts[key])),
        ]
        for name in shown:
            mean, spread = means.loc[key, name], spreads.loc[key, name]
            text = "X" if pd.isna(mean) else f"{mean:.2f}" if pd.isna(spread) else f"{mean:.2f} ± {spread:.2f}"
            cells.append(Cell(text, bool(best.loc[key, name]) and len(means) > 1))
        cells.append(Cell(f"{groups['seconds'].mean()[key]:.1f}"))
        rows.append(tuple(cells))
    masked = "filter pairs masked" if about["filter"] else "no filter"
    return Table(
        title=about["dataset"],
        columns=("method", "encoder", "scorer", "settings", "seeds", *shown, "seconds"),
        rows=tuple(rows),
        caption=f"Percent on test rows, {masked}; data {about['digest']}, metrics v{about['metric_version']}.",
        words=len(_GROUP),
    )
