"""Made-up run records for the tests of figures."""

import copy
from typing import Any

from harness.report.results import Results
from harness.report.rows import default_settings
from harness.runs.record import RunRecord

DATASET = "lf-pydocstitles"
BINS = ("head", "torso", "tail")


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into a nested config."""
    config: dict[str, Any] = {}
    for key, value in flat.items():
        *places, last = key.split(".")
        inner = config
        for place in places:
            inner = inner.setdefault(place, {})
        inner[last] = copy.deepcopy(value)
    return config


def config_of(method: str, settings: dict[str, Any] | None = None, seed: int = 0) -> dict[str, Any]:
    """Return the config of a run with a method's default settings, but for those given by dotted key."""
    flat = {**(default_settings(method, DATASET) or {}), **(settings or {})}
    names = {"method": method, "dataset": DATASET, "seed": seed}
    return {"encoder": "static", "params": {}} | nested(flat) | names


def run(
    method: str = "dpr",
    p1: float = 60.0,
    seed: int = 0,
    moment: int = 0,
    settings: dict[str, Any] | None = None,
    psp: bool = True,
    **changes: Any,
) -> RunRecord:
    """Return the record of a finished run; its metrics follow from P@1 and the seed alone."""
    families = ("P", "PSP") if psp else ("P",)
    shares = {f"{family}@{k}": (p1 + 3 * len(family)) / (1 + k) for family in families for k in (1, 3, 5)}
    parts = (0.5, 0.3, 0.2)
    steps = [float(10 * step) for step in range(1, 13)]
    values: dict[str, Any] = {
        "run_id": f"run-{moment:03d}-s{seed}",
        "status": "finished",
        "started": f"2026-01-01T00:00:{moment:02d}",
        "seconds": 10 + p1,
        "config": config_of(method, settings, seed),
        "dataset": {"name": DATASET, "title": "LF-PyDocsTitles", "digest": "ab" * 32, "filter": True},
        "metrics": shares,
        "metric_version": 1,
        "contributions": [
            {"bin": name, "labels": 10 * 5**place, "train_pairs": 1000}
            | {metric: share * parts[place] for metric, share in shares.items()}
            for place, name in enumerate(BINS)
        ],
        "training": {"steps": 120, "seconds": 1000 / p1 + seed},
        "curves": {
            "step": [*steps, 125.0],
            "train/epoch": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, None],
            "train/loss": [*(p1 / step + seed for step in steps), None],
            "train/pool": [*(100.0 for _ in steps), None],
            "train/positives": [*(1.5 for _ in steps), None],
            "validation/P@1": [*(None for _ in steps), p1],
        },
        "peak_memory_gib": p1 / 100,
        "environment": {"cpu": "a made-up processor", "cores": 2, "device": "cpu"},
    }
    return RunRecord.model_validate({**values, **changes})


def results(*records: RunRecord) -> Results:
    """Return results of these records, oldest first."""
    return Results(tuple(sorted(records, key=lambda one: one.started)))


def world() -> Results:
    """Return results of two methods, one of them with two seeds, and of one without training."""
    methods = [("ance", 58.0), ("unidec", 66.0)]
    made = [run(method, p1, moment=place) for place, (method, p1) in enumerate(methods)]
    made += [run("unidec", 67.5, seed=1, moment=10), run("zeroshot", 40.0, moment=11, training={}, curves={})]
    return results(*made)
