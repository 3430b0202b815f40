"""Who proposes the next point, and who gives up on a trial: Optuna's own, with every argument spelt out.

Each slot has a sampler of its own, seeded by the sweep's seed and the number of the slot. So the points drawn before
there is anything to learn from are the same however many workers draw them, and no two workers draw the same. Sweeps of
the same ranges draw the same points, too, except where one begins with what another found: that point would come again.
"""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.sweep import Plan

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

STARTUP = 10
"""Trials drawn at random before TPE has enough to learn from."""
_CANDIDATES = 24
_PATIENCE = {"n_startup_trials": 5, "n_warmup_steps": 3, "interval_steps": 1, "n_min_trials": 3}
"""Of the median rule: five whole trials first, three epochs of every trial, three others that came as far."""
_HALVING = 3


def make_sampler(plan: Plan, slot: int) -> "BaseSampler":
    """The sampler of a slot."""
    from optuna.samplers import RandomSampler, TPESampler

    others = (len(plan.starts),) if len(plan.starts) > 1 else ()
    seed = int(np.random.SeedSequence(plan.seed, spawn_key=(slot, *others)).generate_state(1)[0])
    options = sampler_options(plan)
    if plan.sampler == "random":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls some of its arguments experimental
        return TPESampler(seed=seed, **options)


def sampler_options(plan: Plan) -> dict[str, Any]:
    """The arguments of a sampler, apart from its seed.

    TPE learns the knobs together for one objective and each alone for two, as Optuna 5 does; `constant_liar` keeps
    workers away from points that others are trying.
    """
    if plan.sampler == "random":
        return {}
    together = len(plan.objectives) == 1
    return {
        "n_startup_trials": STARTUP,
        "n_ei_candidates": _CANDIDATES,
        "multivariate": together,
        "constant_liar": True,
    }


def make_pruner(plan: Plan) -> "BasePruner":
    """The pruner of a sweep; one that never prunes where there is no single order to judge by."""
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    if not plan.pruning:
        return NopPruner()
    if plan.pruner == "median":
        return MedianPruner(**pruner_options(plan))
    return HyperbandPruner(**pruner_options(plan))


def pruner_options(plan: Plan) -> dict[str, Any]:
    """The arguments of a pruner."""
    if not plan.pruning:
        return {}
    if plan.pruner == "median":
        return dict(_PATIENCE)
    return {"min_resource": 1, "max_resource": plan.epochs or "auto", "reduction_factor": _HALVING}


def described(plan: Plan) -> dict[str, Any]:
    """Sampler, pruner and their versions, for the record."""
    import optuna

    return {
        "optuna": optuna.__version__,
        "sampler": plan.sampler,
        "sampler_options": sampler_options(plan),
        "pruner": plan.pruner if plan.pruning else "none",
        "pruner_options": pruner_options(plan),
    }
