"""Names out of somebody else's files: whatever a manifest, a record, a log or a server says, we stay in our folders."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest

from harness.data import load
from harness.data.check import check
from harness.errors import DataError, UserError
from harness.infer.load import load_run
from harness.io.files import build_once, is_file_name, place_inside, read_json, read_manifest, sha256_file, write_json
from harness.model.folders import remembered_folders
from harness.report.collect import collect
from harness.runs.events import LogReader, has_ended
from harness.runs.package import assemble as write_package
from harness.runs.record import RunRecord, find_records, read_record, refuse_places
from harness.runs.resume import find_earlier
from harness.tracking.artifacts import send_files
from harness.tracking.store import DistantClient
from harness.tracking.sync import run_id_of
from harness.train.checkpoint import verify_files
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.sweeps import planned
from tests.support.watching import untouched

SECRET = "correct horse battery staple"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder that nobody gave us, beside the one we are in."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "secret.json").write_text(json.dumps({"secret": SECRET}))
    return folder


@pytest.fixture
def theirs(records: dict[str, RunRecord], home_of_runs: Path, tmp_path: Path) -> Path:
    """A run folder of somebody else, to be tampered with."""
    name = records["unidec"].run_id
    return Path(shutil.copytree(home_of_runs / "runs" / name, tmp_path / "theirs" / name))


def names_of(private: Path) -> list[str]:
    """Names that would lead to the private file from a folder beside it, two levels down, or name no file."""
    target = private / "secret.json"
    return [
        *("../../private/secret.json", str(target), f"/proc/self/root{target}", "link", "folder/secret.json"),
        *("", ".", "..", "../..", "a\0b", "x" * 300, "x/" * 3000),
    ]


def tampered(folder: Path, name: str, private: Path) -> None:
    """Adds a file of that name to a manifest, with the size and hash it really has where it lies elsewhere."""
    target = private / "secret.json"
    for link, place in (("link", target), ("folder", private)):
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(place)
    values = read_json(folder / "manifest.json")
    values["files"][name] = {"sha256": sha256_file(target), "bytes": target.stat().st_size}
    values.pop("sealed", None)
    write_json(folder / "manifest.json", values)


# ---------------------------------------------------------------- manifests


def test_a_manifest_names_no_file_elsewhere(private: Path, tmp_path: Path, account: Account) -> None:
    """fault 70: with the right hash, by an absolute path, by .., through links"""
    folder = tmp_path / "cache" / "thing"

    def build(temporary: Path) -> dict[str, Any]:
        (temporary / "part").write_text("whole")
        return {}

    names = names_of(private)
    for name in names:
        build_once(folder, build)
        tampered(folder, name, private)
        with untouched(private):
            with pytest.raises(DataError, match="which is not inside"):
                place_inside(folder, name)
            assert read_manifest(folder, verify=True) is None
            with pytest.raises(DataError):
                verify_files(folder)
            build_once(folder, build)
        assert read_manifest(folder, verify=True) is not None
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "part"]
    assert json.loads((private / "secret.json").read_text()) == {"secret": SECRET}
    account.did(f"{len(names)} names in a manifest that lead out (.., absolute, links, /proc), with the right hash")
    account.saw("none was opened or hashed, by the interpreter's own account; each folder was refused or made again")


def test_a_check_of_data_hashes_nothing_elsewhere(private: Path, workspace: Path) -> None:
    """fault 70"""
    data = load("synthetic:train=40,test=20,labels=20")
    tampered(data.folder, "../../../private/secret.json", private)
    with untouched(private):
        report = check(data)
    assert [row.verdict for row in report.rows if row.name == "prepared files"] == ["differs"]


def test_the_weights_of_somebody_else(theirs: Path, private: Path, tmp_path: Path, in_their_home: None) -> None:
    """fault 70: a link beside the weights is not packed, one in their place is not followed"""
    (theirs / "model" / "notes").symlink_to(private / "secret.json")
    package = tmp_path / "package"
    with untouched(private):
        write_package(theirs, package)
    found = [path for path in package.rglob("*") if path.is_file()]
    assert not any(SECRET in path.read_text(errors="replace") for path in found)
    assert sorted(path.name for path in (package / "model").iterdir()) == ["manifest.json", "model.safetensors"]
    (theirs / "model" / "model.safetensors").unlink()
    (theirs / "model" / "model.safetensors").symlink_to(private / "secret.json")
    with untouched(private), pytest.raises(DataError, match="which is not inside"):
        load_run(str(theirs))


# ---------------------------------------------------------------- records


def changed(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = read_json(run / "record.json")
    change(values)
    write_json(run / "record.json", values)


def test_a_record_leads_nowhere(
    theirs: Path,
    private: Path,
    in_their_home: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 70: run ids, scorers, encoders, teachers and datasets that are paths"""
    whole = (theirs / "record.json").read_bytes()
    out, place, refusals = tmp_path / "reports", str(private), 0
    for path in ("../../private", place, "../private/secret", "a/../../private"):
        changed(theirs, lambda values, path=path: values.update(run_id=path))
        with untouched(private):
            assert find_records([theirs.parent]) == []
            assert collect([theirs.parent], None, [], out).runs == 0
        assert "cannot be used" in capsys.readouterr().err
        (theirs / "record.json").write_bytes(whole)
        changed(theirs, lambda values, path=path: values["views"].update({path: values["metrics"]}))
        with untouched(private), pytest.raises(UserError, match="cannot be used"):
            read_record(theirs)
        refusals += 2
        (theirs / "record.json").write_bytes(whole)
        for change in (
            lambda values, path=path: values["config"].update(encoder=f"{path}/"),
            lambda values, path=path: values["config"].update(dataset=path),
            lambda values, path=path: values["config"].update(encoder_options={"teacher": path}),
        ):
            changed(theirs, change)
            with untouched(private), pytest.raises(UserError, match=r"names the folder .*\./name, so it is refused"):
                load_run(str(theirs))
            refusals += 1
            (theirs / "record.json").write_bytes(whole)
    assert [path.name for path in out.rglob("*") if path.is_file()] == ["collect.lock"]
    account.did("4 paths out of the folder as run id, scorer, encoder, teacher and dataset of somebody's record")
    account.saw(f"all {refusals} refused; nothing there was opened, nothing was written")


