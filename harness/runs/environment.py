"""Environment of a run: versions, hardware and the state of the code."""

import hashlib
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness import __version__
from harness.machine.threads import available_cores, computing_threads

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "faiss-cpu", "faiss-gpu", "mlflow", "pandas")


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment(device: str) -> dict[str, Any]:
    """Return versions, hardware and code state as plain values, without user or path names."""
    import psutil

    if device.startswith("cuda"):
        import torch

        device = torch.cuda.get_device_name(device)
    return {
        "harness": __version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := version_of(name)) is not None},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "threads": computing_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "device": device,
        "git": git_state(),
    }


@cache
def git_state(root: Path = Path(__file__).parents[2]) -> dict[str, Any]:
    """Return commit and dirty flag of the checkout that the harness runs from, with a hash of the diff if dirty.

    Reports and tuned tables are left out: a long bench or sweep writes them as it goes, and what a run takes from them
    is in its settings.
    """
    code = ("--", ".", ":(exclude)reports", ":(exclude)methods/tuned")

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=20, check=True)  # noqa: S607  the git of the user
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root.resolve():
            return {"commit": None, "dirty": None}
        changes = git("status", "--porcelain", *code)
        state: dict[str, Any] = {"commit": git("rev-parse", "HEAD"), "dirty": bool(changes)}
        if changes:
            state["diff_sha256"] = hashlib.sha256(git("diff", "HEAD", *code).encode()).hexdigest()
        return state
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
