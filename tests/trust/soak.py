"""Kill and resume, again and again: `make soak`.

    python -m tests.trust.soak --cycles 200 --minutes 30

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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.config import Layer, RunConfig
from harness.errors import UserError
from harness.files import read_json
from harness.perf.saved import Origin
from harness.progress import progress
from harness.report.trust import Soak, write_part
from harness.resume import find_earlier
from harness.run import resolve_config, run
from tests.planted import write_dataset, write_teacher

_RATES: dict[str, Any] = {"lr_encoder": 0.05}
_MINED: dict[str, Any] = {"batch_size": 48, "epochs": 6, "random_epochs": 2, "refresh_epochs": 2, **_RATES}
_SAVING: dict[str, Any] = {"min_seconds": 0.0, "every_steps": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "unidec": ("unidec", _MINED),
    "unidec, held-out rows": ("unidec", {**_MINED, "validation": {"size": 0.2, "patience": 4}}),
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
"""By name: method and settings; a second or two each."""
_ROOT = Path(__file__).parents[2]
_MOST_KILLS = 3
_POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Result:
    """What a finished run left."""

    digest: str
    seconds: float


@dataclass
class Cycle:
    """One training that was killed and taken up until it ended."""

    number: int
    variant: str
    kills: int = 0
    moments: list[str] = field(default_factory=list)
    """What the killed process was at, kill by kill."""
    equal: bool = False
    wrong: str = ""


def settings(planted: Path, variant: str) -> RunConfig:
    """Resolved settings of a variant."""
    method, values = VARIANTS[variant]
    encoder = {"encoder": "static", "encoder_options": {"teacher": str(planted / "teacher"), "dim": 32}}
    common = {**encoder, "search": {"k": 20}, "checkpoint": _SAVING}
    return resolve_config(method, f"{planted / 'data'}/", [Layer("soak", {**common, **values})])[0]


def digest_of(folder: Path) -> str:
    """Hash of everything that a run found: weights, predictions, per-row scores, metrics of every view."""
    found = hashlib.sha256()
    for path in [folder / "model" / "model.safetensors", *sorted(folder.rglob("*.npy"))]:
        found.update(path.name.encode() + path.read_bytes())
    record = read_json(folder / "record.json")
    found.update(json.dumps([record[key] for key in ("metrics", "views", "contributions")], sort_keys=True).encode())
    return found.hexdigest()


def started(work: Callable[[], object], home: Path) -> int:
    """Forks a process that does the work in a workspace; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # a group of its own, so that nothing it starts can outlive it unseen
        os.setpgid(0, 0)
        said = os.open(home / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout = sys.stderr = os.fdopen(os.dup(said), "w", buffering=1)
        os.environ["HARNESS_HOME"] = str(home)
        work()
        code = 0
    except BaseException as error:  # whatever it is, it is told, and the process ends here
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def ended(child: int, within: float | None) -> int | None:
    """Exit code of a process, or None if it is still there after so many seconds."""
    until = None if within is None else time.monotonic() + within
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if until is not None and time.monotonic() >= until:
            return None
        time.sleep(_POLL_SECONDS)


def go(config: RunConfig) -> None:
    """Takes up the run of the workspace, or starts one where there is none that could be taken up."""
    earlier = None
    for folder in run_folders(Path(os.environ["HARNESS_HOME"])):
        if (folder / "events.jsonl").exists() and (folder / "events.jsonl").stat().st_size:
            try:
                earlier = find_earlier(folder.name)
            except UserError as error:
                if "is finished" in str(error):
                    return
                if "does not begin with a start" not in str(error):  # its first line never reached the disk
                    raise
    run(config, track="none", earlier=earlier)


def run_folders(home: Path) -> list[Path]:
    """Run folders of a workspace."""
    return sorted(path for path in (home / "runs").glob("*") if path.is_dir())


def finished_run(home: Path) -> Path | None:
    """The run folder whose record says that it is finished."""
    for folder in run_folders(home):
        record = folder / "record.json"
        if record.is_file() and read_json(record)["status"] == "finished":
            return folder
    return None


def moment_of(home: Path) -> str:
    """What a killed process was at, from what it left."""
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
    """The run that is never killed."""
    home.mkdir()
    began = time.monotonic()
    code = ended(started(partial(go, settings(planted, variant)), home), within=None)
    folder = finished_run(home)
    if code != 0 or folder is None:
        raise RuntimeError(f"{variant} does not even run undisturbed: {(home / 'said').read_text()[-2000:]}")
    return Result(digest_of(folder), time.monotonic() - began)


def cycle(number: int, seed: int, planted: Path, references: dict[str, Result], home: Path) -> Cycle:
    """Starts, kills, takes up; at least one kill hits, because the first moment is drawn from the run's life."""
    draw = np.random.default_rng([seed, number])
    variant = list(VARIANTS)[number % len(VARIANTS)]
    result, reference = Cycle(number, variant), references[variant]
    config, kills = settings(planted, variant), int(draw.integers(1, _MOST_KILLS + 1))
    home.mkdir()
    while True:
        patience = float(draw.uniform(0, reference.seconds)) if result.kills < kills else None
        child = started(partial(go, config), home)
        code = ended(child, patience)
        if code is None:
            os.kill(child, signal.SIGKILL)
            if ended(child, None) == -signal.SIGKILL:
                result.kills += 1
                result.moments.append(moment_of(home))
                continue
            code = 0
        if code != 0:
            result.wrong = f"exit code {code}: {(home / 'said').read_text()[-600:]}"
            return result
        if result.kills:
            break
        shutil.rmtree(home)  # faster than the undisturbed run: nothing was killed, so it does not count
        home.mkdir()
    folder = finished_run(home)
    result.equal = folder is not None and digest_of(folder) == reference.digest
    if not result.equal:
        result.wrong = f"other results than undisturbed, killed at: {', '.join(result.moments)}"
    return result


def worker(numbers: range, seed: int, folder: Path, references: dict[str, Result], until: float) -> None:
    """Cycles one after the other; each is a line of a file as soon as it is done."""
    with (folder / f"cycles-{numbers.start}.jsonl").open("w", buffering=1) as lines:
        for number in numbers:
            if time.monotonic() > until:
                break
            home = folder / f"cycle-{number}"
            done = cycle(number, seed, folder, references, home)
            lines.write(json.dumps(asdict(done)) + "\n")
            if done.equal:
                shutil.rmtree(home, ignore_errors=True)


def told(folder: Path) -> list[Cycle]:
    """All cycles that are done; a line that is being written comes next time."""
    whole = [path.read_text().rpartition("\n")[0].splitlines() for path in sorted(folder.glob("cycles-*.jsonl"))]
    return [Cycle(**json.loads(line)) for lines in whole for line in lines]


def soak(cycles: int, minutes: float, seed: int, workers: int, folder: Path) -> Iterator[int]:
    """Runs all cycles; yields how many are done whenever that changes."""
    write_dataset(folder / "data")
    write_teacher(folder / "teacher")
    references = {name: untouched(folder, name, folder / f"untouched-{place}") for place, name in enumerate(VARIANTS)}
    until = time.monotonic() + 60 * minutes
    children = []
    for first in range(workers):
        numbers = range(first, cycles, workers)
        home = folder / f"worker-{first}"
        home.mkdir()
        children.append(started(partial(worker, numbers, seed, folder, references, until), home))
    done = 0
    while children:
        children = [child for child in children if ended(child, 0.5) is None]
        if len(now := told(folder)) != done:
            done = len(now)
            yield done


def summary(cycles: list[Cycle], asked: int, seed: int) -> dict[str, Any]:
    """Counts, for a person and for the report."""
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


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0, help="no cycle begins after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep the counts in reports/trust.json and trust.md")
    parser.add_argument("--folder", type=Path, default=_ROOT / "reports")
    wanted = parser.parse_args()
    torch.set_num_threads(1)  # OpenMP's other threads would not be there in a forked process
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-soak-") as name:
        with progress("kill and resume", wanted.cycles, "cycles") as advance:
            before = 0
            for done in soak(wanted.cycles, wanted.minutes, wanted.seed, wanted.workers, Path(name)):
                advance(done - before)
                before = done
        counts = summary(told(Path(name)), wanted.cycles, wanted.seed)
    if wanted.write:
        write_part(wanted.folder, "soak", Soak(**counts, **Origin.here(time.monotonic() - began)))
    sys.stdout.write(json.dumps(counts, indent=1) + "\n")
    sys.stdout.write(f"{counts['equal']} of {wanted.cycles} equal to the undisturbed run\n")
    return 0 if counts["equal"] == wanted.cycles else 1


if __name__ == "__main__":
    sys.exit(main())
