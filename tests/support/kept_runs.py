"""Folders of results as `report --collect` writes them, with records but no per-row scores."""

from pathlib import Path

from harness.io.files import write_bytes
from harness.report.results import as_parquet, stored_file, stored_records
from harness.runs.record import RunRecord


def keep(folder: Path, *records: RunRecord) -> None:
    """Add records to a folder of reports, without per-row scores."""
    for record in records:
        file = stored_file(folder / "results", record)
        there = {one.run_id: one for one in (stored_records(file) if file.is_file() else [])} | {record.run_id: record}
        write_bytes(file, as_parquet((one, {}) for one in there.values()))
