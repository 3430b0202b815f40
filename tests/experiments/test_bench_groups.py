"""The group runs of a bench: what their logs hold, what runs are given, and that they never stand in the way."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.bench import Request, State
from harness.experiments.bench import run as running
from harness.experiments.bench.plan import plan
from harness.experiments.bench.run import GroupRuns, command
from harness.experiments.bench.store import RunStore
from harness.io.files import read_json
from harness.runs.events import LogReader
from harness.runs.record import find_records, unfinished
from tests.support.bench_cells import answer, finished, in_place_of_runs, printing, request
from tests.support.commands import call
from tests.support.training_runs import DATASET

pytestmark = pytest.mark.usefixtures("one_thread")


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
def runs(workspace: Path) -> Path:
    return workspace / "runs"


def cells(seeds: str = "0") -> list[State]:
    return [State(cell) for cell in plan(request(seeds=seeds))]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in LogReader(folder / "events.jsonl").read() if event["event"] == kind]


def test_a_bench_has_a_group_run_with_its_cells(
    runs: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, before = plan(request(seeds="0,1"))
    finished(before)
    record, good = printing(first)
    seen = in_place_of_runs(monkeypatch, zeroshot=good, depsl="raise ValueError")
    matrix = ["--datasets", DATASET, "--encoder", "tiny", "--seeds", "0,1"]
    rows = answer("--methods", "zeroshot,depsl", *matrix, capsys=capsys, code=1)
    assert [row["status"] for row in rows] == ["done", "failed", "done", "failed"]
    (group,) = sent.started
    assert sent.finished == [group]
    assert group.parent == runs / "benches"
    dataset = record.dataset["name"]
    assert (group.name.startswith("bench-2"), group.name.endswith(f"-{dataset}")) == (True, True)
    (start,), (end,) = events(group, "start"), events(group, "end")
    assert (start["kind"], start["run_id"], start["experiment"]) == ("bench", group.name, dataset)
    assert start["params"] == {"methods": "zeroshot,depsl", "datasets": DATASET, "seeds": "0,1", "encoder": "tiny"}
    assert (end["status"], end["error"]) == ("failed", "UserError: 2 of 4 cells failed")
    assert [(cell["method"], cell["seed"], cell["status"]) for cell in events(group, "cell")] == [
        ("zeroshot", 0, "done"),
        ("depsl", 0, "failed"),
        ("depsl", 1, "failed"),
    ]
    counts = [(event["step"], event["values"]) for event in events(group, "metrics")]
    assert counts[0] == (1, {"cells/done": 2.0, "cells/failed": 0.0})  # one was there before
    assert counts[-1] == (3, {"cells/done": 2.0, "cells/failed": 2.0})
    assert [artifact["path"] for artifact in events(group, "artifact")] == ["comparison.md", "comparison.csv"]
    assert "zeroshot" in (group / "comparison.csv").read_text()
    assert " 2 |" in (group / "comparison.md").read_text()  # both seeds, also the one that was there
    given = read_json(Path(seen[0][seen[0].index("--parent") + 1]))
    assert given == {"id": group.name, "kind": "bench", "name": "bench zeroshot,depsl", "params": start["params"]}
    assert all("--parent" in words for words in seen)


def test_a_run_records_its_group_which_is_no_run_itself(runs: Path, tmp_path: Path, sent: Sent) -> None:
    (state,) = cells()
    with GroupRuns(request(), [state], runs, "mlflow") as groups:
        assert (find_records([runs]), unfinished(runs), RunStore(runs).finished()) == ([], [], [])
        words = command(state.cell, runs, "none", None, tmp_path, groups.file_of(state.cell))
        assert call(*words[words.index("run") :]) == 0
    (record,) = find_records([runs])
    assert record.parent is not None
    assert (record.parent["id"], record.parent["kind"]) == (sent.started[0].name, "bench")
    assert "--parent" not in command(state.cell, runs, "none", record.run_id, tmp_path, tmp_path)  # it keeps its own
    assert RunStore(runs).look(state.cell).done == record  # belonging somewhere makes it no other run


def test_without_tracking_or_without_work_there_is_no_group_run(runs: Path, sent: Sent) -> None:
    (waiting,), (done,) = cells(), cells()
    done.finish(finished(done.cell)[0])
    for state, track in ((waiting, "none"), (done, "mlflow")):
        with GroupRuns(request(), [state], runs, track) as groups:
            assert groups.file_of(state.cell) is None
            groups.changed(state)
            groups.compare(lambda states: [])
    assert (sent.started, (runs / "benches").exists()) == ([], False)


def test_every_dataset_has_a_group_run_of_its_own(runs: Path, sent: Sent) -> None:
    here, there = (state.cell for state in cells("0,1"))
    there = replace(there, data_name="other")
    with GroupRuns(request(), [State(here), State(there)], runs, "mlflow") as groups:
        files = [path for path in map(groups.file_of, (here, there)) if path]
        groups.stopped = True
    assert [path.parent for path in files] == sent.started == sent.finished
    assert [read_json(path)["id"] for path in files] == [folder.name for folder in sent.started]
    assert [events(folder, "end")[0]["status"] for folder in sent.finished] == ["killed", "killed"]
    starts = [events(folder, "start")[0] for folder in sent.started]
    assert [start["experiment"] for start in starts] == [here.data_name, "other"]
    assert {start["tags"]["bench"] for start in starts} == {sent.started[1].name.removesuffix("-other")}


def test_no_count_is_lost_when_a_cell_ends_elsewhere(runs: Path, sent: Sent) -> None:
    """MLflow keeps one figure of a name and a step, so no step may come twice."""
    states = cells("0,1")
    with GroupRuns(request(), states, runs, "mlflow") as groups:
        for place, status in ((0, "running elsewhere"), (1, "done"), (0, "done")):
            states[place].status = status  # type: ignore[assignment]
            groups.changed(states[place])
    counts = [(event["step"], event["values"]["cells/done"]) for event in events(sent.started[0], "metrics")]
    assert counts == [(1, 0.0), (2, 1.0), (3, 2.0)]


def test_a_full_disk_costs_the_group_run_alone(
    runs: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 23"""

    def full(*arguments: object, **metadata: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (state,) = cells()
    with GroupRuns(request(), [state], runs, "mlflow") as groups:
        monkeypatch.setattr("harness.runs.log.GroupLog.event", full)
        state.status = "failed"
        groups.changed(state)
        groups.changed(state)
        assert groups.file_of(state.cell) is None
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_a_group_run_says_what_was_asked_for_and_no_path(
    workspace: Path, runs: Path, tmp_path: Path, sent: Sent
) -> None:
    """fault 28"""
    typed = ("unidec:encoder=/data/models/small", "encoder_options={teacher: ~/their/model}", "ks=[1, 5]")
    datasets = f"{tmp_path / 'tickets'},synthetic:train=9,test=9"
    asked = Request("all", datasets, "0,1", str(tmp_path / "model"), typed, "thesis-2.5")
    (state,) = cells()
    config = state.cell.config.model_copy(update={"encoder": str(tmp_path / "model")})
    state.cell = replace(state.cell, config=config)
    with GroupRuns(asked, [state], runs, "mlflow") as groups:
        state.status, state.reason = "failed", f"no file {workspace}/x"
        groups.changed(state)
    (folder,) = sent.started
    (start,), (cell,) = events(folder, "start"), events(folder, "cell")
    assert start["params"] == {
        "methods": "all",
        "datasets": "./tickets,synthetic:train=9,test=9",
        "seeds": "0,1",
        "table": "thesis-2.5",
        "encoder": "./model",
        "settings": "unidec:encoder=./small; encoder_options={teacher: ./model}; ks=[1, 5]",
    }
    assert (start["name"], cell["encoder"]) == ("bench thesis-2.5", "./model")
    assert cell["reason"] == "no file $HARNESS_HOME/x"
    assert str(tmp_path) not in (folder / "events.jsonl").read_text()
