"""What a record keeps of the course of a training, and of the rows of every way of scoring."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.runs.record import read_record
from harness.runs.series import curves
from tests.runs.conftest import Whole
from tests.support.training_runs import only_run


def logged(step: int, **values: float) -> dict[str, Any]:
    return {"event": "metrics", "step": step, "values": {name.replace("__", "/"): one for name, one in values.items()}}


def test_curves_share_their_steps_and_mark_what_is_missing() -> None:
    events = [
        {"event": "start"},
        logged(4, train__loss=2.0, train__epoch=1, peak_memory_gib=1.0),
        logged(8, train__loss=1.23456789),
        {"event": "metrics", "step": 8, "values": {"validation/P@1": 50.0, "lr/encoder": float("nan")}},
        logged(7, cpu__percent=99.0),
    ]
    assert curves(events) == {
        "step": [4.0, 8.0],
        "lr/encoder": [None, None],
        "train/epoch": [1.0, None],
        "train/loss": [2.0, 1.23457],
        "validation/P@1": [None, 50.0],
    }
    assert curves([{"event": "start"}, logged(0, seconds__train=1.0)]) == {}


def test_a_step_done_again_after_a_resume_counts_once() -> None:
    events = [logged(4, train__loss=2.0), logged(8, train__loss=9.0), logged(8, train__loss=1.0)]
    assert curves(events)["train/loss"] == [2.0, 1.0]


def test_a_run_keeps_its_course_and_the_rows_of_every_scorer(validated: tuple[Path, Whole]) -> None:
    home, (record, _) = validated
    folder = only_run(home)
    assert read_record(folder).curves == record.curves
    assert record.curves["step"][-1] == record.training["steps"]
    assert record.curves["train/epoch"] == [1, 2, 3, 4]
    validated = record.curves["validation/PSP@5"]
    assert [value is None for value in validated] == [True, False, True, False]
    first, *others = record.scorers
    files = {first: folder / "per_row.npy"} | {scorer: folder / f"per_row.{scorer}.npy" for scorer in others}
    assert len(files) == 3
    for scorer, file in files.items():
        means = np.load(file, allow_pickle=False).mean(axis=0)
        for name, mean in zip(record.per_row, means, strict=True):
            assert mean == pytest.approx(record.scorers[scorer][name], abs=1e-3)
