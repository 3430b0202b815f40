"""What a study leaves in its folder: study.json, trials.csv, plots, the log of its group run, and the best settings.

best.yaml holds what the user typed and what the best trial drew, and nothing else: method and card bring the rest, as
they did for the trial. `evaluate` and `validation` stay out, so that the final run trains on all train rows and looks
at the test rows once.
"""

import csv
import io
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from harness.experiments.sweep import DATABASE, STUDY_FILE, WRITER_LOCK, Plan
from harness.experiments.sweep.space import Value, describe, settings_of
from harness.experiments.sweep.study import shown_address, sqlite_file
from harness.experiments.sweep.trials import ENDED, Slot, best_slots, slots
from harness.io.files import write_bytes, write_json, write_text
from harness.io.printable import printable
from harness.io.yaml import format_yaml
from harness.report.tables import csv_text
from harness.runs.events import LOG, LogReader
from harness.runs.log import GroupLog
from harness.settings.layers import Layer, merge
from harness.settings.schema import RunConfig
from harness.tracking import make_tracker
from harness.tracking.uploader import wait_for

if TYPE_CHECKING:
    from optuna import Study

BEST = "best.yaml"
_PLOT_SECONDS = 60.0
"""Seconds between two drawings of the plots."""
_COLUMNS = ("trial", "slot", "state")
_MORE_COLUMNS = ("started", "seconds", "epochs", "attempts", "run_id", "reason")
_OF_TRIALS = ("evaluate", "validation")


class Results:
    """Writes the results of a study into its folder; `write` is cheap enough to be called after every trial.

    A sweep calls `note` while it runs and `close` at the end. Several sweeps of one machine may work on one study: one
    of them writes its folder, and if that one ends first, the next.
    """

    def __init__(self, plan: Plan, study: "Study", group: str) -> None:
        self._plan, self._study, self._group = plan, study, group
        self._lock = FileLock(plan.folder / WRITER_LOCK, timeout=0)
        self._log: GroupLog | None = None
        self._ended: set[int] = set()
        self._drawn = time.monotonic()

    def as_dict(self) -> dict[str, Any]:
        """Return the study as plain values, the content of study.json."""
        plan = self._plan
        found = slots(self._study, plan, beyond=True)
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
            "slots": [slot.as_dict() for slot in found],
        }

    def write(self) -> list[Path]:
        """Write study.json, trials.csv and the best settings; returns the files to upload to MLflow."""
        plan, metadata = self._plan, self.as_dict()
        write_json(plan.folder / STUDY_FILE, metadata)
        table = plan.folder / "trials.csv"
        write_text(table, _as_csv(metadata, list(plan.space)))
        best = write_best(plan, metadata)
        return [table, *(path for path, text in best.items() if "/" not in text)]  # none with paths of this machine

    def draw(self) -> list[Path]:
        """Draw every plot that the study has data for; one that fails is reported and left out. Returns the files.

        history, slice, parallel, importance; intermediate with one objective, pareto with two. Plots of a second
        objective end in -2.
        """
        from harness.report.figures.style import as_png, in_style
        from harness.report.figures.sweep import study_plots
        from harness.report.results import warn

        written = []
        with in_style():
            for stem, figure in study_plots(self._study, list(self._plan.objectives)).items():
                try:
                    content = as_png(figure)
                except (ArithmeticError, RuntimeError, ValueError) as error:  # no picture is worth a finished search
                    warn(f"the plot {stem} of study {self._plan.study!r} could not be drawn: {error}")
                    continue
                written.append(self._plan.folder / "plots" / f"{stem}.png")
                write_bytes(written[-1], content)
        return written

    def note(self, found: list[Slot]) -> None:
        """Log trials that have ended since the last call."""
        log = self._open()
        ended = {slot.number for slot in found if slot.ended}
        if log is None or ended == self._ended:
            return
        names = self._plan.objectives
        for slot in found:
            if slot.number in ended - self._ended and (trial := slot.current):
                log.event("trial", trial=trial.number, slot=slot.number, state=slot.state, params=trial.params)
                if slot.values:
                    figures = zip((f"trial/{name}" for name in names), slot.values, strict=True)
                    log.metrics(dict(figures), slot.number)
        self._ended = ended
        if best := best_slots(found):
            # of two objectives the best of each, maybe of different trials
            columns = zip(*(slot.values for slot in best), strict=True)
            highest = {f"best/{name}": max(column) for name, column in zip(names, columns, strict=True)}
            log.metrics(highest | {"trials/ended": float(len(ended))}, len(ended))
        self._send(log, draw=time.monotonic() - self._drawn > _PLOT_SECONDS)

    def close(self, error: BaseException | None) -> None:
        """Write the last results and plots and end the group run; `error` is what ended the sweep early, or None."""
        if self._log is None:
            return
        try:
            self._send(self._log, draw=True)
        finally:
            wait_for(self._plan.runs.glob("*/"))  # workers end before all their events are in MLflow
            self._log.__exit__(type(error) if error else None, error, None)
            self._log = None
            self._lock.release()

    def _open(self) -> GroupLog | None:
        """Return the study's log, opened if needed; None if another sweep writes the folder."""
        if self._log is not None:
            return self._log
        try:
            self._lock.acquire()
        except Timeout:
            return None
        plan, search = self._plan, self._study.user_attrs["search"]
        events = LogReader(plan.folder / LOG).read() if (plan.folder / LOG).exists() else []
        self._ended = {event["slot"] for event in events if event["event"] == "trial"}
        # only the machine that began the study uploads its group run; two would end it twice
        here = self._study.user_attrs.get("host") == socket.gethostname()
        dataset, config = plan.identity["dataset"]["name"], plan.identity["config"]
        params = {
            "method": plan.method,
            "dataset": dataset,
            "encoder": config["encoder"],
            "over": ",".join(plan.space),
            "ranges": "; ".join(describe(plan.space)),
            "objective": ",".join(plan.objectives),
            "trials": plan.trials,
            "seed": plan.seed,
            "validation.size": config["validation"]["size"],
            "max_retry": plan.max_retry,
            **search,
        }
        self._log = GroupLog(
            plan.folder,
            "sweep",
            self._group,
            experiment=dataset,
            name=plan.study,
            params=params,
            tags={"method": plan.method, "optuna": search["optuna"], "sampler": search["sampler"]},
            tracker=make_tracker(plan.track if here else "none"),
        ).__enter__()
        self._send(self._log, draw=False)
        return self._log

    def _send(self, log: GroupLog, draw: bool) -> None:
        files = self.write()
        if draw:
            files += self.draw()
            self._drawn = time.monotonic()
        for path in files:
            log.artifact(path)


