"""Peak memory of real runs against what `harness plan` foresees, at three numbers of labels.

Each run is a process of its own on generated data: a few thousand rows, because memory grows with labels, and as few
steps as there can be. Data and tokens are made beforehand by another process, since making them has a peak of its own.
The figure is the largest resident set of the process (VmHWM).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.config import Layer
from harness.files import home
from harness.perf import Row, fresh_workspace
from harness.plan import cpu_target, make_plan

LABELS = (13_000, 131_000, 501_000)
WITHIN = 0.15
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
        for labels in LABELS:
            dataset = f"synthetic:train={_ROWS},test={_TEST_ROWS},labels={labels}"
            in_child("prepare", dataset)
            for method, settings in CASES.items():
                yield compared(method, dataset, settings, labels)


def compared(method: str, dataset: str, settings: dict[str, Any], labels: int) -> Row:
    """One run, measured and foreseen."""
    measured = in_child("measure", method, dataset, settings)
    plan = make_plan(method, dataset, [Layer("perf", settings)], cpu_target())
    ratio = plan.host_bytes / measured
    return Row(
        what=f"peak memory of {method}, foreseen",
        size=f"{labels:,} labels; largest moment foreseen: {plan.largest.name}",
        reference="measured, a process of its own",
        ours=f"{plan.host_bytes / 2**20:.0f} MiB",
        theirs=f"{measured / 2**20:.0f} MiB",
        ratio=ratio,
        target=f"within {WITHIN:.0%}",
        met=abs(ratio - 1) <= WITHIN,
    )


def in_child(function: str, *arguments: Any) -> float:
    """What a function of `harness.plan.measure` returns in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.plan.measure", json.dumps([function, *arguments])],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    return float(done.stdout.split()[-1])
