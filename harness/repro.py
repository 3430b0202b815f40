"""What a run depends on besides its config: versions, hardware, the state of the code, and its random numbers.

Random numbers are stateless: every draw is a function of (seed, name of the stream, position), so a resumed run draws
what the uninterrupted one would have drawn, and no generator's state is ever saved.
"""

import hashlib
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from harness import __version__

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "faiss-cpu", "faiss-gpu", "mlflow", "pandas")


STREAMS = (
    *("init", "order", "positives", "negatives", "dropout", "split", "clusters", "search", "augment", "stage"),
    "rounding",
)
"""Names of the random streams; a stream keeps its place in this list for good, because the place is part of its key."""


def stream_seed(seed: int, name: str, *position: int) -> int:
    """A 63-bit seed for one position of a named stream, for example ("dropout", step, chunk)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *position))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def stream(seed: int, name: str, *position: int) -> np.random.Generator:
    """A numpy generator for one position of a named stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *position)))


def stage_seed(seed: int, stage: int) -> int:
    """The seed of a later stage of training, so that it does not draw again what the first stage drew."""
    return seed if stage == 0 else stream_seed(seed, "stage", stage)


def environment(device: str) -> dict[str, Any]:
    """Versions, hardware and code state, without user or path names."""
    return {
        "harness": __version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := version_of(name)) is not None},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "threads": computing_threads(),
        "memory_gib": _memory_gib(),
        "device": _device_name(device),
        "git": git_state(),
    }


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computing_threads() -> int:
    """Threads that products of matrices are split over; their last digits depend on it."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    return int(own) if own.isascii() and own.isdigit() and int(own) else available_cores()


def version_of(package: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def git_state(root: Path = Path(__file__).parents[1]) -> dict[str, Any]:
    """Commit and dirty flag of the checkout the harness runs from; a diff's hash when it is dirty.

    Reports and tuned tables are left out: a long bench or search writes them as it goes, and what a run took from them
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


def peak_memory_gib() -> float:
    """Largest resident set of this process so far."""
    try:  # on Linux getrusage begins at the peak of the process that started this one
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) / 2**20
    except (OSError, KeyError, ValueError):
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, kibibytes on Linux


def device_memory() -> dict[str, float]:
    """Largest amount of memory that torch held on the CUDA device so far; nothing without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {"peak_device_memory_gib": torch.cuda.max_memory_allocated() / 2**30}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return device
