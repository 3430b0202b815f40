"""A report page of made-up runs, with names that are markup, and datasets for its explorer.

The page is written as `harness report` writes it. What it shows is checked against `World`, which counts hits its own
way and shares no code with the page.
"""

import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from PIL import Image
from scipy.sparse import csr_array

from harness.metrics import frequency_bins
from harness.report.cells import Cell, Table
from harness.report.explorer import build_explorer
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.page import build_page, page_data
from harness.report.results import Results
from harness.runs.record import RunRecord
from tests.support.row_runs import add_run, prepared

IMAGE = '<img src=x onerror="window.owned=1">'
SCRIPT = "</script><script>window.owned=1</script>"
QUOTE = "\"'><b onmouseover=window.owned=1>{{7*7}}${window.owned=1}"
HOSTILE = (
    IMAGE,
    SCRIPT,
    QUOTE,
    '"]);window.owned=1;//',
    "'+(window.owned=1)+`${window.owned=1}`",
    "javascript:window.owned=1",
    "__proto__",
    "line\u2028paragraph\u2029next\x85\n\r\t",
    "nul \0 bell \7 delete \x7f escape \x1b[31m",
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd \ufeff",
    "\U0001f469\u200d\U0001f52c e\u0301 \ud7ff\ue000\uffff\U0010ffff",
    "\\u003cscript\\u003e \\",
    "",
    "   ",
)
"""Hostile texts: markup, code, names of attributes that every JavaScript object has, and the empty text."""


def picture(width: int, height: int) -> bytes:
    """Return a teal box as PNG."""
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


def record(method: str = "alpha", p1: float = 50.0, seed: int = 0, on: str = "lf-made", **changes: object) -> RunRecord:
    """Return the record of a finished run of a made-up method, with everything that the page's drawer shows."""
    steps = list(range(10, 110, 10))
    values = {
        "run_id": f"run-{method}-{seed}",
        "status": "finished",
        "started": f"2026-01-01T00:00:{seed % 60:02d}",
        "seconds": 100 - p1,
        "config": {
            "method": method,
            "encoder": "static",
            "dataset": on,
            "seed": seed,
            "device": "cpu",
            "params": {"beta": 3, "epochs": 30},
        },
        "dataset": {"name": on, "title": on.upper(), "digest": "d" * 64, "filter": True},
        "metrics": {"P@1": p1, "P@3": p1 - 10, "P@5": p1 - 20, "PSP@1": 90 - p1, "PSP@3": 92 - p1, "PSP@5": 95 - p1},
        "metric_version": 1,
        "contributions": [
            {"bin": name, "labels": 10, "P@5": p1 / 6, "PSP@5": p1 / 9, "train_pairs": 100, "test_pairs": 10}
            for name in BINS
        ],
        "curves": {"step": steps, "train/loss": [100 / step for step in steps], "validation/P@1": [None, *steps[1:]]},
        "training": {"epochs": 30, "steps": 100, "seconds": 90 - p1 / 2},
        "timings": {"train": 90 - p1 / 2, "score": 1.5},
        "peak_memory_gib": p1 / 100,
        "environment": {"python": "3.11.7", "cpu": "a made-up processor", "packages": {"torch": "2.13.0"}},
    }
    return RunRecord.model_validate({**values, **changes})


def records() -> list[RunRecord]:
    """Return runs on three datasets: several seeds, hostile names, a missing metric, several scorers, a failure."""
    return [
        record("alpha", 50.0),
        record("alpha", 54.0, seed=1),
        record("beta", 71.0),
        record("gamma", 63.0, metrics={"P@1": 63.0, "P@3": 50.0, "P@5": 40.0}),
        record("views", 9.0, scorers={"dense": {"P@1": 9.0, "P@5": 5.0}, "fused": {"P@1": 11.0, "P@5": 6.0}}),
        record(IMAGE, 33.0, warnings=[SCRIPT]),
        record(SCRIPT, 22.0),
        record("__proto__", 45.0, run_id="__proto__"),
        record("alpha", 60.0, on="lf-other", run_id="other"),
        record("beta", 61.0, on=IMAGE, run_id="hostile"),
        record("late", 1.0, status="failed", error=SCRIPT, metrics={}),
    ]


# datasets for the explorer


PER_ROW = 10
BINS = ("head", "torso", "tail")


