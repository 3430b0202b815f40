"""How long a person waits for tables, figures and the page over 300 runs: a fresh process, against fixed bounds."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness.files import write_json
from harness.perf import Row
from harness.record import RunRecord, find_records

RECORDS = 300
TABLES_SECONDS = 20.0
PAGE_MB = 3.0
COMMITTED = Path(__file__).parents[2] / "reports" / "runs"


def rows() -> Iterator[Row]:
    """Every table in every form; then tables, figures and page, and how large the page is."""
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as name:
        folder = Path(name)
        for record in many_records(RECORDS):
            write_json(folder / "runs" / f"{record.run_id}.json", record.model_dump(mode="json"))
        tables = _seconds("--table", "all", "--runs", str(folder / "runs"), "--out", str(folder / "forms"))
        yield _row("report --table all", tables, TABLES_SECONDS, "s")
        whole = _seconds("--write", "--folder", str(folder))
        yield _row("report --write", whole, 3 * TABLES_SECONDS, "s")
        yield _row("the page", (folder / "index.html").stat().st_size / 1e6, PAGE_MB, "MB")


def many_records(count: int) -> Iterator[RunRecord]:
    """As many records as wanted, made from the committed ones: further seeds of the same runs."""
    known = find_records([COMMITTED])
    for number in range(count):
        record, again = known[number % len(known)], number // len(known)
        config = record.config | {"seed": record.config["seed"] + 100 * again}
        yield record.model_copy(update={"run_id": f"{record.run_id}-{again}", "config": config})


def _seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "harness", "report", *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


def _row(what: str, figure: float, bound: float, unit: str) -> Row:
    return Row(
        what=what,
        size=f"{RECORDS} records",
        reference="fixed bound",
        ours=f"{figure:.2f} {unit}",
        theirs=f"{bound:g} {unit}",
        ratio=figure / bound,
        target="at most 1.0",
        met=figure <= bound,
    )
