"""The trials of a sweep as a queue in its database: N slots wait, are claimed and end; samplers draw their points.

A slot is one of the trials that were asked for, through all its attempts; each attempt is a trial of Optuna's. It is
done when one of them is COMPLETE, PRUNED, or FAIL for a `reason`. A trial that is FAIL without one was lost: its worker
died, or was silent for too long. `repair` puts the slot of a lost trial back, with the same point and one attempt more,
until there were `max_retry`. Nothing depends on who notices, or on one process surviving two writes in a row (Optuna's
`RetryFailedTrialCallback` loses a trial whose finder dies between them): a slot that two processes put back at once has
two waiting trials, and whoever claims the later one drops it.

Each slot has a sampler of its own, seeded by the sweep's seed and the number of the slot. So the points drawn before
there is anything to learn from are the same however many workers draw them, and no two workers draw the same. Sweeps of
the same ranges draw the same points, too, except where one begins with what another found: that point would come again.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.experiments.sweep import Plan

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

DUPLICATE = "another trial has this slot"
ENDED = ("COMPLETE", "PRUNED", "FAIL")
"""States of a slot that has ended."""


@dataclass(frozen=True)
class Slot:
    """One of the N trials that were asked for, with all attempts at it."""

    number: int
    trials: "tuple[FrozenTrial, ...]"
    """Trials by number; those dropped as duplicates are left out."""
    max_retry: int
    """How often a lost trial of it is put back into the queue."""

    @property
    def current(self) -> "FrozenTrial | None":
        """The trial that counts: the one that ended well, else the first that runs or waits, else the last."""
        for states in (("COMPLETE", "PRUNED"), ("RUNNING", "WAITING")):
            if found := [trial for trial in self.trials if trial.state.name in states]:
                return found[0]
        return self.trials[-1] if self.trials else None

    @property
    def state(self) -> str:
        """WAITING, RUNNING, COMPLETE, PRUNED, LOST (to be put back) or FAIL (an error, or lost too often)."""
        trial = self.current
        if trial is None:
            return "LOST"
        lost = trial.state.name == "FAIL" and "reason" not in trial.user_attrs
        return "LOST" if lost and self.attempts < self.max_retry else trial.state.name

    @property
    def ended(self) -> bool:
        """Whether the slot has ended."""
        return self.state in ENDED

    @property
    def attempts(self) -> int:
        """How often it was lost and put back."""
        return max((trial.user_attrs.get("attempts", 0) for trial in self.trials), default=0)

    @property
    def values(self) -> list[float]:
        """Values of the objectives; empty while there are none."""
        return list(self.current.values or []) if self.current else []

    @property
    def epochs(self) -> int | None:
        """Number of the last epoch that was validated."""
        if self.current is None:
            return None
        last = self.current.user_attrs.get("epoch")
        return int(last[0]) if last else self.current.last_step

    def as_dict(self) -> dict[str, Any]:
        """Return the slot as plain values, from `current`; a pruned trial has its last value."""
        trial = self.current
        if trial is None:
            return {"trial": None, "slot": self.number, "state": self.state, "values": None, "params": {}}
        died = f"its worker died {self.attempts + 1} times" if self.state == "FAIL" else None
        return {
            "trial": trial.number,
            "slot": self.number,
            "state": self.state,
            "values": trial.values,
            "params": trial.params,
            "started": trial.datetime_start.isoformat(timespec="milliseconds") if trial.datetime_start else None,
            "seconds": round(trial.duration.total_seconds(), 3) if trial.duration else None,
            "epochs": self.epochs,
            "attempts": self.attempts + 1,
            "run_id": trial.user_attrs.get("run_id"),
            "reason": trial.user_attrs.get("reason") or died,
        }


def slots(study: "Study", plan: Plan, *, beyond: bool = False) -> list[Slot]:
    """Return the slots of a plan; `beyond` adds those of an earlier sweep that asked for more trials."""
    found: dict[int, list[FrozenTrial]] = defaultdict(list)
    for trial in study.get_trials(deepcopy=False):
        if trial.user_attrs.get("reason") != DUPLICATE:
            found[slot_of(trial)].append(trial)
    count = max(plan.trials, *(number + 1 for number in found)) if beyond and found else plan.trials
    return [Slot(number, tuple(found[number]), plan.max_retry) for number in range(count)]


def slot_of(trial: "FrozenTrial") -> int:
    """Return the number of a trial's slot; -1 for a trial that this program did not add."""
    return int(trial.user_attrs.get("slot", -1))


def best_slots(found: list[Slot]) -> list[Slot]:
    """Return complete slots, best first; with two objectives the Pareto front, ordered by the first."""
    done = [slot for slot in found if slot.state == "COMPLETE"]
    done.sort(key=lambda slot: ([-value for value in slot.values], slot.number))
    if not done or len(done[0].values) == 1:
        return done
    front = done[:1]
    for slot in done[1:]:  # none after it has a better first objective, so the second decides
        if slot.values[1] > front[-1].values[1] or slot.values == front[-1].values:
            front.append(slot)
    return front


def fill(study: "Study", plan: Plan, stopped: Callable[[], bool] = lambda: False) -> None:
    """Add a trial for every slot without one; ends early if `stopped`, as each is a write to the database."""
    for slot in slots(study, plan):
        if stopped():
            return
        if not slot.trials:
            enqueue(study, {"slot": slot.number, "attempts": 0}, point=_known_point(plan, slot))


