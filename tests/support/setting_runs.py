"""Records made up for figures about settings: a method's defaults with some of them changed, and any scores."""

import copy
from functools import cache
from typing import Any

from harness.report.rows import default_settings
from harness.runs.record import RunRecord

DATASET = "lf-pydocstitles"


@cache
def _defaults(method: str) -> tuple[tuple[str, Any], ...]:
    found = default_settings(method, DATASET)
    assert found is not None
    return tuple(found.items())


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as a config has them."""
    config: dict[str, Any] = {}
    for key, value in flat.items():
        *places, last = key.split(".")
        inner = config
        for place in places:
            inner = inner.setdefault(place, {})
        inner[last] = copy.deepcopy(value)
    return config


def setting_run(
    method: str,
    changed: dict[str, Any],
    *,
    seed: int = 0,
    metrics: dict[str, float] | None = None,
    curves: dict[str, list[float | None]] | None = None,
    digest: str = "d" * 64,
    **metadata: Any,
) -> RunRecord:
    """A finished run with default settings but for those `changed`, by dotted key."""
    usual = {"augment_options.labels": 1.0, "augment_options.order": "random", "augment_options.delta": 0.1}
    config = nested({**usual, **dict(_defaults(method)), **changed})
    config |= {"method": method, "dataset": DATASET, "seed": seed, "evaluate": "test"}
    name = "-".join(f"{key.split('.')[-1]}.{value}" for key, value in changed.items())
    values = {
        "run_id": f"{method}-{name}-s{seed}",
        "status": "finished",
        "started": "2026-01-01T00:00:00",
        "seconds": 1.0,
        "config": config,
        "dataset": {"name": DATASET, "digest": digest, "filter": True, "statistics": {"labels_per_row": 2.512}},
        "metrics": metrics or {},
        "metric_version": 1,
        "curves": curves or {},
    }
    return RunRecord.model_validate({**values, **metadata})
