"""The prediction explorer's data: run folders and prepared datasets -> scripts beside the page.

    explorer/manifest.js          harnessExplorer({...}): datasets, their runs, how many rows a file has
             d0/texts-000.js      harnessShard("d0", "texts", 0, [...], build): query texts, cut
                truth-000.js      true labels of the same rows
                r0-000.js         predictions of one run for the same rows: ids and scores
                labels-000.js     text, number of train rows and bin of every label
                r0-hits.js        one character per row: which of its first five predictions are true

They hold texts of other people, so they are made where they are looked at and stay out of the repository. The same
runs give the same bytes. `build` is a hash of all that is shown of a dataset, in the manifest too: a page that was
opened before the files were made anew does not mix the two.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.data.prepare import prepared_folders
from harness.errors import UserError
from harness.io.files import home, locked, whole_folder
from harness.io.progress import progress
from harness.report.explorer.predictions import HIT_BITS, Predictions, Prepared, open_prepared, read_predictions
from harness.report.explorer.selection import Shown, choose, find_runs
from harness.report.explorer.shards import as_json, call, write_dataset
from harness.runs.record import RunRecord

__all__ = ["ExplorerFacts", "build_explorer"]

VERSION = 2
"""Of the files; the page shows those of its own version and no others."""
SCRIPT = "manifest.js"
_WRITTEN = re.compile(r"manifest\.js(on)?|d\d+")


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
    """Write the explorer's data, the whole of it or nothing; that of an earlier call is replaced.

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
    for folder in runs:
        if not folder.is_dir():
            raise UserError(f"{folder} has no runs; make one with `python -m harness run`")
    shown, left_out = choose(find_runs(runs, only), prepared_folders(), datasets, only is not None)
    entries: list[dict[str, Any]] = []
    sizes: list[int] = []
    out = out.absolute()
    # not beside the folder: that is where reports are committed from
    lock = home() / "locks" / f"explorer-{hashlib.sha256(os.fsencode(out)).hexdigest()[:16]}"
    with (
        suppress(_NothingToShow),
        locked(lock),
        progress(description, sum(len(one.runs) for one in shown), "runs") as done,
    ):
        _require_ours(out)
        with whole_folder(out) as draft:
            for one in shown:
                data = open_prepared(one.data)
                found, faults = _readable(one, data, min(rows, len(data.texts)), per_row)
                left_out += faults
                if found:
                    entries.append(write_dataset(draft.path / f"d{len(entries)}", one, data, found))
                if found and rows < len(data.texts):
                    left_out.append(f"{one.dataset}: the first {rows:,} of {len(data.texts):,} test rows are shown")
                done(len(one.runs))
            if not entries:
                raise _NothingToShow
            about = {"version": VERSION, "per_row": per_row, "datasets": entries}
            (draft.path / SCRIPT).write_bytes(call("harnessExplorer", as_json(about)))
            sizes = [path.stat().st_size for path in draft.path.rglob("*.js")]
    written = {entry["name"]: tuple(run["id"] for run in entry["runs"]) for entry in entries}
    return ExplorerFacts(written, len(sizes), sum(sizes), tuple(left_out))


class _NothingToShow(Exception):
    """No run can be read: what an earlier call wrote stays."""


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


def _require_ours(folder: Path) -> None:
    """Refuse a folder with anything in it that the explorer did not write."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the explorer")
    names = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in names if not _WRITTEN.fullmatch(name)]
    if names and (foreign or SCRIPT not in names):
        raise UserError(
            f"{folder} holds {(foreign or names)[0]!r}, which the explorer did not write; name an empty folder, "
            "because everything in it is replaced"
        )
