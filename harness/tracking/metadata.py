"""A run log in MLflow's terms: experiment, name, tags, parameters, and valid metric names. Does not import MLflow.

Names: letters, digits and `_ - . : /` and space, at most 250, no odd paths. `@` becomes `_at_`, any other character
`_u<code>_`. An underscore that would begin such a sequence by chance is written as `_u5f_`, so that names stay unique.
A longer name is cut and ends in its hash, `_h<hash>_`, as no other name does; the full name is kept in a tag.
"""

import hashlib
import json
import os
import posixpath
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from harness.errors import DataError, UserError
from harness.runs.events import Event
from harness.runs.record import read_record
from harness.settings.layers import flatten

PARAM_LIMIT = 6000
TAG_LIMIT = 5000
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "pruned": "KILLED"}


def is_group(start: Event) -> bool:
    """Return whether a `start` event is that of a bench or a sweep, not of a run."""
    return "kind" in start


def require_start(start: Event, log: Path) -> None:
    """Raise `DataError` if a `start` event lacks a field that tracking needs."""
    try:
        experiment_name(start), run_name(start), tags_of(start), params_of(start), dataset_of(start)
        if parent := start.get("parent"):
            parent["id"], parent["kind"], parent["name"]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            "its start lacks what a run is tracked by: it cannot be sent, remove its folder", log, 1
        ) from error


def experiment_name(start: Event) -> str:
    """Return the name of the experiment: `MLFLOW_EXPERIMENT_NAME` if set, else the dataset's name."""
    own = start["experiment"] if is_group(start) else start["dataset"]["name"]
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(own)


def run_name(start: Event) -> str:
    """Return the name shown in MLflow's list of runs; distinguishing parts come first, as columns are narrow."""
    if is_group(start):
        return str(start["name"])
    config, parent = start["config"], start.get("parent") or {}
    what = parent["params"] if parent.get("kind") == "sweep" else {}
    if "trial" in what:
        point = {key: value for key, value in what.items() if key not in ("study", "trial", "slot")}
        values = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in point.items()
        )
        return f"trial {what['trial']}: {', '.join(values)}"
    unique = str(start["run_id"]).rpartition("-")[2]
    return f"{config['method']} {config['encoder']} s{config['seed']} {unique}"


def tags_of(start: Event) -> dict[str, str]:
    """Return the tags of a run or group, to search by."""
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
    known = {key: value for key, value in own.items() if value is not None}  # outside a checkout there is no commit
    return {key: str(value)[:TAG_LIMIT] for key, value in {**known, "harness.run_id": start["run_id"]}.items()}


def params_of(start: Event) -> dict[str, str]:
    """Return all settings by dotted key, as strings; for a run also its environment and encoder."""
    if is_group(start):
        return flatten(start["params"])
    encoder = {key: value for key, value in start.get("encoder", {}).items() if key != "name"}
    return {**flatten(start["config"]), **flatten({"environment": start["environment"], "encoder": encoder})}


def dataset_of(start: Event) -> dict[str, str] | None:
    """Return the fields of an MLflow dataset, with the harness's digest; None for a group."""
    if is_group(start):
        return None
    metadata = start["dataset"]
    # MLflow's digest field takes 36 characters; the full digest goes into the source
    source = {key: metadata.get(key) for key in ("digest", "filter", "propensity")}
    return {
        "name": metadata["name"],
        "digest": metadata["digest"][:36],
        "source_type": "xmc-harness",
        "source": json.dumps(source, sort_keys=True),
        "profile": json.dumps(metadata["statistics"], sort_keys=True),
    }


def description(start: Event, folder: Path, status: str, error: str | None) -> str:
    """Return a few lines of Markdown with the metrics, time and warnings of a run, or the status of a group."""
    if is_group(start):
        return f"{start['kind']} **{start['name']}** on {start['experiment']}: {status}"
    config = start["config"]
    seeds = f"encoder {config['encoder']}, seed {config['seed']}"
    lines = [f"**{config['method']}** on **{start['dataset']['name']}**, {seeds}: {status}"]
    try:
        record = read_record(folder)
    except UserError:  # there is no record yet, or it is damaged
        record = None
    figures = [f"{key} {value:.2f}" for key, value in (record.metrics if record else {}).items() if key[:1] == "P"]
    if figures:
        on = " (validation rows)" if config.get("evaluate") == "validation" else ""
        lines.append(", ".join(figures) + on)
    if record and record.seconds:
        peak = record.peak_memory_gib
        lines.append(f"{record.seconds:.0f} s" + (f", peak memory {peak:.2f} GiB" if peak else ""))
    if error:
        lines.append(error)
    lines += [f"warning: {text}" for text in (record.warnings[:5] if record else ())]
    return "\n\n".join(lines)[:TAG_LIMIT]


def milliseconds(moment: str) -> int:
    """Return a time of a log in milliseconds since 1970, as MLflow counts."""
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


LONGEST = 250
_ALLOWED = r"\w\-. :/"
_CODED = r"(?:at|u[0-9a-f]*)"
_CODE = re.compile(r"_(at|u([0-9a-f]*))_")
_CUT = re.compile(r"_h([0-9a-f]{16})_$")


def metric_name(key: str) -> str:
    """Return the name of a metric, parameter or tag as MLflow accepts it; `original_name` is the inverse."""
    name = _encoded(key, _ALLOWED)
    path = posixpath.normpath(name)
    if path != name or path.startswith(("..", "/")) or path == ".":  # MLflow refuses such paths
        name = _encoded(key, r"\w\- :")
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 19]}_h{_short_hash(key)}_"


def full_name_tag(key: str) -> dict[str, str]:
    """Return the tag with the full name of a key whose MLflow name was cut; empty for others."""
    return {f"full_name.{_short_hash(key)}": key} if _CUT.search(metric_name(key)) else {}


def original_name(name: str, tags: Mapping[str, str] | None = None) -> str:
    """Return the key of an MLflow name; the key of a cut name is looked up in the tags of the run."""
    cut = _CUT.search(name)
    if cut:
        return (tags or {}).get(f"full_name.{cut[1]}", name)
    return _CODE.sub(_decoded, name)


def _decoded(match: re.Match[str]) -> str:
    """Return the character that an escape stands for; one beyond Unicode is returned unchanged."""
    if match[1] == "at":
        return "@"
    code = int(match[2] or "0", 16)
    return "" if not match[2] else chr(code) if code <= sys.maxunicode else match[0]


def _encoded(key: str, allowed: str) -> str:
    forbidden = f"[^{allowed}]"
    by_chance = rf"_(?={_CODED}(?:_|{forbidden}))"
    like_a_cut = rf"(?:(?<=_)|(?<={forbidden}))h(?=[0-9a-f]{{16}}_\Z)"
    pieces = re.compile(f"{by_chance}|{like_a_cut}|{forbidden}", re.ASCII)
    return pieces.sub(lambda match: "_at_" if match[0] == "@" else f"_u{ord(match[0]):x}_", key) or "_u_"


def _short_hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
