"""The course of a training as a picture."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from harness.tracking.curves import CURVES, draw_curves

Events = list[dict[str, Any]]


def metrics(step: int, **values: Any) -> dict[str, Any]:
    return {
        "event": "metrics",
        "step": step,
        "values": {key.replace("__", "/"): value for key, value in values.items()},
    }


def training(epochs: int, *, first: int = 0, loss: float = 2.0, **more: Any) -> Events:
    return [
        metrics(
            first + 8 * epoch,
            train__loss=loss / epoch,
            train__loss_d=loss / (2 * epoch),
            train__epoch=epoch,
            lr__encoder=0.01 / epoch,
            train__pool=800.0,
            train__positives=2.5,
            **more,
        )
        for epoch in range(1, epochs + 1)
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def saved(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    return figures


def panels(figure: Figure) -> dict[str, Axes]:
    return {axis.get_title(loc="left"): axis for axis in figure.axes}


def curves(axis: Axes) -> dict[str, list[tuple[float, float]]]:
    """Points of every labelled curve, gaps left out."""
    found = {}
    for line in axis.get_lines():
        points = np.asarray(line.get_xydata())
        if not str(line.get_label()).startswith("_"):
            found[str(line.get_label())] = [(x, y) for x, y in points.tolist() if math.isfinite(y)]
    return found


def boundaries(axis: Axes) -> list[float]:
    return [
        float(np.asarray(line.get_xdata())[0]) for line in axis.get_lines() if str(line.get_label()).startswith("_")
    ]


def test_every_group_of_figures_has_its_panel(tmp_path: Path, drawn: list[Figure]) -> None:
    scores = {"validation__P@1": 50.0, "validation__PSP@5": 40.0, "validation__R@5": 60.0}
    start = {"event": "start", "run_id": "20260101-unidec"}
    assert draw_curves([start, *training(3, **scores)], tmp_path) == [tmp_path / CURVES]
    shown = panels(drawn[0])
    assert list(shown) == ["Loss", "Held-out rows, %", "Learning rates", "Pools (mean)"]
    assert curves(shown["Loss"]) == {
        "total": [(8, 2.0), (16, 1.0), (24, pytest.approx(2 / 3))],
        "dual encoder": [(8, 1.0), (16, 0.5), (24, pytest.approx(1 / 3))],
    }
    assert list(curves(shown["Held-out rows, %"])) == ["P@1", "PSP@5"]
    assert list(curves(shown["Pools (mean)"])) == ["labels in a pool", "positives of a query"]
    assert shown["Pools (mean)"].get_yscale() == "log"
    assert shown["Learning rates"].get_yscale() == "linear"
    assert drawn[0].get_suptitle() == "20260101-unidec"
    picture = imread(tmp_path / CURVES)
    assert picture.shape[0] > 400
    assert picture.shape[1] > 800
    assert picture[..., :3].std() > 0.02


def test_stages_are_apart(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_curves([*training(3), *training(2, first=24, loss=9.0)], tmp_path)
    (axis, *_) = drawn[0].axes
    assert boundaries(axis) == [24]
    steps, values = (np.asarray(part) for part in zip(*axis.get_lines()[0].get_xydata().tolist(), strict=True))  # type: ignore[union-attr]
    gap = steps[np.isnan(values)]
    assert len(gap) == 1
    assert 24 < gap[0] < 32


def test_one_epoch_is_seen(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_curves(training(1), tmp_path)
    line = drawn[0].axes[0].get_lines()[0]
    assert line.get_marker() == "o"
    assert [tick for tick in drawn[0].axes[0].get_xticks() if tick != round(tick)] == []
    assert list(panels(drawn[0])) == ["Loss", "Learning rates", "Pools (mean)"]


def test_values_that_are_not_finite_are_gaps(tmp_path: Path, drawn: list[Figure]) -> None:
    """fault 25"""
    events = training(4, **{"validation__P@1": "nan", "lr__heads": "inf"})
    events[1]["values"]["train/loss"] = "nan"
    events[2]["values"]["train/loss"] = "-inf"
    assert draw_curves(events, tmp_path)
    shown = panels(drawn[0])
    assert [step for step, _ in curves(shown["Loss"])["total"]] == [8, 32]
    assert "Held-out rows, %" not in shown
    assert list(curves(shown["Learning rates"])) == ["encoder"]


def test_a_step_that_was_repeated_counts_as_it_was_at_last(tmp_path: Path, drawn: list[Figure]) -> None:
    """A run taken up from a checkpoint logs some steps again."""
    again = {"event": "resume", "run_id": "x"}
    draw_curves([*training(3), again, *training(4, loss=4.0)[1:]], tmp_path)
    (axis, *_) = drawn[0].axes
    assert curves(axis)["total"] == [(8, 2.0), (16, 2.0), (24, pytest.approx(4 / 3)), (32, 1.0)]
    assert boundaries(axis) == []


def test_nothing_to_draw(tmp_path: Path) -> None:
    final = metrics(0, **{"P@1": 40.0, "seconds__train": 3.0})
    for events in ([], [{"event": "start"}, {"event": "end", "status": "finished"}], [final]):
        assert draw_curves(events, tmp_path) == []
    assert draw_curves([metrics(1, train__loss="nan")], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_equal_logs_give_equal_bytes_without_a_display(tmp_path: Path) -> None:
    """fault 63"""
    events = [{"event": "start", "run_id": "r"}, *training(5)]
    (tmp_path / "here").mkdir()
    draw_curves(events, tmp_path / "here")
    code = (
        "import json, sys; from pathlib import Path; from harness.tracking.curves import draw_curves; "
        f"draw_curves(json.loads(sys.stdin.read()), Path({str(tmp_path)!r})); "
        "assert not {'torch', 'mlflow', 'matplotlib.pyplot', 'tkinter'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], input=json.dumps(events), text=True, check=True, timeout=120)
    first, second = (tmp_path / "here" / CURVES).read_bytes(), (tmp_path / CURVES).read_bytes()
    assert first == second
    assert b"Software" not in first
    assert b"atplotlib" not in first
