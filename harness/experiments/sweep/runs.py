"""The run folders of a study: find those of a slot, resume an earlier attempt, and rebuild a damaged database.

The first line of a run's log has its study, its slot and the values drawn for it. So a run is found even if its worker
was killed, and the folders are a second copy of the study if its database is damaged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from harness.errors import DataError, UserError
from harness.experiments.sweep import STUDY_FILE, WRITER_LOCK, Plan
from harness.experiments.sweep.space import suggest
from harness.experiments.sweep.study import (
    StudyFile,
    alone,
    begin_study,
    open_study,
    read_study_file,
    refuse_another,
    sqlite_file,
)
from harness.experiments.sweep.trials import ENDED
from harness.runs.events import first_event, read_events
from harness.runs.lock import held_by_another
from harness.runs.metadata import recorded
from harness.runs.record import RunRecord, read_record
from harness.runs.resume import Earlier, find_earlier
from harness.settings.identity import fixed
from harness.settings.schema import RunConfig

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_DATABASE_SUFFIXES = ("", "-journal", "-wal", "-shm")


@dataclass(frozen=True)
class TrialRun:
    """A run folder, as its first event describes it."""

    folder: Path
    started: str
    slot: int
    values: dict[str, Any]
    """Drawn values by name of the range."""

    def ended(self) -> RunRecord | None:
        """Return the record of a finished or pruned run; None for any other."""
        if not (self.folder / "record.json").exists():
            return None
        record = read_record(self.folder)
        return record if record.status in ("finished", "pruned") else None


def trial_runs(folder: Path, group: str) -> list[TrialRun]:
    """Return all runs of a study in a folder of runs, newest first; `group` is the study's id."""
    found = [run for log in folder.glob("*/events.jsonl") if (run := _read(log, group))]
    return sorted(found, key=lambda run: (run.started, run.folder.name), reverse=True)


def _read(log: Path, group: str) -> TrialRun | None:
    """Read a run from the first line of its log; None if it is not of this study."""
    start = first_event(log) or {}
    try:
        parent = start["parent"] or {}
        if parent.get("id") != group:
            return None
        values = {key: value for key, value in parent["params"].items() if key not in ("study", "trial", "slot")}
        return TrialRun(log.parent, str(start["started"]), int(parent["params"]["slot"]), values)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def left_behind(plan: Plan, group: str, slot: int, config: RunConfig) -> RunRecord | Earlier | None:
    """Return what earlier attempts at a slot left on this machine.

    Returns:
        The record of a run that ended unknown to the database; an interrupted run that can be resumed; or None. A
        run that a living process holds is left to it, even if that process has been silent for too long.
    """
    for run in trial_runs(plan.runs, group):
        if run.slot != slot or held_by_another(run.folder):
            continue
        try:
            if record := run.ended():
                if fixed(record.config) == fixed(recorded(config)):
                    return record
                continue
            earlier = find_earlier(str(run.folder))
            earlier.require_settings(recorded(config))
        except UserError:  # damaged, or of other settings
            continue
        return earlier
    return None


