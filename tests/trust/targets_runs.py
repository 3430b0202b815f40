"""Readers of what runs and sweeps leave behind: records, logs, locks, checkpoints, predictions, studies, speed."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from harness.bench.shelf import Shelf
from harness.folders import remembered_folders
from harness.perf.saved import read_speed
from harness.record import find_records, read_record
from harness.report import comparison
from harness.report.collecting import collect, read_study
from harness.report.comparing import _FEWEST_RESAMPLES, compare
from harness.report.comparing.contenders import find_contenders
from harness.report.evidence import read_evidence
from harness.report.trust import read_trust, trust_files
from harness.resume import find_earlier, read_events
from harness.runlock import held_by_another, run_lock
from harness.sweep.joining import read_facts
from harness.sweep.runs import trial_runs
from harness.tracking.events import LogReader, has_ended
from harness.tracking.series import curves
from harness.tracking.syncing import run_id_of, send, sync
from harness.trained import config_of, finished_record
from tests.trust.fuzzing import Target, may_refuse
from tests.trust.world import copy_of_run, seed_of, twin_of, world

Read = Callable[[bytes, Path], object]


# ---------------------------------------------------------------- records


def _read_record(data: bytes, folder: Path) -> None:
    """Everything that looks at the record of somebody else's run."""
    run = copy_of_run(folder, "record.json", data)
    runs = run.parent
    find_records([runs])
    Shelf(runs).finished()
    record = read_record(run)
    record.model_dump(mode="json")
    for use in (lambda: comparison([record]), lambda: config_of(finished_record(run), {"device": "cpu"})):
        may_refuse(use)


def _read_report(data: bytes, folder: Path) -> None:
    """A report with somebody else's record in it."""
    run = copy_of_run(folder, "record.json", data)
    twin = twin_of(run)
    collect([run.parent], None, [], folder / "reports")
    read_evidence(folder / "reports")
    found = find_contenders([str(run), str(twin)], [run.parent])
    compare(found, resamples=_FEWEST_RESAMPLES).as_table()


# ---------------------------------------------------------------- logs


def _read_log(data: bytes, folder: Path) -> None:
    run = copy_of_run(folder, "events.jsonl", data, without=("record.json",))
    log = run / "events.jsonl"
    has_ended(log)
    Shelf(run.parent).finished()
    trial_runs(run.parent, "a-study")
    may_refuse(lambda: run_id_of(log))
    may_refuse(lambda: find_earlier(str(run)).continued(_start()))
    may_refuse(lambda: curves(read_events(log)))
    reader = LogReader(log)
    while events := reader.read():
        curves(events)


@functools.cache
def _start() -> dict[str, Any]:
    first: dict[str, Any] = json.loads((world().run / "events.jsonl").read_bytes().splitlines()[0])
    return first