def write_best(plan: Plan, metadata: Mapping[str, Any]) -> dict[Path, str]:
    """Write best.yaml; with two objectives also pareto-<trial>.yaml for every trial on the Pareto front.

    Files of trials that another one has beaten since are removed. `metadata` are those of `Results.as_dict`; returns
    the settings in each file, as YAML.
    """
    rows = {row["slot"]: row for row in metadata["slots"]}
    best = [rows[number] for number in metadata["best"]]
    files = {plan.folder / BEST: ("Best trial", best[0])} if best else {}
    if len(plan.objectives) > 1:
        front = {plan.folder / f"pareto-{row['trial']}.yaml": ("On the Pareto front", row) for row in best}
        for stale in set(plan.folder.glob("pareto-*.yaml")) - front.keys():
            stale.unlink(missing_ok=True)
        files |= front
    search, ended = metadata["search"], sum(row["state"] in ENDED for row in metadata["slots"])
    written = {}
    for path, (what, row) in files.items():
        scores = ", ".join(f"{name} {value:.4f}" for name, value in zip(plan.objectives, row["values"], strict=True))
        comments = [
            f"{what} of the study {plan.study}: trial {row['trial']}, {ended} trials ended.",
            f"On validation rows, in percent: {scores}.",
            "That is its best epoch's value, chosen by the first objective; a run on all rows reports its last epoch.",
            f"Sampler: {search['sampler']}, Optuna {search['optuna']}.",
            f"Train on all rows and look at the test rows once: python -m harness run --config {path.name}",
        ]
        written[path] = format_yaml(best_settings(plan, row["params"]))
        text = "".join(f"# {' '.join(printable(comment).split())}\n" for comment in comments)  # one line each
        write_text(path, f"{text}\n{written[path]}")
    return written


def best_settings(plan: Plan, params: Mapping[str, Value]) -> dict[str, Any]:
    """Return the settings of a final run with a trial's drawn values, nested."""
    typed = [layer.values for layer in plan.layers[1:]] + ([{"seed": plan.seed}] if plan.seed else [])
    merged, _ = merge(Layer("", _parameters_apart(values)) for values in (*typed, settings_of(params, plan.space)))
    kept = {key: value for key, value in merged.items() if key not in (*_OF_TRIALS, "params")}
    parameters = {"params": merged["params"]} if merged.get("params") else {}
    if merged.get("params", {}).get("scorer") == "fused":  # the final run chooses its weight, too
        drawn = {key: value for key, value in merged.get("validation", {}).items() if key in ("draw", "equal_texts")}
        kept["validation"] = {"metric": plan.objectives[0], **drawn}
    return {"method": plan.method, "dataset": plan.dataset, **kept, **parameters}


def _parameters_apart(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with every parameter of the method under `params`, whichever way it was written."""
    own = {key: value for key, value in values.items() if key not in RunConfig.model_fields}
    rest = {key: value for key, value in values.items() if key not in own}
    return {**rest, "params": {**rest.get("params", {}), **own}} if own else rest


def _as_csv(metadata: dict[str, Any], ranges: list[str]) -> str:
    """Format one line per slot as CSV."""
    stream, objectives = io.StringIO(), metadata["objectives"]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_COLUMNS, *objectives, *ranges, *_MORE_COLUMNS])
    for row in metadata["slots"]:
        values = row["values"] or [None] * len(objectives)
        cells = [row[name] for name in _COLUMNS] + values + [row["params"].get(name) for name in ranges]
        cells += [row.get(name) for name in _MORE_COLUMNS]
        writer.writerow([csv_text(cell) if isinstance(cell, str) else cell for cell in cells])
    return stream.getvalue()
