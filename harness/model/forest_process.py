"""Trains a forest with omikuji, in a process of its own; see `harness.model.parabel`, which starts this module.

Its one argument is JSON: `data`, `model` and `metadata` are paths in one temporary folder, `threads` is a number,
`settings` are omikuji's hyper-parameters by name, `parent` is the process that waits.
"""

import json
import os
import shutil
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.io.files import write_json
from harness.machine.memory import peak_memory_gib
from harness.machine.threads import begin


def main(argument: str) -> None:
    """Train on the data file; save the model and the metadata of the training."""
    job = json.loads(argument)
    begin(threading.Thread(target=end_with_parent, args=(job,), daemon=True))
    omikuji = import_module("omikuji")
    settings = omikuji.Model.default_hyper_param()
    for name, value in job["settings"].items():
        setattr(settings, name, value)
    omikuji.Model.train_on_data(job["data"], settings, job["threads"]).save(job["model"])
    write_json(Path(job["facts"]), {"peak_memory_gib": round(peak_memory_gib(), 3)})


def end_with_parent(job: dict[str, Any]) -> None:
    """End this process and remove its files when the parent process is gone."""
    while os.getppid() == job["parent"]:
        time.sleep(0.5)
    shutil.rmtree(Path(job["data"]).parent, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
