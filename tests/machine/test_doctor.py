"""`harness doctor`: each breakage is made, found, and answered with what to do."""

import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import doctor
from harness.io.files import write_json
from harness.runs.lock import this_process
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.small_disk import small_disk
from tests.support.tracked_runs import cut_off, logged

ENDED = 2**31 - 2
"""No process has this id."""


@pytest.fixture
def findings(capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command finds, by name, and its exit code under `code`."""

    def look() -> dict[str, Any]:
        capsys.readouterr()
        code = call("doctor", "--json")
        found = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
        return {**found, "code": code}

    return look


def test_it_looks_at_everything_and_says_what_to_do(findings: Any) -> None:
    found = findings()
    assert found["torch"]["state"] == found["workspace"]["state"] == "ok"
    assert found["mlflow store"]["detail"] == "will be created by the first run"
    named = [finding for finding in found.values() if isinstance(finding, dict) and finding["state"] == "broken"]
    assert all(finding["fix"] for finding in named)
    assert found["code"] == (1 if named else 0)


def versions(monkeypatch: pytest.MonkeyPatch, **changed: str | None) -> None:
    """Other versions of some packages than those installed."""
    real, changes = doctor.version_of, {name.replace("_", "-"): value for name, value in changed.items()}
    monkeypatch.setattr(doctor, "version_of", lambda name: changes[name] if name in changes else real(name))


def test_two_faiss_builds(monkeypatch: pytest.MonkeyPatch, findings: Any, account: Account) -> None:
    """fault 35"""
    versions(monkeypatch, faiss_cpu="1.15", faiss_gpu="1.15")
    found = findings()
    assert (found["code"], found["faiss"]["state"]) == (1, "broken")
    assert found["faiss"]["fix"] == "pip uninstall faiss-cpu"
    account.did("two faiss packages in one environment, as the metadata of the environment would say")
    account.saw(f"doctor: {found['faiss']['detail']}; {found['faiss']['fix']}")


def test_an_old_torch(monkeypatch: pytest.MonkeyPatch, findings: Any) -> None:
    """fault 35"""
    versions(monkeypatch, torch="2.9.1+cpu")
    torch = findings()["torch"]
    assert (torch["state"], torch["fix"]) == ("broken", "pip install 'torch>=2.13'")
    versions(monkeypatch, torch=None)
    assert findings()["torch"]["detail"] == "not installed"


def test_a_cpu_build_beside_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, findings: Any) -> None:
    """fault 35"""
    assert findings()["device"]["state"] != "broken"
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("torch.version.cuda", None)
    device = findings()["device"]
    assert device["state"] == "broken"
    assert "CUDA build of torch" in device["fix"]


def test_a_cuda_build_without_a_device(monkeypatch: pytest.MonkeyPatch, findings: Any, account: Account) -> None:
    """fault 35"""
    account.simulated("no CUDA device here")
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    device = findings()["device"]
    assert device["detail"] == "CUDA 12.8 build of torch, but no GPU answers"
    account.did("a CUDA build of torch that sees no device")
    account.saw(f"doctor: {device['detail']}; {device['fix']}")


@pytest.mark.parametrize("problem", ["disk", "workspace"])
def test_a_full_disk_and_a_workspace_that_cannot_be(
    problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, findings: Any
) -> None:
    (tmp_path / "file").write_text("")
    with small_disk(tmp_path, mebibytes=1) as disk:
        monkeypatch.setenv("HARNESS_HOME", str(disk.folder if problem == "disk" else tmp_path / "file" / "inside"))
        if not os.path.ismount(disk.folder.parent):  # only root may mount
            monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
        found = findings()[problem]
    assert found["state"] == "broken"
    assert "HARNESS_HOME" in found["fix"]


def test_an_unreadable_store(workspace: Path, findings: Any) -> None:
    workspace.mkdir()
    store = workspace / "mlflow.db"
    store.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    found = findings()["mlflow store"]
    assert found["state"] == "broken"
    assert str(store) in found["fix"]
    store.unlink()
    with sqlite3.connect(store) as other:
        other.execute("create table somebody (elses integer)")
    assert "no such table" in findings()["mlflow store"]["detail"]


def test_a_run_that_was_killed(workspace: Path, findings: Any) -> None:
    assert findings()["dead runs"]["state"] == "ok"
    cut_off(logged(workspace / "runs" / "killed", [{"loss": 1.0}]))
    write_json(workspace / "runs" / ".killed.lock", {**this_process().model_dump(), "pid": ENDED})
    found = findings()
    assert found["dead runs"]["detail"] == "killed neither ended nor at work"
    assert "run --resume killed" in found["dead runs"]["fix"]
    assert found["locks"]["detail"] == "1 of ended processes, 0 held"
    assert "nothing to do" in found["locks"]["fix"]


def test_locks_that_nobody_here_can_judge(workspace: Path, findings: Any) -> None:
    assert findings()["locks"] == {"what": "locks", "state": "ok", "detail": "0 held by running processes", "fix": ""}
    lock, holder = workspace / "runs" / ".one.lock", this_process().model_dump()
    write_json(lock, holder)
    assert findings()["locks"]["detail"] == "1 held by running processes"
    for content in ({**holder, "host": "elsewhere"}, {"pid": "many"}):
        write_json(lock, content)
        found = findings()["locks"]
        assert (found["state"], found["fix"]) == ("note", f"if no process works on that run, remove {lock}")
    write_json(lock, {**holder, "pid": ENDED})
    assert "of ended processes" in findings()["locks"]["detail"]