def test_a_run_is_not_called_by_what_steers_a_terminal(
    theirs: Path, in_their_home: None, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 70: a title for the window, a bell, a turn of the order of reading, in the id of somebody's run"""
    assert not any(map(is_file_name, ["a\x1bb", "a\nb", "a\u202eb", "a\x9bb", "a\u200bb", "\ud800", "a\tb"]))
    assert is_file_name("naïve 日本語 \N{WOMAN}\u200d\N{MICROSCOPE}")
    name = "x\x1b]0;PWNED\x07\u202eabc"
    changed(theirs, lambda values: values.update(run_id=name))
    log = theirs / "events.jsonl"
    first, *others = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps(json.loads(first) | {"run_id": name}), *others]) + "\n")
    with pytest.raises(UserError, match="cannot be used"):
        read_record(theirs)
    assert call("predict", "--run", str(theirs), "--text", "a") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert r"'x\x1b]0;PWNED\x07\u202eabc' cannot be used" in shown.err
    assert shown.err.replace("\n", "").isprintable()
    account.did(f"a run of somebody called {name!r}, and `predict` with it")
    account.saw("exit code 2; the message shows the id escaped, and nothing of it reached the terminal raw")


def test_a_log_leads_nowhere(theirs: Path, private: Path, in_their_home: None) -> None:
    """fault 70: settings that a resumed run would take up"""
    (theirs / "record.json").unlink()
    first, *others = (theirs / "events.jsonl").read_text().splitlines()
    start = json.loads(first)
    start["config"]["encoder"] = f"{private}/model"
    (theirs / "events.jsonl").write_text("\n".join([json.dumps(start), *others]) + "\n")
    with untouched(private), pytest.raises(UserError, match="so it is refused"):
        find_earlier(str(theirs))
    assert call("run", "--resume", str(theirs)) == 2


def test_the_identity_of_an_encoder_is_no_path(private: Path, workspace: Path) -> None:
    """fault 70: notes of the workspace are found by it"""
    (workspace / "cache" / "folders").mkdir(parents=True)
    for identity in ("../../../private/secret", f"{private}/secret", "..", "x" * 300, "a\0b"):
        with untouched(private):
            assert remembered_folders({"encoder": "./secret"}, identity) == {}


# ---------------------------------------------------------------- run folders: links that lead out, damaged starts


@pytest.fixture
def log(theirs: Path) -> list[dict[str, Any]]:
    """Events of a run that did not end."""
    events = [json.loads(line) for line in (theirs / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] != "end"]


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_a_start_that_is_none_is_refused_with_its_line(log: list[dict[str, Any]], tmp_path: Path) -> None:
    """fault 70"""
    folder = written(tmp_path / "runs" / "one", log)
    assert find_earlier(str(folder)).metadata["run_id"] == log[0]["run_id"]
    changes: dict[str, dict[str, Any]] = {
        "run_id": {"run_id": "../../elsewhere"},
        "started": {"started": "yesterday"},
        "config.method": {"config": {}},
        "config.dataset": {"config": {"method": "unidec", "dataset": 3, "encoder": "tiny"}},
    }
    for named, change in changes.items():
        other = written(tmp_path / "runs" / named, [log[0] | change, *log[1:]])
        with pytest.raises(DataError, match=rf"events.jsonl:1: .*{named}"):
            find_earlier(str(other))


def test_recorded_names_of_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 70: `near` is a folder where the user stands"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near").mkdir()
    (tmp_path / "static").mkdir()
    for place in (".", "..", "/etc", "a/b", "./../a", "near"):
        for names in ({"dataset": "synthetic", "encoder": place}, {"dataset": place, "encoder": "tiny"}):
            with pytest.raises(UserError, match="so it is refused"):
                refuse_places("record", names)
    refuse_places("record", {"dataset": "./data", "encoder": "static", "encoder_options": {"teacher": "./near"}})


