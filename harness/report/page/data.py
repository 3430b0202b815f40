"""Data of the page's scripts: the comparison with its groups of runs, and the shown parts of every run.

A row of the comparison is a group of runs that differ only in their seed, once per scorer, as in
`harness.report.documents.comparison`.
"""

import itertools
from collections.abc import Collection
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.report.cells import Figure
from harness.report.results import Results, is_number
from harness.report.rows import GROUP, TABLE_KEYS, changed_settings, differences, peak_memory, tidy
from harness.runs.record import RunRecord
from harness.settings.layers import flatten

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@5", "C@5")
_OF_BIN = ("P@5", "PSP@5")
_NOT_DRAWN = {"train/epoch", "train/seconds", "train/negatives"}
"""Curves that add nothing to the others: negatives are the pool without positives."""
_POINTS = 20
"""Number of points kept of a curve: as many as a small chart can show."""


def page_data(results: Results, benchmark: Collection[str] = ()) -> dict[str, Any]:
    """Return everything the page shows of the runs, as plain values; the same arguments give the same values.

    Args:
        results: Records of the runs, with their studies and neighbours.
        benchmark: Ids of the runs of the benchmark. On datasets with such runs, the page begins with them and
            judges by them; on others it does so with runs at default settings.
    """
    records = {record.run_id: record for record in results.records}
    try:
        frame = tidy(list(results.records))
    except UserError:  # the page of an empty folder says what to do
        frame = pd.DataFrame()
    datasets = _datasets(frame, records, {*benchmark})
    used = sorted({name for one in datasets for row in one["rows"] for name in row["runs"]})
    return {
        "datasets": datasets,
        "runs": {name: _run(records[name]) for name in used},
        "unfinished": [
            {
                "run": record.run_id,
                "method": record.config.get("method", ""),
                "dataset": record.dataset.get("name", ""),
                "status": record.status,
                "error": record.error or "",
            }
            for record in results.records
            if record.status != "finished"
        ],
    }


def _datasets(frame: pd.DataFrame, records: dict[str, RunRecord], benchmark: set[str]) -> list[dict[str, Any]]:
    if frame.empty:
        return []
    changed = _format_changes(frame, records)
    # older records may lack keys: runs with the same text are one row, and the newest run of a seed counts
    frame = frame.assign(settings=frame["run_id"].map(changed)).drop_duplicates(
        [*TABLE_KEYS, *GROUP, "seed"], keep="last"
    )
    found = []
    for key, part in frame.groupby(TABLE_KEYS, sort=True, dropna=False):
        about = dict(zip(TABLE_KEYS, key, strict=True))
        newest = records[str(part["run_id"].iloc[-1])]
        measured, shown = _circumstances(about), _measured(part)
        judged = not benchmark.isdisjoint(part["run_id"])
        found.append(
            {
                "name": about["dataset"],
                "title": str(newest.dataset.get("title") or about["dataset"]),
                "measured": measured,
                "note": f"Percent on test rows; {', '.join(measured)}.",
                "statistics": newest.dataset.get("statistics", {}),
                "metrics": shown,
                "benchmark": judged,
                "rows": _rows(part, shown, records, benchmark if judged else None),
            }
        )
    found.sort(key=lambda one: (-len(one["rows"]), one["name"]))  # datasets with most rows first
    _name_apart(found)
    return found


def _circumstances(about: dict[str, Any]) -> list[str]:
    """Say how the runs of a table were measured: a text for each of `TABLE_KEYS` but the dataset's name."""
    masked = not pd.isna(about["filter"]) and bool(about["filter"])
    return [
        f"data {about['digest']}" if about["digest"] else "data without a digest",
        "filter pairs masked" if masked else "no filter",
        f"propensity {about['propensity']}" if about["propensity"] else "no propensity constants",
        f"metrics v{about['metric_version']}",
        f"harness {about['harness']}" if about["harness"] else "harness of unknown version",
    ]


def _name_apart(datasets: list[dict[str, Any]]) -> None:
    """Give each dataset a unique key, for addresses of the page, and a unique label.

    Labels of several tables of one dataset have what differs in how they were measured.
    """
    by_name: dict[str, list[list[str]]] = {}
    for one in datasets:
        by_name.setdefault(one["name"], []).append(one["measured"])
    keys, labels = set[str](), set[str]()
    for one in datasets:
        alike, measured = by_name[one["name"]], one.pop("measured")
        apart = [words for place, words in enumerate(measured) if len({other[place] for other in alike}) > 1]
        one["key"] = _unused(one["name"], keys)
        one["label"] = _unused(f"{one['title']} ({', '.join(apart)})" if apart else one["title"], labels)


