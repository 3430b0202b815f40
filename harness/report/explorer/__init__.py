"""The prediction explorer's data: run folders and prepared datasets -> scripts beside the page.

    explorer/manifest.js          harnessExplorer({...}): datasets, their runs, how many rows a file has
             d0/texts-000.js      harnessShard("d0", "texts", 0, [...], build): query texts, cut
                truth-000.js      true labels of the same rows
                r0-000.js         predictions of one run for the same rows: ids and scores
                labels-000.js     text, number of train rows and bin of every label
                r0-hits.js        one character per row: which of its first five predictions are true
                truth-counts.js   true labels per row

They hold texts of other people, so they are made where they are looked at and stay out of the repository. The same
runs give the same bytes. `build` is a hash of all that is shown of a dataset, in the manifest too: a page that was
opened before the files were made anew does not mix the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.progress import progress
from harness.record import RunRecord
from harness.report.explorer.chosen import Shown, choose, find_runs, require_folders
from harness.report.explorer.placing import replaced
from harness.report.explorer.predictions import HIT_BITS, Predictions, read_predictions
from harness.report.explorer.prepared import Prepared, open_prepared, prepared_folders
from harness.report.explorer.scripts import as_json, call
from harness.report.explorer.writing import write_dataset

__all__ = ["ExplorerFacts", "build_explorer"]

VERSION = 2
"""Of the files; the page shows those of its own version and no others."""
MANIFEST = "manifest.js"


@dataclass(frozen=True)
class ExplorerFacts:
    """What was written."""

    datasets: dict[str, tuple[str, ...]]
    """Run ids by dataset; empty if there was nothing to show, and then nothing was written."""
    files: int
    bytes: int
    left_out: tuple[str, ...]
    """A sentence for everything that is not shown but might be expected."""


def build_explorer(
    runs: Sequence[Path],
    out: Path,
    *,
    per_row: int = 10,
    rows: int = 50_000,
    datasets: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    description: str = "explorer",
) -> ExplorerFacts:
    """Writes the explorer's data, the whole of it or nothing; that of an earlier call is replaced.

    Args:
        runs: Folders of run folders.
        out: The folder to write, `explorer` beside the page.
        per_row: Predicted labels that are shown of a row.
        rows: Test rows that are shown of a dataset, at most; the first ones.
        datasets: Names; all that have runs if absent.
        only: Ids of the runs to show; if absent, one of each method and encoder.
        description: Of the progress bar.
    """
    if per_row < HIT_BITS or rows < 1:
        raise UserError(f"an explorer shows at least {HIT_BITS} labels of at least 1 row, not {per_row} of {rows}")
    require_folders(runs)
    shown, left_out = choose(find_runs(runs, only), prepared_folders(), datasets, only is not None)
    entries: list[dict[str, Any]] = []
    with replaced(out, MANIFEST) as folder, progress(description, sum(len(one.runs) for one in shown), "runs") as done:
        for one in shown:
            data = open_prepared(one.data)
            found, faults = _readable(one, data, min(rows, len(data.texts)), per_row)
            left_out += faults
            if found:
                entries.append(write_dataset(folder / f"d{len(entries)}", one, data, found))
            if found and rows < len(data.texts):
                left_out.append(f"{one.dataset}: the first {rows:,} of {len(data.texts):,} test rows are shown")
            done(len(one.runs))
        if entries:
            about = {"version": VERSION, "per_row": per_row, "datasets": entries}
            (folder / MANIFEST).write_bytes(call("harnessExplorer", as_json(about)))
        sizes = [path.stat().st_size for path in folder.rglob("*.js")]
    written = {entry["name"]: tuple(run["id"] for run in entry["runs"]) for entry in entries}
    return ExplorerFacts(written, len(sizes), sum(sizes), tuple(left_out))


def _readable(
    shown: Shown, data: Prepared, rows: int, per_row: int
) -> tuple[list[tuple[RunRecord, Predictions]], list[str]]:
    """The predictions of every run that can be read, and what is wrong with the others."""
    found, faults = [], []
    for run in shown.runs:
        try:
            found.append((run.record, read_predictions(run, data, rows, per_row)))
        except UserError as error:
            faults.append(f"{shown.dataset}: run {run.record.run_id} is left out; {error}")
    return found, faults
