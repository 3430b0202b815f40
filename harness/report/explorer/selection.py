"""Which runs the explorer shows: for every dataset one run of each method and encoder, with the method's own settings.

Runs whose data, filter setting or metric version differ never stand side by side: of several the most frequent is
taken, the newest on ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.report.compare import Run
from harness.report.explorer.predictions import FILES
from harness.report.results import conditions
from harness.report.rows import changed_settings
from harness.runs.record import find_records, is_trial


@dataclass(frozen=True)
class Shown:
    """The runs of one dataset."""

    dataset: str
    title: str
    data: Path
    """Its prepared folder."""
    runs: tuple[Run, ...]


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """Finished runs on test rows whose predictions are there, oldest first."""
    found = {}
    for record in find_records(list(folders)):
        places = [folder / record.run_id for folder in folders]
        place = next((place for place in places if all((place / name).is_file() for name in FILES)), None)
        if place is not None and record.status == "finished" and not is_trial(record.config):
            found[record.run_id] = Run(place, record)
    return list(found.values())


def choose(runs: list[Run], prepared: dict[str, Path], datasets: Sequence[str] | None) -> tuple[list[Shown], list[str]]:
    """The runs to show by dataset, and a sentence for everything that is left out but might be expected.

    Args:
        runs: From `find_runs`.
        prepared: Folders by digest, from `prepared_folders`.
        datasets: Names, in the order in which they are shown; all if absent.
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
    """One run per method and encoder, by name: own settings before others, then the lowest seed, then the newest."""
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
