"""What the first event of a log says in MLflow's terms: experiment, name, tags, parameters; no MLflow in here."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.config import flatten
from harness.errors import DataError, UserError
from harness.event import Event
from harness.record import read_record

PARAM_LIMIT = 6000
TAG_LIMIT = 5000
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "pruned": "KILLED"}


def is_group(start: Event) -> bool:
    """Whether this is the log of a bench or a sweep, not of a run."""
    return "kind" in start


def require_start(start: Event, log: Path) -> None:
    """Refuses a log whose first event lacks what a run or a group is tracked by."""
    try:
        experiment_name(start), run_name(start), tags_of(start), params_of(start), dataset_of(start)
        if parent := start.get("parent"):
            parent["id"], parent["kind"], parent["name"]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            "its start lacks what a run is tracked by: it cannot be sent, remove its folder", log, 1
        ) from error


def experiment_name(start: Event) -> str:
    """The dataset's name, unless `MLFLOW_EXPERIMENT_NAME` says otherwise."""
    own = start["experiment"] if is_group(start) else start["dataset"]["name"]
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(own)


def run_name(start: Event) -> str:
    """What people see in a list of runs, whose columns are narrow: what tells them apart comes first."""
    if is_group(start):
        return str(start["name"])
    config, parent = start["config"], start.get("parent") or {}
    what = parent["params"] if parent.get("kind") == "sweep" else {}
    if "trial" in what:
        point = ", ".join(f"{key} {_short(value)}" for key, value in what.items() if key not in _OF_THE_STUDY)
        return f"trial {what['trial']}: {point}"
    unique = str(start["run_id"]).rpartition("-")[2]
    return f"{config['method']} {config['encoder']} s{config['seed']} {unique}"


_OF_THE_STUDY = ("study", "trial", "slot")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tags_of(start: Event) -> dict[str, str]:
    """What people search by."""
    if is_group(start):
        own = {**start["tags"], "harness.kind": start["kind"]}
    else:
        environment, parent = start["environment"], start.get("parent") or {}
        git = environment.get("git", {})
        own = {
            "method": start["config"]["method"],
            "dataset": start["dataset"]["name"],
            "encoder": start["config"]["encoder"],
            "seed": start["config"]["seed"],
            "harness.version": environment.get("harness"),
            "git.commit": git.get("commit"),
            "git.dirty": git.get("dirty"),
            "mlflow.source.name": "python -m harness run",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": git.get("commit"),
            **{f"parent.{key}": value for key, value in flatten(parent.get("params", {})).items()},
            **({"parent": parent["name"]} if parent else {}),
        }
    known = {key: value for key, value in own.items() if value is not None}  # no commit outside a checkout
    return {key: str(value)[:TAG_LIMIT] for key, value in {**known, "harness.run_id": start["run_id"]}.items()}


def params_of(start: Event) -> dict[str, str]:
    """All settings, flat; of a run also its environment, hardware and encoder."""
    if is_group(start):
        return flatten(start["params"])
    encoder = {key: value for key, value in start.get("encoder", {}).items() if key != "name"}
    return {**flatten(start["config"]), **flatten({"environment": start["environment"], "encoder": encoder})}


def dataset_of(start: Event) -> dict[str, str] | None:
    """Fields of an MLflow dataset: metadata alone, with our digest; None for a group."""
    if is_group(start):
        return None
    facts = start["dataset"]
    # the digest field takes 36 characters; the whole one goes into the source
    source = {key: facts.get(key) for key in ("digest", "filter", "propensity")}
    return {
        "name": facts["name"],
        "digest": facts["digest"][:36],
        "source_type": "xmc-harness",
        "source": json.dumps(source, sort_keys=True),
        "profile": json.dumps(facts["statistics"], sort_keys=True),
    }


def description(start: Event, folder: Path, status: str, error: str | None) -> str:
    """A few readable lines with the numbers of a run, as Markdown."""
    if is_group(start):
        return f"{start['kind']} **{start['name']}** on {start['experiment']}: {status}"
    config = start["config"]
    seeds = f"encoder {config['encoder']}, seed {config['seed']}"
    lines = [f"**{config['method']}** on **{start['dataset']['name']}**, {seeds}: {status}"]
    try:
        record = read_record(folder)
    except UserError:  # there is none yet, or one that says nothing
        record = None
    figures = [f"{key} {value:.2f}" for key, value in (record.metrics if record else {}).items() if key[:1] == "P"]
    if figures:
        on = " (held-out rows)" if config.get("evaluate") == "validation" else ""
        lines.append(", ".join(figures) + on)
    if record and record.seconds:
        peak = record.peak_memory_gib
        lines.append(f"{record.seconds:.0f} s" + (f", peak memory {peak:.2f} GiB" if peak else ""))
    if error:
        lines.append(error)
    lines += [f"warning: {text}" for text in (record.warnings[:5] if record else ())]
    return "\n\n".join(lines)[:TAG_LIMIT]


def milliseconds(moment: str) -> int:
    """A time of a log as MLflow counts it."""
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def non_finite_text(value: Any, step: int, more: int) -> str:
    """What the tag of a figure says that was not a number."""
    return f"{value} at step {step}" + (f", and {more} times more" if more else "")
