"""Gives every target its share of the time, each in a process of its own, and keeps what it finds.

With atheris (libFuzzer) inputs that reach new code are kept and changed further; without it valid inputs are changed at
random.
"""

import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

from tests.faults import targets_data, targets_models, targets_runs
from tests.faults.judge import Judgement, Target, judged
from tests.faults.mutations import mutated
from tests.faults.world import world

TARGETS = {target.name: target for part in (targets_data, targets_runs, targets_models) for target in part.TARGETS}
"""All readers of the harness that get hostile input, by name."""
SILENT_SECONDS = 120.0
"""Most seconds that a process may take for one input; beyond, it hangs where no signal reaches it."""
_FEWEST = 20
"""Fewest inputs that are tried, however short the time is."""
_LONGEST = 1 << 18
"""Most bytes of an input."""
Try = Callable[[bytes], None]


@dataclass
class Outcome:
    """Number of inputs and findings of one target."""

    inputs: int
    findings: int


class Fuzzer:
    """One run of the command; without a library inputs are changed at random."""

    def __init__(self, library: ModuleType | None, findings: Path, seed: int) -> None:
        self._library, self._findings, self._seed = library, findings, seed

    def run(self, targets: list[Target], minutes: float) -> dict[str, Outcome]:
        """Give every target its share of the time."""
        world()  # made once: every child has it
        began, outcomes = time.monotonic(), {}
        for place, target in enumerate(targets):
            left = 60 * minutes - (time.monotonic() - began)
            outcome = outcomes[target.name] = self._one(target, max(0.5, left / (len(targets) - place)))
            sys.stdout.write(f"{target.name:24} {outcome.inputs:>10,} inputs {outcome.findings:>4} findings\n")
            sys.stdout.flush()
        return outcomes

    def _one(self, target: Target, seconds: float) -> Outcome:
        """Fuzz a target in a process of its own, which may crash; its current input is kept in a file."""
        target.seeds  # noqa: B018  # made here, so that a child's time goes into hostile ones
        in_memory = next(place for place in ("/dev/shm", tempfile.gettempdir()) if os.access(place, os.W_OK))
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=in_memory) as folder:
            root, tally = Path(folder), Path(folder) / "tally"
            (root / "current").touch()
            tally.write_text("0 0")
            child = get_context("fork").Process(target=self._child, args=(target, seconds, root))
            child.start()
            why = ""
            while child.is_alive():
                child.join(0.05)
                if time.time() - tally.stat().st_mtime > SILENT_SECONDS:
                    why = f"no answer for {SILENT_SECONDS:g} s"
                    child.kill()
            code = child.exitcode or 0
            why = why or (signal.Signals(-code).name if code < 0 else f"exit code {code}" if code else "")
            inputs, findings = map(int, tally.read_text().split())
            if why:
                self._save(target, (root / "current").read_bytes(), Judgement(False, f"the process ended: {why}", why))
        return Outcome(inputs, findings + bool(why))

    def _child(self, target: Target, seconds: float, root: Path) -> None:
        draw, places, inputs = random.Random(f"{self._seed} {target.name}"), set(), 0

        def attempt(data: bytes) -> None:
            nonlocal inputs
            inputs += 1
            (root / "current").write_bytes(data)
            if (found := judged(target, data, root)).finding:
                places.add(self._save(target, data, found))
            (root / "next").write_text(f"{inputs} {len(places)}")
            (root / "next").replace(root / "tally")

        for seed in target.seeds:
            attempt(seed)
        if self._library is not None:
            _guided(self._library, target, draw, seconds, attempt, root)
            return
        end, done = time.monotonic() + seconds, 0
        while done < _FEWEST or time.monotonic() < end:
            attempt(mutated(target.seeds, target.form, target.words, draw)[:_LONGEST])
            done += 1

    def _save(self, target: Target, data: bytes, found: Judgement) -> str:
        """Save the smallest input that failed at this place in the code; return the key of the place."""
        place = found.detail.strip().splitlines()[-2:-1] or [found.finding]
        kind = found.finding.partition(":")[0]
        key = hashlib.sha256(f"{kind} {place[0].strip()}".encode("utf-8", "replace")).hexdigest()[:8]
        self._findings.mkdir(parents=True, exist_ok=True)
        file = self._findings / f"{target.name}-{key}"
        if not file.exists() or len(data) < file.stat().st_size:
            file.write_bytes(data)
            text = f"{target.name}: {found.finding}\n\n{found.detail}\n"
            file.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        return key


def _guided(library: ModuleType, target: Target, draw: random.Random, seconds: float, attempt: Try, root: Path) -> None:
    """Fuzz until the time is over: libFuzzer keeps inputs that reach new code, and we mutate them."""
    corpus = root / "corpus"
    corpus.mkdir()
    for place, seed in enumerate(target.seeds):
        (corpus / str(place)).write_bytes(seed)

    def changed(data: bytes, longest: int, seed: int) -> bytes:
        chosen = [data, data, *target.seeds] if data else target.seeds
        return mutated(chosen, target.form, target.words, random.Random(seed))[:longest]

    options = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={_LONGEST}", f"-seed={draw.randrange(1, 2**31)}"]
    # time and memory are watched over by `judged`, which tells more than a dead process
    options += ["-timeout=0", "-rss_limit_mb=0", "-handle_alrm=0", f"-artifact_prefix={root}/", "-print_final_stats=0"]
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 2)
    library.Setup([sys.argv[0], *options, str(corpus)], attempt, custom_mutator=changed)
    library.Fuzz()
