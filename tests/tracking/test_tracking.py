"""Events first, and the right status always, whatever the tracker does."""

import math
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Pruned, UserError
from harness.io.files import read_manifest
from harness.io.private import without_secrets
from harness.runs.events import LogReader, has_ended
from harness.runs.log import GroupLog, RunLog
from harness.runs.record import read_record
from harness.runs.resume import find_earlier
from harness.tracking import make_tracker
from harness.tracking.store import reason
from tests.support.tracked_runs import draft, events_of, finished


class Memory:
    """A tracker that remembers what lay in the folder when it was called."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[str], bool]] = []

    def start(self, folder: Path) -> None:
        self._look("start", folder)

    def finish(self, folder: Path, wait: bool = True) -> None:
        self._look("finish", folder)

    def _look(self, when: str, folder: Path) -> None:
        complete = read_manifest(folder) is not None and (folder / "record.json").exists()
        self.seen.append((when, [event["event"] for event in events_of(folder)], complete))


def test_a_finished_run_is_complete_and_hashed(tmp_path: Path) -> None:
    """fault 25: NaN is a word in the log"""
    tracker = Memory()
    with RunLog(tmp_path / "run", draft(), tracker) as run_log:
        run_log.metrics({"P@1": 50.0, "loss": math.nan, "rate": -math.inf}, step=7)
        run_log.warn("look here")
        run_log.warn("look here")
        run_log.complete(finished())
    kinds = ["start", "metrics", "warning", "end"]
    assert [event["event"] for event in events_of(tmp_path / "run")] == kinds
    assert events_of(tmp_path / "run")[1]["values"] == {"P@1": 50.0, "loss": "nan", "rate": "-inf"}
    assert tracker.seen == [("start", ["start"], False), ("finish", kinds, True)]
    assert read_record(tmp_path / "run").metrics == {"P@1": 50.0}
    manifest = read_manifest(tmp_path / "run", verify=True)
    assert manifest is not None
    assert set(manifest["files"]) == {"events.jsonl", "record.json"}


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("boom\nmore"), "failed"), (KeyboardInterrupt(), "killed"), (Pruned("others are better"), "pruned")],
)
def test_an_exception_gives_the_right_status(tmp_path: Path, error: BaseException, status: str) -> None:
    tracker = Memory()
    with pytest.raises(type(error)), RunLog(tmp_path / "run", draft(), tracker):
        raise error
    record = read_record(tmp_path / "run")
    assert record.status == status
    assert [when for when, _, _ in tracker.seen] == ["start", "finish"]
    assert record.error is not None
    assert "more" not in record.error
    assert record.metrics == {}


def test_a_kill_while_the_tracker_starts_is_recorded(tmp_path: Path) -> None:
    """fault 5"""

    class Slow(Memory):
        def start(self, folder: Path) -> None:
            raise KeyboardInterrupt

    tracker = Slow()
    with pytest.raises(KeyboardInterrupt), RunLog(tmp_path / "run", draft(), tracker):
        raise AssertionError("the block must not be entered")
    assert read_record(tmp_path / "run").status == "killed"
    assert tracker.seen == [("finish", ["start", "end"], True)]


def test_threads_may_log_at_once(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", draft()) as run_log:
        workers = [
            threading.Thread(target=lambda name=name: [run_log.metrics({name: 1.0}, step) for step in range(200)])
            for name in "abcd"
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        run_log.complete(finished())
    values = [(*event["values"], event["step"]) for event in events_of(tmp_path / "run") if event["event"] == "metrics"]
    assert sorted(values) == [(name, step) for name in "abcd" for step in range(200)]


def test_a_resumed_run_drops_what_no_longer_holds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with suppress(KeyboardInterrupt), RunLog(folder, draft()) as run_log:
        run_log.warn("first")
        raise KeyboardInterrupt
    with (folder / "events.jsonl").open("a") as log:
        log.write('{"event": "metr')
    tracker = Memory()
    earlier = find_earlier(str(folder))
    with RunLog(folder, earlier.continued(draft()), tracker, earlier) as run_log:
        assert run_log.warnings == ["first"]
        run_log.complete(finished())
    kinds = ["start", "warning", "end", "resume"]
    assert tracker.seen == [("start", kinds, False), ("finish", [*kinds, "end"], True)]


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b'{"time": "2026-01-01T00:00:00+00:00", "event": "start"}\n{"time": "2026-01-01T00:00:01+00:00", "ev'
    )
    reader = LogReader(path)
    assert [event["event"] for event in reader.read()] == ["start"]
    assert reader.read() == []
    assert not has_ended(path)
    with path.open("ab") as stream:
        stream.write(b'ent": "end", "status": "finished", "error": null}\n')
    assert has_ended(path)
    assert [event["event"] for event in reader.read()] == ["end"]
    with path.open("ab") as stream:
        stream.write(b"[1]\n")
    with pytest.raises(UserError, match=r"events.jsonl:3: not an event"):
        reader.read()


GROUP: dict[str, Any] = {"experiment": "synthetic", "name": "my bench", "params": {"seeds": [0]}, "tags": {"a": 1}}


def group(folder: Path, tracker: Any = None) -> GroupLog:
    return GroupLog(folder, "bench", "bench-1", tracker=tracker, **GROUP)


def test_a_group_is_logged_and_continued(tmp_path: Path) -> None:
    tracker = Memory()
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "front.png").write_bytes(b"png")
    with suppress(ValueError), group(tmp_path / "group", tracker) as log:
        log.metrics({"done": 1.0}, 1)
        log.artifact(tmp_path / "group" / "front.png")
        raise ValueError("boom")
    with group(tmp_path / "group") as log:
        assert log.parent == {"id": "bench-1", "kind": "bench", "name": "my bench", "params": {"seeds": [0]}}
    events = events_of(tmp_path / "group")
    assert [event["event"] for event in events] == ["start", "metrics", "artifact", "end", "resume", "end"]
    assert [event.get("status") for event in events] == [None, None, None, "failed", None, "finished"]
    assert events[2]["path"] == "front.png"
    assert events[0].items() >= {"kind": "bench", "run_id": "bench-1", **GROUP}.items()
    assert [when for when, _, _ in tracker.seen] == ["start", "finish"]
    with pytest.raises(UserError, match="holds the log of 'bench-1'"):
        GroupLog(tmp_path / "group", "bench", "other", experiment="x", name="x", params={}, tags={})
    with pytest.raises(ValueError, match="subpath"), group(tmp_path / "group") as log:
        log.artifact(tmp_path / "elsewhere.png")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mlruns", "folder of files"),
        ("./mlruns", "folder of files"),
        ("/data/mlruns", "folder of files"),
        ("file:///data/mlruns", "folder of files"),
        ("C:\\runs", "folder of files"),
        ("ftp://host/x", "unknown scheme of MLFLOW_TRACKING_URI 'ftp'"),
        ("postgres://u:secret@host/x", "did you mean 'postgresql'"),
        ("http:/host", "incomplete"),
        ("http://", "names no server"),
        ("http://host:port", "names no server"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_a_store_that_cannot_be_is_refused(uri: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=message) as raised:
        make_tracker("mlflow")
    assert "secret" not in str(raised.value)
    assert make_tracker("none") is None


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:p%40ss-word@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "tok-en")
    text = "cannot open postgresql://me:p%40ss-word@host/db (p@ss-word, hunter2, tok-en)\nmore"
    shown = reason(ConnectionError(text))
    assert shown == "ConnectionError: cannot open postgresql://me:***@host/db (***, ***, ***)"
    assert without_secrets("http://me:other@host") == "http://me:***@host"
