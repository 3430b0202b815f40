"""The torch device of a run."""

import os

from harness.errors import UserError


def choose_device(wanted: str) -> str:
    """Return the torch device; `auto` is CUDA if there is any. `UserError` under a launcher of several processes."""
    _refuse_several_processes()
    if wanted == "cpu":
        return "cpu"
    import torch

    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return "cuda" if cuda else "cpu"
    if wanted.startswith("cuda") and int(wanted.partition(":")[2] or 0) >= cuda:
        raise UserError(
            f"device {wanted!r} asked for, torch sees {cuda} CUDA devices; `python -m harness doctor` says more"
        )
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' asked for, but this torch has none; take auto")
    return wanted


def _refuse_several_processes() -> None:
    """Raise under a distributed launcher: each rank would train the whole model and write the same run."""
    world = os.environ.get("WORLD_SIZE", "1")
    if world not in ("", "1"):
        raise UserError(
            f"WORLD_SIZE is {world}, but a run is one process on one device; start it without a launcher, and several "
            "runs side by side with `python -m harness bench --workers`"
        )