@dataclass(frozen=True)
class World:
    """One dataset as the explorer shows it; a label without anything to see is called by its id."""

    name: str
    texts: list[str]
    truth: list[list[int]]
    labels: list[tuple[str, str, int]]
    """Text, bin and number of train rows: labels of equal frequency can be in different bins."""
    methods: list[str]
    """In alphabetical order, which is that of the explorer's runs r0, r1, ..."""
    ids: list[list[list[int]]]
    """Predicted labels by run, row and rank; -1 = none."""
    train: csr_array
    """Labels of the train rows, [N, L]."""

    def score(self, run: int, row: int, rank: int) -> float | None:
        """Return the score of a prediction; None for one that has none, as rank 1 of row 4."""
        unknown = self.ids[run][row][rank] < 0 or (row == 4 and rank == 1)
        return None if unknown else 1 - (rank + run) / 16

    def hits(self, run: int, row: int, k: int) -> int:
        """Return how many of the first k predictions are true."""
        return len(set(self.ids[run][row][:k]) & set(self.truth[row]))

    def margins(self, one: int, other: int, k: int) -> list[int]:
        """Return, by row, how many more hits the first run has among k predictions than the other."""
        return [self.hits(one, row, k) - self.hits(other, row, k) for row in range(len(self.texts))]


def world(name: str, rows: int, methods: list[str], seed: int = 0) -> World:
    """Make a dataset whose first queries and labels are hostile texts; the others contain their number."""
    labels = 60
    generator = np.random.default_rng(seed)
    texts = [*HOSTILE, *(f"query {row} about topic{row % 7}" for row in range(len(HOSTILE), rows))][:rows]
    names = [*HOSTILE, *(f"label {label}" for label in range(len(HOSTILE), labels))]
    train = csr_array(generator.random((90, labels)) < generator.random(labels) / 3)
    counts, bins = train.sum(axis=0).tolist(), frequency_bins(train).tolist()
    order = generator.random((rows, labels)).argsort(axis=1)
    truth = [sorted(order[row, : 1 + row % 4].tolist()) for row in range(rows)]
    # the later a run, the more of the truth it has found
    known = generator.random((len(methods), rows, 4)) < np.linspace(0.3, 0.9, len(methods))[:, None, None]
    ids = []
    for run in range(len(methods)):
        found = [[label for label, yes in zip(truth[row], known[run, row], strict=False) if yes] for row in range(rows)]
        rest = generator.random((rows, labels)).argsort(axis=1)[:, :20].tolist()
        ids.append(
            [(found[row] + [one for one in rest[row] if one not in truth[row]])[:PER_ROW] for row in range(rows)]
        )
    # where a search found nothing there is nothing to show
    ids[0][3] = [-1] * PER_ROW
    described = [
        (text if text.strip() else f"id{label}", BINS[bins[label]], counts[label]) for label, text in enumerate(names)
    ]
    assert methods == sorted(methods)
    return World(name, texts, truth, described, methods, ids, train)


def write_explorer(worlds: list[World], out: Path, shard_rows: int = 500, shard_labels: int = 2000) -> None:
    """Write the explorer of these datasets, built from run folders."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", folder)
        patch.setattr("harness.report.explorer.shards.SHARD_ROWS", shard_rows)
        patch.setattr("harness.report.explorer.shards.SHARD_LABELS", shard_labels)
        for one in worlds:
            truth = np.zeros((len(one.texts), len(one.labels)), bool)
            for row, labels in enumerate(one.truth):
                truth[row, labels] = True
            names = [*HOSTILE, *(text for text, *_ in one.labels[len(HOSTILE) :])]
            data = prepared(Path(folder), one.name, one.texts, csr_array(truth), names, one.train)
            for run, method in enumerate(one.methods):
                scores = [[one.score(run, row, rank) for rank in range(PER_ROW)] for row in range(len(one.texts))]
                add_run(
                    Path(folder) / "runs",
                    data,
                    f"{one.name}-{run}",
                    ids=np.array(one.ids[run]),
                    confidences=np.array(scores, np.float32),
                    config={"method": method},
                    about={"title": one.name.upper()},
                )
        written = build_explorer([Path(folder) / "runs"], out)
    assert [len(ids) for ids in written.datasets.values()] == [len(one.methods) for one in worlds]
    assert written.left_out == ()


def write_page(
    folder: Path,
    runs: list[RunRecord],
    worlds: list[World] | None = None,
    benchmark: Collection[str] = (),
    **shards: int,
) -> Path:
    """Write the page, with the explorer beside it if there are datasets to explore; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    data = page_data(Results(tuple(runs)), benchmark)
    page.write_text(build_page(data, {"lf-made": FIGURES}, TABLES), encoding="utf-8")
    for one in FIGURES:
        if isinstance(one, Drawing):
            file = folder / f"{figure_stem('lf-made', one.id)}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(one.png)
    if worlds:
        write_explorer(worlds, folder / "explorer", **shards)
    return page
