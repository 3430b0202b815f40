"""Small trainings for tests: generated data, an encoder of a few thousand weights, seconds in all."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.run import resolve_config
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from tests.support.forks import limit_lifetime

DATASET = "synthetic:train=240,test=60,labels=90"
SETTINGS = {
    "encoder": "tiny",
    "batch_size": 60,
    "epochs": 4,
    "random_epochs": 1,
    "refresh_epochs": 2,
    "warmup_epochs": 1.0,
    "lr_encoder": 1e-3,
    "lr_heads": 1e-3,
    "checkpoint": {"min_seconds": 0.0},
}
STEPS = 4 * 4


def config(method: str = "unidec", dataset: str = DATASET, **values: object) -> RunConfig:
    """Return the resolved settings of a small run."""
    return resolve_config(method, dataset, [Layer("small", SETTINGS), Layer("test", values)])[0]


def with_torch_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw dropout masks as torch does: slower, but the same in every version of the harness."""
    monkeypatch.setattr(
        "harness.model.dropout.keep_mask", lambda shape, p: torch.empty(shape).bernoulli_(1 - p).to(torch.uint8)
    )


def without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch dropout off, so that no loss depends on how masks are drawn, nor on which texts go together."""
    for place, name in (("dropout", "keep_mask"), ("encoders.attention", "drawn_mask")):
        monkeypatch.setattr(f"harness.model.{place}.{name}", lambda shape, *_: torch.ones(shape, dtype=torch.uint8))
        monkeypatch.setattr(f"harness.model.{place}.kept_scale", lambda p: 1.0)


def in_child(work: Callable[[], object], output: Path) -> int:
    """Do the work in a forked process and return its exit code; its standard error goes to the file `output`."""
    return exit_code(begin_child(work, output))


def exit_code(child: int) -> int:
    """Wait for a forked process to end; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begin_child(work: Callable[[], object], output: Path) -> int:
    """Start the work in a forked process and return its pid.

    Forked, because a new interpreter needs seconds to import torch; with one thread, because OpenMP's others are not
    there in a forked process.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            torch.set_num_threads(1)
            limit_lifetime()
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def only_run(workspace: Path) -> Path:
    """Return the only run folder of a workspace."""
    (folder,) = (path for path in (workspace / "runs").iterdir() if path.is_dir())
    return folder
