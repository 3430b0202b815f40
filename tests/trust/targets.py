"""All readers of the harness that are given hostile input, by name."""

from tests.trust import targets_data, targets_models, targets_runs, targets_saved
from tests.trust.fuzzing import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for part in (targets_data, targets_runs, targets_saved, targets_models)
    for target in part.TARGETS
}
