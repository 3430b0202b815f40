"""The run folders of a study: which belongs to which slot, and whether a trial can go on where an earlier one stopped.

A run says in the first line of its log which study and which slot it belongs to, so that it is found whenever its
worker was killed, without anything having been written down elsewhere.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.errors import UserError
from harness.event import first_event
from harness.facts import recorded
from harness.record import RunRecord, read_record
from harness.resume import Earlier, find_earlier
from harness.runlock import held_by_another
from harness.sweep import Plan


@dataclass(frozen=True)
class TrialRun:
    """A run folder, as its first event describes it."""

    folder: Path
    started: str
    slot: int
    trial: int
    values: dict[str, Any]
    """The point, by the names of the ranges."""


def parent_facts(plan: Plan, group: str, trial: int, slot: int, values: dict[str, Any]) -> dict[str, Any]:
    """What a run is told about the sweep it belongs to."""
    return {
        "id": group,
        "kind": "sweep",
        "name": plan.study,
        "params": {"study": plan.study, "trial": trial, "slot": slot, **values},
    }


def trial_runs(folder: Path, group: str) -> list[TrialRun]:
    """All runs of a study in a folder of runs, newest first."""
    found = [run for log in folder.glob("*/events.jsonl") if (run := _read(log, group))]
    return sorted(found, key=lambda run: (run.started, run.folder.name), reverse=True)


def _read(log: Path, group: str) -> TrialRun | None:
    """A run from the first line of its log; None if it is none of this study."""
    start = first_event(log) or {}
    try:
        parent = start["parent"] or {}
        if parent.get("id") != group:
            return None
        params = dict(parent["params"])
        params.pop("study")
        slot, trial = int(params.pop("slot")), int(params.pop("trial"))
        return TrialRun(log.parent, str(start["started"]), slot, trial, params)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def left_behind(plan: Plan, group: str, slot: int, config: RunConfig) -> RunRecord | Earlier | None:
    """What earlier attempts at a slot left on this machine.

    Returns:
        The record of a run that came to its end and was not told; an interrupted run that can be taken up; or None. A
        run that a living process holds is left to it, even if that process has been silent for too long.
    """
    for run in trial_runs(plan.runs, group):
        if run.slot != slot or held_by_another(run.folder):
            continue
        try:
            record = read_record(run.folder) if (run.folder / "record.json").exists() else None
            if record is not None and record.status in ("finished", "pruned"):
                if record.config == recorded(config):
                    return record
                continue
            earlier = find_earlier(str(run.folder))
            earlier.require_settings(recorded(config))
        except UserError:  # damaged, or of other settings
            continue
        return earlier
    return None
