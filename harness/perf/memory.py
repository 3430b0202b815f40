"""Peak memory of real runs against what `harness plan` foresees, at three numbers of labels.

Each run is a process of its own on generated data: a few thousand rows, because memory grows with labels, and as few
steps as there can be. Data and tokens are made beforehand by another process, since making them has a peak of its own.
The figure is the largest resident set of the process (VmHWM).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.config import Layer
from harness.files import home
from harness.perf import Row, Sample, Target, compare, fresh_workspace
from harness.perf.child import last_line
from harness.plan import cpu_target, make_plan
from harness.progress import progress

LABELS = (13_000, 131_000, 501_000)
WITHIN = 1.15
"""How far apart they may be, as a factor either way."""
_ROWS, _TEST_ROWS = 2000, 500
_FEW = {"epochs": 2, "random_epochs": 1, "warmup_epochs": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "unidec": {"params": _FEW},
    "depsl": {"params": _FEW},
    "dexml-hnm": {"params": _FEW},
    "renee": {
        "augment_options": {"rows": 512},
        "params": {"epochs": 1, "warm_epochs": 1, "warmup_epochs": 0.5},
    },
}
"""Settings that make a run short and leave every kind of memory in it: a random epoch, a mined one, a checkpoint."""


def rows() -> Iterator[Row]:
    """Every method at every number of labels."""
    encoders = home() / "cache" / "encoders"
    with fresh_workspace() as workspace:
        if encoders.is_dir():  # distilling `static` takes a minute, and it is the same everywhere
            (workspace / "cache").mkdir(parents=True)
            (workspace / "cache" / "encoders").symlink_to(encoders.absolute())
        with progress("measure memory of runs", total=len(LABELS) * len(CASES), unit="runs") as advance:
            for labels in LABELS:
                dataset = f"synthetic:train={_ROWS},test={_TEST_ROWS},labels={labels}"
                measured("prepare", dataset)
                for method, settings in CASES.items():
                    yield compared(method, dataset, settings, labels)
                    advance(1)


def compared(method: str, dataset: str, settings: dict[str, Any], labels: int) -> Row:
    """One run, measured and foreseen."""
    peak = measured("measure", method, dataset, settings)
    plan = make_plan(method, dataset, [Layer("perf", settings)], cpu_target())
    row = compare(
        f"peak memory of {method}, foreseen",
        f"{labels:,} labels",
        "measured, a process of its own; the ratio is the larger over the smaller",
        Sample((float(plan.host_bytes),), "B"),
        Sample((peak,), "B"),
        detail=f"largest moment foreseen: {plan.largest.name}",
        at={"method": method, "labels": labels, "quantity": "foreseen"},
    )
    apart = max(plan.host_bytes / peak, peak / plan.host_bytes)
    return replace(row, ratio=Sample((apart,)), target=Target("at most", WITHIN))


def measured(function: str, *arguments: Any) -> float:
    """What a function of `harness.plan.measure` returns in a process of its own."""
    return float(last_line("-m", "harness.plan.measure", json.dumps([function, *arguments])).split()[-1])
