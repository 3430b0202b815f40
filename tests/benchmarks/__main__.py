"""Measure, print the table of ratios, and write reports/speed.md if everything was measured: `make bench`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.cli import WAITING
from tests.benchmarks import page
from tests.benchmarks.race import FULL
from tests.faults.page import origin_line

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "reports" / "speed.md"


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments; without any, all benchmarks, and the page is written."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
        report = Path(folder) / "benchmarks.json"
        options = ["-q", "-m", "benchmarks", "--benchmark-enable", "--benchmark-quiet", f"--benchmark-json={report}"]
        command = [sys.executable, "-m", "pytest", "tests/benchmarks", *options, *arguments]
        code = subprocess.run(command, cwd=_ROOT, env={**WAITING, **os.environ, FULL: "1"}, check=False).returncode
        written = report.read_text(encoding="utf-8") if report.is_file() else ""
    if not written:
        return code or 1
    text = page.text(page.rows(json.loads(written)), origin_line(time.monotonic() - began))
    sys.stdout.write(f"{text}\n")
    if not arguments and code == 0:
        _PAGE.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {_PAGE.relative_to(_ROOT)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
