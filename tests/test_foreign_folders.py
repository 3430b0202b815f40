"""Run folders of strangers: links that lead out, logs without an end, and starts that name what no run names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError, UserError
from harness.files import place_inside
from harness.record import read_record, refuse_places
from harness.resume import find_earlier
from harness.tracking.events import LogReader, has_ended
from harness.tracking.syncing import run_id_of
from tests.commands import call
from tests.interrupted_runs import kill_at_step
from tests.training_runs import in_child, only_run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Events of a run that was killed."""
    home = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        assert in_child(lambda: kill_at_step(2), home / "said") == -9
    return [json.loads(line) for line in (only_run(home) / "events.jsonl").read_text().splitlines()]


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"run_id": "../../elsewhere"}, "run_id"),
        ({"started": "yesterday"}, "started"),
        ({"config": {}}, "config.method"),
        ({"config": {"method": "unidec", "dataset": 3, "encoder": "tiny"}}, "config.dataset"),
    ],
)
def test_a_start_that_is_none_is_refused_with_its_line(
    change: dict[str, Any], named: str, log: list[dict[str, Any]], tmp_path: Path
) -> None:
    """fault 70"""
    folder = written(tmp_path / "runs" / "one", log)
    assert find_earlier(str(folder)).facts["run_id"] == log[0]["run_id"]
    other = written(tmp_path / "runs" / "other", [log[0] | change, *log[1:]])
    with pytest.raises(DataError, match=rf"events.jsonl:1: .*{named}"):
        find_earlier(str(other))


@pytest.mark.parametrize("place", [".", "..", "/etc", "a/b", "./../a", "near"])
def test_recorded_names_of_folders_are_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 70: `near` is a folder where the user stands"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near").mkdir()
    (tmp_path / "static").mkdir()
    with pytest.raises(UserError, match="so it is refused"):
        refuse_places("record", {"dataset": "synthetic", "encoder": place})
    with pytest.raises(UserError, match="so it is refused"):
        refuse_places("record", {"dataset": place, "encoder": "tiny"})
    refuse_places("record", {"dataset": "./data", "encoder": "static", "encoder_options": {"teacher": "./near"}})


READERS: dict[str, Callable[[Path], object]] = {
    "resume": lambda folder: find_earlier(str(folder)),
    "sync": lambda folder: run_id_of(folder / "events.jsonl"),
    "follow": lambda folder: LogReader(folder / "events.jsonl").read(),
    "reap": lambda folder: has_ended(folder / "events.jsonl"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_log_that_is_a_link_out_is_not_read(reader: str, log: list[dict[str, Any]], tmp_path: Path) -> None:
    """fault 70"""
    real = written(tmp_path / "elsewhere", log)
    READERS[reader](real)
    folder = tmp_path / "runs" / "link"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").symlink_to(real / "events.jsonl")
    with pytest.raises(DataError):
        READERS[reader](folder)


def test_a_record_that_is_a_link_out_is_not_read(tmp_path: Path) -> None:
    """fault 70"""
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(DataError, match="not inside; refused"):
        read_record(tmp_path / "run")


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    """fault 68"""
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(DataError, match="not inside; refused"):
        place_inside(tmp_path, "round")


def test_an_endless_log_does_not_hold_up_the_doctor(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 70"""
    for name in ("endless", "folder"):
        (workspace / "runs" / name).mkdir(parents=True)
    (workspace / "runs" / "endless" / "events.jsonl").symlink_to("/dev/zero")
    (workspace / "runs" / "folder" / "events.jsonl").mkdir()
    (workspace / "runs" / ".x.lock").mkdir()
    call("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert (found["dead runs"]["state"], found["locks"]["state"]) == ("ok", "ok")
