"""Kill and resume, again and again: `make soak`.

    python -m tests.faults.soak --cycles 200 --minutes 30

A cycle starts a short training in a process of its own, sends it SIGKILL at a random moment, takes it up again, perhaps
to kill it once more, and lets it end. Weights, predictions, per-row scores and metrics must be those of a run that was
never touched, to the last bit. Moments are drawn from the whole life of the process: preparing data, mining, steps,
checkpoints, evaluation, the writing of the record. Exit code 1 if any run differs, or if fewer cycles were done than
asked for.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.errors import UserError
from harness.io.files import read_json
from harness.io.progress import progress
from harness.run import resolve_config, run
from harness.runs.resume import Earlier, find_earlier
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from tests.faults import page
from tests.support.planted import write_dataset, write_teacher

_RATES: dict[str, Any] = {"lr_encoder": 0.05}
_MINED: dict[str, Any] = {"batch_size": 48, "epochs": 6, "random_epochs": 2, "refresh_epochs": 2, **_RATES}
_SAVING: dict[str, Any] = {"min_seconds": 0.0, "every_steps": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "unidec": ("unidec", _MINED),
    "unidec, validation rows": ("unidec", {**_MINED, "validation": {"size": 0.2, "patience": 4}}),
    "unidec, bfloat16 table": ("unidec", {**_MINED, "table_precision": "bfloat16"}),
    "depsl, saved in the step": ("depsl", {**_MINED, "checkpoint": {**_SAVING, "background": "never"}}),
    "ngame, two stages": (
        "ngame",
        {"batch_size": 48, "epochs": 4, "classifier_batch_size": 48, "classifier_epochs": 3, **_RATES},
    ),
    "renee, warm start": (
        "renee",
        {"batch_size": 48, "epochs": 4, "label_block": 16, "warm_epochs": 2, "warm_batch_size": 48, **_RATES},
    ),
    "dexml, all labels": ("dexml", {"batch_size": 48, "epochs": 5, "grad_cache_size": 16, **_RATES}),
}
"""Method and settings of each training, by name; they take a second or two each."""
_MOST_KILLS = 3


@dataclass(frozen=True)
class Result:
    """Hash of the results of a finished run, and its duration."""

    digest: str
    seconds: float


@dataclass
class Cycle:
    """One training that was killed and resumed until it ended."""

    number: int
    variant: str
    kills: int = 0
    moments: list[str] = field(default_factory=list)
    """What the process was doing at each kill."""
    equal: bool = False
    wrong: str = ""


def settings(planted: Path, variant: str) -> RunConfig:
    """Return the resolved settings of a variant."""
    method, values = VARIANTS[variant]
    encoder = {"encoder": "static", "encoder_options": {"teacher": str(planted / "teacher"), "dim": 32}}
    common = {**encoder, "search": {"k": 20}, "checkpoint": _SAVING}
    return resolve_config(method, f"{planted / 'data'}/", [Layer("soak", {**common, **values})])[0]


def digest_of(folder: Path) -> str:
    """Return the hash of all results of a run: weights, predictions, per-row scores, metrics of every scorer."""
    found = hashlib.sha256()
    for path in [folder / "model" / "model.safetensors", *sorted(folder.rglob("*.npy"))]:
        found.update(path.name.encode() + path.read_bytes())
    record = read_json(folder / "record.json")
    found.update(json.dumps([record[key] for key in ("metrics", "views", "contributions")], sort_keys=True).encode())
    return found.hexdigest()


def go(config: RunConfig, home: Path) -> None:
    """Resume the run of a workspace, or start one if none can be resumed; write the output to a file."""
    os.environ["HARNESS_HOME"] = str(home)
    with (home / "output").open("a", buffering=1) as output, redirect_stdout(output), redirect_stderr(output):
        try:
            earlier = None
            for folder in run_folders(home):
                log = folder / "events.jsonl"
                if log.exists() and log.stat().st_size:
                    earlier = _resumable(folder.name)
            if finished_run(home) is None:
                run(config, track="none", earlier=earlier)
        except BaseException:
            traceback.print_exc()
            raise SystemExit(1) from None


def _resumable(name: str) -> Earlier | None:
    """Return the killed run; None if it had just ended, or if its first line never reached the disk."""
    try:
        return find_earlier(name)
    except UserError as error:
        if "is finished" in str(error) or "does not begin with a start" in str(error):
            return None
        raise


def start(config: RunConfig, home: Path) -> BaseProcess:
    """Start a process that calls `go`."""
    child = get_context("fork").Process(target=go, args=(config, home))
    child.start()
    return child


def run_folders(home: Path) -> list[Path]:
    """Return the run folders of a workspace."""
    return sorted(path for path in (home / "runs").glob("*") if path.is_dir())


def finished_run(home: Path) -> Path | None:
    """Return the run folder whose record says that it is finished; None if there is none."""
    for folder in run_folders(home):
        record = folder / "record.json"
        if record.is_file() and read_json(record)["status"] == "finished":
            return folder
    return None


def moment_of(home: Path) -> str:
    """Return what a killed process was doing, from the files that it left."""
    folders = run_folders(home)
    if not folders:
        return "before the run's folder"
    checkpoints = folders[-1] / "checkpoints"
    if finished_run(home):
        return "behind the record"
    if any((folders[-1] / name).exists() for name in ("predictions", "ids.npy", "model")):
        return "writing results"
    if list(checkpoints.glob(".*")):
        return "writing a checkpoint"
    return "between checkpoints" if list(checkpoints.glob("step-*")) else "before the first checkpoint"


def untouched(planted: Path, variant: str, home: Path) -> Result:
    """Run a variant that is never killed; return its result."""
    home.mkdir()
    began = time.monotonic()
    start(settings(planted, variant), home).join()
    folder = finished_run(home)
    if folder is None:
        raise RuntimeError(f"{variant} does not even run undisturbed: {(home / 'output').read_text()[-2000:]}")
    return Result(digest_of(folder), time.monotonic() - began)


def cycle(number: int, seed: int, planted: Path, references: dict[str, Result], until: float) -> Cycle | None:
    """Start, kill and resume a run; at least one kill hits, as the first moment is drawn from the run's life.

    Return None if the time is over.
    """
    if time.monotonic() > until:
        return None
    home = planted / f"cycle-{number}"
    draw = np.random.default_rng([seed, number])
    variant = list(VARIANTS)[number % len(VARIANTS)]
    result, reference = Cycle(number, variant), references[variant]
    config, kills = settings(planted, variant), int(draw.integers(1, _MOST_KILLS + 1))
    home.mkdir()
    while True:
        patience = float(draw.uniform(0, reference.seconds)) if result.kills < kills else None
        child = start(config, home)
        child.join(patience)
        child.kill()
        child.join()
        if child.exitcode == -signal.SIGKILL:
            result.kills += 1
            result.moments.append(moment_of(home))
            continue
        if child.exitcode != 0:
            result.wrong = f"exit code {child.exitcode}: {(home / 'output').read_text()[-600:]}"
            return result
        if result.kills:
            break
        shutil.rmtree(home)  # faster than the undisturbed run: nothing was killed, so it does not count
        home.mkdir()
    folder = finished_run(home)
    result.equal = folder is not None and digest_of(folder) == reference.digest
    if not result.equal:
        result.wrong = f"other results than undisturbed, killed at: {', '.join(result.moments)}"
    else:
        shutil.rmtree(home, ignore_errors=True)
    return result


def soak(cycles: int, minutes: float, seed: int, workers: int, folder: Path) -> Iterator[Cycle]:
    """Run all cycles, as many at a time as there are workers; yield each when it is done."""
    write_dataset(folder / "data")
    write_teacher(folder / "teacher")
    references = {name: untouched(folder, name, folder / f"untouched-{place}") for place, name in enumerate(VARIANTS)}
    until = time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        futures = [pool.submit(cycle, number, seed, folder, references, until) for number in range(cycles)]
        for future in as_completed(futures):
            if (done := future.result()) is not None:
                yield done


def summary(cycles: list[Cycle], asked: int, seed: int) -> dict[str, Any]:
    """Return the counts for terminal and report."""
    return {
        "asked": asked,
        "cycles": len(cycles),
        "equal": sum(one.equal for one in cycles),
        "kills": sum(one.kills for one in cycles),
        "moments": dict(Counter(moment for one in cycles for moment in one.moments).most_common()),
        "variants": dict(Counter(one.variant for one in cycles)),
        "wrong": [f"cycle {one.number}, {one.variant}: {one.wrong}" for one in cycles if one.wrong],
        "seed": seed,
    }


def section(counts: dict[str, Any], seconds: float) -> str:
    """Return the section of reports/faults.md."""
    tables = (("killed while", "kills"), counts["moments"]), (("trained", "cycles"), counts["variants"])
    return "\n\n".join(
        [
            f"{counts['equal']:,} of {counts['asked']:,} trainings that were killed with SIGKILL at random moments and "
            "resumed ended with the weights, predictions and metrics of an undisturbed run, bit for bit; "
            f"{counts['kills']:,} kills, seed {counts['seed']}. {page.origin_line(seconds)}",
            *(page.counts(*each) for each in tables),
            *(f"- {page.escaped(line)}" for line in counts["wrong"]),
        ]
    )


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0, help="no cycle begins after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the section of reports/faults.md")
    wanted = parser.parse_args()
    torch.set_num_threads(1)  # OpenMP's other threads would not be there in a forked process
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-soak-") as name:
        with progress("kill and resume", wanted.cycles, "cycles") as advance:
            done = []
            for one in soak(wanted.cycles, wanted.minutes, wanted.seed, wanted.workers, Path(name)):
                done.append(one)
                advance(1)
        counts = summary(done, wanted.cycles, wanted.seed)
    if wanted.write:
        page.write_section(page.KILL_AND_RESUME, section(counts, time.monotonic() - began))
    sys.stdout.write(json.dumps(counts, indent=1) + "\n")
    sys.stdout.write(f"{counts['equal']} of {wanted.cycles} equal to the undisturbed run\n")
    return 0 if counts["equal"] == wanted.cycles else 1


if __name__ == "__main__":
    sys.exit(main())
