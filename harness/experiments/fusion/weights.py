"""Weights of a fusion, chosen on validation rows and never on test rows.

A run that is scored on test rows has predictions of these alone. So each member needs a validation run: the same
method, settings and seed, trained without the validation rows and scored on them (`evaluate=validation`). All members
need the same validation rows, which settings and seed decide. The weights are one point of a grid over the simplex,
used for all rows, and the test rows are fused with it once.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness import metrics
from harness.data import Dataset
from harness.errors import UserError
from harness.experiments.fusion.members import IDS, read_predictions, recorded_config
from harness.index import TopK
from harness.index.fusion import Candidates, Value, plainest, reciprocal_ranks, scaled_scores, shares
from harness.infer.load import config_of
from harness.io.progress import progress
from harness.model import ENCODERS
from harness.report.compare import Run
from harness.runs.record import RunRecord, find_records, is_trial, runs_folder
from harness.settings.identity import before, decisive, flat, upgrade
from harness.settings.schema import RunConfig
from harness.train.inputs import validation_split

MOST = 4
"""Largest number of runs whose weights are searched: the grid grows with a power of it."""
STEPS = 10
"""Weights are multiples of 1 / STEPS."""
_SHARE = 0.1
"""Share of validation rows in the commands that make validation runs."""
_MOST_VALUES = 1 << 25
"""Largest number of values that are held for the search; beyond it, evenly spaced validation rows stand for all."""

Split = tuple[tuple[str, Any], ...]
"""Settings that decide, with the seed, which train rows are validation rows."""


@dataclass(frozen=True)
class Chosen:
    """Weights and how they were chosen; scores are the metric on the validation rows, percent."""

    weights: tuple[float, ...]
    """A weight for each member, [R]; their sum is 1."""
    validation_rows: int
    """Number of validation rows that were used."""
    score: float
    alone: tuple[float, ...]
    """Score of each member alone, [R]."""
    rrf: float
    """Score of reciprocal rank fusion."""


def validation_runs(members: list[Run], folders: list[Path]) -> list[Run]:
    """Return the validation run of each member; `UserError` with the commands that make those that are missing.

    Args:
        members: The runs on test rows.
        folders: Folders of run folders; those that the members are in are searched too.
    """
    _require_searchable([run.record for run in members])
    places = list(dict.fromkeys([*(run.folder.parent for run in members), *folders]))
    records = [one for one in find_records(places) if one.status == "finished" and is_trial(one.config)]
    found: list[dict[Split, Run]] = []
    for member in members:
        of_member = {}
        for record in records:  # oldest first: the newest of a split stays
            place = next((place for place in places if (place / record.run_id / IDS).is_file()), None)
            if place is not None and _is_validation_run(record, member.record):
                recorded_config(record)  # raises
                of_member[split_of(record)] = Run(place / record.run_id, record)
        found.append(of_member)
    own = {split_of(run.record) for run in members if _size(run.record)}
    if len(own) > 1:
        raise UserError(f"these runs were trained without different validation rows, {_listed(own)}; use --method rrf")
    known = {split: run.record.started for runs in found for split, run in runs.items()}
    usual = RunConfig().validation
    default = (
        ("validation.size", _SHARE),
        ("validation.draw", usual.draw),
        ("validation.equal_texts", usual.equal_texts),
    )
    # the split that the members have most of, then the newest
    choices = own or known or {default: ""}
    split = max(choices, key=lambda one: (sum(one in runs for runs in found), known.get(one, "")))
    missing = [member for member, runs in zip(members, found, strict=True) if split not in runs]
    if missing:
        commands = "".join(f"\n  {_command(member, split)}" for member in missing)
        raise UserError(
            "weights are chosen on validation rows, and these runs have no validation run with predictions; make "
            f"{'it' if len(missing) == 1 else 'them'} with{commands}\nor use --method rrf, which has no weights"
        )
    return [runs[split] for runs in found]


def _require_searchable(records: list[RunRecord]) -> None:
    """Raise if no weights can be chosen for these runs."""
    if len(records) > MOST:
        raise UserError(
            f"weights are searched for up to {MOST} runs, not {len(records)}; --method rrf takes any number"
        )
    if fused := [record.run_id for record in records if record.fusion]:
        raise UserError(f"run {fused[0]} is a fusion, it has no validation rows; name its runs, or use --method rrf")
    if len(seeds := sorted({record.config["seed"] for record in records})) > 1:
        listed = " and ".join(map(str, seeds))
        raise UserError(
            f"the seed decides which rows are validation rows, and these runs have seeds {listed}; name runs of one "
            "seed, or use --method rrf"
        )


def split_of(record: RunRecord) -> Split:
    """Return the settings of a run that decide, with the seed, which train rows are validation rows."""
    settings = upgrade(record.config)
    return tuple((f"validation.{name}", settings[f"validation.{name}"]) for name in ("size", "draw", "equal_texts"))


def _is_validation_run(trial: RunRecord, member: RunRecord) -> bool:
    """Return whether a run is a member's with the same data, settings and seed, but for its validation rows."""

    def names(record: RunRecord) -> list[Any]:
        config, data = record.config, record.dataset
        own = [config[name] for name in ("method", "dataset", "encoder", "seed")]
        weights = None if config["encoder"] in ENCODERS else record.encoder.get("identity")
        return [*own, weights, record.metric_version, *(data.get(key) for key in ("digest", "filter", "propensity"))]

    def settings(record: RunRecord) -> dict[str, Any]:
        own = decisive(record.config)
        return {key: value for key, value in own.items() if key != "evaluate" and not key.startswith("validation.")}

    if names(trial) != names(member) or settings(trial) != settings(member):
        return False
    return not _size(member) or _validation(trial) == _validation(member)


