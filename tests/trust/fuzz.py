"""Hostile input by the minute: `make fuzz`.

    python -m tests.trust.fuzz --minutes 10 --out fuzz.json
    python -m tests.trust.fuzz --minutes 1 --targets archive,tokenizer --engine mutations
    python -m tests.trust.fuzz --replay fuzz-findings/archive-1a2b3c4d

Each target has its share of the time, in a process of its own. With atheris (libFuzzer) inputs that reach new code are
kept and changed further; without it valid inputs are changed at random. Exit code 1 if there is a finding; its input
is saved, one for each place in the code, with a text that says what happened.
"""

import argparse
import contextlib
import hashlib
import io
import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tests.trust.fuzzing import Finding, Target

_ROOT = Path(__file__).parents[2]
ENGINES = ("atheris", "mutations")
SILENT_SECONDS = 120.0
"""A process that is at one input for longer hangs where no signal reaches it, or was made to wait for something."""
_SHOWN = 1 << 20
"""Bytes of the input at hand that survive the process."""
_FEWEST = 20
"""Inputs that are tried however short the time is."""
_LONGEST = 1 << 18
"""Bytes of an input; everything that is read here is small."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--targets", help="names with commas between them; by default all")
    parser.add_argument("--engine", choices=ENGINES, help="by default atheris, where it is installed")
    parser.add_argument("--seed", type=int, help="of the random changes; by default another one every time")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where their inputs are saved")
    parser.add_argument("--replay", type=Path, help="give one saved input to its target and say what happens")
    parser.add_argument("--out", type=Path, help="write the summary as JSON")
    parser.add_argument("--write", action="store_true", help="keep it in reports/trust.json and trust.md")
    parser.add_argument("--folder", type=Path, default=_ROOT / "reports")
    given = parser.parse_args(arguments)
    engine = given.engine or ("atheris" if _installed() else "mutations")
    library = _instrumented() if engine == "atheris" else None
    from tests.trust.targets import TARGETS

    if given.replay:
        return _replay(given.replay, TARGETS)
    names = given.targets.split(",") if given.targets else list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    work = _Work(engine, library, given.findings, seed)
    began = time.monotonic()
    done = work.through([TARGETS[name] for name in names], given.minutes)
    found = sum(each.findings for each in done.values())
    counts = {name: {"inputs": each.inputs, "findings": each.findings} for name, each in done.items()}
    summary = {"minutes": given.minutes, "engine": engine, "targets": counts}
    if given.out:
        given.out.write_text(json.dumps(summary, indent=1) + "\n")
    if given.write:
        from harness.perf.saved import Origin
        from harness.report.trust import Fuzz, write_part

        write_part(given.folder, "fuzz", Fuzz(**summary, **Origin.here(time.monotonic() - began)))
    tried = sum(each.inputs for each in done.values())
    _say(f"{tried:,} inputs to {len(done)} targets ({engine}, seed {seed}): {found} findings")
    return int(found > 0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _installed() -> bool:
    from importlib.util import find_spec

    return find_spec("atheris") is not None


def _instrumented() -> ModuleType:
    """The library, after everything of the harness that is imported from now on counts its branches."""
    import atheris

    # it names every module on standard error
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["harness", "methods"]):
        import tests.trust.targets  # noqa: F401

    module: ModuleType = atheris
    return module


@dataclass
class Done:
    """What became of one target."""

    inputs: int
    findings: int
    seconds: float


class _Shared:
    """What a process and its child both see: how many inputs and findings there were, and the input at hand."""

    _FACTS = struct.Struct("<QQQ")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._FACTS.size + _SHOWN)
        self.inputs = self.findings = 0
        self.data = b""

    def put(self) -> None:
        """For the other process to see."""
        shown = self.data[:_SHOWN]
        self._memory[self._FACTS.size : self._FACTS.size + len(shown)] = shown
        self._memory[: self._FACTS.size] = self._FACTS.pack(self.inputs, self.findings, len(shown))

    def look(self) -> None:
        """Takes what the other process put there."""
        self.inputs, self.findings, length = self._FACTS.unpack_from(self._memory)
        self.data = self._memory[self._FACTS.size : self._FACTS.size + length]


class _Work:
    """One run of the command."""

    def __init__(self, engine: str, library: ModuleType | None, findings: Path, seed: int) -> None:
        self._engine, self._library, self._findings, self._seed = engine, library, findings, seed

    def through(self, targets: "list[Target]", minutes: float) -> dict[str, Done]:
        """Gives every target its share of the time."""
        from tests.trust.world import world

        world()  # made once: every child has it
        began, done = time.monotonic(), {}
        _say(f"{'target':24} {'inputs':>10} {'inputs/s':>10} {'findings':>9}")
        for place, target in enumerate(targets):
            left = 60 * minutes - (time.monotonic() - began)
            share = max(0.5, left / (len(targets) - place))
            made = done[target.name] = self._one(target, share)
            rate = made.inputs / max(made.seconds, 1e-9)
            _say(f"{target.name:24} {made.inputs:>10,} {rate:>10,.0f} {made.findings:>9}")
        return done

    def _one(self, target: "Target", seconds: float) -> Done:
        """A target in a process of its own, which may end as it likes."""
        shared, began = _Shared(), time.monotonic()
        target.seeds  # noqa: B018  # made here, so that a child's time goes into hostile ones
        sys.stdout.flush()
        shelves = [place for place in ("/dev/shm", tempfile.gettempdir()) if os.access(place, os.W_OK)]
        # made and removed here, because a child may end without a word, and one of libFuzzer does
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shelves[0]) as root:
            child = os.fork()
            if child == 0:
                _end_after(lambda: self._child(target, seconds, shared, Path(root)))
            why = _waited(child, shared)
        if why:
            from tests.trust.fuzzing import Finding

            self._save(Finding(target.name, shared.data, f"the process ended: {why}", why))
        return Done(shared.inputs, shared.findings + bool(why), time.monotonic() - began)

    def _child(self, target: "Target", seconds: float, shared: _Shared, root: Path) -> None:
        from tests.trust.fuzzing import Sandbox, judged

        draw = random.Random(f"{self._seed} {target.name}")
        sandbox, seen = Sandbox(root), set()

        def tried(data: bytes) -> None:
            shared.inputs, shared.data = shared.inputs + 1, data
            shared.put()
            if (finding := judged(target, data, sandbox).finding) is not None:
                seen.add(self._save(finding))
                shared.findings = len(seen)
                shared.put()

        for seed in target.seeds:
            tried(seed)
        if self._library is None:
            _mutate(target, draw, seconds, tried)
        else:
            _guided(self._library, target, draw, seconds, tried, root)

    def _save(self, finding: "Finding") -> str:
        """Keeps the smallest input that ended at this place in the code; returns what stands for the place."""
        place = finding.detail.strip().splitlines()[-2:-1] or [finding.what]
        kind = finding.what.partition(":")[0]
        key = hashlib.sha256(f"{kind} {place[0].strip()}".encode("utf-8", "replace")).hexdigest()[:8]
        self._findings.mkdir(parents=True, exist_ok=True)
        file = self._findings / f"{finding.target}-{key}"
        if not file.exists() or len(finding.data) < file.stat().st_size:
            file.write_bytes(finding.data)
            text = f"{finding.target}: {finding.what}\n\n{finding.detail}\n"
            file.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        return key


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Ends a forked child, whatever happens, without what its parent registered for its own end."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _waited(child: int, shared: _Shared) -> str:
    """Waits for a process; why it ended if not well, empty if it did."""
    inputs, since = 0, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        shared.look()
        if shared.inputs != inputs:
            inputs, since = shared.inputs, time.monotonic()
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if time.monotonic() - since > SILENT_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"killed: no answer for {SILENT_SECONDS:g} s"
        time.sleep(0.02)


def _mutate(target: "Target", draw: random.Random, seconds: float, tried: Callable[[bytes], None]) -> None:
    from tests.trust.mutations import mutated

    end, done = time.monotonic() + seconds, 0
    while done < _FEWEST or time.monotonic() < end:
        tried(mutated(target.seeds, target.form, target.words, draw)[:_LONGEST])
        done += 1


def _guided(
    library: ModuleType,
    target: "Target",
    draw: random.Random,
    seconds: float,
    tried: Callable[[bytes], None],
    root: Path,
) -> None:
    """Inputs that reach new code are kept by libFuzzer and changed by us; returns when the time is over."""
    from tests.trust.mutations import mutated

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
    library.Setup([sys.argv[0], *options, str(corpus)], tried, custom_mutator=changed)
    library.Fuzz()


def _replay(file: Path, targets: "dict[str, Target]") -> int:
    """One saved input again; exit code 1 if it is still a finding."""
    from tests.trust.fuzzing import Sandbox, judged

    target = targets[file.name.rpartition("-")[0]]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        verdict = judged(target, file.read_bytes(), Sandbox(Path(root)))
    if verdict.finding is None:
        _say(f"{target.name}: {'accepted' if verdict.accepted else 'refused in words'}")
        return 0
    _say(f"{target.name}: {verdict.finding.what}\n{verdict.finding.detail}")
    return 1


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
