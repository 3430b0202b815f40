"""Metadata of a run that is known before it begins; folders are recorded by name, never by path."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.runs.environment import environment
from harness.runs.record import new_run_id, utc_now
from harness.settings.schema import RunConfig

if TYPE_CHECKING:
    from harness.data import Dataset

_PATH = re.compile(r"""[^\s=:,'"{}\[\]]*/([^/\s,'"{}\[\]]+)/?""")


def start_metadata(
    config: RunConfig,
    dataset: "Dataset",
    validation_rows: int,
    encoder: dict[str, Any],
    device: str,
    metric_version: int,
) -> dict[str, Any]:
    """Return the fields of a record that are known at the start; `encoder` has dim, max_len and identity."""
    return {
        "run_id": new_run_id(config.method, dataset.name, config.seed),
        "started": utc_now(),
        "config": recorded(config),
        "dataset": describe(dataset, config) | {"validation_rows": validation_rows},
        "encoder": {"name": recorded_name(config.encoder), **encoder},
        "metric_version": metric_version,
        "environment": environment(device),
    }


def recorded(config: RunConfig) -> dict[str, Any]:
    """Return a config as recorded: as plain values, with folders by name."""
    options = dict(config.encoder_options)
    if "teacher" in options:
        options["teacher"] = recorded_name(options["teacher"])
    names = {"dataset": recorded_name(config.dataset), "encoder": recorded_name(config.encoder)}
    return config.model_dump(mode="json") | names | {"encoder_options": options}


def recorded_name(name: str) -> str:
    """Return a name unchanged, and the path of a folder as `./` and its last part."""
    return name if "/" not in name else f"./{Path(os.path.normpath(Path(name).absolute())).name}"


def recorded_setting(text: str) -> str:
    """Return a setting as typed with folders by name: `encoder=/data/models/small` becomes `encoder=./small`."""
    return _PATH.sub(r"./\1", text)


def recorded_origins(origins: dict[str, str]) -> dict[str, str]:
    """Return the origins of settings with the folders in typed settings by name."""
    return {key: recorded_setting(text) if text.startswith("--set ") else text for key, text in origins.items()}


def describe(dataset: "Dataset", config: RunConfig) -> dict[str, Any]:
    """Return the record's description of the dataset."""
    propensity = dataset.card.propensity
    return {
        "name": dataset.name,
        "title": dataset.card.title,
        "version": dataset.card.version,
        "digest": dataset.digest,
        "statistics": dataset.metadata["statistics"],
        "propensity": propensity.model_dump() if propensity else None,
        "filter": config.filter and bool(dataset.test_filter.nnz),
    }
