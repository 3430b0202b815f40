"""Hostile input by the minute: `make fuzz`.

    python -m tests.faults.fuzz --minutes 10 --write
    python -m tests.faults.fuzz --minutes 1 --targets archive,tokenizer --engine mutations
    python -m tests.faults.fuzz --replay fuzz-findings/archive-1a2b3c4d

Each target has its share of the time. Exit code 1 if there is a finding; its input is saved, one for each place in the
code, with a text that says what happened.
"""

import argparse
import contextlib
import io
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tests.faults import page

if TYPE_CHECKING:  # at run time not before imports of the harness are instrumented
    from tests.faults.engine import Outcome


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--targets", help="names with commas between them; by default all")
    parser.add_argument("--engine", choices=("atheris", "mutations"), help="by default atheris, where it is installed")
    parser.add_argument("--seed", type=int, help="of the random changes; by default another one every time")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where their inputs are saved")
    parser.add_argument("--replay", type=Path, help="give one saved input to its target and print what happens")
    parser.add_argument("--write", action="store_true", help="write the section of reports/faults.md")
    given = parser.parse_args(arguments)
    name = given.engine or ("atheris" if find_spec("atheris") else "mutations")
    library = _instrumented() if name == "atheris" else None
    from tests.faults.engine import TARGETS, Fuzzer

    if given.replay:
        return _replay(given.replay)
    names = given.targets.split(",") if given.targets else list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    began = time.monotonic()
    outcomes = Fuzzer(library, given.findings, seed).run([TARGETS[name] for name in names], given.minutes)
    text = section(outcomes, name, given.minutes, time.monotonic() - began)
    if given.write:
        page.write_section(page.HOSTILE_INPUT, text)
    sys.stdout.write(text.partition("\n")[0] + "\n")
    return int(any(each.findings for each in outcomes.values()))


def section(outcomes: "dict[str, Outcome]", engine: str, minutes: float, seconds: float) -> str:
    """Return the section of reports/faults.md."""
    inputs = {name: each.inputs for name, each in outcomes.items()}
    found = sum(each.findings for each in outcomes.values())
    return (
        f"{sum(inputs.values()):,} inputs to {len(inputs)} parsers and loaders in {minutes:g} minutes ({engine}): "
        f"{found} findings. {page.origin_line(seconds)}\n\n{page.counts(('reads', 'inputs'), inputs)}"
    )


def _instrumented() -> ModuleType:
    """Return the library atheris, after importing the harness so that its branches are counted."""
    import atheris

    # it names every module on standard error
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["harness", "methods"]):
        import tests.faults.engine  # noqa: F401

    module: ModuleType = atheris
    return module


def _replay(file: Path) -> int:
    """Give a saved input to its target again; return exit code 1 if it is still a finding."""
    from tests.faults.engine import TARGETS
    from tests.faults.judge import judged

    target = TARGETS[file.name.rpartition("-")[0]]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        found = judged(target, file.read_bytes(), Path(root))
    accepted = "accepted" if found.accepted else "refused with a message"
    sys.stdout.write(f"{target.name}: {found.finding or accepted}\n{found.detail}\n")
    return int(bool(found.finding))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
