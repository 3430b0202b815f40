"""A study from its run folders, when its database was damaged: `harness sweep --recover`.

Every run says which slot it belongs to, what was drawn for it and how it ended, so the folders are a second copy of the
study. What had not come to its end waits again, and goes on from its checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from harness.errors import UserError
from harness.record import RunRecord, read_record
from harness.resume import read_events
from harness.sweep import Plan
from harness.sweep.joining import ENDED, begin, new_group_id, read_facts, refuse_another
from harness.sweep.keeping import KEEPER_LOCK
from harness.sweep.queue import enqueue
from harness.sweep.runs import TrialRun, trial_runs
from harness.sweep.storage import alone, open_study, sqlite_file

if TYPE_CHECKING:
    from optuna import Study

_SUFFIXES = ("", "-journal", "-wal", "-shm")
_STATES = {"finished": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}


def recover(plan: Plan) -> tuple[Path | None, int]:
    """Moves the database aside and makes a new one; returns where the old one is and how many trials were taken over.

    Raises:
        UserError: The study is on a server, a sweep works on it, or there is nothing to rebuild it from.
    """
    file = sqlite_file(plan.storage)
    if file is None:
        raise UserError("--recover rebuilds a database that is a file; one on a server has backups of its own")
    with alone(plan), _nobody_at_work(plan):
        known = read_facts(plan.folder)
        if not known:
            raise UserError(f"{plan.folder} has no study.json, so there is nothing to recover; leave --recover out")
        refuse_another(plan, known["identity"])
        aside = _move_aside(file)
        study = open_study(plan, create=True)
        begin(study, plan, known["id"] or new_group_id(plan))
        return aside, _take_over(study, plan, known)


@contextmanager
def _nobody_at_work(plan: Plan) -> Iterator[None]:
    """A database that is moved away under a running sweep would take its trials along."""
    try:
        with FileLock(plan.folder / KEEPER_LOCK, timeout=0):
            yield
    except Timeout as error:
        raise UserError(f"a sweep works on study {plan.study!r} at this moment; stop it, then --recover") from error


def _move_aside(file: Path) -> Path | None:
    if not file.exists():
        return None
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    aside = file.with_name(f"{file.name}.damaged-{moment}")
    for suffix in _SUFFIXES:
        part = file.with_name(file.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def _take_over(study: "Study", plan: Plan, known: dict[str, Any]) -> int:
    """Adds the trials that the folders and study.json know of; returns how many of them have ended."""
    by_slot: dict[int, list[tuple[TrialRun, RunRecord | None]]] = {}
    for run in trial_runs(plan.runs, known["id"]):
        by_slot.setdefault(run.slot, []).append((run, _record(run)))
    rows = {row["slot"]: row for row in known["slots"] if row["state"] in ENDED}
    count = 0
    for slot in sorted(by_slot.keys() | rows.keys()):
        runs = by_slot.get(slot, [])
        best = next(((run, record) for run, record in runs if record and record.status in ("finished", "pruned")), None)
        if best is None and slot in rows:
            _add_row(study, plan, rows[slot])  # for example one of another machine, whose folder is there
        elif best is not None:
            _add_run(study, plan, *best)
        else:
            _add_waiting(study, plan, runs[0][0])
            continue
        count += 1
    return count


def _record(run: TrialRun) -> RunRecord | None:
    try:
        return read_record(run.folder) if (run.folder / "record.json").exists() else None
    except UserError:
        return None


def _add_run(study: "Study", plan: Plan, run: TrialRun, record: RunRecord) -> None:
    """A trial from a run that came to its end."""
    curve = _curve(run, plan.objectives[0]) if len(plan.objectives) == 1 else {}
    values: list[float] | None = [record.metrics.get(name, float("nan")) for name in plan.objectives]
    if record.status == "pruned":
        values = [curve[max(curve)]] if curve else None
    attributes = {"slot": run.slot, "attempts": 0, "run_id": record.run_id, "recovered": True}
    _add(study, plan, _STATES[record.status], run.values, values, curve, attributes)


def _add_row(study: "Study", plan: Plan, row: dict[str, Any]) -> None:
    """A trial from study.json."""
    attributes = {"slot": row["slot"], "attempts": row["attempts"] - 1, "run_id": row["run_id"], "recovered": True}
    if row["state"] == "FAIL":
        attributes["reason"] = row["reason"]
    _add(study, plan, row["state"], row["params"], row["values"], {}, attributes)


def _add_waiting(study: "Study", plan: Plan, run: TrialRun) -> None:
    """A trial that was interrupted, with the point that was drawn for it."""
    from optuna.trial import TrialState, create_trial

    like = create_trial(state=TrialState.WAITING, params=run.values, distributions=_distributions(plan, run.values))
    enqueue(study, {"slot": run.slot, "attempts": 0, "recovered": True}, like=like)


def _add(
    study: "Study",
    plan: Plan,
    state: str,
    params: dict[str, Any],
    values: list[float] | None,
    curve: dict[int, float],
    attributes: dict[str, Any],
) -> None:
    from optuna.trial import TrialState, create_trial

    study.add_trial(
        create_trial(
            state=TrialState[state],
            values=values,
            params=params,
            distributions=_distributions(plan, params),
            intermediate_values=curve,
            user_attrs=attributes,
        )
    )


def _distributions(plan: Plan, params: dict[str, Any]) -> dict[str, Any]:
    """The ranges of a point as Optuna knows them: what suggesting it would have declared."""
    from optuna.trial import FixedTrial

    from harness.sweep.space import suggest

    if not params:
        return {}
    fixed = FixedTrial(params)
    suggest(fixed, plan.space)
    return dict(fixed.distributions)


def _curve(run: TrialRun, objective: str) -> dict[int, float]:
    """The values of a run by epoch, counted from 1 over all stages, from its log; every epoch logs a step."""
    try:
        events = read_events(run.folder / "events.jsonl")
    except UserError:
        return {}
    name = f"validation/{objective}"
    # by step, because a resumed run may have gone through the same epoch twice
    figures = ((event["step"], event["values"]) for event in events if event["event"] == "metrics")
    epochs = {step: values for step, values in figures if {"train/epoch", name} & values.keys()}
    numbered = enumerate(sorted(epochs), start=1)
    return {number: float(epochs[step][name]) for number, step in numbered if name in epochs[step]}
