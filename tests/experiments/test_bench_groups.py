"""The parent runs of a bench: what their logs hold, what children are given, and that they never stand in the way."""

import errno
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.bench import Cell, Request, State
from harness.experiments.bench import run as running
from harness.experiments.bench.plan import plan
from harness.experiments.bench.run import GroupRuns, command
from harness.experiments.bench.store import RunStore
from harness.io.files import read_json
from harness.runs.events import LogReader
from harness.runs.record import find_records, unfinished
from tests.support.bench_cells import answer, finished, request
from tests.support.commands import call
from tests.support.training_runs import DATASET

pytestmark = pytest.mark.usefixtures("one_thread")

MATRIX = ["--datasets", DATASET, "--encoder", "tiny"]


class Sent:
    """A tracker that notes what it is told."""

    def __init__(self) -> None:
        self.started: list[Path] = []
        self.finished: list[Path] = []

    def start(self, folder: Path) -> None:
        assert LogReader(folder / "events.jsonl").read()[0]["event"] == "start"
        self.started.append(folder)

    def finish(self, folder: Path, wait: bool = True) -> None:
        self.finished.append(folder)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    tracker = Sent()
    monkeypatch.setattr(running, "make_tracker", lambda track: tracker)
    return tracker


@pytest.fixture
def stand_in(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Processes that print the record of a finished zeroshot run, and fail for any other method."""

    def install() -> list[list[str]]:
        seen: list[list[str]] = []

        def script(cell: Cell, *given: Any) -> list[str]:
            seen.append(command(cell, *given))
            kept = workspace / "kept" / "record.json"
            text = f"print(open({str(kept)!r}).read())" if cell.config.method == "zeroshot" else "raise ValueError"
            return [sys.executable, "-S", "-c", text]

        monkeypatch.setattr(running, "command", script)
        return seen

    return install


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in LogReader(folder / "events.jsonl").read() if event["event"] == kind]


def test_a_bench_has_a_parent_with_its_cells(
    workspace: Path, sent: Sent, stand_in: Callable[..., list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, before = plan(request(seeds="0,1"))
    finished(before)
    record, folder = finished(first)
    shutil.move(folder, workspace / "kept")
    seen = stand_in()
    rows = answer("--methods", "zeroshot,depsl", *MATRIX, "--seeds", "0,1", capsys=capsys, code=1)
    assert [row["status"] for row in rows] == ["done", "failed", "done", "failed"]
    (parent,) = sent.started
    assert sent.finished == [parent]
    assert parent.parent == workspace / "runs" / "benches"
    assert parent.name.startswith("bench-2")
    assert parent.name.endswith(f"-{record.dataset['name']}")
    (start,), (end,) = events(parent, "start"), events(parent, "end")
    assert (start["kind"], start["run_id"], start["experiment"]) == ("bench", parent.name, record.dataset["name"])
    assert start["params"] == {"methods": "zeroshot,depsl", "datasets": DATASET, "seeds": "0,1", "encoder": "tiny"}
    assert (end["status"], end["error"]) == ("failed", "UserError: 2 of 4 cells failed")
    assert [(cell["method"], cell["seed"], cell["status"]) for cell in events(parent, "cell")] == [
        ("zeroshot", 0, "done"),
        ("depsl", 0, "failed"),
        ("depsl", 1, "failed"),
    ]
    counts = [(event["step"], event["values"]) for event in events(parent, "metrics")]
    assert counts[0] == (1, {"cells/done": 2.0, "cells/failed": 0.0})  # one was there before
    assert counts[-1] == (3, {"cells/done": 2.0, "cells/failed": 2.0})
    for form, art in zip(("md", "csv"), events(parent, "artifact"), strict=True):
        assert art["path"] == f"comparison.{form}"
        assert "zeroshot" in (parent / f"comparison.{form}").read_text()
    assert " 2 |" in (parent / "comparison.md").read_text()  # both seeds, also the one that was there

    given = Path(seen[0][seen[0].index("--parent") + 1])
    assert read_json(given) == {
        "id": parent.name,
        "kind": "bench",
        "name": "bench zeroshot,depsl",
        "params": start["params"],
    }
    assert all("--parent" in words for words in seen)


def test_a_child_records_its_parent(workspace: Path, tmp_path: Path, sent: Sent) -> None:
    (cell,) = plan(request())
    runs = workspace / "runs"
    with GroupRuns(request(), [State(cell)], runs, "mlflow") as made:
        words = command(cell, runs, "none", None, tmp_path, made.file_of(cell))
        assert call(*words[words.index("run") :]) == 0
    (record,) = find_records([runs])
    assert record.parent is not None
    assert (record.parent["id"], record.parent["kind"]) == (sent.started[0].name, "bench")
    assert "--parent" not in command(
        cell, runs, "none", record.run_id, tmp_path, tmp_path
    )  # taken up, it keeps its own
    assert RunStore(runs).look(cell).done == record  # belonging somewhere makes it no other run


def test_a_parent_is_not_taken_for_a_run(workspace: Path, sent: Sent, stand_in: Callable[..., Any]) -> None:
    cells = plan(request())
    record, _ = finished(cells[0])
    runs = workspace / "runs"
    with GroupRuns(request(), [State(plan(request(seeds="5"))[0])], runs, "mlflow"):
        assert [one.run_id for one in find_records([runs])] == [record.run_id]
        assert unfinished(runs) == []
        assert [one.run_id for one in RunStore(runs).finished()] == [record.run_id]


def test_without_tracking_or_without_work_there_is_no_parent(workspace: Path, sent: Sent) -> None:
    (cell,) = plan(request())
    done = State(cell)
    done.finish(finished(cell)[0])
    for states, track in (([State(cell)], "none"), ([done], "mlflow")):
        with GroupRuns(request(), states, workspace / "runs", track) as made:
            assert made.file_of(cell) is None
            made.changed(states[0])
            made.compare(lambda states: [])
    assert (sent.started, (workspace / "runs" / "benches").exists()) == ([], False)


def test_every_dataset_has_a_parent_of_its_own(workspace: Path, sent: Sent) -> None:
    here, there = plan(request(seeds="0,1"))
    cells = [here, replace(there, data_name="other")]
    with GroupRuns(request(), [State(cell) for cell in cells], workspace / "runs", "mlflow") as made:
        files = [made.file_of(cell) for cell in cells]
        made.stopped = True
    assert [path.parent for path in files if path] == sent.started == sent.finished
    assert [read_json(path)["id"] for path in files if path] == [folder.name for folder in sent.started]
    assert [events(folder, "end")[0]["status"] for folder in sent.finished] == ["killed", "killed"]
    starts = [events(folder, "start")[0] for folder in sent.started]
    assert [start["experiment"] for start in starts] == [here.data_name, "other"]
    assert {start["tags"]["bench"] for start in starts} == {sent.started[1].name.removesuffix("-other")}


def test_no_count_is_lost_when_a_cell_ends_elsewhere(workspace: Path, sent: Sent) -> None:
    """MLflow keeps one figure of a name and a step, so no step may come twice."""
    cells = [State(cell) for cell in plan(request(seeds="0,1"))]
    with GroupRuns(request(), cells, workspace / "runs", "mlflow") as made:
        for place, status in ((0, "running elsewhere"), (1, "done"), (0, "done")):
            cells[place].status = status
            made.changed(cells[place])
    counts = [(event["step"], event["values"]["cells/done"]) for event in events(sent.started[0], "metrics")]
    assert counts == [(1, 0.0), (2, 1.0), (3, 2.0)]


def test_a_full_disk_costs_the_parent_alone(
    workspace: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 23"""
    (cell,) = plan(request())
    state = State(cell)
    with GroupRuns(request(), [state], workspace / "runs", "mlflow") as made:
        (log,) = made._groups.values()

        def full(kind: str, **metadata: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(log, "event", full)
        state.status = "failed"
        made.changed(state)
        made.changed(state)
        assert made.file_of(cell) is None
    assert capsys.readouterr().err.count("goes on without its group run in MLflow: No space left on device") == 1


def test_a_parent_says_what_was_asked_for_and_no_path(workspace: Path, tmp_path: Path, sent: Sent) -> None:
    """fault 28"""
    tables = Request("all", None, "0,1", None, ("epochs=2", "eta=1"), "thesis-2.5")
    (cell,) = plan(request())
    cell = replace(cell, config=cell.config.model_copy(update={"encoder": str(tmp_path / "model")}))
    state = State(cell, "waiting")
    with GroupRuns(tables, [state], workspace / "runs", "mlflow") as made:
        state.status, state.reason = "failed", f"no file {workspace}/x"
        made.changed(state)
    (folder,) = sent.started
    (start,), (told,) = events(folder, "start"), events(folder, "cell")
    assert start["params"] == {"methods": "all", "seeds": "0,1", "table": "thesis-2.5", "settings": "epochs=2; eta=1"}
    assert (start["name"], told["encoder"], told["reason"]) == (
        "bench thesis-2.5",
        "./model",
        "no file $HARNESS_HOME/x",
    )
    typed = ("unidec:encoder=/data/models/small", "encoder_options={teacher: ~/their/model}", "ks=[1, 5]")
    folders = Request("all", f"{tmp_path / 'tickets'},synthetic:train=9,test=9", "0", str(tmp_path / "model"), typed)
    shown = running._params(folders)
    assert shown["datasets"] == "./tickets,synthetic:train=9,test=9"
    assert shown["settings"] == "unidec:encoder=./small; encoder_options={teacher: ./model}; ks=[1, 5]"
    assert str(tmp_path) not in (folder / "events.jsonl").read_text()
