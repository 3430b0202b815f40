"""How long a person waits for tables, figures and the page over 300 runs: a fresh process, against fixed bounds."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UserError
from harness.files import write_json
from harness.perf import Row, Sample, bound
from harness.record import RunRecord, find_records

RECORDS = 300
TABLES_SECONDS = 20.0
PAGE_BYTES = 3e6
COMMITTED = Path(__file__).parents[2] / "reports" / "runs"


def rows() -> Iterator[Row]:
    """Every table in every form; then tables, figures and page, and how large the page is."""
    with tempfile.TemporaryDirectory(prefix="harness-perf-") as name:
        folder = Path(name)
        for record in many_records(RECORDS):
            write_json(folder / "runs" / f"{record.run_id}.json", record.model_dump(mode="json"))
        tables = _seconds("--table", "all", "--runs", str(folder / "runs"), "--out", str(folder / "forms"))
        size = f"{RECORDS} records"
        yield bound("report --table all", size, tables, at_most=TABLES_SECONDS)
        whole = _seconds("--write", "--folder", str(folder))
        yield bound("report --write", size, whole, at_most=3 * TABLES_SECONDS)
        page = Sample(((folder / "index.html").stat().st_size,), "B")
        yield bound("the page", size, page, at_most=PAGE_BYTES)


def many_records(count: int) -> Iterator[RunRecord]:
    """As many records as wanted, made from the committed ones: further seeds of the same runs."""
    known = find_records([COMMITTED])
    if not known:
        raise UserError(f"no records to make a report of in {COMMITTED.name}/; measure from a whole checkout")
    for number in range(count):
        record, again = known[number % len(known)], number // len(known)
        config = record.config | {"seed": record.config["seed"] + 100 * again}
        yield record.model_copy(update={"run_id": f"{record.run_id}-{again}", "config": config})


def _seconds(*arguments: str) -> Sample:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "harness", "report", *arguments], check=True, capture_output=True)
    return Sample((time.perf_counter() - began,), "s")
