"""Peak memory of a real run, in a process of its own: what `harness perf memory` holds plans against.

    python -m harness.plan.measure '["measure", "unidec", "synthetic:labels=13000", {"params": {"epochs": 1}}]'

The process imports what a run imports and nothing else, because libraries would count.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.config import Layer


def prepare(dataset: str) -> float:
    """Makes data and tokens for `static`, so that a measured run finds them: making them has a peak of its own."""
    from harness.data import load
    from harness.model import load_encoder
    from harness.run import tokenise

    encoder = load_encoder("static", seed=0)
    tokenise(load(dataset), encoder, encoder.max_len)
    return 0.0


def measure(method: str, dataset: str, settings: dict[str, Any]) -> float:
    """Runs a method in this process; returns its largest resident set in bytes."""
    from harness.files import home
    from harness.repro import peak_memory_gib
    from harness.run import resolve_config, run

    config, origins = resolve_config(method, dataset, [Layer("measure", settings)])
    # in the workspace: whoever ends this process by force removes its workspace, and this folder with it
    home().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="harness-measure-", dir=home()) as folder:
        run(config, origins=origins, out=Path(folder), track="none")
    return peak_memory_gib() * 2**30


if __name__ == "__main__":
    name, *arguments = json.loads(sys.argv[1])
    print(prepare(*arguments) if name == "prepare" else measure(*arguments))  # noqa: T201