READERS: tuple[Callable[[Path], object], ...] = (
    lambda folder: find_earlier(str(folder)),
    lambda folder: run_id_of(folder / "events.jsonl"),
    lambda folder: LogReader(folder / "events.jsonl").read(),
    lambda folder: has_ended(folder / "events.jsonl"),
)
"""Of resume, sync, the uploader and `runs reap`."""


def test_a_link_out_of_a_run_folder_is_not_read(log: list[dict[str, Any]], tmp_path: Path) -> None:
    """faults 68 and 70: a log by each of its readers, a record, a link in a circle"""
    real = written(tmp_path / "elsewhere", log)
    folder = tmp_path / "runs" / "link"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").symlink_to(real / "events.jsonl")
    for read in READERS:
        read(real)
        with pytest.raises(DataError):
            read(folder)
    (real / "record.json").write_text("{}")
    (folder / "record.json").symlink_to(real / "record.json")
    with pytest.raises(DataError, match="not inside; refused"):
        read_record(folder)
    (folder / "round").symlink_to("round")
    with pytest.raises(DataError, match="not inside; refused"):
        place_inside(folder, "round")


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


# ---------------------------------------------------------------- what is sent, and what a server says


def test_a_link_in_a_run_folder_is_not_sent(theirs: Path, private: Path) -> None:
    """fault 70: `harness sync` of somebody's folder must not send a file of ours"""
    (theirs / "sample.json").unlink()
    (theirs / "sample.json").symlink_to(private / "secret.json")
    client, sent = mock.MagicMock(), []
    client.log_artifact = lambda run_id, path, place=None: sent.append(Path(path).read_text())
    with untouched(private):
        (fault,) = send_files(client, "r", theirs, lambda: None)
    assert fault.startswith("sample.json (DataError: ")
    assert len(sent) == 3
    assert SECRET not in "".join(sent)


@contextmanager
def fickle(places: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """An MLflow server that names another place for the files of a run whenever it is asked.

    Gives its address, the places that it named and the paths that it was sent files for.
    """
    named: list[str] = []
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING", "start_time": 1}
            if "runs/get" in self.path:
                named.append(places[min(len(named), len(places) - 1)])
                info["artifact_uri"] = named[-1]
            self.answer({"run": {"info": info, "data": {}}})

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(self.path)
            self.answer({})

        def answer(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        threading.Thread(target=site.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}", named, received
        site.shutdown()


OURS, THEIRS = "file://{victim}", "mlflow-artifacts:/1/r"


@pytest.mark.parametrize("way", ["log_artifact", "log_artifacts"])
@pytest.mark.parametrize(
    ("places", "sent"),
    [
        (["./victim"], False),
        (["runs:/other/x", OURS], False),
        ([OURS, THEIRS], False),
        ([THEIRS, OURS], True),
    ],
    ids=lambda value: "-then-".join(place.partition(":")[0] for place in value) if isinstance(value, list) else "",
)
def test_a_server_does_not_choose_our_folders(
    way: str, places: list[str], sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 70: MLflow's client would copy config.json to wherever the server says, also if it says so when asked again

    What was judged is what is used: the file is refused, or goes to the place that was named first.
    """
    from mlflow import MlflowClient

    victim, mine = tmp_path / "victim", tmp_path / "mine"
    for folder in (victim, mine):
        folder.mkdir()
    (mine / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    run_id = uuid4().hex  # MLflow keeps the place of a run for the whole process
    given = mine if way == "log_artifacts" else mine / "config.json"
    with fickle([place.format(victim=victim) for place in places]) as (address, named, received):
        client = DistantClient(MlflowClient(tracking_uri=address))
        for _ in range(2):
            with nullcontext() if sent else pytest.raises(UserError, match="in a folder of this machine"):
                getattr(client, way)(run_id, str(given), "kept")
    assert named
    assert len(received) == (2 if sent else 0)
    assert all(path.endswith("/1/r/kept/config.json") for path in received)
    assert list(victim.iterdir()) == []


# ---------------------------------------------------------------- what people type

BAD_NAMES = ["../../x", "/etc/x", "", "x" * 300, "nul", "all", ".hidden", "x.lock"]


def test_names_that_people_type(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    """fault 70: of datasets, studies, runs; relative, absolute, 300 characters, reserved"""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for name in BAD_NAMES:
        with pytest.raises(UserError, match="cannot be used"):
            planned(study=name or " ")
        for words in (
            ["data", "import", ".", "--name", name],
            ["data", "fetch", name],
            ["data", "prepare", f"{name}/"],
            ["run", "--resume", name],
            ["run", "--method", name],
            ["predict", "--run", name, "--text", "a"],
        ):
            assert call(*words) == 2, words
            tried += 1
    assert not workspace.exists()
    assert list(tmp_path.iterdir()) == []
    account.did(
        f"{len(BAD_NAMES)} names (../../x, /etc/x, 300 letters, nul, .hidden) to {tried} commands and as a study"
    )
    account.saw(f"{tried} times exit code 2, and not one file or folder made")
