"""How long a person waits for the command line itself: a fresh process each time.

Help, a listing and a plan are held to fixed bounds. A run is timed from the start of its process to the end of its
first training step, on data and tokens that earlier runs have stored; most of that is loading torch.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.perf import Row, Sample, bound, turns
from harness.progress import progress

HELP_SECONDS, PLAN_SECONDS = 0.7, 1.5
RUNS = 3


def rows() -> Iterator[Row]:
    """`--help`, a listing of methods, the default plan, and the default run up to its first step."""
    for arguments, most in (("--help", HELP_SECONDS), ("ls methods", HELP_SECONDS), ("plan", PLAN_SECONDS)):
        command = [sys.executable, "-m", "harness", *arguments.split()]
        (seconds,) = turns(partial(subprocess.run, command, check=True, capture_output=True), repeats=5)
        yield bound(f"harness {arguments}", "fresh process", seconds, at_most=most)
    yield _first_step()


def _first_step() -> Row:
    waits, phases = [], []
    with progress("first training step", RUNS + 1, "runs") as advance:
        for _ in range(RUNS + 1):
            wait, of_record = first_step()
            waits.append(wait)
            phases.append(of_record)
            advance(1)
    medians = {name: Sample(tuple(phase.get(name, 0.0) for phase in phases[1:])).median for name in sorted(phases[-1])}
    return bound(
        f"harness run --method {DEFAULT_METHOD} --dataset {DEFAULT_DATASET}, to the first training step",
        "fresh process, data and tokens stored",
        Sample(tuple(waits[1:]), "s"),
        reference="shown only",
        detail=", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()),
    )


def first_step() -> tuple[float, dict[str, float]]:
    """Seconds from the start of a process to the end of its first step, and the seconds of the phases before training.

    An epoch is logged at its end, with its rows and its rate; all steps but the first are taken off again.
    """
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as folder:
        command = [sys.executable, "-m", "harness", "run", "--method", DEFAULT_METHOD, "--dataset", DEFAULT_DATASET]
        began = time.time()
        subprocess.run(
            [*command, "--set", "epochs=1", "--track", "none", "--out", folder], check=True, capture_output=True
        )
        (events,) = Path(folder).glob("*/events.jsonl")
        logged = map(json.loads, events.read_text().splitlines())
        epoch = next(event for event in logged if "train/loss" in event.get("values", {}))
        timings = json.loads(events.with_name("record.json").read_text())["timings"]
    ended = datetime.fromisoformat(epoch["time"]).timestamp() - began
    steps, seconds = epoch["step"], epoch["values"]["train/seconds"]
    before = {name: timings[name] for name in ("load_data", "load_encoder", "tokenise") if name in timings}
    return ended - seconds * (steps - 1) / steps, before | {"one step": seconds / steps}