def _known_point(plan: Plan, slot: Slot) -> Mapping[str, Any]:
    """Return the values of a slot that the plan fixes beforehand."""
    return plan.starts[slot.number] if slot.number < len(plan.starts) else {}


def enqueue(
    study: "Study",
    attributes: dict[str, Any],
    like: "FrozenTrial | None" = None,
    point: Mapping[str, Any] | None = None,
) -> None:
    """Add a waiting trial, with values and reports of the trial `like`, or with the values in `point`."""
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
    """Fail trials whose heartbeats are overdue, and put lost slots back into the queue; returns these slots."""
    from optuna.storages import fail_stale_trials

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function is called experimental
        fail_stale_trials(study)
    again = [slot for slot in slots(study, plan) if slot.trials and slot.state == "LOST"]
    for slot in again:
        last = slot.trials[-1]
        kept = {key: value for key, value in last.user_attrs.items() if key != "worker"}
        attributes = {**kept, "attempts": slot.attempts + 1, "retry_of": last.number}
        enqueue(study, attributes, like=last, point=_known_point(plan, slot))
    return again


def claim(study: "Study", plan: Plan, worker: str) -> int | None:
    """Claim the first waiting trial; returns its id, None if nothing waits.

    The heartbeat is written before the claim, so that a trial whose worker dies in between is found lost later.
    Of two trials of one slot the earlier one that is not lost keeps it.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    storage = study._storage
    for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        trial_id, slot = trial._trial_id, slot_of(trial)
        if not 0 <= slot < plan.trials:
            continue
        try:
            storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]
            if not storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                continue
            storage.set_trial_user_attr(trial_id, "worker", worker)
        except UpdateFinishedTrialError:
            continue
        earlier = study.get_trials(deepcopy=False)[: trial.number]
        if not any(slot_of(other) == slot and other.state != TrialState.FAIL for other in earlier):
            return trial_id
        fail(study, trial_id, DUPLICATE)
    return None


def fail(study: "Study", trial_id: int, reason: str | None = None) -> bool:
    """Fail a trial, for a reason or, without one, as lost; returns False if it had ended before."""
    return _change(study, trial_id, "FAIL", {} if reason is None else {"reason": reason})


def give_back(study: "Study", trial_id: int) -> bool:
    """Return a worker's own trial to the queue without counting an attempt; returns False if it had ended before."""
    # else the trial would seem this worker's until the next one has written its name
    return _change(study, trial_id, "WAITING", {"worker": None})


def _change(study: "Study", trial_id: int, state: str, attributes: dict[str, Any]) -> bool:
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        for name, value in attributes.items():
            study._storage.set_trial_user_attr(trial_id, name, value)
        return study._storage.set_trial_state_values(trial_id, TrialState[state])
    except UpdateFinishedTrialError:
        return False


def held_by(study: "Study", worker: str) -> "list[FrozenTrial]":
    """Return the trials that a worker has claimed and not ended."""
    from optuna.trial import TrialState

    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in running if trial.user_attrs.get("worker") == worker]


def make_sampler(plan: Plan, slot: int) -> "BaseSampler":
    """Return the sampler of a slot, with a seed of its own."""
    from optuna.samplers import RandomSampler, TPESampler

    others = (len(plan.starts),) if len(plan.starts) > 1 else ()
    seed = int(np.random.SeedSequence(plan.seed, spawn_key=(slot, *others)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls some of its arguments experimental
        return (RandomSampler if plan.sampler == "random" else TPESampler)(seed=seed, **_sampler_options(plan))


def make_pruner(plan: Plan) -> "BasePruner":
    """Return the pruner of a sweep; one that never prunes if there are two objectives."""
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    kinds: dict[str, Any] = {"median": MedianPruner, "hyperband": HyperbandPruner}
    kind: type[BasePruner] = kinds[plan.pruner] if plan.pruning else NopPruner
    return kind(**_pruner_options(plan))


def describe_search(plan: Plan) -> dict[str, Any]:
    """Return sampler, pruner, their options and Optuna's version, for the record."""
    import optuna

    return {
        "optuna": optuna.__version__,
        "sampler": plan.sampler,
        "sampler_options": _sampler_options(plan),
        "pruner": plan.pruner if plan.pruning else "none",
        "pruner_options": _pruner_options(plan),
    }


def _sampler_options(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the sampler, without its seed.

    TPE learns the parameters together for one objective and each alone for two, as Optuna 5 does; `constant_liar` keeps
    workers away from points that others are trying. Ten trials are drawn at random before it has enough to learn from.
    """
    if plan.sampler == "random":
        return {}
    together = len(plan.objectives) == 1
    return {"n_startup_trials": 10, "n_ei_candidates": 24, "multivariate": together, "constant_liar": True}


def _pruner_options(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the pruner.

    The median rule needs five whole trials, three epochs of every trial, and three others that came as far.
    """
    if not plan.pruning:
        return {}
    if plan.pruner == "median":
        return {"n_startup_trials": 5, "n_warmup_steps": 3, "interval_steps": 1, "n_min_trials": 3}
    return {"min_resource": 1, "max_resource": plan.epochs or "auto", "reduction_factor": 3}
