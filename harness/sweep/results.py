"""What a study has found: one row per slot, the best of them, and the files that say so."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.files import write_json, write_text
from harness.report.tables import csv_text
from harness.sweep import DATABASE, Plan
from harness.sweep.joining import ENDED, FACTS
from harness.sweep.queue import Slot, all_slots, slot_of, slots
from harness.sweep.space import describe
from harness.sweep.storage import shown_address, sqlite_file

if TYPE_CHECKING:
    import pandas as pd
    from optuna import Study

_COLUMNS = ("trial", "slot", "state")
_MORE_COLUMNS = ("started", "seconds", "epochs", "attempts", "run_id", "reason")


def row_of(slot: Slot, max_retry: int) -> dict[str, Any]:
    """A slot as plain values, by the trial that counts; of a pruned trial the last value counts.

    A slot that was lost more than `max_retry` times is FAIL; one that will be put back is LOST.
    """
    trial = slot.current
    if trial is None:
        return {"trial": None, "slot": slot.number, "state": slot.state, "values": None, "params": {}}
    given_up = slot.given_up(max_retry)
    lost = f"its worker died {slot.attempts + 1} times" if given_up else None
    return {
        "trial": trial.number,
        "slot": slot.number,
        "state": "FAIL" if given_up else slot.state,
        "values": trial.values,
        "params": trial.params,
        "started": trial.datetime_start.isoformat(timespec="milliseconds") if trial.datetime_start else None,
        "seconds": round(trial.duration.total_seconds(), 3) if trial.duration else None,
        "epochs": epochs_of(slot),
        "attempts": slot.attempts + 1,
        "run_id": trial.user_attrs.get("run_id"),
        "reason": trial.user_attrs.get("reason") or lost,
    }


def epochs_of(slot: Slot) -> int | None:
    """The last epoch that was validated."""
    trial = slot.current
    if trial is None:
        return None
    told = trial.user_attrs.get("epoch")
    return int(told[0]) if told else trial.last_step


def best_slots(found: list[Slot]) -> list[Slot]:
    """Complete trials by value, best first; with two objectives those that no other beats in both, by the first one."""
    done = [slot for slot in found if slot.state == "COMPLETE"]
    if done and len(values_of(done[0])) > 1:
        unbeaten = pareto_front(np.array([values_of(slot) for slot in done]))
        done = [slot for slot, kept in zip(done, unbeaten, strict=True) if kept]
    return sorted(done, key=lambda slot: ([-value for value in values_of(slot)], slot.number))


def pareto_front(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of n points [n, 2] no other one beats: as good in both objectives and better in one. NaN rows are not."""
    points = np.asarray(values, dtype=np.float64).reshape(-1, 2)
    front = np.zeros(len(points), dtype=bool)
    order = np.lexsort((-points[:, 1], -points[:, 0]))  # best first objective first, among equals best second
    highest, last = -np.inf, None
    for place in order[np.isfinite(points[order]).all(1)]:
        first, second = points[place]
        if second > highest or (last is not None and (first, second) == last):
            front[place] = True
            highest, last = second, (first, second)
    return front


def values_of(slot: Slot) -> list[float]:
    """The objectives of a slot; empty while there are none."""
    trial = slot.current
    return list(trial.values or []) if trial else []


