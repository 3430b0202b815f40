"""A report page of made-up runs, with names that are markup, written as `harness report` writes it."""

import io
from pathlib import Path

from PIL import Image

from harness.report.cells import Cell, Table
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.page import build_page, page_data
from harness.report.results import Results
from harness.runs.record import RunRecord
from tests.support.page_world import IMAGE, QUOTE, SCRIPT, World, write_shards


def picture(width: int, height: int) -> bytes:
    """A teal box as PNG."""
    stream = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(stream, "PNG")
    return stream.getvalue()


FIGURES = (
    Drawing(
        "tradeoff", f"Trade-off {IMAGE}", f"One point a method. {SCRIPT}", f"A teal box {QUOTE}", picture(200, 100)
    ),
    Missing("course", "Course of a training", "No run has curves.", "python -m harness bench --methods 'a&b'"),
)
TABLES = (
    Table("Ablation", ("method", "P@1"), ((Cell(SCRIPT), Cell("50.00", best=True)), (Cell(IMAGE), Cell("40.00")))),
    Table(f"Wide {IMAGE}", tuple(f"column {n}" for n in range(30)), ((Cell("0.12 ± 0.01"),) * 30,) * 5, id="wide"),
)


def record(method: str, p1: float, *, seed: int = 0, dataset: str = "lf-made", **changes: object) -> RunRecord:
    """A finished run with everything that a drawer shows."""
    steps = list(range(10, 110, 10))
    values = {
        "run_id": f"20260101-{method}-{dataset}-s{seed}",
        "status": "finished",
        "started": "2026-01-01T00:00:00",
        "seconds": 100 - p1,
        "config": {
            "method": method,
            "encoder": "static",
            "dataset": dataset,
            "seed": seed,
            "device": "cpu",
            "params": {"beta": 3, "epochs": 30},
        },
        "dataset": {"name": dataset, "title": dataset.upper(), "digest": "abc", "filter": True},
        "metrics": {"P@1": p1, "P@3": p1 - 10, "P@5": p1 - 20, "PSP@1": 90 - p1, "PSP@3": 92 - p1, "PSP@5": 95 - p1},
        "metric_version": 1,
        "contributions": [
            {"bin": name, "labels": 10, "P@5": p1 / 6, "PSP@5": p1 / 9, "train_pairs": 100, "test_pairs": 10}
            for name in ("head", "torso", "tail")
        ],
        "curves": {"step": steps, "train/loss": [100 / step for step in steps], "validation/P@1": [None, *steps[1:]]},
        "training": {"epochs": 30, "steps": 100, "seconds": 90 - p1 / 2},
        "timings": {"train": 90 - p1 / 2, "score": 1.5},
        "peak_memory_gib": p1 / 100,
        "environment": {"python": "3.11.7", "cpu": "a made-up processor", "packages": {"torch": "2.13.0"}},
    }
    return RunRecord.model_validate({**values, **changes})


def records() -> list[RunRecord]:
    """Runs on three datasets: several seeds, hostile names, a missing metric, several ways of scoring, a failure."""
    return [
        record("alpha", 50.0),
        record("alpha", 54.0, seed=1),
        record("beta", 71.0),
        record("gamma", 63.0, metrics={"P@1": 63.0, "P@3": 50.0, "P@5": 40.0}),
        record("views", 9.0, scorers={"dense": {"P@1": 9.0, "P@5": 5.0}, "fused": {"P@1": 11.0, "P@5": 6.0}}),
        record(IMAGE, 33.0, warnings=[SCRIPT]),
        record(SCRIPT, 22.0),
        record("__proto__", 45.0, run_id="__proto__"),
        record("alpha", 60.0, dataset="lf-other"),
        record("beta", 61.0, dataset=IMAGE),
        record("late", 1.0, status="failed", error=SCRIPT, metrics={}),
    ]


def write_page(folder: Path, runs: list[RunRecord], worlds: list[World] | None = None) -> Path:
    """The page, with the explorer's shards beside it if there are datasets to explore."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    page.write_text(build_page(page_data(Results(tuple(runs))), {"lf-made": FIGURES}, TABLES), encoding="utf-8")
    for one in FIGURES:
        if isinstance(one, Drawing):
            file = folder / f"{figure_stem('lf-made', one.id)}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(one.png)
    if worlds:
        write_shards(worlds, folder / "explorer")
    return page