class _Store:
    """A tracking store that has nothing and takes everything."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: mock.MagicMock()


def _send_log(data: bytes, folder: Path) -> None:
    run = copy_of_run(folder, "events.jsonl", data)
    with (
        mock.patch("harness.tracking.syncing.search", return_value=[]),
        mock.patch("harness.tracking.syncing.probe"),
        mock.patch("harness.tracking.mlflow_run.send_made", return_value=[]),  # a picture takes its time
    ):
        sync(_Store(), [run])
        send(_Store(), run, "as `runs reap` does", dead=True)


def _log_seeds() -> list[bytes]:
    whole = (world().run / "events.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    again = [json.loads(lines[0]) | {"event": "resume", "resumed": [{"time": _start()["time"], "environment": []}]}]
    return [b"".join(lines[:3]), whole, b"".join(lines[:-1]) + json.dumps(again[0]).encode() + b"\n" + lines[-1][:9]]


# ---------------------------------------------------------------- one small file each


def _read_speed(data: bytes, folder: Path) -> None:
    (folder / "speed.json").write_bytes(data)
    speed = read_speed(folder / "speed.json")
    assert speed is not None
    speed.as_json()
    list(speed.rows)


def _speed_seeds() -> list[bytes]:
    sample = {"values": [1.0, 1.5], "unit": "s"}
    target = {"way": "at least", "value": 2, "of": "ratio"}
    words = {"what": "parsing", "size": "10", "reference": "a loop", "detail": "", "at": {"labels": 10}}
    row = {**words, "ours": sample, "theirs": sample, "ratio": {"values": [2.0], "unit": ""}, "target": target}
    machine = {"cpu": "one", "cores": 2, "memory_gib": 7.5, "caches": {"L2": "1M"}, "packages": {"python": "3.11"}}
    about = {"about": "How fast.", "machine": machine, "commit": None, "dirty": False, "measured": "2026-01-01"}
    return [json.dumps({"schema": 1, "suites": {"parsing": {**about, "seconds": 1.0, "rows": [row]}}}).encode()]


def _read_trust(data: bytes, folder: Path) -> None:
    (folder / "trust.json").write_bytes(data)
    trust = read_trust(folder / "trust.json")
    assert trust is not None
    trust_files(trust)


def _trust_seeds() -> list[bytes]:
    origin = {"machine": {"cpu": "one", "cores": 2}, "commit": None, "dirty": False, "measured": "2026-01-01"}
    case = {
        "kind": "fault",
        "number": 1,
        "title": "killed",
        "tests": 2,
        "passed": 2,
        "done": ["this"],
        "seen": ["that"],
    }
    soak = {"asked": 2, "cycles": 2, "equal": 2, "kills": 3, "moments": {"a step": 3}, "variants": {"unidec": 2}}
    fuzz = {"engine": "atheris", "minutes": 1.5, "targets": {"archive": {"inputs": 9, "findings": 0}}}
    parts = {"faults": {"cases": [case]}, "soak": {**soak, "wrong": [], "seed": 0}, "fuzz": fuzz}
    return [
        json.dumps({"schema": 1, **{name: part | origin | {"seconds": 1.0} for name, part in parts.items()}}).encode()
    ]


def _read_lock(data: bytes, folder: Path) -> None:
    run = folder / "runs" / "a-run"
    run.mkdir(parents=True)
    (run.parent / ".a-run.lock").write_bytes(data)
    held_by_another(run)
    with run_lock(run):
        pass


def _lock_seeds() -> list[bytes]:
    from harness.runlock import this_process

    here = this_process()
    others = (here.model_copy(update={"pid": 2**22 + 1}), here, here.model_copy(update={"host": "elsewhere"}))
    return [holder.model_dump_json().encode() for holder in others]


def _read_study(data: bytes, folder: Path) -> None:
    place = folder / "studies" / "a-study"
    place.mkdir(parents=True)
    (place / "study.json").write_bytes(data)
    may_refuse(lambda: read_facts(place))
    read_study(place / "study.json").model_dump_json()


def _study_seeds() -> list[bytes]:
    config = {"encoder": "static", "seed": 0, "validation": {"size": 0.1}}
    identity = {"config": config, "dataset": {"digest": "ab"}, "space": {"tau": {"low": 0.1, "high": 1.0, "log": True}}}
    slots = [{"slot": 0, "state": "COMPLETE", "values": [1.5], "params": {"tau": 0.3}, "seconds": 2.0}]
    search = {"pruner": "none", "sampler": "tpe"}
    facts = {"id": "g", "identity": identity, "search": search, "objectives": ["P@1"], "slots": slots, "best": [0]}
    return [json.dumps(facts | {"method": "unidec", "dataset": "synthetic"}).encode()]


def _read_kept_study(kind: str) -> Read:
    def read(data: bytes, folder: Path) -> None:
        (folder / "reports" / kind).mkdir(parents=True)
        (folder / "reports" / kind / "x.json").write_bytes(data)
        read_evidence(folder / "reports")

    return read


def _kept_study_seeds() -> list[bytes]:
    trial = {"number": 0, "state": "COMPLETE", "values": {"P@1": 1.5}, "params": {"tau": 0.3}, "seconds": 2.0}
    facts = {"name": "x", "method": "unidec", "dataset": "synthetic", "digest": "ab", "objectives": ["P@1"]}
    return [
        json.dumps({**facts, "space": {"tau": {"low": 0.1}}, "settings": {}, "trials": [trial], "best": [0]}).encode()
    ]


def _neighbour_seeds() -> list[bytes]:
    example = {"label": "a", "train_rows": 3, "neighbours": [{"label": "b", "share": 0.5}]}
    return [json.dumps({"dataset": "x", "digest": "ab", "examples": [example]}).encode()]


def _read_note(data: bytes, folder: Path) -> None:
    note = folder / "home" / "cache" / "folders" / "ab.json"
    note.parent.mkdir(parents=True)
    note.write_bytes(data)
    remembered_folders({"encoder": "./small", "encoder_options": {"teacher": "./big"}}, "ab")


TARGETS = (
    Target("record", _read_record, seed_of("record.json"), "json"),
    Target("record-in-reports", _read_report, seed_of("record.json"), "json"),
    Target("event-log", _read_log, _log_seeds, "lines"),
    Target("event-log-sent", _send_log, _log_seeds, "lines"),
    Target("speed", _read_speed, _speed_seeds, "json"),
    Target("trust", _read_trust, _trust_seeds, "json"),
    Target("run-lock", _read_lock, _lock_seeds, "json"),
    Target("study", _read_study, _study_seeds, "json"),
    Target("kept-study", _read_kept_study("studies"), _kept_study_seeds, "json"),
    Target("kept-neighbours", _read_kept_study("neighbours"), _neighbour_seeds, "json"),
    Target("folder-note", _read_note, lambda: [b'{"encoder": "/tmp/small", "teacher": "/tmp/big"}'], "json"),
)