def _unused(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken, and add it to `taken`."""
    candidates = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
    free = next(one for one in candidates if one not in taken)
    taken.add(free)
    return free


def _measured(part: pd.DataFrame) -> list[str]:
    names = [str(name) for name in part if "@" in str(name) and part[str(name)].notna().any()]
    return [name for name in SHOWN if name in names] or names


def _rows(
    part: pd.DataFrame, shown: list[str], records: dict[str, RunRecord], benchmark: set[str] | None
) -> list[dict[str, Any]]:
    """Return one row per group of runs that differ only in the seed; without a benchmark, default settings are main."""
    rows = []
    for key, group in part.sort_values(["seed", "run_id"]).groupby(GROUP, sort=True):
        names = dict(zip(GROUP, key, strict=True))
        runs = [str(name) for name in group["run_id"]]
        memory = [peak_memory(records[name]) for name in runs]
        rows.append(
            {
                "runs": runs,
                **names,
                "main": not names["settings"] if benchmark is None else not benchmark.isdisjoint(runs),
                "figures": {name: _figure(group[name]) for name in shown},
                "seconds": float(group["seconds"].mean()),
                "memory": max((one for one in memory if one is not None), default=None),
            }
        )
    return rows


def _figure(values: "pd.Series[float]") -> dict[str, float | None]:
    """Return the mean over seeds, and the sample standard deviation if there are several."""
    figure = Figure.of(values.dropna().tolist())
    return {"mean": figure.mean} | ({} if figure.std is None else {"std": figure.std})


def _format_changes(frame: pd.DataFrame, records: dict[str, RunRecord]) -> dict[str, str]:
    """Format by run id the settings that differ from the method's defaults, or from other runs of an unknown method."""
    texts = {}
    for _, alike in frame.drop_duplicates("run_id").groupby("method"):
        apart = differences(list(alike["settings"]))
        for run_id, own in zip(alike["run_id"], alike["settings"], strict=True):
            changed = changed_settings(records[run_id])
            if changed is None:
                texts[run_id] = apart[own]
            else:
                pairs = [pair for pair in sorted(flatten(changed).items()) if pair[0] != "encoder"]
                texts[run_id] = ", ".join(f"{key.removeprefix('params.')}={value}" for key, value in pairs)
    return texts


def _run(record: RunRecord) -> dict[str, Any]:
    always = {
        "method": record.config["method"],
        "encoder": record.config["encoder"],
        "dataset": str(record.dataset.get("title") or record.dataset["name"]),
        "seed": record.config["seed"],
        "started": record.started[:19],
        "seconds": record.seconds,
        "config": flatten({key: value for key, value in record.config.items() if key != "seed"}),
        "environment": flatten(record.environment),
        "scorers": record.scorers or {"": record.metrics},
    }
    where_kept = {
        "memory": peak_memory(record),
        "curves": _thinned(record.curves),
        "timings": record.timings,
        "training": flatten(record.training),
        "search": flatten(record.search),
        "augmentation": flatten(record.augmentation),
        "bins": _bins(record),
        "resumed": len(record.resumed),
        "warnings": record.warnings,
    }
    return always | {key: value for key, value in where_kept.items() if value}


def _bins(record: RunRecord) -> list[dict[str, Any]]:
    """Return what each bin of labels adds to the metrics; None where a record has no number for it."""
    names = [name for name in _OF_BIN if any(is_number(one.get(name)) for one in record.contributions)]
    if not names:
        return []
    return [
        {"bin": str(one.get("bin", ""))} | {name: one[name] if is_number(one.get(name)) else None for name in names}
        for one in record.contributions
    ]


def _thinned(curves: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Thin curves to about `_POINTS` points: evenly spaced ones, the last, and those with validation scores.

    A curve that is shorter than the steps is filled with None, and points without a step are left out; trainings that
    were interrupted leave such records.
    """
    placed = [index for index, step in enumerate(curves.get("step", [])) if is_number(step)]
    if not placed:
        return {}
    points = len(placed)
    curves = {
        name: [values[index] if index < len(values) else None for index in placed]
        for name, values in curves.items()
        if name not in _NOT_DRAWN
    }
    if points <= _POINTS:
        return curves
    kept = set(range(0, points, -(-points // _POINTS))) | {points - 1}
    sparse = [values for values in curves.values() if values.count(None) > points // 2]
    kept |= {index for values in sparse for index, value in enumerate(values) if value is not None}
    return {name: [values[index] for index in sorted(kept)] for name, values in curves.items()}
