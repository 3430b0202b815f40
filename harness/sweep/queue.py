"""The budget of a sweep as a queue in its database: slots that wait, are claimed, and end.

A slot is done when it has a trial that is COMPLETE, PRUNED, or FAIL for a `reason`. A trial that is FAIL without one
was lost: its worker died, or was silent for too long. `repair` puts the slot of a lost trial back, with the same point
and one attempt more, until there were `max_retry`. Nothing depends on who notices, or on one process surviving two
writes in a row: a slot that two processes put back at once has two waiting trials, and whoever claims the later one
drops it.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.sweep import Plan

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

DUPLICATE = "another trial has this slot"
_ENDED_WELL = ("COMPLETE", "PRUNED")


@dataclass(frozen=True)
class Slot:
    """One of the trials that were asked for, through all its attempts."""

    number: int
    trials: "tuple[FrozenTrial, ...]"
    """By number; those that were dropped as duplicates are left out."""

    @property
    def current(self) -> "FrozenTrial | None":
        """The trial that counts: the one that ended well, else the first that runs or waits, else the last."""
        for states in (_ENDED_WELL, ("RUNNING", "WAITING")):
            if found := [trial for trial in self.trials if trial.state.name in states]:
                return found[0]
        return self.trials[-1] if self.trials else None

    @property
    def state(self) -> str:
        """WAITING, RUNNING, COMPLETE, PRUNED, FAIL, or LOST for one to be put back or given up."""
        trial = self.current
        if trial is None:
            return "LOST"
        return "LOST" if trial.state.name == "FAIL" and "reason" not in trial.user_attrs else trial.state.name

    @property
    def attempts(self) -> int:
        """How often it was lost."""
        return max((trial.user_attrs.get("attempts", 0) for trial in self.trials), default=0)

    def given_up(self, max_retry: int) -> bool:
        """Whether it was lost too often."""
        return self.state == "LOST" and bool(self.trials) and self.attempts >= max_retry

    def ended(self, max_retry: int) -> bool:
        """Whether nothing more will come of it."""
        return self.state in (*_ENDED_WELL, "FAIL") or self.given_up(max_retry)


def slots(study: "Study", count: int) -> list[Slot]:
    """The first `count` slots of a study as they stand."""
    found: dict[int, list[FrozenTrial]] = defaultdict(list)
    for trial in study.get_trials(deepcopy=False):
        if trial.user_attrs.get("reason") != DUPLICATE:
            found[slot_of(trial)].append(trial)
    return [Slot(number, tuple(found[number])) for number in range(count)]


def all_slots(study: "Study", plan: Plan) -> list[Slot]:
    """The slots of a plan, and those beyond from an earlier sweep that asked for more."""
    most = max((slot_of(trial) for trial in study.get_trials(deepcopy=False)), default=-1)
    return slots(study, max(plan.trials, most + 1))


def slot_of(trial: "FrozenTrial") -> int:
    """The slot of a trial; -1 for one that somebody else put into the study."""
    return int(trial.user_attrs.get("slot", -1))


def fill(study: "Study", plan: Plan, stopped: Callable[[], bool] = lambda: False) -> None:
    """Puts every slot that has no trial into the queue, until somebody says stop: each is a write to the database."""
    for slot in slots(study, plan.trials):
        if stopped():
            return
        if not slot.trials:
            enqueue(study, {"slot": slot.number, "attempts": 0}, point=_known_point(plan, slot))


def _known_point(plan: Plan, slot: Slot) -> Mapping[str, Any]:
    """What is known of a slot's point before anything was drawn."""
    return plan.starts[slot.number] if slot.number < len(plan.starts) else {}


def enqueue(
    study: "Study",
    attributes: dict[str, Any],
    like: "FrozenTrial | None" = None,
    point: Mapping[str, Any] | None = None,
) -> None:
    """Adds a waiting trial; `like` another one, with its point and what it has reported, or with values of `point`."""
    from optuna.trial import TrialState, create_trial

    study.add_trial(
        create_trial(
            state=TrialState.WAITING,
            user_attrs=attributes,
            system_attrs={"fixed_params": dict(point)} if point else None,  # as `Study.enqueue_trial` does
            params=like.params if like else {},
            distributions=like.distributions if like else {},
            intermediate_values=like.intermediate_values if like else {},
        )
    )


def repair(study: "Study", plan: Plan) -> list[Slot]:
    """Fails trials that have been silent for too long, and puts lost slots back; returns those it put back."""
    from optuna.storages import fail_stale_trials

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function is called experimental
        fail_stale_trials(study)
    again = [
        slot
        for slot in slots(study, plan.trials)
        if slot.trials and slot.state == "LOST" and not slot.given_up(plan.max_retry)
    ]
    for slot in again:
        last = slot.trials[-1]
        kept = {key: value for key, value in last.user_attrs.items() if key != "worker"}
        attributes = {**kept, "attempts": slot.attempts + 1, "retry_of": last.number}
        enqueue(study, attributes, like=last, point=_known_point(plan, slot))
    return again


def claim(study: "Study", plan: Plan, worker: str) -> int | None:
    """Takes the first waiting trial; returns its id, None if nothing waits.

    The sign of life comes before the claim, so that a trial whose worker dies in the same moment is found silent later.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    storage = study._storage
    for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        if not 0 <= slot_of(trial) < plan.trials:
            continue
        number = trial._trial_id
        try:
            storage.record_heartbeat(number)  # type: ignore[attr-defined]
            if not storage.set_trial_state_values(number, TrialState.RUNNING):
                continue
            storage.set_trial_user_attr(number, "worker", worker)
            if _is_duplicate(study, trial):
                fail(study, number, DUPLICATE)
                continue
        except UpdateFinishedTrialError:
            continue
        return number
    return None


def _is_duplicate(study: "Study", trial: "FrozenTrial") -> bool:
    """Whether an earlier trial has the slot; the earliest one that is not lost keeps it."""
    return any(
        other.number < trial.number and slot_of(other) == slot_of(trial) and other.state.name != "FAIL"
        for other in study.get_trials(deepcopy=False)
    )


def fail(study: "Study", trial_id: int, reason: str | None = None) -> bool:
    """Ends a trial, for a reason or as lost; False if it has been ended before."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        if reason is not None:
            study._storage.set_trial_user_attr(trial_id, "reason", reason)
        return study._storage.set_trial_state_values(trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return False


def give_back(study: "Study", trial_id: int) -> bool:
    """Puts a trial of one's own back into the queue without counting an attempt; False if it has been ended before."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        # until the next worker has written its name, the trial would seem to be still this one's
        study._storage.set_trial_user_attr(trial_id, "worker", None)
        return study._storage.set_trial_state_values(trial_id, TrialState.WAITING)
    except UpdateFinishedTrialError:
        return False


def held_by(study: "Study", worker: str) -> "list[FrozenTrial]":
    """The trials that a worker has claimed and not ended."""
    from optuna.trial import TrialState

    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in running if trial.user_attrs.get("worker") == worker]