def recover(plan: Plan) -> tuple[Path | None, int]:
    """Move the database aside and make a new one; returns where the old one is and how many trials were taken over.

    Trials that had not ended wait again, and resume from their checkpoints.

    Raises:
        UserError: The study is on a server, a sweep works on it, or there is nothing to rebuild it from.
    """
    file = sqlite_file(plan.storage)
    if file is None:
        raise UserError("--recover rebuilds a database that is a file; one on a server has backups of its own")
    with alone(plan), _nobody_at_work(plan):
        known = read_study_file(plan.folder)
        if known is None:
            raise UserError(f"{plan.folder} has no study.json, so there is nothing to recover; leave --recover out")
        refuse_another(plan, known.identity)
        trials = _known_trials(plan, known)  # before the database is moved, as this may raise
        aside = file.with_name(f"{file.name}.damaged-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}")
        for suffix in _DATABASE_SUFFIXES:
            part = file.with_name(file.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        study = open_study(plan, create=True)
        begin_study(study, plan, known.id)
        study.add_trials(trials)
        return aside if aside.exists() else None, sum(trial.state.is_finished() for trial in trials)


@contextmanager
def _nobody_at_work(plan: Plan) -> Iterator[None]:
    """Raise if a sweep works on the study: its trials would go to the moved database."""
    try:
        with FileLock(plan.folder / WRITER_LOCK, timeout=0):
            yield
    except Timeout as error:
        raise UserError(f"a sweep works on study {plan.study!r} at this moment; stop it, then --recover") from error


def _known_trials(plan: Plan, known: StudyFile) -> "list[FrozenTrial]":
    """Return the trials in run folders and study.json; raises `DataError` if one cannot be of this study."""
    from optuna.trial import FixedTrial, TrialState, create_trial

    runs: dict[int, list[TrialRun]] = {}
    for run in trial_runs(plan.runs, known.id):
        runs.setdefault(run.slot, []).append(run)
    rows = known.ended()
    trials = {slot: _from_runs(of_slot, plan.objectives) for slot, of_slot in runs.items()}
    for slot, row in rows.items():
        if trials.get(slot, {}).get("state") not in ENDED:  # for example one whose run folder is on another machine
            about = {"attempts": row.attempts - 1, "run_id": row.run_id}
            about |= {"reason": row.reason} if row.state == "FAIL" else {}
            trials[slot] = {"state": row.state, "values": row.values, "params": row.params, "user_attrs": about}
    found = []
    for slot, trial in sorted(trials.items()):
        try:
            ranges = FixedTrial(trial["params"])  # `suggest` on it yields the ranges in Optuna's form
            if trial["params"] or trial["state"] == "COMPLETE":
                suggest(ranges, plan.space)
            if trial.get("values") is not None and len(trial["values"]) != len(plan.objectives):
                raise ValueError(f"{len(trial['values'])} values for {len(plan.objectives)} objectives")
            about = {"slot": slot, "attempts": 0, "recovered": True, **trial.pop("user_attrs", {})}
            state = TrialState[trial.pop("state")]
            found.append(create_trial(state=state, distributions=ranges.distributions, user_attrs=about, **trial))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"trial {slot} in {STUDY_FILE} or runs/ is not of this study ({error}); remove it there", plan.folder
            ) from error
    return found


def _from_runs(runs: list[TrialRun], objectives: tuple[str, ...]) -> dict[str, Any]:
    """Return the trial of a slot: from a run of it that ended, else a waiting one with the newest run's values."""
    for run in runs:
        try:
            record = run.ended()
        except UserError:
            continue
        if record is None:
            continue
        curve = validation_curve(run.folder, objectives[0]) if len(objectives) == 1 else {}
        about = {"params": run.values, "intermediate_values": curve, "user_attrs": {"run_id": record.run_id}}
        if record.status == "pruned":
            return {"state": "PRUNED", "values": [curve[max(curve)]] if curve else None, **about}
        if all(name in record.metrics for name in objectives):  # else it waits; the next attempt says what is missing
            return {"state": "COMPLETE", "values": [record.metrics[name] for name in objectives], **about}
    return {"state": "WAITING", "params": runs[0].values}


def validation_curve(folder: Path, objective: str) -> dict[int, float]:
    """Return validation values of a run by epoch, counted from 1 over all stages, from its log."""
    try:
        events = read_events(folder / "events.jsonl")
    except UserError:
        return {}
    name = f"validation/{objective}"
    # by step, because a resumed run may have gone through the same epoch twice
    figures = ((event["step"], event["values"]) for event in events if event["event"] == "metrics")
    epochs = {step: values for step, values in figures if {"train/epoch", name} & values.keys()}
    numbered = enumerate(sorted(epochs), start=1)
    return {number: float(epochs[step][name]) for number, step in numbered if name in epochs[step]}
