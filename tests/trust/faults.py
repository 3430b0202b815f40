"""Runs every test that tries a case of the fault list and shows what happened: `make faults`.

    python -m tests.trust.faults [--write] [--workers 2] [pytest's own arguments, for example tests/test_resume.py]

One row a case: what was done, what happened, verdict. With --write it becomes a part of reports/trust.json and
trust.md. Exit code 1 unless every case holds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.cli.show import show_tables
from harness.perf.saved import Origin
from harness.progress import clock
from harness.report.trust import Case, Faults, case_tables, write_part
from tests.trust.cases import FAULTS, PARITY

_ROOT = Path(__file__).parents[2]
_CHOSEN = "faults and not slow and not gpu and not benchmarks"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def gathered(tests: dict[str, Any]) -> list[Case]:
    """All cases of both lists, from the outcome and the account of every test."""
    return [
        _case(kind, number, title, [one for one in tests.values() if number in one["cases"].get(kind, [])])
        for kind, titles in (("fault", FAULTS), ("parity", PARITY))
        for number, title in titles.items()
    ]


def _case(kind: Any, number: int, title: str, tests: list[dict[str, Any]]) -> Case:
    tests = [one for one in tests if one["outcome"] != "skipped"]  # nothing was tried, so nothing is claimed
    passed = [one for one in tests if one["outcome"] == "passed"]
    telling = [one for one in passed if one["done"] and one["seen"]]
    simulated = [one["simulated_because"] for one in telling]
    return Case(
        kind=kind,
        number=number,
        title=title,
        tests=len(tests),
        passed=len(passed),
        # parameters of one test may tell the same
        done=list(dict.fromkeys(text for one in telling for text in one["done"])),
        seen=list(dict.fromkeys(text for one in telling for text in one["seen"])),
        simulated=simulated[0] if simulated and all(simulated) else "",
    )


def tried(workers: int, arguments: list[str]) -> dict[str, Any]:
    """Runs the tests; outcome and account by test."""
    with tempfile.TemporaryDirectory(prefix="harness-faults-") as folder:
        book = Path(folder) / "accounts.json"
        spread = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        command = [sys.executable, "-m", "pytest", "-q", "-m", _CHOSEN, *spread, "--accounts", str(book), *arguments]
        subprocess.run(command, cwd=_ROOT, env={**os.environ, **_ONE_THREAD}, check=False)
        tests: dict[str, Any] = json.loads(book.read_text(encoding="utf-8")) if book.is_file() else {}
        return tests


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep it in a folder of reports")
    parser.add_argument("--folder", type=Path, default=_ROOT / "reports")
    parser.add_argument("--workers", type=int, default=2)
    wanted, arguments = parser.parse_known_args()
    began = time.monotonic()
    cases = gathered(tried(wanted.workers, arguments))
    part = Faults(cases=cases, **Origin.here(time.monotonic() - began))
    show_tables(case_tables(part), star="does not hold")
    if wanted.write:
        write_part(wanted.folder, "faults", part)
    broken = [f"{case.kind} {case.number}: {case.verdict}" for case in cases if not case.holds]
    sys.stdout.write(f"{len(cases) - len(broken)} of {len(cases)} cases hold, {clock(part.seconds)}\n")
    sys.stdout.write("".join(f"{line}\n" for line in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
