"""Run every test that covers a case of the fault list and show what happened: `make faults`.

    python -m tests.faults.faults [--write] [--workers 2] [arguments of pytest, such as tests/runs/test_resume.py]

One row a case: what was done, what happened, verdict. With --write it becomes a section of reports/faults.md. Exit code
1 unless every case holds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import page
from tests.faults.cases import FAULTS, PARITY

_ROOT = Path(__file__).parents[2]
_CHOSEN = "faults and not slow and not gpu and not benchmarks"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Case:
    """One case of a list, with the tests that cover it."""

    kind: str
    """Name of the list: `fault` or `parity`."""
    number: int
    title: str
    tests: int
    passed: int
    done: list[str]
    """What was done to the harness, as the tests describe it."""
    seen: list[str]
    """What happened, as the tests describe it."""
    simulated: str = ""
    """Why the fault could not be a real one; empty where it was."""

    @property
    def verdict(self) -> str:
        """`holds`, `holds (simulated)`, `FAILS` or `NOT TRIED`."""
        if self.passed < self.tests:
            return "FAILS"
        if not (self.done and self.seen):
            return "NOT TRIED"
        return "holds (simulated)" if self.simulated else "holds"

    @property
    def row(self) -> tuple[object, ...]:
        """Return the case as a row of the table."""
        simulated = [f"Simulated: {self.simulated}"] if self.simulated else []
        tests = self.tests if self.passed == self.tests else f"{self.passed} of {self.tests}"
        words = (_sentences([*self.done, *simulated]), _sentences(self.seen))
        return (f"{self.kind} {self.number}", self.title, *words, tests)


def _sentences(texts: list[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." for text in texts)


def cases(tests: dict[str, Any]) -> list[Case]:
    """Return all cases of both lists, from the outcome and the account of every test."""
    return [
        _case(kind, number, title, [one for one in tests.values() if number in one["cases"].get(kind, [])])
        for kind, titles in (("fault", FAULTS), ("parity", PARITY))
        for number, title in titles.items()
    ]


def _case(kind: str, number: int, title: str, tests: list[dict[str, Any]]) -> Case:
    tests = [one for one in tests if one["outcome"] != "skipped"]
    passed = [one for one in tests if one["outcome"] == "passed"]
    described = [one for one in passed if one["done"] and one["seen"]]
    # parameters of one test may describe the same
    done, seen = (list(dict.fromkeys(text for one in described for text in one[key])) for key in ("done", "seen"))
    simulated = [one["simulated_because"] for one in described]
    because = simulated[0] if simulated and all(simulated) else ""
    return Case(kind, number, title, len(tests), len(passed), done, seen, because)


def section(found: list[Case], seconds: float) -> str:
    """Return the section of reports/faults.md."""
    held, simulated = sum(case.verdict.startswith("holds") for case in found), sum(bool(one.simulated) for one in found)
    head = ("case", "promise", "what was done", "what happened", "tests", "verdict")
    return (
        f"{held} of {len(found)} cases hold, {simulated} of them simulated with the reason beside it. "
        f"{page.origin_line(seconds)}\n\n{page.table(head, [(*case.row, case.verdict) for case in found])}"
    )


def run_tests(workers: int, arguments: list[str]) -> dict[str, Any]:
    """Run the tests of the fault list; return outcome and account by test."""
    with tempfile.TemporaryDirectory(prefix="harness-faults-") as folder:
        book = Path(folder) / "accounts.json"
        spread = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        command = [sys.executable, "-m", "pytest", "-q", "-m", _CHOSEN, *spread, "--accounts", str(book), *arguments]
        subprocess.run(command, cwd=_ROOT, env={**os.environ, **_ONE_THREAD}, check=False)
        tests: dict[str, Any] = json.loads(book.read_text(encoding="utf-8")) if book.is_file() else {}
        return tests


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the section of reports/faults.md")
    parser.add_argument("--workers", type=int, default=2)
    options, arguments = parser.parse_known_args()
    began = time.monotonic()
    found = cases(run_tests(options.workers, arguments))
    text = section(found, time.monotonic() - began)
    if options.write:
        page.write_section(page.FAULT_LIST, text)
    broken = [case for case in found if not case.verdict.startswith("holds")]
    sys.stdout.write(f"{text}\n\n{len(found) - len(broken)} of {len(found)} cases hold\n")
    sys.stdout.write("".join(f"{case.kind} {case.number}: {case.verdict}\n" for case in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
