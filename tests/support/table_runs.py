"""A small published table, and records of runs of its rows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.io.files import write_manifest
from harness.report.results import Results
from harness.report.rows import default_settings
from harness.runs.record import RunRecord, per_row_file
from harness.settings.published import PublishedTable
from tests.support.figure_runs import nested

DATASET = "lf-pydocstitles"
PRINTED = "lf-amazon-131k"
"""The dataset of the published table."""


def declared_row(stem: str, dataset: str = PRINTED, **changes: Any) -> dict[str, Any]:
    """Return a row of the published table, as in its YAML."""
    return {
        "table": "demo",
        "row": f"{stem}/{dataset}",
        "label": stem.upper(),
        "dataset": dataset,
        "method": "unidec",
        "scorer": "concat",
        "settings": {"eta": 6, "batch_size": 575},
        "results": {"P@1": 40.0, "hours": 24},
        **changes,
    }


def declared_table(*rows: dict[str, Any]) -> PublishedTable:
    """Return the published table with these rows."""
    metadata = {"table": "demo", "source": "a paper", "caption": "things", "metrics": ["P@1", "hours"], "unsaid": []}
    return PublishedTable.model_validate({**metadata, "rows": list(rows)})


ETA = declared_table(
    declared_row("full"),
    declared_row("easy", settings={"eta": 0, "batch_size": 575}),
    declared_row("full-de", scorer="de", settings={"eta": 6, "batch_size": 575, "scorer": "de"}),
    declared_row("other", method=None, scorer=None, settings={}, absent="not here"),
)


def record(
    name: str, *, method: str = "unidec", dataset: str = DATASET, seed: int = 0, p1: float = 50.0, **changes: Any
) -> RunRecord:
    """Return a finished run at default settings but for `changes`: parameters by name, `encoder`, or metadata."""
    metadata = {key: changes.pop(key) for key in ("status", "metric_version", "environment") if key in changes}
    data = {"name": dataset, "digest": changes.pop("digest", "abc"), "filter": True}
    data["propensity"] = changes.pop("propensity", None)
    config = nested(default_settings(method, dataset, changes) or {})
    config |= {"method": method, "dataset": dataset, "seed": seed, "evaluate": "test"}
    scorers = {scorer: {"P@1": p1 - place} for place, scorer in enumerate(("concat", "de", "clf"))}
    values = {
        "run_id": name,
        "status": "finished",
        "started": f"2026-01-01T00:00:{len(name):02}",
        "seconds": 2.0,
        "config": config,
        "dataset": data,
        "metrics": scorers["concat"],
        "views": scorers,
        "metric_version": 1,
        "environment": {"harness": "0.1.0"},
        "training": {"seconds": 7200.0},
    }
    return RunRecord.model_validate(values | metadata)


def with_rows(folder: Path, one: RunRecord, scores: dict[str, NDArray[np.float64]]) -> RunRecord:
    """Write a run folder with P@1 of every test row [M], by scorer; return the run with their means."""
    scorers = {scorer: {"P@1": float(rows.astype(np.float32).mean())} for scorer, rows in scores.items()}
    run = one.model_copy(update={"scorers": scorers, "metrics": scorers["concat"], "per_row": ["P@1"]})
    (folder / one.run_id).mkdir()
    for scorer, rows in scores.items():
        file = folder / one.run_id / per_row_file(None if scorer == "concat" else scorer)
        np.save(file, rows[:, None].astype(np.float32), allow_pickle=False)
    write_manifest(folder / one.run_id, {})
    return run


def hard_negative_runs(folder: Path, ahead: float, behind: float, seeds: int = 2) -> Results:
    """Return runs with and without hard negatives whose P@1 is `ahead` and `behind`."""
    runs = []
    for seed in range(seeds):
        for name, share, eta in (("with", ahead, 6), ("without", behind, 0)):
            rows = (np.random.default_rng([seed, eta]).random(400) < share) * 100.0
            where = {"harness": "0.1.0", "cpu": "a processor", "cores": 2}
            one = record(f"{name}-{seed}", method="unidec-thesis", seed=seed, eta=eta, environment=where)
            runs.append(with_rows(folder, one, dict.fromkeys(("concat", "de", "clf"), rows)))
    return Results(tuple(runs), folders=(folder,))
