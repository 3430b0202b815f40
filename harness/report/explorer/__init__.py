"""The prediction explorer's data: run folders and prepared datasets -> scripts beside the page.

    explorer/manifest.js          harnessExplorer({...}): datasets, their runs, how many rows a file has
             d0/texts-000.js      harnessShard("d0", "texts", 0, [...], build): texts of test rows, cut
                truth-000.js      true labels of the same rows
                r0-000.js         predictions of one run for the same rows: ids and scores
                labels-000.js     text, number of train rows and bin of every label
                r0-hits.js        one character per row: which of its first five predictions are true

One run of each method and encoder is shown, with the method's own settings. Runs whose data, filter setting or metric
version differ are never shown together: the version with most runs is taken, the newest on ties.

The scripts hold texts of other people, so they are made where they are looked at and stay out of the repository. The
same runs give the same bytes. `build` is a hash of all that is shown of a dataset, in the manifest too: a page that was
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
from harness.report.compare import Run
from harness.report.explorer.predictions import (
    FILES,
    PER_ROW,
    Predictions,
    Prepared,
    Shown,
    open_prepared,
    read_predictions,
)
from harness.report.explorer.shards import as_json, call, write_dataset
from harness.report.results import conditions
from harness.report.rows import changed_settings
from harness.runs.record import RunRecord, find_records, is_trial

__all__ = ["Written", "build_explorer"]

VERSION = 2
"""Version of the files; the page shows those of its own version only."""
SCRIPT = "manifest.js"
ROWS = 50_000
"""Number of test rows of a dataset that are shown at most, from the first."""
_WRITTEN = re.compile(r"manifest\.js(on)?|d\d+")


@dataclass(frozen=True)
class Written:
    """What was written of an explorer; nothing if there is nothing to show."""

    datasets: dict[str, tuple[str, ...]]
    """Ids of the shown runs, by dataset."""
    files: int
    bytes: int
    left_out: tuple[str, ...]
    """Sentences that say what is not shown though it might be expected."""


def build_explorer(runs: Sequence[Path], out: Path, datasets: Sequence[str] | None = None) -> Written:
    """Write the explorer's data, all or nothing; data of an earlier call is replaced.

    Args:
        runs: Folders of run folders.
        out: The folder to write, `explorer` beside the page.
        datasets: Names of datasets; None for all with runs.
    """
    shown, left_out = _choose(_find_runs(runs), prepared_folders(), datasets)
    entries: list[dict[str, Any]] = []
    sizes: list[int] = []
    out = out.absolute()
    # not beside the folder, where the lock might be committed with the reports
    lock = home() / "locks" / f"explorer-{hashlib.sha256(os.fsencode(out)).hexdigest()[:16]}"
    with (
        suppress(_NothingToShow),
        locked(lock),
        progress("explorer", sum(len(one.runs) for one in shown), "runs") as done,
    ):
        _require_ours(out)
        with whole_folder(out) as draft:
            for one in shown:
                data = open_prepared(one.data)
                found, faults = _readable(one, data)
                left_out += faults
                if found:
                    entries.append(write_dataset(draft.path / f"d{len(entries)}", one, data, found))
                if found and len(data.texts) > ROWS:
                    left_out.append(f"{one.dataset}: the first {ROWS:,} of {len(data.texts):,} test rows are shown")
                done(len(one.runs))
            if not entries:
                raise _NothingToShow
            about = {"version": VERSION, "per_row": PER_ROW, "datasets": entries}
            (draft.path / SCRIPT).write_bytes(call("harnessExplorer", as_json(about)))
            sizes = [path.stat().st_size for path in draft.path.rglob("*.js")]
    written = {entry["name"]: tuple(run["id"] for run in entry["runs"]) for entry in entries}
    return Written(written, len(sizes), sum(sizes), tuple(left_out))


def _find_runs(folders: Sequence[Path]) -> list[Run]:
    """Return finished runs on test rows that have predictions, oldest first."""
    found = {}
    for record in find_records(list(folders)):
        places = [folder / record.run_id for folder in folders]
        place = next((place for place in places if all((place / name).is_file() for name in FILES)), None)
        if place is not None and record.status == "finished" and not is_trial(record.config):
            found[record.run_id] = Run(place, record)
    return list(found.values())


def _choose(
    runs: list[Run], prepared: dict[str, Path], datasets: Sequence[str] | None
) -> tuple[list[Shown], list[str]]:
    """Return the runs to show by dataset, and sentences that say what is left out.

    Args:
        runs: From `_find_runs`.
        prepared: Prepared folders by digest, from `prepared_folders`.
        datasets: Names of datasets in the order in which they are shown; None for all.
    """
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(str(run.record.dataset["name"]), []).append(run)
    shown, left_out = [], []
    for name in sorted(by_name) if datasets is None else dict.fromkeys(datasets):
        known = by_name.get(name, [])
        measured = [conditions(run.record) for run in known if _digest(run) in prepared]
        if not measured:
            left_out.append(_absent(name, known))
            continue
        newest = {condition: place for place, condition in enumerate(measured)}
        usual = max(newest, key=lambda condition: (measured.count(condition), newest[condition]))
        alike = [run for run in known if conditions(run.record) == usual]
        if others := len(known) - len(alike):
            left_out.append(f"{name}: {others} runs of other data, filter, propensity or metric version are left out")
        title = str(alike[-1].record.dataset.get("title") or name)
        shown.append(Shown(name, title, prepared[_digest(alike[-1])], _one_of_each(alike)))
    return shown, left_out


def _one_of_each(runs: list[Run]) -> tuple[Run, ...]:
    """Return one run per method and encoder: default settings before others, then the lowest seed, then the newest."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.record.config["method"], run.record.config["encoder"]), []).append(run)
    chosen = []
    for _, group in sorted(groups.items()):
        usual = [run for run in group if not changed_settings(run.record)] or group
        lowest = min(run.record.config["seed"] for run in usual)
        chosen.append([run for run in usual if run.record.config["seed"] == lowest][-1])
    return tuple(chosen)


def _digest(run: Run) -> str:
    return str(run.record.dataset.get("digest"))


def _absent(name: str, runs: list[Run]) -> str:
    if not runs:
        return f"{name}: there is no finished run with predictions; `python -m harness run --dataset {name}` makes one"
    return (
        f"{name}: the data of its {len(runs)} runs is not prepared in this workspace; "
        f"`python -m harness data prepare {name}` does that"
    )


class _NothingToShow(Exception):
    """No run can be read; what an earlier call wrote is kept."""


def _readable(shown: Shown, data: Prepared) -> tuple[list[tuple[RunRecord, Predictions]], list[str]]:
    """Return the predictions of every readable run, and what is wrong with the others."""
    found, faults = [], []
    for run in shown.runs:
        try:
            found.append((run.record, read_predictions(run, data, ROWS)))
        except UserError as error:
            faults.append(f"{shown.dataset}: run {run.record.run_id} is left out; {error}")
    return found, faults


def _require_ours(folder: Path) -> None:
    """Raise if a folder has anything in it that the explorer did not write."""
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