class Results:
    """Writes what there is into the study's folder; `write` is cheap enough to be called after every trial."""

    def __init__(self, plan: Plan, study: "Study", group: str) -> None:
        self._plan, self._study, self._group = plan, study, group

    def facts(self) -> dict[str, Any]:
        """The study as plain values."""
        plan = self._plan
        found = all_slots(self._study, plan)
        best = best_slots(found)
        return {
            "study": plan.study,
            "id": self._group,
            "method": plan.method,
            "dataset": plan.identity["dataset"]["name"],
            "objectives": list(plan.objectives),
            "identity": plan.identity,
            "storage": DATABASE if sqlite_file(plan.storage) else shown_address(plan.storage),
            "over": describe(plan.space),
            "search": self._study.user_attrs["search"],
            "best": [slot.number for slot in (best if len(plan.objectives) > 1 else best[:1])],
            "slots": [row_of(slot, plan.max_retry) for slot in found],
        }

    def write(self) -> list[Path]:
        """study.json, trials.csv and the best settings; returns what a tracker should have."""
        plan, facts = self._plan, self.facts()
        write_json(plan.folder / FACTS, facts)
        table = plan.folder / "trials.csv"
        write_text(table, _as_csv(facts, list(plan.objectives), list(plan.space)))
        return [table, *filter(_travels, self._write_best(facts))]

    def draw(self) -> list[Path]:
        """The plots."""
        from harness.sweep.plots import draw_plots, importances

        plan = self._plan
        facts = {
            "method": plan.method,
            "dataset": plan.identity["dataset"]["name"],
            "objectives": plan.objectives,
            "space": plan.space,
            "importance": importances(self._study),
        }
        return draw_plots(trials_frame(self._study, plan.max_retry), facts, plan.folder / "plots")

    def _write_best(self, facts: dict[str, Any]) -> list[Path]:
        from harness.sweep.best import write_best, write_front

        plan, search = self._plan, facts["search"]
        rows = {row["slot"]: row for row in facts["slots"]}
        best = [(rows[number]["trial"], rows[number]["params"], rows[number]["values"]) for number in facts["best"]]
        if not best:
            return []
        about = {
            "study": plan.study,
            "method": plan.method,
            "dataset": plan.dataset,
            "settings": [layer.values for layer in plan.layers[1:]] + ([{"seed": plan.seed}] if plan.seed else []),
            "space": plan.space,
            "objectives": plan.objectives,
            "sampler": f"{search['sampler']}, Optuna {search['optuna']}",
            "trials": sum(row["state"] in ENDED for row in facts["slots"]),
        }
        if len(plan.objectives) > 1:
            return write_front(plan.folder, about, best)
        number, params, values = best[0]
        return [write_best(plan.folder, {**about, "trial": number}, params, values)]


def _travels(config: Path) -> bool:
    """Whether a config may leave this machine: it names no folder of it."""
    return not any("/" in line for line in config.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))


def trials_frame(study: "Study", max_retry: int) -> "pd.DataFrame":
    """One row per slot that was begun, by the trial that counts.

    Columns: number, state, one per objective, one per range, started, seconds, and `intermediate`, pairs of epoch and
    first objective. What is not known is None.
    """
    import pandas as pd

    identity = study.user_attrs["identity"]
    objectives, ranges = list(identity["objective"]), list(identity["space"])
    count = max((slot_of(trial) for trial in study.get_trials(deepcopy=False)), default=-1) + 1
    rows = []
    for slot in slots(study, count):
        row, trial = row_of(slot, max_retry), slot.current
        if trial is None or slot.state == "WAITING":
            continue
        values = row["values"] or [None] * len(objectives)
        rows.append(
            {"number": trial.number, "state": row["state"]}
            | dict(zip(objectives, values, strict=True))
            | {name: trial.params.get(name) for name in ranges}
            | {"started": row["started"], "seconds": row["seconds"]}
            | {"intermediate": sorted(trial.intermediate_values.items())}
        )
    columns = ["number", "state", *objectives, *ranges, "started", "seconds", "intermediate"]
    return pd.DataFrame(rows, columns=columns)


def _as_csv(facts: dict[str, Any], objectives: list[str], ranges: list[str]) -> str:
    """One line per slot, for spreadsheets."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_COLUMNS, *objectives, *ranges, *_MORE_COLUMNS])
    for row in facts["slots"]:
        values = row["values"] or [None] * len(objectives)
        cells = [row[name] for name in _COLUMNS] + values + [row["params"].get(name) for name in ranges]
        cells += [row.get(name) for name in _MORE_COLUMNS]
        writer.writerow([csv_text(cell) if isinstance(cell, str) else cell for cell in cells])
    return stream.getvalue()