def _validation(record: RunRecord) -> dict[str, Any]:
    return {key: value for key, value in decisive(record.config).items() if key.startswith("validation.")}


def _size(record: RunRecord) -> float:
    """Return the validation rows of a run, as their setting has them; 0 for none."""
    return float(upgrade(record.config)["validation.size"] or 0)


def _listed(splits: set[Split]) -> str:
    return " and ".join(sorted(", ".join(f"{key}={value}" for key, value in split) for split in splits))


def _command(member: Run, split: Split) -> str:
    """Return the command that makes a member's validation run; PATH stands for a folder, recorded by name alone."""
    config, own = member.record.config, flat(member.record.config)
    # what config.json is too old to have: the value of its time, where that is not today's default
    older = {key: value for key, value in flat(before(config)).items() if key not in own}
    wanted: dict[str, Any] = {key: value for key, value in older.items() if key.startswith("params.")}
    if _size(member.record):
        wanted |= older
    else:
        usual = flat(RunConfig().model_dump(mode="json")) | own
        wanted |= {key: value for key, value in split if usual[key] != value}
        if epochs := member.record.training.get("epochs"):  # scored as the member is, after its last epoch
            wanted["validation.every_epochs"] = epochs
    settings = ["evaluate=validation", *(f"{key}={value}" for key, value in wanted.items())]
    words = ["python", "-m", "harness", "run", "--config", str(member.folder / "config.json")]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [] if member.folder.parent == runs_folder() else ["--out", str(member.folder.parent)]
    places = [f"--{key} PATH" for key in ("dataset", "encoder") if config[key].startswith("./")]
    return " ".join([*map(shlex.quote, words), *places])


def read_validation(
    runs: list[Run], dataset: Dataset, inverse: NDArray[np.float64] | None, place: str
) -> tuple[list[TopK], csr_array]:
    """Return the predictions of R validation runs, each [V, K], and the true labels of their rows, [V, L].

    Args:
        runs: The validation run of each member.
        dataset: Their dataset.
        inverse: Inverse propensities, [L]; None without propensity constants.
        place: Name or folder of the dataset on this machine.
    """
    configs = [config_of(run.record, {"dataset": place}) for run in runs]
    held = [validation_split(dataset, config)[1] for config in configs]
    assert all(np.array_equal(one, held[0]) for one in held)
    truth = dataset.train[held[0]]
    return [read_predictions(run, truth, inverse, config.ks) for run, config in zip(runs, configs, strict=True)], truth


def search_weights(
    rankings: Sequence[TopK], truth: csr_array, inverse: NDArray[np.float64] | None, metric: str
) -> Chosen:
    """Try every point of the grid on R rankings [V, K] and their truth [V, L]; return the one to take.

    Of those that are level with the best, `plainest`, the nearest to equal weights is taken, of these the first.
    """
    rows = min(truth.shape[0], max(1, _MOST_VALUES // (len(rankings) * sum(one.ids.shape[1] for one in rankings))))
    used = np.arange(rows) * truth.shape[0] // rows
    true, k = truth[used], int(metric.partition("@")[2])

    def score(ids: NDArray[np.int32]) -> float:
        return round(metrics.evaluate(ids, true, inverse, (k,))[metric], 9)  # the order of a sum decides nothing

    def collected(value: Value) -> Candidates:
        return Candidates.of(rankings, value, used)

    grid, count = shares(len(rankings), STEPS), len(rankings)
    scaled = collected(scaled_scores)
    scores, by_row = np.empty(len(grid)), []
    with progress("choose weights", len(grid), "weightings") as advance:
        for place, weights in enumerate(grid):
            ids = scaled.best(weights, k)[0]
            scores[place] = score(ids)
            by_row.append(metrics.per_row(ids, true, inverse, (k,)).get(metric))
            advance(1)
    unequal = np.round(((grid - 1 / count) ** 2).sum(1), 9)
    best = plainest(scores.tolist(), by_row, unequal.tolist())
    alone = [float(scores[int(np.flatnonzero(grid[:, member] == 1)[0])]) for member in range(count)]
    rrf = score(collected(reciprocal_ranks).best([1.0] * count, k)[0])
    return Chosen(tuple(map(float, grid[best])), rows, float(scores[best]), tuple(alone), rrf)
